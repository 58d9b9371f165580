#pragma once
/// Splits the columns of one tensor into up to four, without copying: fused q/k/v, kv_a into latent and rope part, in_proj_qkvz,
/// gate beside query. With `groups` > 1 each of `groups` equal parts of a row is split alike (per head: [q | gate] of Qwen3-Next,
/// [k_nope | v] of MLA), and an output holds its piece of every group. The outputs are views of x: they own no bytes, the call takes
/// no time, and in the backward the pieces' gradients are written straight into the slices of dx.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Split {
  static constexpr std::string_view kind = "split";
  static constexpr bool view = true;   ///< outputs alias the first input

  std::int64_t tokens = 0;
  std::int64_t groups = 1;
  std::int64_t first = 0, second = 0;       ///< columns of each piece within a group
  std::int64_t third = 0, fourth = 0;       ///< 0: no such piece

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Split::tokens, "rows").at_least(0), field("groups", &Split::groups, "equal parts of a row split alike").above(0),
                           field("first", &Split::first, "columns of the first piece in a group").above(0),
                           field("second", &Split::second, "columns of the second piece").above(0),
                           field("third", &Split::third, "columns of the third piece; 0 without").at_least(0),
                           field("fourth", &Split::fourth, "columns of the fourth piece; 0 without").at_least(0));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::input, {tokens, groups * (first + second + third + fourth)}});
    o.push_back({"first", Role::output, {tokens, groups * first}});
    o.push_back({"second", Role::output, {tokens, groups * second}});
    if (third) o.push_back({"third", Role::output, {tokens, groups * third}});
    if (fourth) o.push_back({"fourth", Role::output, {tokens, groups * fourth}});
    return o;
  }

  [[nodiscard]] Flops flops(Pass, Wants) const { return {0}; }
  [[nodiscard]] Bytes bytes_moved(Pass, Wants) const { return {0}; }

  static std::vector<Split> cases() { return {{3, 1, 8, 16}, {5, 4, 6, 2}, {2, 1, 8, 4, 4}, {3, 2, 1, 2, 3, 4}, {0, 1, 8, 8}}; }

  bool operator==(const Split&) const = default;
};

}  // namespace moeplan::op
