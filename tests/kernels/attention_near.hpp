/// \file
/// How near attention's bf16 results must be to the reference's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/catalogue.hpp"

namespace moeplan::test {

/// Columns of one head in an operand of an attention operator; 0 for other operators.
[[nodiscard]] inline std::int64_t head_columns(const Op& op, const Operand& o) {
  if (const auto* attention = std::get_if<op::Attention>(&op))
    return o.name == "q"          ? attention->d_qk
           : o.name == "k"        ? attention->d_qk - attention->shared_key
           : o.name == "k_shared" ? attention->shared_key
                                  : attention->d_v;
  if (const auto* sparse = std::get_if<op::SparseAttention>(&op))
    return o.name == "q" || o.name == "kv" ? sparse->d_qk : sparse->d_v;
  if (const auto* compressed = std::get_if<op::CompressedAttention>(&op)) return compressed->head_dim;
  return 0;
}

/// The softmax and its gradient are operands of a product in bf16: each weight of a sum of many is off by up to 2^-8 of
/// itself, and where terms cancel an element carries the error of the large ones. So the tensor as a whole is held to
/// 5e-3 of its norm, and each element to 5e-2 of itself and 1.25e-2 of the root mean square of its head in its row
/// (late queries average many values, the first keys gather from many queries) or of the tensor. 1e-6: what fp32 leaves
/// where dp - delta cancels, as for a query of one key.
inline void expect_attention_near(std::int64_t columns, const Operand& o, const std::vector<double>& values,
                                  const std::vector<double>& want, const std::string& what) {
  const std::size_t count = static_cast<std::size_t>(o.shape.elements()),
                    width = static_cast<std::size_t>(std::max<std::int64_t>(columns, 1));
  std::vector<double> head(count / width, 0);
  double squares = 0, off = 0;
  for (std::size_t e = 0; e < count; ++e) {
    head[e / width] += want[e] * want[e] / static_cast<double>(width), squares += want[e] * want[e];
    off += (values[e] - want[e]) * (values[e] - want[e]);
  }
  const double size = std::sqrt(squares / std::max<double>(1, static_cast<double>(count)));
  EXPECT_LE(std::sqrt(off), 5e-3 * std::sqrt(squares) + 1e-6 * std::sqrt(static_cast<double>(count)))
      << what << o.name << " as a whole";
  std::size_t wrong = 0;
  for (std::size_t e = 0; e < count && wrong < 3; ++e) {
    const double allowed = 5e-2 * std::abs(want[e]) + 1.25e-2 * std::max(size, std::sqrt(head[e / width])) + 1e-6;
    if (std::abs(values[e] - want[e]) <= allowed) continue;  // false for NaN
    ADD_FAILURE() << what << o.name << "[" << e << "] is " << values[e] << ", want " << want[e] << " within "
                  << allowed;
    ++wrong;
  }
}

}  // namespace moeplan::test
