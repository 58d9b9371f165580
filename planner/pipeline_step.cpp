#include "planner/pipeline_step.hpp"

#include <cassert>
#include <cmath>

namespace moeplan {
namespace {

/// Whether all stages moved by the same time between the two rows, up to rounding.
bool moved_alike(const std::vector<Four>& now, const std::vector<Four>& then) {
  const Four d = now.front() - then.front();
  for (std::size_t s = 1; s < now.size(); ++s)
    for (std::size_t l = 0; l < 4; ++l)
      if (std::abs(now[s].v[l] - then[s].v[l] - d.v[l]) > 1e-13 * now[s].v[l]) return false;
  return true;
}

}  // namespace

Four pipeline_step(const std::vector<StageSeconds>& stages, const Four& exchange, std::int64_t m, PipelineRoom& room) {
  const auto p = static_cast<std::int64_t>(stages.size());
  assert(m >= p && p > 0);
  if (p == 1) return (stages[0].forward + stages[0].backward) * static_cast<double>(m);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::vector<Four>&f = room.forward, &b = room.backward;
  f.assign(stages.size(), Four{});
  b.assign(stages.size(), Four{});
  // Warm-up: forward passes only; stage s starts at number s - (p - 1) with micro-batch 0.
  for (std::int64_t reached = 0; reached < p; ++reached) {
    const auto last = at(reached);
    f[last] = (reached > 0 ? f[last - 1] + exchange : Four{}) + stages[last].forward;
    for (std::size_t s = last; s-- > 1;) f[s] = max(f[s], f[s - 1] + exchange) + stages[s].forward_again;
    if (reached > 0) f[0] += stages[0].forward_again;
  }
  // Backward passes of number a, after this stage's forward pass of the number and the next stage's backward pass; then its forward passes
  // of number a + 1, after this backward pass and the earlier stage's forward pass of number a. Stages before `first` have no forward
  // pass left: their backward passes follow each other.
  const auto number = [&](std::size_t first, bool forth) {
    const auto n = static_cast<std::size_t>(p);
    Four behind{};   // backward pass of the stage behind
    for (std::size_t s = n; s-- > first;) {
      const StageSeconds& stage = stages[s];
      behind = (s + 1 < n ? max(f[s], behind + exchange) : f[s]) + stage.backward;
      b[s] = behind;
      if (forth) f[s] = (s > 0 ? max(behind, f[s - 1] + exchange) : behind) + stage.forward;
    }
    for (std::size_t s = first; s-- > 0;) b[s] = behind = max(b[s], behind + exchange) + stages[s].backward_again;
  };
  std::int64_t a = 0, marked = 0, next_mark = 1;
  room.mark = f;
  for (; a < m - p; ++a) {
    number(0, true);
    const std::int64_t period = a + 1 - marked;
    if (m - p - (a + 1) >= period && moved_alike(f, room.mark)) {
      const std::int64_t periods = (m - p - (a + 1)) / period;
      const Four jump = (f.front() - room.mark.front()) * static_cast<double>(periods);
      for (Four& each : f) each += jump;
      a += periods * period;
      next_mark = m;  // what is left is shorter than a period
    }
    if (a + 1 >= next_mark && next_mark < m) {
      room.mark = f;
      marked = a + 1;
      next_mark = 2 * (a + 1);
    }
  }
  // Cool-down: stage by stage the forward passes end.
  for (; a < m; ++a) {
    const std::size_t first = at(a - (m - p));
    if (a + 1 == m) { number(first, false); break; }
    const Four ends = f[first];   // this stage's last forward pass is behind it
    number(first, true);
    f[first] = ends;
  }
  return b.front();
}

Four pipeline_floor(const std::vector<StageSeconds>& stages, const Four& exchange, std::int64_t m) {
  Four before{}, floor{};
  for (const StageSeconds& s : stages) {
    const Four both = s.forward + s.backward;
    // Forward passes of the warm-up and backward passes of the cool-down follow their own kind, which never takes less here than
    // what the smaller of both does.
    Four least = both;
    for (std::size_t l = 0; l < 4; ++l) least.v[l] = std::min(s.forward.v[l], s.forward_again.v[l]) + std::min(s.backward.v[l], s.backward_again.v[l]);
    floor = max(floor, before + least * static_cast<double>(m));
    before += least + exchange * 2;
  }
  return floor;
}

}  // namespace moeplan
