#pragma once
/// Gated DeltaNet (Qwen3-Next, Qwen3.5): as `kda` with one decay a head, g = -exp(A_log) softplus(a + dt_bias), and value heads that
/// share key heads. q and k are L2-normalised inside; beta comes activated.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct GatedDeltaNet {
  static constexpr std::string_view kind = "gated_delta_net";
  static constexpr std::int64_t chunk = 64;   ///< tokens worked on together

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t k_heads = 0, v_heads = 0;
  std::int64_t d_k = 0, d_v = 0;
  std::int64_t packed_sequences = 0;   ///< 0: equal lengths
  Training training = Training::frozen;   ///< of A_log and dt_bias

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &GatedDeltaNet::tokens).at_least(0), field("sequence_length", &GatedDeltaNet::sequence_length).above(0),
                           field("k_heads", &GatedDeltaNet::k_heads, "query and key heads; divides v_heads").above(0),
                           field("v_heads", &GatedDeltaNet::v_heads, "value heads").above(0), field("d_k", &GatedDeltaNet::d_k).above(0),
                           field("d_v", &GatedDeltaNet::d_v).above(0), field("packed_sequences", &GatedDeltaNet::packed_sequences, "0: equal lengths").at_least(0),
                           field("training", &GatedDeltaNet::training, "of A_log and dt_bias"));
  }

  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    Operands o;
    o.push_back({"q", Role::input, {tokens, k_heads * d_k}, DType::bf16, for_any_grad});
    o.push_back({"k", Role::input, {tokens, k_heads * d_k}, DType::bf16, for_any_grad});
    o.push_back({"v", Role::input, {tokens, v_heads * d_v}, DType::bf16, for_any_grad});
    o.push_back({"a", Role::input, {tokens, v_heads}, DType::bf16, for_any_grad});
    o.push_back({"beta", Role::input, {tokens, v_heads}, DType::f32, for_any_grad});
    if (packed_sequences) o.push_back({"starts", Role::index, {boundaries(packed_sequences)}, DType::i64, for_any_grad});
    o.push_back({"a_log", Role::weight, {v_heads}, DType::f32, for_any_grad, full});
    o.push_back({"dt_bias", Role::weight, {v_heads}, DType::f32, for_any_grad, full});
    o.push_back({"y", Role::output, {tokens, v_heads * d_v}});
    return o;
  }

  /// As `kda` with key width K and value width V: forward L, P, W (6 C K), U, P N (4 C V), states 6 K V, inverse 2/3 C^2.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double n = num(tokens) * num(v_heads), k = num(d_k), v = num(d_v), c = num(chunk);
    if (pass == Pass::forward) return {n * (6 * k * v + 6 * c * k + 4 * c * v + 2 * c * c / 3)};
    if (wants == Wants{false, false}) return {0};
    return {n * (18 * k * v + c * (18 * k + 12 * v) + 14 * c * c / 3)};
  }

  /// As Kda's, of which the backward's 40 bytes a token, head and column were measured; this one's were not.
  [[nodiscard]] Bytes workspace(Pass pass, Wants wants) const {
    if (pass == Pass::backward && wants == Wants{false, false}) return {0};
    return {v_heads * tokens * (pass == Pass::forward ? 2 * (3 * d_k + d_v + chunk) : 20 * (d_k + d_v))};
  }

  static std::vector<GatedDeltaNet> cases() {
    return {{.tokens = 12, .sequence_length = 6, .k_heads = 1, .v_heads = 2, .d_k = 4, .d_v = 6},
            {.tokens = 9, .sequence_length = 9, .k_heads = 2, .v_heads = 2, .d_k = 4, .d_v = 4, .training = Training::full},
            {.tokens = 5, .sequence_length = 5, .k_heads = 1, .v_heads = 1, .d_k = 4, .d_v = 4, .packed_sequences = 2},
            {.tokens = 0, .sequence_length = 4, .k_heads = 1, .v_heads = 1, .d_k = 4, .d_v = 4}};
  }

  bool operator==(const GatedDeltaNet&) const = default;
};

}  // namespace moeplan::op
