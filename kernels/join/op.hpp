#pragma once
/// Joins the columns of two tensors: the inverse of `split`, but it copies. Within each of `groups` equal parts of a row the first
/// tensor's piece comes before the second's: the latent key beside its rotary part, the absorbed query of a head beside its rotary part.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Join {
  static constexpr std::string_view kind = "join";

  std::int64_t tokens = 0;
  std::int64_t groups = 1;
  std::int64_t first = 0, second = 0;   ///< columns of each piece within a group

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Join::tokens, "rows").at_least(0), field("groups", &Join::groups, "equal parts of a row joined alike").above(0),
                           field("first", &Join::first, "columns of the first piece in a group").above(0),
                           field("second", &Join::second, "columns of the second piece").above(0));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"first", Role::input, {tokens, groups * first}});
    o.push_back({"second", Role::input, {tokens, groups * second}});
    o.push_back({"y", Role::output, {tokens, groups * (first + second)}});
    return o;
  }

  /// Nothing is computed; each element is read and written once, both ways.
  [[nodiscard]] Flops flops(Pass, Wants) const { return {0}; }

  static std::vector<Join> cases() { return {{3, 1, 8, 16}, {5, 4, 6, 2}, {0, 1, 8, 8}}; }

  bool operator==(const Join&) const = default;
};

}  // namespace moeplan::op
