/// \file
/// Shapes for the CUDA kernels beside each operator's own `cases()`: every mapping (part of a warp, warp, block), widths that are no multiple
/// of 8, single elements, real widths, more rows than blocks that write partial sums.
#pragma once

#include <vector>

#include "kernels/catalogue.hpp"

namespace moeplan::test {

inline std::vector<Op> norm_cases() {
  using namespace op;
  constexpr auto full = Training::full;
  return {RmsNorm{1, 3}, RmsNorm{3, 7168, true, true, full, true}, RmsNorm{2, 16384}, RmsNorm{5, 4095, true, true, full}, RmsNorm{301, 128, false, true, full},
          RmsNorm{70, 264, true, true, full}, RmsNorm{9, 2056, true}, RmsNorm{600, 8, false, true, full}, RmsNorm{300, 1024, false, true, full}, RmsNorm{2113, 33, false, true, full},
          RmsNorm{17, 2304, true, false},
          GatedRmsNorm{301, 128, 1, GateFunction::silu, false, full}, GatedRmsNorm{19, 4096, 8, GateFunction::silu, true, full}, GatedRmsNorm{5, 7168, 1, GateFunction::sigmoid, true, full},
          GatedRmsNorm{290, 264, 1, GateFunction::identity, false, full}, GatedRmsNorm{4, 3001, 1, GateFunction::sigmoid}, GatedRmsNorm{33, 63, 7, GateFunction::sigmoid, false, full},
          LayerNorm{301, 128, true, full}, LayerNorm{7, 7168, true, full}, LayerNorm{5, 4095, false, full}, LayerNorm{2, 1}, LayerNorm{70, 264, true, full}, LayerNorm{300, 1032},
          AttentionResidual{70, 264, 3, full}, AttentionResidual{7, 7168, 8}, AttentionResidual{301, 8, 2, full}, AttentionResidual{5, 7168, 16, full}, AttentionResidual{3, 1001, 2, full},
          HyperExpand{33, 264, 4}, HyperExpand{3, 257, 3}};
}

inline std::vector<Op> pointwise_cases() {
  using namespace op;
  std::vector<Op> out{Add{1, 1}, Add{3, 7}, Add{1030, 257, true, 0.22}, Add{40, 7168}};
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::relu2, Activation::situ, Activation::clamped_swiglu})
    for (const bool interleaved : {false, true}) {
      out.emplace_back(Glu{13, 264, activation, interleaved, false, 4, 25, 1.702, 0.7});
      out.emplace_back(Glu{3, 33, activation, interleaved, false, 0.3, 0.2, 1.702, 0.7});
    }
  out.emplace_back(Glu{2, 1});
  for (const Function function : {Function::silu, Function::gelu, Function::relu2, Function::sigmoid, Function::tanh})
    for (const DType output : {DType::bf16, DType::f32}) out.emplace_back(Activate{13, 517, function, output});
  for (const DType from : {DType::f32, DType::bf16, DType::f16})
    for (const DType to : {DType::f32, DType::bf16, DType::f16}) out.emplace_back(Cast{13, 517, from, to});
  for (const Op& each : std::vector<Op>{MulGate{301, 7168, 1}, MulGate{33, 8192, 64}, MulGate{9, 24, 8}, MulGate{5, 4095, 1}, MulGate{70, 264, 264}, MulGate{5, 257, 257, GateFunction::silu, DType::f32},
                                        MulGate{65, 1024, 4, GateFunction::identity, DType::f32}, Split{301, 64, 128, 64}, Split{33, 1, 4096, 512, 64}, Split{5, 3, 7, 9, 1, 2}, Join{301, 64, 128, 64},
                                        Join{33, 3, 5, 11}})
    out.push_back(each);
  return out;
}

inline std::vector<Op> rope_cases() {
  using op::Rope;
  std::vector<Op> out;
  for (const bool trailing : {false, true})
    for (const bool interleaved : {false, true}) {
      out.emplace_back(Rope{.tokens = 33, .heads = 64, .head_dim = 192, .rotary_dim = 64, .sequence_length = 20, .trailing = trailing, .interleaved = interleaved});
      out.emplace_back(Rope{.tokens = 50, .heads = 3, .head_dim = 20, .rotary_dim = 6, .sequence_length = 9, .positions = true, .trailing = trailing, .interleaved = interleaved});
      out.emplace_back(Rope{.tokens = 200, .heads = 1, .head_dim = 64, .rotary_dim = 64, .sequence_length = 200, .positions = true, .trailing = trailing, .interleaved = interleaved});
    }
  out.emplace_back(Rope{.tokens = 7, .heads = 8, .head_dim = 128, .rotary_dim = 128, .sequence_length = 4096, .positions = true, .yarn_factor = 40, .yarn_original = 4096, .magnitude = 1.2});
  out.emplace_back(Rope{.tokens = 7, .heads = 2, .head_dim = 64, .rotary_dim = 64, .sequence_length = 7, .yarn_factor = 32, .yarn_original = 4096, .yarn_truncate = false});
  out.emplace_back(Rope{.tokens = 7, .heads = 8, .head_dim = 128, .rotary_dim = 128, .sequence_length = 7, .theta = 5e5, .yarn_factor = 8, .yarn_original = 8192, .yarn_beta_fast = 4, .yarn_beta_slow = 1, .ramp_in_turns = true});
  out.emplace_back(Rope{.tokens = 5, .heads = 2, .head_dim = 512, .rotary_dim = 512, .sequence_length = 5, .inverse = true});
  out.emplace_back(Rope{.tokens = 5, .heads = 1, .head_dim = 2, .rotary_dim = 2, .sequence_length = 5});
  return out;
}

/// Every padded head size with lengths around the tiles, groups, windows, sinks, softcaps, packing, keys before the queries, shared keys.
inline std::vector<Op> attention_cases() {
  using op::Attention;
  constexpr auto full = Training::full;
  std::vector<Op> out;
  for (const std::int64_t length : {1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 256, 257}) {
    out.emplace_back(Attention{.tokens = length, .sequence_length = length, .heads = 2, .kv_heads = 1, .d_qk = 128, .d_v = 128});
    out.emplace_back(Attention{.tokens = length, .sequence_length = length, .heads = 2, .kv_heads = 2, .d_qk = 192, .d_v = 128, .shared_key = 64});
  }
  for (const Attention& each : {
           Attention{.tokens = 200, .sequence_length = 200, .heads = 4, .kv_heads = 2, .d_qk = 64, .d_v = 64},
           Attention{.tokens = 150, .sequence_length = 150, .heads = 2, .kv_heads = 1, .d_qk = 256, .d_v = 256},
           Attention{.tokens = 150, .sequence_length = 75, .heads = 4, .kv_heads = 1, .d_qk = 64, .d_v = 64, .window = 40, .sinks = true, .training = full},
           Attention{.tokens = 150, .sequence_length = 150, .heads = 4, .kv_heads = 2, .d_qk = 512, .d_v = 512},
           Attention{.tokens = 130, .sequence_length = 65, .heads = 2, .kv_heads = 1, .d_qk = 320, .d_v = 257, .window = 40, .sinks = true, .training = full},
           Attention{.tokens = 201, .sequence_length = 66, .heads = 2, .kv_heads = 2, .d_qk = 64, .d_v = 384, .packed_sequences = 3},
           Attention{.tokens = 66, .sequence_length = 100, .heads = 1, .kv_heads = 1, .d_qk = 264, .d_v = 64, .kv_tokens = 100, .softcap = 2},
           Attention{.tokens = 390, .sequence_length = 390, .heads = 2, .kv_heads = 1, .d_qk = 128, .d_v = 128, .window = 100, .sinks = true, .training = full},
           Attention{.tokens = 300, .sequence_length = 300, .heads = 2, .kv_heads = 2, .d_qk = 192, .d_v = 128, .window = 70, .shared_key = 64},
           Attention{.tokens = 300, .sequence_length = 100, .heads = 3, .kv_heads = 3, .d_qk = 128, .d_v = 128, .packed_sequences = 3},
           Attention{.tokens = 470, .sequence_length = 67, .heads = 4, .kv_heads = 2, .d_qk = 128, .d_v = 128, .sinks = true, .packed_sequences = 7, .training = full},
           Attention{.tokens = 331, .sequence_length = 66, .heads = 3, .kv_heads = 3, .d_qk = 192, .d_v = 128, .shared_key = 64, .packed_sequences = 5},
           Attention{.tokens = 257, .sequence_length = 257, .heads = 2, .kv_heads = 1, .d_qk = 128, .d_v = 128, .causal = false},
           Attention{.tokens = 257, .sequence_length = 130, .heads = 2, .kv_heads = 2, .d_qk = 192, .d_v = 128, .causal = false},
           Attention{.tokens = 190, .sequence_length = 190, .heads = 2, .kv_heads = 1, .d_qk = 128, .d_v = 128, .window = 30, .causal = false},
           Attention{.tokens = 70, .sequence_length = 200, .heads = 2, .kv_heads = 1, .d_qk = 128, .d_v = 128, .kv_tokens = 200},
           Attention{.tokens = 100, .sequence_length = 150, .heads = 2, .kv_heads = 2, .d_qk = 128, .d_v = 128, .kv_tokens = 300},
           Attention{.tokens = 140, .sequence_length = 401, .heads = 2, .kv_heads = 2, .d_qk = 192, .d_v = 128, .window = 90, .shared_key = 64, .kv_tokens = 401},
           Attention{.tokens = 33, .sequence_length = 90, .heads = 4, .kv_heads = 2, .d_qk = 64, .d_v = 64, .kv_tokens = 90, .causal = false},
           Attention{.tokens = 150, .sequence_length = 150, .heads = 2, .kv_heads = 1, .d_qk = 128, .d_v = 128, .softcap = 2},
           Attention{.tokens = 90, .sequence_length = 90, .heads = 2, .kv_heads = 2, .d_qk = 256, .d_v = 256, .window = 50, .softcap = 30},
           Attention{.tokens = 200, .sequence_length = 200, .heads = 2, .kv_heads = 2, .d_qk = 128, .d_v = 128, .scale = 0.5},
           Attention{.tokens = 100, .sequence_length = 100, .heads = 2, .kv_heads = 1, .d_qk = 120, .d_v = 72},
           Attention{.tokens = 77, .sequence_length = 40, .heads = 3, .kv_heads = 1, .d_qk = 21, .d_v = 43, .shared_key = 5},
           Attention{.tokens = 70, .sequence_length = 70, .heads = 1, .kv_heads = 1, .d_qk = 200, .d_v = 64},
           Attention{.tokens = 70, .sequence_length = 1, .heads = 2, .kv_heads = 1, .d_qk = 128, .d_v = 128},
           Attention{.tokens = 140, .sequence_length = 70, .heads = 128, .kv_heads = 1, .d_qk = 16, .d_v = 16},
           Attention{.tokens = 6000, .sequence_length = 1, .heads = 32, .kv_heads = 8, .d_qk = 16, .d_v = 16, .packed_sequences = 5000}})
    out.emplace_back(each);
  return out;
}

/// Keys chosen query by query: head counts around the tile, one and many rounds of keys, queries that see nothing, blocks, windows, compressed keys;
/// selections with many ties, below and above the number of keys; Gated DeltaNet with shared key heads; hyper-connections; small products by head.
inline std::vector<Op> sparse_cases() {
  using namespace op;
  constexpr auto full = Training::full, lora = Training::lora;
  return {SparseAttention{.tokens = 70, .sequence_length = 70, .heads = 16, .d_qk = 576, .d_v = 512, .topk = 64},
          SparseAttention{.tokens = 200, .sequence_length = 100, .heads = 65, .d_qk = 576, .d_v = 512, .topk = 80, .scale = 0.1},
          SparseAttention{.tokens = 33, .sequence_length = 400, .heads = 4, .d_qk = 576, .d_v = 512, .topk = 200, .sinks = true, .kv_tokens = 33, .training = full},
          SparseAttention{.tokens = 150, .sequence_length = 150, .heads = 8, .kv_heads = 2, .d_qk = 128, .d_v = 128, .topk = 4, .block = 16, .latent = false},
          SparseAttention{.tokens = 130, .sequence_length = 130, .heads = 130, .kv_heads = 1, .d_qk = 40, .d_v = 24, .topk = 70, .latent = false},
          SparseAttention{.tokens = 65, .sequence_length = 65, .heads = 3, .d_qk = 33, .d_v = 17, .topk = 65},
          op::CompressedAttention{.tokens = 140, .sequence_length = 140, .heads = 64, .head_dim = 512, .window = 66, .ratio = 4, .compressed = 35, .topk = 16},
          op::CompressedAttention{.tokens = 192, .sequence_length = 96, .heads = 5, .head_dim = 128, .window = 20, .ratio = 8, .compressed = 24, .training = full},
          op::CompressedAttention{.tokens = 66, .sequence_length = 66, .heads = 70, .head_dim = 72, .window = 64, .training = full},
          Indexer{.tokens = 300, .sequence_length = 300, .heads = 64, .dim = 128, .topk = 64}, Indexer{.tokens = 70, .sequence_length = 35, .heads = 5, .dim = 40, .topk = 7},
          Indexer{.tokens = 40, .sequence_length = 700, .heads = 65, .dim = 64, .topk = 100, .kv_tokens = 700}, Indexer{.tokens = 333, .sequence_length = 333, .heads = 3, .dim = 21, .topk = 33, .key_ratio = 4},
          Indexer{.tokens = 100, .sequence_length = 50, .heads = 4, .dim = 32, .topk = 9, .packed_sequences = 3}, Indexer{.tokens = 1100, .sequence_length = 1100, .heads = 1, .dim = 1, .topk = 500},
          GatedDeltaNet{.tokens = 130, .sequence_length = 65, .k_heads = 1, .v_heads = 2, .d_k = 128, .d_v = 128}, GatedDeltaNet{.tokens = 200, .sequence_length = 77, .k_heads = 2, .v_heads = 2, .d_k = 64, .d_v = 64, .training = full},
          GatedDeltaNet{.tokens = 300, .sequence_length = 300, .k_heads = 1, .v_heads = 3, .d_k = 128, .d_v = 128, .packed_sequences = 3, .training = full},
          GatedDeltaNet{.tokens = 0, .sequence_length = 4, .k_heads = 1, .v_heads = 2, .d_k = 64, .d_v = 64, .training = full},
          HyperPost{33, 264, 4}, HyperPost{5, 7168, 4}, HyperPost{9, 37, 2}, HyperPost{7, 264, 3, false}, HyperPost{4, 2056, 4, false},
          HyperPre{70, 264, 4, HyperForm::mhc, full}, HyperPre{600, 40, 4}, HyperPre{5, 7168, 4, HyperForm::mhc, full}, HyperPre{33, 37, 3, HyperForm::mhc, full, 3}, HyperPre{65, 264, 4, HyperForm::input, full},
          HyperPre{9, 136, 2, HyperForm::head, full, 0, false}, HyperPre{17, 264, 4, HyperForm::mean},
          Compress{.tokens = 260, .sequence_length = 130, .width = 264, .ratio = 4, .overlap = true, .training = full}, Compress{.tokens = 1000, .sequence_length = 1000, .width = 40, .ratio = 128, .training = full},
          Compress{.tokens = 70, .sequence_length = 200, .width = 33, .ratio = 4, .gated = false}, Compress{.tokens = 3, .sequence_length = 8, .width = 9, .ratio = 4, .training = full},
          HeadLinear{.tokens = 65, .heads = 3, .in = 72, .block = 40, .begin = 8, .count = 32, .training = full}, HeadLinear{.tokens = 130, .heads = 5, .in = 136, .block = 64, .count = 64, .transposed = true, .training = lora, .lora_rank = 16, .lora_scale = 2},
          HeadLinear{.tokens = 33, .heads = 2, .in = 512, .block = 256, .begin = 128, .count = 128, .training = lora, .lora_rank = 8, .lora_scale = 0.5}, HeadLinear{.tokens = 0, .heads = 2, .in = 16, .block = 8, .count = 8, .training = full, .lora_rank = 4}};
}

inline std::vector<Op> state_cases() {
  using namespace op;
  constexpr auto full = Training::full;
  std::vector<Op> out{Embedding{1000, 7, 264, full}, Embedding{300, 1, 40, full}, Embedding{257, 1000, 1000, full, 0, 3}, Embedding{3, 5, 1, full}, Embedding{40, 11, 7168},
                      GradNorm{(1 << 20) | 3}, GradNorm{100001, DType::bf16}, GradNorm{1}, GradNorm{8},
                      AdamW{100003}, AdamW{4096, OptimizerKind::adamw, DType::bf16, DType::f32}, AdamW{256, OptimizerKind::adamw, DType::f32, DType::f32}, AdamW{1},
                      AdamW{100003, OptimizerKind::adamw8bit}, AdamW{512, OptimizerKind::adamw8bit, DType::bf16, DType::bf16}, AdamW{1, OptimizerKind::adamw8bit},
                      ShortConv{.tokens = 200, .sequence_length = 77, .channels = 264}, ShortConv{.tokens = 129, .sequence_length = 129, .channels = 16, .bias = true, .training = full},
                      ShortConv{.tokens = 300, .sequence_length = 60, .channels = 264, .bias = true, .packed_sequences = 5, .training = full},
                      ShortConv{.tokens = 259, .sequence_length = 259, .channels = 21, .taps = 3, .training = full}, ShortConv{.tokens = 33, .sequence_length = 1, .channels = 8, .taps = 2, .training = full},
                      ShortConv{.tokens = 130, .sequence_length = 33, .channels = 36, .silu = false, .training = full}, ShortConv{.tokens = 66, .sequence_length = 32, .channels = 8, .silu = false},
                      ShortConv{.tokens = 1, .sequence_length = 1, .channels = 1, .taps = 1}};
  return out;
}

inline std::vector<Op> stored_cases() {
  std::vector<Op> out;
  for (const DType type : {DType::fp8, DType::mxfp4, DType::nvfp4, DType::int8, DType::int4}) {
    for (const op::Quantise& each : {op::Quantise{130, 257, DType::bf16, type}, op::Quantise{300, 1024, DType::bf16, type}, op::Quantise{3, 40, DType::f32, type}, op::Quantise{1, 1, DType::bf16, type}})
      out.emplace_back(each);
    for (const op::Dequantise& each : {op::Dequantise{130, 257, type}, op::Dequantise{300, 1024, type}, op::Dequantise{3, 40, type, DType::f32}, op::Dequantise{1, 1, type}})
      out.emplace_back(each);
  }
  return out;
}

/// Linear layers and the loss: widths that no tensor core likes, one token, every extra beside the product, chunks that end early.
inline std::vector<Op> product_cases() {
  using namespace op;
  constexpr auto full = Training::full;
  constexpr auto lora = Training::lora;
  return {Linear{1, 1, 1}, Linear{3, 33, 17, true, DType::bf16, full}, Linear{129, 264, 72, true, DType::bf16, lora, 16, 2}, Linear{257, 1024, 384, false, DType::bf16, full, 8, 0.5},
          Linear{0, 64, 32, true, DType::bf16, full, 4},
          CrossEntropy{.tokens = 301, .hidden = 264, .vocabulary = 5003, .token_chunk = 128, .vocabulary_chunk = 2048, .fused_gradient = true},
          CrossEntropy{.tokens = 65, .hidden = 64, .vocabulary = 3000, .token_chunk = 64, .vocabulary_chunk = 4096, .bias = true, .fused_gradient = true, .z_loss = 1e-3},
          CrossEntropy{.tokens = 40, .hidden = 72, .vocabulary = 1001, .token_chunk = 16, .vocabulary_chunk = 256, .fused_gradient = true, .softcap = 8, .label_smoothing = 0.1},
          CrossEntropy{.tokens = 70, .hidden = 136, .vocabulary = 2050, .token_chunk = 32, .vocabulary_chunk = 1024, .bias = true, .training = full, .z_loss = 1e-3, .label_smoothing = 0.05},
          CrossEntropy{.tokens = 70, .hidden = 136, .vocabulary = 2050, .token_chunk = 32, .vocabulary_chunk = 512, .training = lora, .lora_rank = 16, .lora_scale = 0.5, .softcap = 15, .logit_scale = 0.25},
          CrossEntropy{.tokens = 2, .hidden = 8, .vocabulary = 1, .token_chunk = 1, .vocabulary_chunk = 1}};
}

}  // namespace moeplan::test
