/// \file
/// Whether a selection of keys is the one with the largest scores.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/call_data.hpp"

namespace moeplan::test {

/// Keys that query t sees: [first, end).
inline std::pair<std::int64_t, std::int64_t> seen_keys(const op::Indexer& op, const reference::View<double>& starts,
                                                       std::int64_t t) {
  const std::int64_t missing = op.kv_tokens ? op.kv_tokens - op.tokens : 0, at = t + missing;
  const auto bounds = reference::sequence_bounds<double>(op.tokens + missing, op.sequence_length, starts);
  const std::int64_t begin = *(std::upper_bound(bounds.begin(), bounds.end(), at) - 1);
  return {begin / op.key_ratio, begin / op.key_ratio + (at - begin + 1) / op.key_ratio};
}

/// Each row of `indices` holds, in ascending order with -1 behind, as many keys as the reference's row; they are
/// different keys that the query sees; and none of them has a score below what the reference's smallest has, or equal
/// to that of a lower key that is left out, but for what sums in fp32 may be off: heads x dim terms, a few units of
/// fp32 of their magnitudes.
inline void expect_selected(const op::Indexer& op, const CallData<double>& data, const std::vector<double>& indices,
                            const std::string& what) {
  const Operands list = op.operands();
  const auto view = [&](std::string_view name) {
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].name == name) return data.views[i];
    return reference::View<double>{};
  };
  const auto q = view("q"), k = view("k"), weights = view("head_weights"), want = view("indices");
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    double magnitude = 0;
    const auto score = [&](std::int64_t key) {
      double sum = 0, all = 0;
      for (std::int64_t h = 0; h < op.heads; ++h) {
        double dot = 0, terms = 0;
        for (std::int64_t c = 0; c < op.dim; ++c)
          dot += q(t, h * op.dim + c) * k(key, c), terms += std::abs(q(t, h * op.dim + c) * k(key, c));
        sum += weights(t, h) * std::max(dot, 0.0), all += std::abs(weights(t, h)) * terms;
      }
      magnitude = std::max(magnitude, all);
      return sum;
    };
    const double* const row = indices.data() + t * op.topk;
    double least = std::numeric_limits<double>::infinity(), found = least, previous = -1;
    for (std::int64_t i = 0; i < op.topk; ++i) {
      const auto wanted = static_cast<std::int64_t>(want(t, i));
      ASSERT_EQ(wanted < 0, row[i] < 0) << what << "row " << t << " place " << i;
      if (wanted < 0) continue;
      ASSERT_GT(row[i], previous) << what << "row " << t << " place " << i;
      ASSERT_LT(row[i], static_cast<double>(op.keys())) << what << "row " << t;
      previous = row[i];
      least = std::min(least, score(wanted)), found = std::min(found, score(static_cast<std::int64_t>(row[i])));
    }
    if (previous < 0) continue;
    ASSERT_GE(found, least - 1e-6 * magnitude) << what << "row " << t;
    const auto in = [&](const double* keys, double key) {
      return std::find(keys, keys + op.topk, key) != keys + op.topk;
    };
    for (std::int64_t i = 0; i < op.topk; ++i) {  // equal scores: the lower key, as the reference takes
      if (row[i] < 0 || in(want.row(t), row[i])) continue;
      for (std::int64_t j = 0; j < op.topk; ++j) {
        const double left_out = want(t, j);
        if (left_out < 0 || in(row, left_out)) continue;
        ASSERT_NE(score(static_cast<std::int64_t>(row[i])), score(static_cast<std::int64_t>(left_out)))
            << what << "row " << t;
      }
    }
    const auto [begin, end] = seen_keys(op, view("starts"), t);
    ASSERT_GE(row[0], static_cast<double>(begin)) << what << "row " << t;
    ASSERT_LT(previous, static_cast<double>(end)) << what << "row " << t;
  }
}

}  // namespace moeplan::test
