#include <algorithm>

#include "planner/evaluate.hpp"

namespace moeplan {

double pipeline_seconds(const std::vector<double>& forward, const std::vector<double>& backward, double exchange, std::int64_t micro_batches) {
  return pipeline_seconds({forward, backward, forward, backward}, exchange, micro_batches);
}

double pipeline_seconds(const StagePasses& passes, double exchange, std::int64_t micro_batches) {
  const auto& [forward, backward, forward_again, backward_again] = passes;
  const auto p = static_cast<std::int64_t>(forward.size()), m = micro_batches;
  if (p == 1) return static_cast<double>(m) * (forward[0] + backward[0]);
  std::vector<int> last(static_cast<std::size_t>(p), 0);   // what a stage did last: 1 forward, -1 backward
  // Per stage, the order of 1F1B: warm forwards, then forward and backward in turn, then the remaining backwards.
  std::vector<std::vector<double>> f_end(static_cast<std::size_t>(p), std::vector<double>(static_cast<std::size_t>(m), -1)), b_end = f_end;
  std::vector<std::int64_t> f_done(static_cast<std::size_t>(p), 0), b_done(static_cast<std::size_t>(p), 0);
  std::vector<double> now(static_cast<std::size_t>(p), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::int64_t i = 0; i < p; ++i) {
      const auto s = static_cast<std::size_t>(i);
      for (;;) {
        const std::int64_t warm = std::min(m, p - 1 - i);
        const bool next_is_forward = f_done[s] < m && (f_done[s] < warm || f_done[s] - warm == b_done[s]);
        double ready = 0;
        if (next_is_forward) {
          const auto j = static_cast<std::size_t>(f_done[s]);
          if (i > 0) { if (f_end[s - 1][j] < 0) break; ready = f_end[s - 1][j] + exchange; }
          now[s] = std::max(now[s], ready) + (last[s] == 1 ? forward_again[s] : forward[s]);
          last[s] = 1;
          f_end[s][j] = now[s];
          ++f_done[s];
        } else if (b_done[s] < m) {
          const auto j = static_cast<std::size_t>(b_done[s]);
          if (i + 1 < p) { if (b_end[s + 1][j] < 0) break; ready = b_end[s + 1][j] + exchange; }
          now[s] = std::max(now[s], ready) + (last[s] == -1 ? backward_again[s] : backward[s]);
          last[s] = -1;
          b_end[s][j] = now[s];
          ++b_done[s];
        } else {
          break;
        }
        moved = true;
      }
    }
  }
  return *std::max_element(now.begin(), now.end());
}

}  // namespace moeplan
