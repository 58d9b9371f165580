#include "planner/pipeline_step.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace moeplan {
namespace {

/// Periods of more numbers than these are not looked for.
constexpr std::int64_t kLongestPeriod = 64;

/// Whether all stages moved by the same time between the two rows, up to rounding. The last stages differ longest from the first.
bool moved_alike(const std::vector<Four>& now, const std::vector<Four>& then) {
  const Four d = now.front() - then.front();
  for (std::size_t s = now.size(); s-- > 1;)
    for (std::size_t l = 0; l < 4; ++l)
      if (std::abs(now[s].v[l] - then[s].v[l] - d.v[l]) > 1e-13 * now[s].v[l]) return false;
  return true;
}

/// Forward passes of the warm-up: the pass of micro-batch p - 1 - s on each stage s. Passes of one time each make a flow shop of equal jobs,
/// whose j-th leaves a stage j times the slowest stage so far after the first.
void warm_up(const std::vector<StageSeconds>& stages, const Four& exchange, std::vector<Four>& f) {
  const std::size_t n = stages.size();
  const bool again = std::any_of(stages.begin(), stages.end(), [](const StageSeconds& s) { return s.forward.v != s.forward_again.v; });
  Four first{}, slowest{};
  for (std::size_t s = 0; s < n; ++s) {
    first = (s > 0 ? first + exchange : first) + stages[s].forward;
    if (!again) {
      slowest = max(slowest, stages[s].forward);
      f[s] = first + slowest * static_cast<double>(n - 1 - s);
      continue;
    }
    f[s] = first;
    for (std::size_t before = s; before-- > 1;) f[before] = max(f[before], f[before - 1] + exchange) + stages[before].forward_again;
    if (s > 0) f[0] += stages[0].forward_again;
  }
}

/// The four lanes in a register, as they lie in memory.
typedef double Lanes __attribute__((vector_size(32), aligned(8), may_alias));

/// One number of a pipeline that goes on for ever: backward passes, after this stage's forward pass of the number and the next stage's
/// backward pass; then the forward passes of the next number, after this backward pass and the earlier stage's forward pass of this number.
/// With g the end of a forward pass and the time of the backward pass behind it, b[s] = max(g[s], b[s + 1] + x + B) and
/// g[s] = max(b[s] + F + B, g[s - 1] - B' + x + F + B). Both are held with the way home added, H[s] = sum of x + B' over the stages before:
/// then a backward pass is a running maximum, and stages follow each other by one instruction. Half of a warm evaluation is this loop.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
[[gnu::target_clones("avx2", "default"), gnu::optimize("finite-math-only", "no-signed-zeros")]]   // a maximum is one instruction
#endif
void number(const StageMoves* moves, Four* ends, Four* back, std::int64_t n) {
  static_assert(sizeof(StageMoves) == 2 * sizeof(Lanes) && sizeof(Four) == sizeof(Lanes));
  const Lanes* const move = reinterpret_cast<const Lanes*>(moves);   // turn, follow
  Lanes *const g = reinterpret_cast<Lanes*>(ends), *const b = reinterpret_cast<Lanes*>(back);   // `auto` would lose their alignment
  Lanes behind = g[n - 1];
#pragma GCC unroll 4
  for (std::int64_t s = n - 1; s > 0; --s) {
    b[s] = behind;
    const Lanes before = g[s - 1], turned = behind + move[2 * s], follows = before + move[2 * s + 1];
    g[s] = turned > follows ? turned : follows;
    behind = before > behind ? before : behind;
  }
  b[0] = behind;
  g[0] = behind + move[0];
}

}  // namespace

Four pipeline_step(const std::vector<StageSeconds>& stages, const Four& exchange, std::int64_t m, PipelineRoom& room) {
  const auto p = static_cast<std::int64_t>(stages.size());
  assert(m >= p && p > 0);
  if (p == 1) return (stages[0].forward + stages[0].backward) * static_cast<double>(m);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  room.forward.resize(stages.size());
  room.ends.resize(stages.size());
  room.moves.resize(stages.size());
  room.home.resize(stages.size());
  warm_up(stages, exchange, room.forward);
  Four home{};
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Four turn = stages[s].forward + stages[s].backward, returns = exchange + stages[s].backward;
    room.moves[s] = {turn, s > 0 ? exchange + exchange + turn : turn};   // - B' + x + F + B and x + B' of the way home
    room.forward[s] += stages[s].backward + home;
    room.home[s] = home;
    home += returns;
  }
  room.mark = room.forward;
  // Numbers until the pipeline repeats itself; what backward passes did since the mark is kept.
  std::int64_t a = 0, marked = 0, next_mark = 1;
  for (;; ++a) {
    if (a == next_mark) {
      room.mark = room.forward;
      marked = a;
      next_mark = 2 * a;
    }
    const std::int64_t row = std::min(a - marked, kLongestPeriod);
    if (room.rows.size() < at((row + 1) * p)) room.rows.resize(at((row + 1) * p));
    Four* const back = &room.rows[at(row * p)];
    number(room.moves.data(), room.forward.data(), back, p);
    if (a >= m - p) room.ends[at(a - (m - p))] = back[a - (m - p)];
    if (a + 1 == m) break;
    if (row < kLongestPeriod && moved_alike(room.forward, room.mark)) break;
  }
  const std::int64_t period = a + 1 - marked;
  const Four moved = room.forward.front() - room.mark.front();
  // Stage k's last forward pass is behind it at number m - p + k; until then it has gone on as if there were more to come. What it does
  // then goes back through stages that have backward passes alone: a flow shop of equal jobs.
  Four end{}, back{}, slowest{};
  for (std::int64_t k = 0; k < p; ++k) {
    const std::int64_t since = m - p + k - marked;
    if (m - p + k > a) room.ends[at(k)] = room.rows[at(since % period * p + k)] + moved * static_cast<double>(since / period);
    slowest = max(slowest, stages[at(k)].backward_again);
    end = max(end, room.ends[at(k)] - room.home[at(k)] + back + slowest * static_cast<double>(p - 1 - k));
    back += exchange + stages[at(k)].backward_again;
  }
  return end;
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
