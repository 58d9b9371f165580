#include "executor/walk/capacity.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moeplan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The token's weights for the experts that its copies go to, as the router makes them (kernels/router/reference_catalogue.cpp).
void weigh(const op::Router& router, std::int64_t token, Choices& c) {
  const std::int64_t all = router.experts + router.zero_experts;
  const auto chosen = std::span(c.indices).subspan(index(token * router.top_k), index(router.top_k));
  const auto score = [&](std::int32_t e) { return c.scores[index(token * all + e)]; };
  float sum = 0;
  for (const std::int32_t e : chosen) sum += score(e);
  float zero = 0;
  for (std::int64_t j = 0; j < router.top_k; ++j) {
    const std::int32_t e = chosen[index(j)];
    const float w = static_cast<float>(router.route_scale) * (router.normalise ? score(e) / sum : score(e));
    if (e >= router.experts) zero += w;
    c.weights[index(token * router.top_k + j)] = e < router.experts ? w : 0.0f;
  }
  if (!c.zero_weight.empty()) c.zero_weight[index(token)] = zero;
}

/// The best expert with room that the token does not use; -1 if there is none.
std::int32_t next_with_room(const op::Router& router, std::int64_t token, const Choices& c, std::span<const std::int64_t> rows, std::int64_t capacity) {
  const std::int64_t all = router.experts + router.zero_experts;
  const auto mine = std::span(c.indices).subspan(index(token * router.top_k), index(router.top_k));
  std::int32_t best = -1;
  for (std::int32_t e = 0; e < router.experts; ++e) {
    if (rows[index(e)] >= capacity || std::find(mine.begin(), mine.end(), e) != mine.end()) continue;
    if (best < 0 || c.selection[index(token * all + e)] > c.selection[index(token * all + best)]) best = e;
  }
  return best;
}

}  // namespace

std::int64_t expert_capacity(double factor, std::int64_t copies, std::int64_t experts) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(factor * static_cast<double>(copies) / static_cast<double>(experts))));
}

Overflowed apply_capacity(const op::Router& router, Overflow action, std::int64_t capacity, Choices& c) {
  const std::int64_t copies = router.tokens * router.top_k;
  Overflowed out{.kept = c.indices, .rows = std::vector<std::int64_t>(index(router.experts), 0)};
  std::vector<std::int64_t> order(index(copies));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (action == Overflow::drop_probability)
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return c.weights[index(a)] > c.weights[index(b)]; });
  std::vector<std::int64_t> left;
  for (const std::int64_t copy : order) {
    const std::int32_t e = c.indices[index(copy)];
    if (e >= router.experts) continue;
    if (out.rows[index(e)] < capacity) {
      ++out.rows[index(e)];
    } else {
      out.kept[index(copy)] = -1;
      left.push_back(copy);
    }
  }
  out.dropped = static_cast<std::int64_t>(left.size());
  if (action != Overflow::reroute) return out;
  for (const std::int64_t copy : left) {
    const std::int64_t token = copy / router.top_k;
    const std::int32_t e = next_with_room(router, token, c, out.rows, capacity);
    if (e < 0) continue;
    ++out.rows[index(e)], ++out.moved, --out.dropped;
    c.indices[index(copy)] = out.kept[index(copy)] = e;
    weigh(router, token, c);
  }
  return out;
}

}  // namespace moeplan
