#include <algorithm>

#include "sim/program/schedules/virtual_order.hpp"

namespace moeplan::schedule_of {

/// 1F1B over v chunks a stage: the bubble shrinks v-fold, messages multiply by v. Warm-up of stage s: 2 (p - s - 1) + (v - 1) p
/// passes of a chunk. Source: Narayanan et al. 2021, section 2.2; Megatron-Core's get_pp_rank_microbatches.
std::vector<Turn> interleaved(const Plan& plan, int stage) {
  using enum Turn::Kind;
  const int p = plan.parallelism.pp, v = plan.virtual_stages;
  const auto all = static_cast<std::int32_t>(plan.micro_batches * v), warm = std::min(all, 2 * (p - 1 - stage) + (v - 1) * p);
  std::vector<Turn> out;
  const auto add = [&](Turn::Kind kind, std::int32_t k) {
    const auto [chunk, micro_batch] = virtual_pass(plan, k, kind == backward);
    out.push_back({.kind = kind, .chunk = chunk, .micro_batch = micro_batch});
  };
  for (std::int32_t k = 0; k < warm; ++k) add(forward, k);
  for (std::int32_t k = warm; k < all; ++k) {
    add(forward, k);
    add(backward, k - warm);
  }
  for (std::int32_t k = all - warm; k < all; ++k) add(backward, k);
  return out;
}

}  // namespace moeplan::schedule_of
