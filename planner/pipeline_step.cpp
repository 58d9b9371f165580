#include "planner/pipeline_step.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

namespace moeplan {
namespace {

/// Periods of more numbers than these are not looked for.
constexpr std::int64_t kLongestPeriod = 64;

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

/// The four lanes in a register, as they lie in memory. A maximum of them is one instruction where neither NaN nor -0 matters.
typedef double Lanes __attribute__((vector_size(32), aligned(8), may_alias));
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MOEPLAN_LANES [[gnu::target_clones("avx2", "default"), gnu::optimize("finite-math-only", "no-signed-zeros")]]
#else
#define MOEPLAN_LANES
#endif

/// One number of a pipeline that goes on for ever: backward passes, after this stage's forward pass of the number and the next stage's
/// backward pass; then the forward passes of the next number, after this backward pass and the earlier stage's forward pass of this number.
/// With g the end of a forward pass and the time of the backward pass behind it, b[s] = max(g[s], b[s + 1] + x + B) and
/// g'[s] = max(b[s] + F + B, g[s - 1] - B' + x + F + B). Both are held with the way home added, H[s] = sum of x + B' over the stages before:
/// then a backward pass is a running maximum, and stages follow each other by one instruction.
MOEPLAN_LANES void number(const StageMoves* moves, const Four* ends, Four* next, Four* back, std::int64_t n) {
  static_assert(sizeof(StageMoves) == 2 * sizeof(Lanes) && sizeof(Four) == sizeof(Lanes));
  const Lanes *const move = reinterpret_cast<const Lanes*>(moves), *const g = reinterpret_cast<const Lanes*>(ends);   // turn, follow; `auto` would lose their alignment
  Lanes *const then = reinterpret_cast<Lanes*>(next), *const b = reinterpret_cast<Lanes*>(back);
  Lanes behind = g[n - 1];
#pragma GCC unroll 4
  for (std::int64_t s = n - 1; s > 0; --s) {
    b[s] = behind;
    const Lanes before = g[s - 1], turned = behind + move[2 * s], follows = before + move[2 * s + 1];
    then[s] = turned > follows ? turned : follows;
    behind = before > behind ? before : behind;
  }
  b[0] = behind;
  then[0] = behind + move[0];
}

/// How many numbers each lane's slowest circle takes. A way through the numbers goes from a stage to itself, to any stage before or to the next; each
/// number on stage s takes its turn T[s], and a step to the next stage 2 x more. So a circle is a window of n stages, each met once, at (sum of T + 2 x (n - 1)) / n
/// a number; what goes on for ever goes round the slowest. Looked for by Dinkelbach's method: the window with the largest sum of
/// T + 2 x - pace, until that is 2 x for the pace of the window found before.
MOEPLAN_LANES void slowest_windows(const StageMoves* moves, std::int64_t n, Four* numbers) {
  const Lanes* const move = reinterpret_cast<const Lanes*>(moves);
  const Lanes zero = {0, 0, 0, 0}, one = {1, 1, 1, 1}, away = move[3] - move[2];
  Lanes pace = move[0], size = one;
  for (std::int64_t s = 1; s < n; ++s) pace = move[2 * s] > pace ? move[2 * s] : pace;
  for (int round = 0; round < 8; ++round) {
    Lanes sum = zero, length = zero, best = away, best_length = zero;
    for (std::int64_t s = 0; s < n; ++s) {
      const Lanes gain = move[2 * s] + away - pace, kept = sum > zero ? sum : zero;
      length = (sum > zero ? length : zero) + one;
      sum = kept + gain;
      best_length = sum > best ? length : best_length;
      best = sum > best ? sum : best;
    }
    if (best_length[0] + best_length[1] + best_length[2] + best_length[3] == 0) break;
    const Lanes there = best_length > zero ? best_length : one;
    pace = pace + (best - away) / there;   // by nothing where no window is slower
    size = best_length > zero ? best_length : size;
  }
  *reinterpret_cast<Lanes*>(numbers) = size;
}

/// Whether all stages have moved by the same time in one lane between the two rows, up to rounding. The last stages differ longest from the first.
bool moved_alike(const Four* now, const Four* then, std::int64_t stages, std::size_t lane) {
  const double d = now[0].v[lane] - then[0].v[lane];
  for (std::int64_t s = stages; s-- > 1;)
    if (std::abs(now[s].v[lane] - then[s].v[lane] - d) > 1e-13 * now[s].v[lane]) return false;
  return true;
}

}  // namespace

Four pipeline_step(const std::vector<StageSeconds>& stages, const Four& exchange, std::int64_t m, PipelineRoom& room) {
  const auto p = static_cast<std::int64_t>(stages.size());
  assert(m >= p && p > 0);
  if (p == 1) return (stages[0].forward + stages[0].backward) * static_cast<double>(m);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::int64_t rows = std::min(p, kLongestPeriod) + 1;   // of the numbers played last, in turn
  room.forward.resize(at(rows * p));
  room.back.resize(at(rows * p));
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
  Four numbers;
  slowest_windows(room.moves.data(), p, &numbers);
  std::array<std::int64_t, 4> period{};
  for (std::size_t l = 0; l < 4; ++l) period[l] = static_cast<std::int64_t>(numbers.v[l]);
  // Numbers until every lane repeats itself, each after as many as its slowest circle takes.
  const auto row = [&](std::int64_t since, std::int64_t now) { return now >= since ? now - since : now - since + rows; };
  unsigned open = 0b1111;
  for (std::int64_t a = 0, now = 0, look = 1; a < m && open != 0; ++a) {
    const std::int64_t next = now + 1 == rows ? 0 : now + 1;
    const Four* const ends = &room.forward[at(next * p)];
    const Four* const back = &room.back[at(now * p)];
    number(room.moves.data(), &room.forward[at(now * p)], &room.forward[at(next * p)], &room.back[at(now * p)], p);
    if (a >= m - p) room.ends[at(a - (m - p))] = back[a - (m - p)];
    if (a + 1 < m && a + 1 >= look) {
      look = a + 2 + a / 4;
      for (std::size_t l = 0; l < 4; ++l) {
        if ((open >> l & 1u) == 0 || period[l] > a + 1 || period[l] >= rows) continue;
        const Four* const then = &room.forward[at(row(period[l], next) * p)];
        if (!moved_alike(ends, then, p, l)) continue;
        open &= ~(1u << l);
        // What the stages' backward passes will do from here on until their forward passes are behind them.
        const double moved = ends[0].v[l] - then[0].v[l];
        const std::int64_t first = std::max<std::int64_t>(0, a + 1 - (m - p)), ahead = m - p + first - a - 1;
        std::int64_t phase = ahead % period[l];
        double since = moved * static_cast<double>(ahead / period[l] + 1);
        for (std::int64_t k = first; k < p; ++k) {
          room.ends[at(k)].v[l] = room.back[at(row(period[l] - 1 - phase, now) * p + k)].v[l] + since;
          if (++phase == period[l]) phase = 0, since += moved;
        }
      }
    }
    now = next;
  }
  // Stage k's last forward pass is behind it at number m - p + k; until then it has gone on as if there were more to come. What it does
  // then goes back through stages that have backward passes alone: a flow shop of equal jobs.
  Four end{}, back{}, slowest{};
  for (std::int64_t k = 0; k < p; ++k) {
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
