#include "planner/stage_walk.hpp"

#include <algorithm>

namespace moeplan {

StageWalk walk_stage(const std::vector<double>& compute, const std::vector<double>& gather,
                     const std::vector<double>& reduce, std::int64_t prefetch) {
  const auto n = static_cast<std::int64_t>(compute.size());
  double now = 0, lane = 0, busy = 0;
  std::int64_t issued = 0;
  std::vector<double> there(compute.size(), 0);
  for (std::int64_t s = 0; s < n; ++s) {
    const auto i = static_cast<std::size_t>(s);
    if (compute[i] <= 0) continue;  // a slot without a pass issues nothing and waits for nothing
    for (; issued < n && issued <= s + prefetch; ++issued) {
      const auto g = static_cast<std::size_t>(issued);
      if (gather[g] > 0) lane = std::max(lane, now) + gather[g];
      there[g] = gather[g] > 0 ? lane : 0;
    }
    now = std::max(now, there[i]) + compute[i];
    busy += compute[i];
    if (reduce[i] > 0) lane = std::max(lane, now) + reduce[i];
  }
  now = std::max(now, lane);
  return {now, now - busy};
}

}  // namespace moeplan
