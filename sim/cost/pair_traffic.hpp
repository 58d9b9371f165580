#pragma once
/// Bytes that an adapter pair of its own moves beside its two products, where a runtime does not fuse it with the base.
///
/// PEFT's LoRA (peft 0.13, tuners/lora/layer.py): x.to(type of lora_A), dropout, lora_A, lora_B, times the scale, added
/// to the base's output, back to its type. Operation by operation, r and w bytes of an element read and written:
///
///   adapters in bf16           in: dropout r2 w2 mask 1, lora_A r2; out: lora_B w2, scale r2 w2, add r2 r2 w2
///                              backward: scale r2 w2 and lora_B r2; lora_A twice, dropout, added to dx
///   in fp32, under autocast    in: x cast r2 w4, dropout r4 w4 mask 1, cast back r4 w2, lora_A r2; out as above
///                              backward: out: scale r2 w2, lora_B twice r2; in: lora_A w2 r2, cast r2 w4, dropout r4
///                              w4 1, cast r4 w2, added r2 r2 w2
///   in fp32, no autocast       in: cast r2 w4, dropout r4 w4 1, lora_A r4; out: lora_B w4, scale r4 w4, add r2 r4 w4,
///   back r4 w2
///                              backward: out: cast r2 w4, to the base r4 w2, scale r4 w4, lora_B twice r4; in: lora_A
///                              w4 r4, dropout r4 w4 1, cast r4 w2, added r2 r2 w2
///
/// Which it is says traffic["wide_pair"] of the runtime: 1 under autocast, 2 without. bitsandbytes' layer does not cast
/// under autocast (tuners/lora/bnb.py), so pairs of a quantised base move what bf16 ones do.

#include "core/spec/runtime.hpp"

namespace moeplan {

/// Bytes per element of the pair's input and output, in a forward and a backward pass.
struct PairTraffic {
  double in = 7, out = 12, in_backward = 17, out_backward = 6;
};

[[nodiscard]] inline PairTraffic pair_traffic(const Runtime& runtime, DType base) {
  const auto wide = runtime.traffic.find("wide_pair");
  if (wide == runtime.traffic.end() || base != DType::bf16) return {};
  if (wide->second < 2) return {.in = 23, .out = 12, .in_backward = 31, .out_backward = 8};
  return {.in = 19, .out = 28, .in_backward = 29, .out_backward = 28};
}

}  // namespace moeplan
