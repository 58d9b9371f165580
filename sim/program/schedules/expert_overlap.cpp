#include <algorithm>

#include "sim/program/schedules/virtual_order.hpp"

namespace moeplan::schedule_of {

/// Interleaved 1F1B with one more pass of warm-up, so that in the steady state a stage's forward and backward pass are of different
/// micro-batches and neither waits for the other: they run side by side, block by block, and the dispatch and combine of one are
/// under the compute of the other. The idea is DualPipe's (DeepSeek-V3, section 3.2.1), the order that of Megatron-Core's
/// combined 1F1B; unlike DualPipe it needs neither a second copy of the weights nor a second direction of the pipeline.
std::vector<Turn> expert_overlap(const Plan& plan, int stage) {
  using enum Turn::Kind;
  const int p = plan.parallelism.pp, v = plan.virtual_stages;
  const auto all = static_cast<std::int32_t>(plan.micro_batches * v), warm = std::min(all, 2 * (p - 1 - stage) + (v - 1) * p + 1);
  std::vector<Turn> out;
  for (std::int32_t k = 0; k < warm; ++k) {
    const auto [chunk, micro_batch] = virtual_pass(plan, k, false);
    out.push_back({.kind = forward, .chunk = chunk, .micro_batch = micro_batch});
  }
  for (std::int32_t k = warm; k < all; ++k) {
    const auto f = virtual_pass(plan, k, false), b = virtual_pass(plan, k - warm, true);
    out.push_back({.kind = both, .chunk = b.chunk, .micro_batch = b.micro_batch, .forward_chunk = f.chunk, .forward_micro_batch = f.micro_batch});
  }
  for (std::int32_t k = all - warm; k < all; ++k) {
    const auto [chunk, micro_batch] = virtual_pass(plan, k, true);
    out.push_back({.kind = backward, .chunk = chunk, .micro_batch = micro_batch});
  }
  return out;
}

}  // namespace moeplan::schedule_of
