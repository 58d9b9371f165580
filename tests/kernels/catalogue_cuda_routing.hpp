/// \file
/// Shapes of the mixture-of-experts operators and of KDA for the typed CUDA test, and the routings under which each is called: experts without
/// rows, all rows on one, fewer rows than planned, copies dropped, a balancing loss.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda.hpp"
#include "kernels/grouped_linear/fp8.hpp"
#include "kernels/grouped_linear/mxfp4.hpp"
#include "kernels/reference.hpp"
#include "tests/kernels/call_data.hpp"
#include "tests/kernels/stored_formats.hpp"

namespace moeplan::test {

inline std::vector<Op> expert_cases() {
  using namespace op;
  constexpr auto full = Training::full, lora = Training::lora;
  return {Router{.tokens = 70, .hidden = 7168, .experts = 256, .top_k = 8, .score = RouterScore::sigmoid, .groups = 8, .top_groups = 4, .score_bias = true, .route_scale = 2.5},
          Router{.tokens = 257, .hidden = 2304, .experts = 64, .top_k = 6, .training = full},
          Router{.tokens = 33, .hidden = 512, .experts = 896, .top_k = 16, .score = RouterScore::sigmoid, .score_bias = true, .training = full},
          Router{.tokens = 129, .hidden = 264, .experts = 160, .top_k = 6, .groups = 8, .top_groups = 3, .normalise = false, .route_scale = 16},
          Router{.tokens = 67, .hidden = 4096, .experts = 16, .top_k = 2, .score = RouterScore::sparse_mixer, .normalise = false, .training = full, .jitter = 0.05},
          Router{.tokens = 9, .hidden = 64, .experts = 70, .top_k = 5, .score = RouterScore::sparse_mixer, .normalise = false, .training = full, .route_scale = 2, .jitter = 0.5},
          Router{.tokens = 65, .hidden = 72, .experts = 33, .top_k = 4, .score = RouterScore::sigmoid, .score_bias = true, .zero_experts = 5, .training = full},
          Router{.tokens = 66, .hidden = 136, .experts = 48, .top_k = 5, .score = RouterScore::sqrt_softplus, .hash_vocabulary = 99, .training = full},
          Router{.tokens = 19, .hidden = 37, .experts = 21, .top_k = 3, .bias = true, .training = full},
          Router{.tokens = 1, .hidden = 8, .experts = 1, .top_k = 1},
          Permute{257, 8, 264, 64}, Permute{1001, 1, 40, 3}, Permute{300, 4, 2880, 1024}, Permute{37, 1, 16, 1}, Permute{64, 2, 7168, 2}, Permute{1, 1, 8, 5},
          Combine{301, 8, 264}, Combine{65, 2, 7168, false}, Combine{33, 6, 2880}, Combine{1, 1, 8},
          GroupedLinear{300, 4, 256, 512}, GroupedLinear{131, 3, 2880, 264, true}, GroupedLinear{77, 5, 136, 200, true, DType::bf16, full}, GroupedLinear{1000, 3, 128, 256},
          GroupedLinear{190, 3, 512, 256, false, DType::bf16, lora, 16, false, 2}, GroupedLinear{190, 3, 256, 264, true, DType::bf16, lora, 64, true, 0.7},
          GroupedLinear{64, 8, 128, 64}, GroupedLinear{33, 2, 128, 192, true, DType::mxfp4}, GroupedLinear{129, 3, 192, 320, false, DType::mxfp4, lora, 8, false, 0.5},
          GroupedLinear{65, 2, 64, 64, false, DType::mxfp4, lora, 16, true, 1}, GroupedLinear{1, 1, 8, 8}, GroupedLinear{0, 3, 16, 24, true, DType::bf16, lora, 8},
          GroupedLinear{0, 3, 16, 24, true, DType::bf16, full}, GroupedLinear{130, 3, 136, 256, true, DType::fp8, lora, 16, false, 2}, GroupedLinear{77, 2, 64, 128, false, DType::fp8},
          GroupedLinear{300, 3, 320, 384, true, DType::fp8, lora, 16, false, 2}, GroupedLinear{190, 2, 192, 256, false, DType::fp8, lora, 80, true, 0.5}, GroupedLinear{900, 2, 64, 128, true, DType::fp8, lora, 8, false, 1},
          GroupedLinear{1700, 2, 192, 128, false, DType::fp8},
          GroupedLinear{65, 2, 72, 40, true, DType::mxfp4, lora, 8, false, 0.5}, GroupedLinear{33, 3, 96, 40, false, DType::int4, lora, 8, true, 1}, GroupedLinear{40, 2, 264, 24, true, DType::int8},
          Kda{.tokens = 130, .sequence_length = 65, .heads = 2, .head_dim = 128}, Kda{.tokens = 200, .sequence_length = 77, .heads = 1, .head_dim = 64, .bounded = true, .training = full},
          Kda{.tokens = 300, .sequence_length = 300, .heads = 3, .head_dim = 128, .packed_sequences = 3, .training = full}, Kda{.tokens = 1, .sequence_length = 1, .heads = 1, .head_dim = 64},
          Kda{.tokens = 0, .sequence_length = 4, .heads = 2, .head_dim = 64, .training = full}, Kda{.tokens = 4096, .sequence_length = 4096, .heads = 1, .head_dim = 64, .bounded = true}};
}

/// What a call is told besides its operands, on both sides.
struct Routing {
  std::vector<std::int64_t> rows_of_expert{};
  std::int64_t capacity = 0;
  double auxiliary = 0;
  kernels::DeviceBuffer counts{};

  [[nodiscard]] reference::Ragged host() const { return {.rows_of_expert = rows_of_expert, .capacity = capacity, .auxiliary = auxiliary}; }
  [[nodiscard]] cuda::Ragged device() {
    if (!rows_of_expert.empty()) counts = kernels::DeviceBuffer::of(std::vector<std::int32_t>(rows_of_expert.begin(), rows_of_expert.end()));
    return {.rows_of_expert = counts.get<std::int32_t>(), .capacity = capacity, .auxiliary = auxiliary};
  }
  [[nodiscard]] std::string name() const {
    std::string text;
    for (const auto rows : rows_of_expert) text += (text.empty() ? " rows " : ", ") + std::to_string(rows);
    if (capacity > 0) text += " capacity " + std::to_string(capacity);
    if (auxiliary > 0) text += " auxiliary " + std::to_string(auxiliary);
    return text;
  }
};

inline std::vector<Routing> routings(const Op& op) {
  std::vector<Routing> out(1);
  if (const auto* linear = std::get_if<op::GroupedLinear>(&op); linear != nullptr && linear->rows > 0) {
    const auto experts = static_cast<std::size_t>(linear->experts);
    std::vector<std::int64_t> one(experts, 0), uneven(experts, 0);
    one.back() = linear->rows;
    out.push_back({.rows_of_expert = one});
    for (std::size_t e = 1; e < experts; ++e) uneven[e] = e + 1 < experts ? linear->rows / (2 * linear->experts) : linear->rows / 3;   // none on the first, rows left over
    out.push_back({.rows_of_expert = uneven});
  }
  if (const auto* permute = std::get_if<op::Permute>(&op)) out.push_back({.capacity = permute->tokens * permute->top_k / permute->experts / 2 + 1});
  if (std::holds_alternative<op::Router>(op)) out.push_back({.auxiliary = 0.5});
  return out;
}

/// A stack of matrices as the rows of one.
inline Operand stacked(Operand o) {
  const std::int64_t columns = o.shape[o.shape.rank - 1];
  o.shape = {o.shape.elements() / columns, columns};
  return o;
}
/// Block-quantised weights: any codes, scales around one.
inline Raw stored_weight(const Operand& o) {
  Raw raw = random_stored(stacked(o));
  const Operand flat = stacked(o);
  const StoredMatrix matrix{flat.dtype, flat.shape[0], flat.shape[1], raw};
  for (auto at = static_cast<std::size_t>(matrix.payload()); o.dtype == DType::mxfp4 && at < raw.size(); ++at) raw[at] = static_cast<std::uint8_t>(124 + raw[at] % 5);
  return raw;
}
/// The first bytes of MXFP4 or FP8 weights, in the order that the kernels read.
inline void arrange(DType type, Raw& raw, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 16) {
    if (type == DType::fp8) {
      std::array<std::uint8_t, 16> columns;
      std::memcpy(columns.data(), raw.data() + at, 16);
      for (int c = 0; c < 16; ++c) raw[static_cast<std::size_t>(at + kernels::grouped_linear::fp8::place(c))] = columns[static_cast<std::size_t>(c)];
      continue;
    }
    std::uint32_t stored[4], arranged[4];
    std::memcpy(stored, raw.data() + at, 16);
    kernels::grouped_linear::mxfp4::arrange(stored, arranged);
    std::memcpy(raw.data() + at, arranged, 16);
  }
}

/// ||values - want|| / ||want||; NaN if anything is NaN.
inline double relative_norm(const std::vector<double>& values, const std::vector<double>& want, std::size_t count) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < count; ++i) difference += (values[i] - want[i]) * (values[i] - want[i]), size += want[i] * want[i];
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

}  // namespace moeplan::test
