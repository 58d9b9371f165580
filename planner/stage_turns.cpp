#include "planner/stage_turns.hpp"

#include <algorithm>
#include <stdexcept>

namespace moeplan {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::uint32_t code(const Turn& t) { return (static_cast<std::uint32_t>(t.kind) << 16) | (static_cast<std::uint32_t>(t.chunk) << 8) | static_cast<std::uint32_t>(t.forward_chunk + 1); }

}  // namespace

/// A turn on the compute and the data lane.
struct StageTurns::Clock {
  StageTurns& of;
  Four main{}, lane{}, reduced{}, late{};
  bool first = true;                       ///< of the turn's slots
  TurnTimes times{};

  void gather(std::int32_t s) {
    Four& ready = of.ready_[at(s)];
    ready = {};
    if (const Four& g = of.kind(s).gather; g.v[0] > 0) ready = lane = max(lane, main) + g;
  }
  void release(std::int32_t s) { of.ready_[at(s)] = {}; }
  void run(std::int32_t s, const Four& seconds) {
    main = max(main, of.ready_[at(s)]) + seconds;
    first = false;
  }
  [[nodiscard]] bool beside_gathers(std::int32_t s) const { return of.prefetch_ > 0 && of.ready_[at(s)].v[0] > 0; }
  void forward(const TurnChunk&, std::int32_t s) {
    if (!first && beside_gathers(s)) late += of.kind(s).late_forward;
    run(s, of.kind(s).forward);
  }
  void backward(const TurnChunk&, std::int32_t s) {
    if (!first) late += beside_gathers(s) ? of.kind(s).late_backward : of.kind(s).late_reduced;
    run(s, of.kind(s).backward);
  }
  void weight(std::int32_t s) { main += of.kind(s).weight; }
  void both(const TurnChunk&, std::int32_t f, const TurnChunk&, std::int32_t b) {
    const Four& both = of.pair_(of.slots_[at(f)].kind, of.slots_[at(b)].kind, PairPart::seconds).seconds;
    if (!first) {
      const SlotCollectives &goes = of.kind(f).beside, &comes = of.kind(b).beside;
      const double fs = f != b && beside_gathers(f) ? 1 : 0, bs = beside_gathers(b) ? 1 : 0;
      const double moved = fs * goes.gather + bs * comes.gather + comes.reduce, lends = fs * goes.gather_lends + bs * comes.gather_lends + comes.reduce_lends;
      for (std::size_t l = 0; l < both.v.size(); ++l) late.v[l] += paired_delay(both.v[l], moved, lends);
    }
    main = max(main, of.ready_[at(f)]);
    run(b, both);
  }
  void reduce(std::int32_t s) {
    if (const Four& r = of.kind(s).reduce; r.v[0] > 0) lane = reduced = max(lane, main) + r;
  }
  void send(bool gradients) { (gradients ? times.backward_done : times.forward_done) = (gradients ? max(main, reduced) : main) + late; }
};

/// Its memory beyond what was there when it began.
struct StageTurns::Bytes {
  StageTurns& of;
  std::int64_t unreduced = 0;
  TwoLoads now{}, most{};

  void add(std::int64_t bytes) { now[0] += bytes, now[1] += bytes; }
  void add(const TwoLoads& bytes, std::int64_t sign) { now[0] += sign * bytes[0], now[1] += sign * bytes[1]; }
  void consider(const TwoLoads& transient, std::int64_t more) {
    for (const std::size_t l : {0, 1}) most[l] = std::max(most[l], now[l] + transient[l] + more);
  }
  void gather(std::int32_t s) { add(of.kind(s).gathered); }
  void release(std::int32_t s) { add(-of.kind(s).gathered); }
  void enter(const TurnChunk& c, std::int32_t s) { if (s == c.first) add(c.carried); }
  void forward(const TurnChunk& c, std::int32_t s) {
    enter(c, s);
    consider(of.kind(s).forward_peak, 0);
    add(of.slots_[at(s)].kept, 1);
    unreduced = 0;
  }
  [[nodiscard]] std::int64_t beside(const TurnChunk& c, std::int32_t s) const { return unreduced + (s + 1 < c.end || !c.ends_model ? of.kind(s).carried_gradients : 0); }
  void after_backward(const TurnChunk& c, std::int32_t s) {
    add(of.slots_[at(s)].put_off, 1);
    unreduced = of.kind(s).has_weight ? 0 : of.kind(s).unreduced;
    for (std::int32_t b = c.first; b < s; ++b)
      if (of.kind(b).has_backward) return;
    add(-c.carried);
  }
  void backward(const TurnChunk& c, std::int32_t s) {
    add(of.slots_[at(s)].kept, -1);
    consider(of.kind(s).backward_peak, beside(c, s));
    after_backward(c, s);
  }
  void both(const TurnChunk& fc, std::int32_t f, const TurnChunk& bc, std::int32_t b) {
    enter(fc, f);
    add(of.slots_[at(b)].kept, -1);
    consider(of.pair_(of.slots_[at(f)].kind, of.slots_[at(b)].kind, PairPart::peak).peak, beside(bc, b));
    after_backward(bc, b);
    add(of.slots_[at(f)].kept, 1);
  }
  void weight(std::int32_t s) {
    add(of.slots_[at(s)].put_off, -1);
    consider(of.kind(s).weight_peak, unreduced);
    unreduced = of.kind(s).unreduced;
  }
  void reduce(std::int32_t) {}
  void send(bool) {}
};

/// The order of `Issuer`: gathers `prefetch_` slots ahead, releases after use, reductions after a slot's last backward call.
template <class Visit>
void StageTurns::issue(const Turn& turn, Visit& visit) {
  const auto gather = [&](std::int32_t s, const TurnChunk& c) {
    if (s < c.first || s >= c.end || !kind(s).gathers || there_[at(s)] != 0) return;
    there_[at(s)] = 1;
    visit.gather(s);
  };
  const auto release = [&](std::int32_t s) {
    if (there_[at(s)] == 0) return;
    there_[at(s)] = 0;
    visit.release(s);
  };
  const auto keeps = [&](const TurnChunk& c, std::int32_t s) { return !reshard_ || (s + 1 == c.end && c.ends_model); };
  const auto after_backward = [&](std::int32_t s) {
    release(s);
    if (kind(s).reduces && !kind(s).has_weight) visit.reduce(s);
  };
  const auto finish_backward = [&](const TurnChunk& c) {
    for (std::int32_t s = c.first; s < c.end; ++s) release(s);
    if (!c.begins_model) visit.send(true);
  };
  const TurnChunk& c = chunks_[at(turn.chunk)];
  switch (turn.kind) {
    case Turn::Kind::forward:
      for (std::int32_t s = c.first; s < c.end; ++s) {
        for (std::int64_t a = 0; a <= prefetch_; ++a) gather(s + static_cast<std::int32_t>(a), c);
        visit.forward(c, s);
        if (!keeps(c, s)) release(s);
      }
      if (!c.ends_model) visit.send(false);
      break;
    case Turn::Kind::backward:
      for (std::int32_t s = c.end; s-- > c.first;) {
        if (!kind(s).has_backward) continue;
        for (std::int64_t a = 0; a <= prefetch_; ++a) gather(s - static_cast<std::int32_t>(a), c);
        visit.backward(c, s);
        after_backward(s);
      }
      finish_backward(c);
      break;
    case Turn::Kind::weight:
      for (std::int32_t s = c.end; s-- > c.first;) {
        if (!kind(s).has_weight) continue;
        visit.weight(s);
        if (kind(s).reduces) visit.reduce(s);
      }
      break;
    case Turn::Kind::both: {
      const TurnChunk& fc = chunks_[at(turn.forward_chunk)];
      std::int32_t f = fc.first, b = c.end - 1;
      while (f < fc.end || b >= c.first) {
        if (b >= c.first && !kind(b).has_backward) { --b; continue; }
        const bool goes = f < fc.end, comes = b >= c.first;
        for (std::int64_t a = 0; a <= prefetch_; ++a) {
          if (goes) gather(f + static_cast<std::int32_t>(a), fc);
          if (comes) gather(b - static_cast<std::int32_t>(a), c);
        }
        if (goes && comes) visit.both(fc, f, c, b);
        else if (goes) visit.forward(fc, f);
        else visit.backward(c, b);
        if (goes && (!comes || f != b) && !keeps(fc, f)) release(f);
        if (comes) after_backward(b);
        if (goes && f + 1 == fc.end && !fc.ends_model) visit.send(false);
        f += goes ? 1 : 0;
        b -= comes ? 1 : 0;
      }
      finish_backward(c);
      break;
    }
  }
}

std::size_t StageTurns::state_of_copies() {
  const auto known = static_cast<std::size_t>(std::find(states_.begin(), states_.end(), there_) - states_.begin());
  if (known == states_.size()) states_.push_back(there_);
  return known;
}

const TurnTimes& StageTurns::next(const Turn& turn) {
  const std::uint32_t which = code(turn);
  for (const Known& k : known_)
    if (k.turn == which && k.before == state_) {
      state_ = k.after;
      return k.times;
    }
  there_ = states_[state_];
  std::fill(ready_.begin(), ready_.end(), Four{});   // copies of earlier turns are there
  Clock clock{.of = *this};
  issue(turn, clock);
  clock.times.duration = max(clock.main, clock.lane) + clock.late;
  known_.push_back({which, state_, state_of_copies(), clock.times});
  state_ = known_.back().after;
  return known_.back().times;
}

void StageTurns::restart() {
  state_ = 0;
  known_.clear();
}

TwoLoads StageTurns::peak(std::span<const Turn> turns) {
  std::size_t state = 0;
  std::int64_t unreduced = 0;
  TwoLoads now{}, most{};
  for (const Turn& t : turns) {
    const std::uint32_t which = code(t);
    auto known = std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.turn == which && h.before == state && h.unreduced_before == unreduced; });
    if (known == held_.end()) {
      there_ = states_[state];
      Bytes bytes{.of = *this, .unreduced = unreduced};
      issue(t, bytes);
      known = held_.insert(held_.end(), {which, state, state_of_copies(), unreduced, bytes.unreduced, bytes.most, bytes.now});
    }
    for (const std::size_t l : {0, 1}) {
      most[l] = std::max(most[l], now[l] + known->peak[l]);
      now[l] += known->change[l];
    }
    state = known->after;
    unreduced = known->unreduced_after;
  }
  return most;
}

OverlapCounts overlap_counts(int p, int v, std::int64_t m, int stage) {
  OverlapCounts out{std::vector<std::int64_t>(at(v), 0), std::vector<std::int64_t>(at(v), 0), std::vector<std::int64_t>(at(static_cast<std::int64_t>(v) * v), 0)};
  const std::int64_t all = m * v, warm = std::min(all, std::int64_t{2} * (p - 1 - stage) + std::int64_t{v - 1} * p + 1);
  const std::int64_t run = v == 1 ? all : p;   // passes of one chunk in a row
  const auto chunk = [&](std::int64_t k) { return k / run % v; };
  const auto left = [&](std::int64_t k) { return run - k % run; };
  for (std::int64_t k = 0; k < warm;) {
    const std::int64_t n = std::min(left(k), warm - k);
    out.forward[at(chunk(k))] += n;
    k += n;
  }
  for (std::int64_t k = warm; k < all;) {
    const std::int64_t n = std::min({left(k), left(k - warm), all - k});
    out.both[at(chunk(k) * v + v - 1 - chunk(k - warm))] += n;
    k += n;
  }
  for (std::int64_t k = all - warm; k < all;) {
    const std::int64_t n = std::min(left(k), all - k);
    out.backward[at(v - 1 - chunk(k))] += n;
    k += n;
  }
  return out;
}

Four play_turns(std::span<const std::vector<Turn>> orders, int chunks, std::int64_t micro_batches, const Four& exchange, std::span<StageTurns> stages) {
  const std::size_t p = orders.size(), m = at(micro_batches), all = p * at(chunks);
  // When a pass of a virtual stage has ended, message included; below 0: not yet.
  const Four never = Four::of(-1);
  std::vector<Four> forward(all * m, never), backward = forward, now(p);
  std::vector<std::size_t> next(p, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < p; ++s) {
      const std::vector<Turn>& turns = orders[s];
      for (; next[s] < turns.size(); ++next[s]) {
        const Turn& t = turns[next[s]];
        const bool both = t.kind == Turn::Kind::both, goes = both || t.kind == Turn::Kind::forward, comes = both || t.kind == Turn::Kind::backward;
        const std::size_t f = at(both ? t.forward_chunk : t.chunk) * p + s, b = at(t.chunk) * p + s;
        const std::size_t fj = at(both ? t.forward_micro_batch : t.micro_batch), bj = at(t.micro_batch);
        Four ready = now[s];
        if (goes && f > 0) {
          const Four& there = forward[(f - 1) * m + fj];
          if (there.v[0] < 0) break;
          ready = max(ready, there);
        }
        if (comes && b + 1 < all) {
          const Four& there = backward[(b + 1) * m + bj];
          if (there.v[0] < 0) break;
          ready = max(ready, there);
        }
        const TurnTimes& took = stages[s].next(t);
        if (goes) forward[f * m + fj] = ready + took.forward_done + exchange;
        if (comes) backward[b * m + bj] = ready + took.backward_done + exchange;
        now[s] = ready + took.duration;
        moved = true;
      }
    }
  }
  Four end{};
  for (std::size_t s = 0; s < p; ++s) {
    if (next[s] < orders[s].size()) throw std::logic_error("stage " + std::to_string(s) + " waits in its turn " + std::to_string(next[s]) + " for a message that never comes");
    end = max(end, now[s]);
  }
  return end;
}

}  // namespace moeplan
