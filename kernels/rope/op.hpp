#pragma once
/// Rotary position embedding of one tensor (called once for the queries, once for the keys): the rotated part of each head turns
/// by position * theta^(-2 j / rotary_dim). Pairs are (j, j + rotary_dim / 2), or neighbours where `interleaved`. The rotated part
/// leads the head (GQA) or trails it (MLA, DeepSeek-V4). Stretched contexts (linear, YaRN, Llama 3, LongRoPE) in frequencies.hpp. `inverse` turns back (DeepSeek-V4's output).

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Rope {
  static constexpr std::string_view kind = "rope";

  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;            ///< width that turns; even, at most head_dim
  std::int64_t sequence_length = 0;       ///< a token's position is its row modulo this, unless `positions`
  bool positions = false;                 ///< positions are an operand (packed sequences, context parallelism)
  bool trailing = false;
  bool interleaved = false;
  bool inverse = false;
  double theta = 10000;
  double yarn_factor = 1;                 ///< stretch of the context; 1: plain
  double yarn_original = 0;               ///< trained context length; 0: all frequencies are stretched (linear)
  double yarn_beta_fast = 32, yarn_beta_slow = 1;
  double magnitude = 1;                   ///< multiplies sine and cosine (YaRN's attention factor)
  bool yarn_truncate = true;              ///< the ramp begins and ends at whole pairs (gpt-oss: no)
  bool ramp_in_turns = false;             ///< the ramp is linear in turns over the trained context (Llama 3), not in pairs
  std::vector<double> divisors{};         ///< of each pair's frequency, [rotary_dim / 2] (LongRoPE); empty: none

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("tokens", &Rope::tokens, "rows").at_least(0), field("heads", &Rope::heads, "heads of this tensor").above(0),
        field("head_dim", &Rope::head_dim, "width of a head").above(0), field("rotary_dim", &Rope::rotary_dim, "width that turns").above(0),
        field("sequence_length", &Rope::sequence_length, "positions repeat after this").above(0),
        field("positions", &Rope::positions, "positions are an operand"), field("trailing", &Rope::trailing, "the last columns of a head turn"),
        field("interleaved", &Rope::interleaved, "pairs are neighbours"), field("inverse", &Rope::inverse, "turn back"),
        field("theta", &Rope::theta).above(0), field("yarn_factor", &Rope::yarn_factor).at_least(1),
        field("yarn_original", &Rope::yarn_original, "trained context").at_least(0), field("yarn_beta_fast", &Rope::yarn_beta_fast).above(0),
        field("yarn_beta_slow", &Rope::yarn_beta_slow).above(0), field("magnitude", &Rope::magnitude).above(0),
        field("yarn_truncate", &Rope::yarn_truncate, "the ramp begins and ends at whole pairs"),
        field("ramp_in_turns", &Rope::ramp_in_turns, "the ramp is linear in turns"),
        field("divisors", &Rope::divisors, "of each pair's frequency").above(0));
  }

  /// Nothing is kept: the backward turns dy the other way.
  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::input, {tokens, heads * head_dim}});
    if (positions) o.push_back({"positions", Role::index, {tokens}, DType::i32, for_input_grad});
    o.push_back({"y", Role::output, {tokens, heads * head_dim}});
    return o;
  }

  /// Three operations for each element that turns; sine and cosine are shared by the heads.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && !wants.input_grad) return {0};
    return {3 * num(tokens) * num(heads) * num(rotary_dim)};
  }

  static std::vector<Rope> cases() {
    return {{.tokens = 10, .heads = 3, .head_dim = 16, .rotary_dim = 16, .sequence_length = 5},
            {.tokens = 7, .heads = 2, .head_dim = 24, .rotary_dim = 8, .sequence_length = 7, .trailing = true, .interleaved = true},
            {.tokens = 6, .heads = 1, .head_dim = 10, .rotary_dim = 6, .sequence_length = 3, .positions = true},
            {.tokens = 5, .heads = 2, .head_dim = 16, .rotary_dim = 8, .sequence_length = 5, .inverse = true, .theta = 1e4, .yarn_factor = 4, .yarn_original = 32,
             .magnitude = 1.138629436},
            {.tokens = 3, .heads = 1, .head_dim = 16, .rotary_dim = 16, .sequence_length = 3, .theta = 1.5e5, .yarn_factor = 32, .yarn_original = 4096, .yarn_truncate = false},
            {.tokens = 9, .heads = 1, .head_dim = 16, .rotary_dim = 16, .sequence_length = 9, .theta = 5e5, .yarn_factor = 8, .yarn_original = 64, .yarn_beta_fast = 4,
             .yarn_beta_slow = 1, .ramp_in_turns = true},
            {.tokens = 4, .heads = 1, .head_dim = 8, .rotary_dim = 8, .sequence_length = 4, .yarn_factor = 4},
            {.tokens = 6, .heads = 2, .head_dim = 12, .rotary_dim = 8, .sequence_length = 6, .magnitude = 1.19, .divisors = {1, 1.25, 4.5, 60}},
            {.tokens = 0, .heads = 1, .head_dim = 8, .rotary_dim = 8, .sequence_length = 4}};
  }

  bool operator==(const Rope&) const = default;
};

}  // namespace moeplan::op
