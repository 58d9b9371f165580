#pragma once
/// Blocks for those who count and price many of them.

#include "sim/program/program.hpp"

namespace moeplan {

/// `lower_slot` with nothing named: equal but for names, at half the cost (tests/program/routed_rows_test.cpp).
[[nodiscard]] Block lower_slot_unnamed(const Problem& problem, const Plan& plan, const ModelOutline& outline,
                                       std::int32_t layer, double routed_scale);

}  // namespace moeplan
