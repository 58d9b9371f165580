/// Turns in time: what one takes by itself, and those of all stages against each other's messages.

#include <algorithm>
#include <stdexcept>

#include "planner/scheduled.hpp"

namespace moeplan {

static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

TurnTime turn_time(std::span<const Instance> issued, const std::function<PassTime(const Instance&)>& pass, const std::function<double(std::int32_t)>& gather,
                   const std::function<double(std::int32_t)>& reduce, const std::function<double(const Instance&, double, Gathered)>& late) {
  TurnTime out;
  double behind = 0;
  std::vector<std::int32_t> gathered;
  double main = 0, lane = 0, reduced = 0;
  std::vector<double> done(issued.size(), 0);
  for (std::size_t i = 0; i < issued.size(); ++i) {
    const Instance& x = issued[i];
    double ready = 0;
    for (const std::int32_t a : x.after) ready = std::max(ready, done[index(a)]);
    switch (x.phase) {
      case Phase::gather:
        if (const double g = gather(x.slot); g > 0) {
          done[i] = lane = std::max(lane, main) + g;
          gathered.push_back(x.slot);
        }
        break;
      case Phase::reduce:
        if (const double r = reduce(x.slot); r > 0) done[i] = lane = reduced = std::max(lane, ready) + r;
        break;
      case Phase::forward: case Phase::backward: case Phase::weight_backward: case Phase::forward_backward: {
        const PassTime took = pass(x);
        if (late && main > 0) behind += late(x, took.total.value, gathered);
        done[i] = main = std::max(main, ready) + took.total.value;
        out.blocks += took.total.value;
        out.exposed += took.exposed.value;
        break;
      }
      case Phase::send_receive:
        if (x.sent.value > 0 && x.with_next) out.forward_done = ready + behind;
        if (x.sent.value > 0 && !x.with_next) out.backward_done = std::max(ready, reduced) + behind;
        break;
      default: break;
    }
  }
  out.duration = std::max(main, lane) + behind;
  return out;
}

double turns_seconds(const std::vector<std::vector<Turn>>& stages, int chunks, double exchange, const std::function<const TurnTime&(std::size_t, std::size_t)>& time) {
  const std::size_t p = stages.size(), v = static_cast<std::size_t>(chunks);
  std::int32_t m = 0;
  for (const Turn& t : stages[0]) m = std::max({m, t.micro_batch + 1, t.forward_micro_batch + 1});
  const auto at = [&](std::size_t virtual_stage, std::int32_t j) { return virtual_stage * static_cast<std::size_t>(m) + index(j); };
  std::vector<double> forward(p * v * static_cast<std::size_t>(m), -1), backward = forward, now(p, 0);
  std::vector<std::size_t> next(p, 0);
  const auto sent = [&](const std::vector<double>& done, std::size_t virtual_stage, std::int32_t j) { return done[at(virtual_stage, j)] < 0 ? -1 : done[at(virtual_stage, j)] + exchange; };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < p; ++s) {
      for (; next[s] < stages[s].size(); ++next[s]) {
        const Turn& t = stages[s][next[s]];
        const bool both = t.kind == Turn::Kind::both, goes_forward = both || t.kind == Turn::Kind::forward, goes_back = both || t.kind == Turn::Kind::backward;
        const std::size_t f = index(both ? t.forward_chunk : t.chunk) * p + s, b = index(t.chunk) * p + s;
        const std::int32_t fj = both ? t.forward_micro_batch : t.micro_batch;
        double ready = now[s];
        if (goes_forward && f > 0) {
          const double there = sent(forward, f - 1, fj);
          if (there < 0) break;
          ready = std::max(ready, there);
        }
        if (goes_back && b + 1 < p * v) {
          const double there = sent(backward, b + 1, t.micro_batch);
          if (there < 0) break;
          ready = std::max(ready, there);
        }
        const TurnTime& took = time(s, next[s]);
        if (goes_forward) forward[at(f, fj)] = ready + took.forward_done;
        if (goes_back) backward[at(b, t.micro_batch)] = ready + took.backward_done;
        now[s] = ready + took.duration;
        moved = true;
      }
    }
  }
  for (std::size_t s = 0; s < p; ++s)
    if (next[s] < stages[s].size()) throw std::logic_error("stage " + std::to_string(s) + " waits in its turn " + std::to_string(next[s]) + " for a message that never comes");
  return *std::max_element(now.begin(), now.end());
}

}  // namespace moeplan
