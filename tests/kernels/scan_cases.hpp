/// \file
/// Shapes for Mamba-2, lightning attention and Mamba-1 on the device, and how far chunks whose factors are bf16 may be
/// off: sequences that begin in chunks, at their edges and at every token, one chunk and many, widths below, between
/// and at those that the kernels are padded to, heads that share a group among blocks.
#pragma once

#include <vector>

#include "kernels/catalogue.hpp"

namespace moeplan::test {

inline std::vector<Op> scan_cases() {
  using namespace op;
  constexpr auto full = Training::full;
  return {
      Mamba2{.tokens = 300, .sequence_length = 300, .heads = 4, .head_dim = 64, .groups = 2, .state = 128},
      Mamba2{.tokens = 700,
             .sequence_length = 130,
             .heads = 2,
             .head_dim = 64,
             .groups = 1,
             .state = 128,
             .training = full},
      Mamba2{.tokens = 257, .sequence_length = 257, .heads = 3, .head_dim = 40, .groups = 3, .state = 72},
      Mamba2{.tokens = 400,
             .sequence_length = 400,
             .heads = 8,
             .head_dim = 64,
             .groups = 2,
             .state = 64,
             .packed_sequences = 5,
             .training = full},
      Mamba2{
          .tokens = 260, .sequence_length = 1, .heads = 2, .head_dim = 16, .groups = 1, .state = 16, .training = full},
      Mamba2{.tokens = 260,
             .sequence_length = 400,
             .heads = 16,
             .head_dim = 128,
             .groups = 1,
             .state = 64,
             .training = full},
      Mamba2{.tokens = 140, .sequence_length = 70, .heads = 2, .head_dim = 65, .groups = 1, .state = 127},
      Mamba2{.tokens = 1500,
             .sequence_length = 1500,
             .heads = 2,
             .head_dim = 24,
             .groups = 2,
             .state = 32,
             .training = full},
      Mamba2{.tokens = 0, .sequence_length = 4, .heads = 2, .head_dim = 8, .groups = 1, .state = 8, .training = full},
      op::LightningAttention{.tokens = 300, .sequence_length = 300, .heads = 2, .head_dim = 128, .total_heads = 64},
      op::LightningAttention{.tokens = 900, .sequence_length = 77, .heads = 3, .head_dim = 64},
      op::LightningAttention{
          .tokens = 700, .sequence_length = 700, .heads = 2, .head_dim = 96, .total_heads = 8, .first_head = 6},
      op::LightningAttention{.tokens = 256, .sequence_length = 128, .heads = 1, .head_dim = 33, .decay = 0.5},
      Mamba1{.tokens = 300, .sequence_length = 300, .inner = 64, .state = 16, .training = full},
      Mamba1{.tokens = 200, .sequence_length = 77, .inner = 264, .state = 16, .training = full},
      Mamba1{.tokens = 130, .sequence_length = 130, .inner = 100, .state = 5},
      Mamba1{.tokens = 70, .sequence_length = 1, .inner = 8, .state = 16, .training = full},
      Mamba1{.tokens = 1000, .sequence_length = 1000, .inner = 520, .state = 16, .training = full},
      Mamba1{.tokens = 128, .sequence_length = 64, .inner = 72, .state = 8},
      Mamba1{.tokens = 0, .sequence_length = 4, .inner = 8, .state = 4, .training = full},
      // Several heads of a group in one block: three of three, and three of six in each of two.
      Mamba2{.tokens = 300, .sequence_length = 300, .heads = 3, .head_dim = 64, .groups = 1, .state = 128},
      Mamba2{.tokens = 300,
             .sequence_length = 300,
             .heads = 6,
             .head_dim = 64,
             .groups = 1,
             .state = 128,
             .training = full},
      op::LightningAttention{
          .tokens = 400, .sequence_length = 400, .heads = 2, .head_dim = 128, .total_heads = 8, .packed_sequences = 5},
      op::LightningAttention{.tokens = 300, .sequence_length = 300, .heads = 1, .head_dim = 64, .packed_sequences = 70},
      Mamba1{.tokens = 400,
             .sequence_length = 400,
             .inner = 264,
             .state = 16,
             .packed_sequences = 5,
             .training = full},
      Mamba1{.tokens = 300, .sequence_length = 300, .inner = 72, .state = 8, .packed_sequences = 70}};
}

/// Of an operator that works on chunks with bf16 factors: the limit of the error's norm over the result's. 0: judged
/// element by element.
inline double chunked_limit(const Op& op, const Operand& o) {
  if (std::holds_alternative<op::Kda>(op) || std::holds_alternative<op::GatedDeltaNet>(op))  // as in kda/cuda_test.cpp
    return o.name == "a_log" ? 5e-2 : o.name == "dt_bias" ? 2e-2 : 1e-2;
  if (std::holds_alternative<op::Mamba1>(op))
    return o.dtype == DType::f32 ? 1e-6 : 0;  // fp32 all through, sums of thousands; 2.2e-7 was seen
  if (!std::holds_alternative<op::Mamba2>(op) && !std::holds_alternative<op::LightningAttention>(op)) return 0;
  if (o.name == "d") return 1e-6;  // products of bf16, summed in fp32; 2e-7 was seen
  return 4e-3;  // states, weights of pairs and the result are each rounded to bf16, 1.6e-3 in the mean; 2.7e-3 was seen
}

}  // namespace moeplan::test
