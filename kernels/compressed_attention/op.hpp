#pragma once
/// DeepSeek-V4's attention: all heads share one key that is also the value (width d). A query sees a sliding window of plain keys and,
/// where `ratio` is set, compressed keys of whole earlier runs: all of them, or the `topk` that an indexer selected. One sink a head.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct CompressedAttention {
  static constexpr std::string_view kind = "compressed_attention";

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t window = 0;             ///< plain keys a query sees at most
  std::int64_t ratio = 0;              ///< tokens a compressed key; 0: none
  std::int64_t compressed = 0;         ///< rows of the compressed keys
  std::int64_t topk = 0;               ///< compressed keys a query sees at most, by index; 0: all
  Training training = Training::frozen;   ///< of the sinks
  double scale = 0;                    ///< of the logits; 0: head_dim^-1/2

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("tokens", &CompressedAttention::tokens, "queries").at_least(0), field("sequence_length", &CompressedAttention::sequence_length).above(0),
        field("heads", &CompressedAttention::heads).above(0), field("head_dim", &CompressedAttention::head_dim, "width of query and key").above(0),
        field("window", &CompressedAttention::window, "plain keys a query sees at most").above(0),
        field("ratio", &CompressedAttention::ratio, "tokens a compressed key; 0: none").at_least(0),
        field("compressed", &CompressedAttention::compressed, "rows of the compressed keys").at_least(0),
        field("topk", &CompressedAttention::topk, "compressed keys a query sees at most; 0: all").at_least(0),
        field("training", &CompressedAttention::training, "of the sinks"), field("scale", &CompressedAttention::scale).at_least(0));
  }

  [[nodiscard]] Operands operands() const {
    const bool trained = training == Training::full;
    const Need kept = trained ? for_any_grad : for_input_grad;
    Operands o;
    o.push_back({"q", Role::input, {tokens, heads * head_dim}, DType::bf16, for_input_grad});
    o.push_back({"kv", Role::input, {tokens, head_dim}, DType::bf16, for_input_grad});
    if (ratio) o.push_back({"kv_compressed", Role::input, {compressed, head_dim}, DType::bf16, for_input_grad});
    if (ratio && topk) o.push_back({"indices", Role::index, {tokens, topk}, DType::i32, for_input_grad});
    o.push_back({"sinks", Role::weight, {heads}, DType::f32, trained ? for_weight_grad : not_needed, trained});
    o.push_back({"y", Role::output, {tokens, heads * head_dim}, DType::bf16, kept});
    o.push_back({"lse", Role::aux, {tokens, heads}, DType::f32, kept});
    return o;
  }

  /// Mean keys a query sees: the window, and one compressed key for every whole run before it, at most topk.
  [[nodiscard]] double keys() const {
    double n = visible_keys(sequence_length, window);
    if (ratio) n += topk ? selected_keys(sequence_length, topk * ratio) / num(ratio) : visible_keys(sequence_length) / num(ratio);
    return n;
  }

  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double each = num(tokens) * num(heads) * num(head_dim);
    if (pass == Pass::forward) return {4 * each * keys()};
    if (wants.input_grad) return {10 * each * keys()};
    return {wants.weight_grad && training == Training::full ? 2 * each : 0};
  }

  /// Backward: row sums and the float accumulators of both kinds of keys.
  [[nodiscard]] Bytes workspace(Pass pass, Wants wants) const {
    if (pass == Pass::forward || !wants.input_grad) return {0};
    return {4 * (tokens * heads + (tokens + (ratio ? compressed : 0)) * head_dim)};
  }

  static std::vector<CompressedAttention> cases() {
    return {{.tokens = 12, .sequence_length = 12, .heads = 3, .head_dim = 8, .window = 4, .ratio = 4, .compressed = 3, .topk = 2},
            {.tokens = 16, .sequence_length = 8, .heads = 2, .head_dim = 6, .window = 3, .ratio = 4, .compressed = 4, .training = Training::full},
            {.tokens = 7, .sequence_length = 7, .heads = 2, .head_dim = 4, .window = 3},
            {.tokens = 0, .sequence_length = 8, .heads = 1, .head_dim = 4, .window = 2}};
  }

  bool operator==(const CompressedAttention&) const = default;
};

}  // namespace moeplan::op
