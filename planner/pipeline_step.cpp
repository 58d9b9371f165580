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
  for (std::int64_t a = 1 - p; a <= 0; ++a) {
    const std::int64_t reached = a + p - 1;
    for (std::int64_t s = reached; s >= 0; --s) {
      const StageSeconds& stage = stages[at(s)];
      if (s == reached) f[at(s)] = (s > 0 ? f[at(s - 1)] + exchange : Four{}) + stage.forward;
      else f[at(s)] = max(f[at(s)], s > 0 ? f[at(s - 1)] + exchange : Four{}) + stage.forward_again;
    }
  }
  // Backward passes of number a: after this stage's forward pass of the number, and the next stage's backward pass.
  const auto back = [&](std::int64_t first) {   // stages before `first` have no forward pass left: they follow their own backward pass
    for (std::int64_t s = p; s-- > 0;) {
      const StageSeconds& stage = stages[at(s)];
      Four start = s >= first ? f[at(s)] : b[at(s)];
      if (s + 1 < p) start = max(start, b[at(s + 1)] + exchange);
      b[at(s)] = start + (s >= first ? stage.backward : stage.backward_again);
    }
  };
  const auto forth = [&](std::int64_t first) {
    for (std::int64_t s = p; s-- > first;) {
      Four start = b[at(s)];
      if (s > 0) start = max(start, f[at(s - 1)] + exchange);
      f[at(s)] = start + stages[at(s)].forward;
    }
  };
  std::int64_t a = 0, marked = 0, next_mark = 1;
  room.mark = f;
  for (; a < m - p; ++a) {
    back(0);
    forth(0);
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
  // Cool-down: stage by stage the forward passes end; the backward passes that are left follow each other.
  for (; a < m; ++a) {
    back(a - (m - p));
    if (a + 1 < m) forth(a + 1 - (m - p));
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
