#pragma once
/// DeepSeek-V4's token compressor: each run of `ratio` tokens becomes one row, y_j = sum_i softmax_i(gate_i + ape_i) * kv_i column by
/// column. With `overlap` kv and gate have twice the columns: the second half serves the token's own run, the first half the run after
/// it, so a row mixes 2 x ratio tokens. Without `gated` it is the mean (GLM-5.3's key pooling). A short last run is dropped.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Compress {
  static constexpr std::string_view kind = "compress";

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t width = 0;             ///< columns of y
  std::int64_t ratio = 0;             ///< tokens a row
  bool overlap = false;               ///< kv and gate are 2 x width wide
  bool gated = true;
  Training training = Training::frozen;   ///< of the position bias

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Compress::tokens, "rows of kv").at_least(0), field("sequence_length", &Compress::sequence_length).above(0),
                           field("width", &Compress::width, "columns of y").above(0), field("ratio", &Compress::ratio, "tokens a row of y").above(0),
                           field("overlap", &Compress::overlap, "a run also reads the run before"), field("gated", &Compress::gated, "softmax weights; otherwise the mean"),
                           field("training", &Compress::training, "of the position bias"));
  }

  /// Rows of y: whole runs of every sequence.
  [[nodiscard]] std::int64_t rows() const { return tokens / sequence_length * (sequence_length / ratio) + tokens % sequence_length / ratio; }

  [[nodiscard]] Operands operands() const {
    const std::int64_t columns = (overlap ? 2 : 1) * width;
    Operands o;
    o.push_back({"kv", Role::input, {tokens, columns}, DType::bf16, gated ? for_any_grad : not_needed});
    if (gated) {
      o.push_back({"gate", Role::input, {tokens, columns}, DType::bf16, for_any_grad});
      o.push_back({"ape", Role::weight, {ratio, columns}, DType::f32, for_any_grad, training == Training::full});
    }
    o.push_back({"y", Role::output, {rows(), width}});
    return o;
  }

  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && wants == Wants{false, false}) return {0};
    const double n = num(tokens) * num(width) * (overlap ? 2 : 1);
    return {n * (pass == Pass::forward ? (gated ? 6.0 : 1.0) : (gated ? 12.0 : 1.0))};
  }

  static std::vector<Compress> cases() {
    return {{.tokens = 12, .sequence_length = 12, .width = 8, .ratio = 4, .overlap = true},
            {.tokens = 14, .sequence_length = 7, .width = 6, .ratio = 3, .training = Training::full},
            {.tokens = 8, .sequence_length = 8, .width = 5, .ratio = 4, .gated = false},
            {.tokens = 0, .sequence_length = 8, .width = 4, .ratio = 4}};
  }

  bool operator==(const Compress&) const = default;
};

}  // namespace moeplan::op
