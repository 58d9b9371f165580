#include "planner/stage_pass.hpp"

#include <algorithm>
#include <vector>

namespace moeplan {
namespace {

/// End of compute, and how far the second lane is ahead of it.
struct Clock {
  Four x, d;
};

[[gnu::always_inline]] inline void idle_lane(Clock& at, const Four& compute, const Four& reduce) {
  at.x += compute;
  at.d = max(at.d - compute, Four{}) + reduce;
}

/// `n` slots in a row during which nothing is gathered.
[[gnu::always_inline]] inline void idle_lane(Clock& at, const Four& compute, const Four& reduce, double n) {
  if (n <= 0) return;
  idle_lane(at, compute, reduce);
  const Four grows = (reduce - compute) * (n - 1);
  at.x += compute * (n - 1);
  at.d = reduce + max(at.d - reduce + grows, max(grows, Four{}));
}

/// One slot beside a gather on the second lane.
[[gnu::always_inline]] inline void beside(Clock& at, const Four& compute, const Four& gather, const Four& reduce) {
  at.x += max(compute, at.d + gather);
  at.d = reduce;
}

/// One slot that waits for its own gather.
[[gnu::always_inline]] inline void after(Clock& at, const Four& compute, const Four& gather, const Four& reduce) {
  at.x += at.d + gather + compute;
  at.d = reduce;
}

template <bool kBackward>
Four pass(std::span<const SlotRun> runs, std::span<const SlotSeconds> kinds, PassOptions options) {
  const std::size_t n = runs.size();
  const auto run = [&](std::size_t i) -> const SlotRun& { return runs[kBackward ? n - 1 - i : i]; };
  const auto kind = [&](std::size_t i) -> const SlotSeconds& { return kinds[static_cast<std::size_t>(run(i).kind)]; };
  const auto gathered = [&](const SlotSeconds& k) { return options.gathers && k.gather.v[0] > 0; };
  Clock at;
  if (options.prefetch > 0 && gathered(kind(0)) && !options.first_is_there) at.x = kind(0).gather;
  for (std::size_t i = 0; i < n; ++i) {
    const SlotSeconds& k = kind(i);
    const Four compute = kBackward ? k.backward : k.forward, reduce = kBackward ? k.reduce : Four{};
    double count = run(i).count;
    if (options.prefetch == 0) {
      // A slot without a pass (a frozen embedding's backward) is never gathered.
      if (!gathered(k) || compute.v[0] <= 0) { idle_lane(at, compute, reduce, count); continue; }
      if (i == 0 && options.first_is_there) { idle_lane(at, compute, reduce); count -= 1; }
      if (count <= 0) continue;
      after(at, compute, k.gather, reduce);
      at.x += (reduce + k.gather + compute) * (count - 1);
      continue;
    }
    if (count > 1) {
      if (gathered(k)) {
        beside(at, compute, k.gather, reduce);
        at.x += max(compute, reduce + k.gather) * (count - 2);
      } else {
        idle_lane(at, compute, reduce, count - 1);
      }
    }
    if (i + 1 < n && gathered(kind(i + 1))) beside(at, compute, kind(i + 1).gather, reduce);
    else idle_lane(at, compute, reduce);
  }
  return at.x + at.d;
}

/// Gathers further ahead: slot by slot.
template <bool kBackward>
Four walk(std::span<const SlotRun> runs, std::span<const SlotSeconds> kinds, PassOptions options) {
  std::vector<const SlotSeconds*> slots;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const SlotRun& r = runs[kBackward ? runs.size() - 1 - i : i];
    slots.insert(slots.end(), static_cast<std::size_t>(r.count), &kinds[static_cast<std::size_t>(r.kind)]);
  }
  const auto n = static_cast<std::int64_t>(slots.size());
  std::vector<Four> there(slots.size());
  Four now{}, lane{};
  std::int64_t issued = 0;
  for (std::int64_t s = 0; s < n; ++s) {
    if ((kBackward ? slots[static_cast<std::size_t>(s)]->backward : slots[static_cast<std::size_t>(s)]->forward).v[0] <= 0) continue;
    for (; issued < n && issued <= s + options.prefetch; ++issued) {
      const Four& g = slots[static_cast<std::size_t>(issued)]->gather;
      if (!options.gathers || g.v[0] <= 0 || (issued == 0 && options.first_is_there)) continue;
      there[static_cast<std::size_t>(issued)] = lane = max(lane, now) + g;
    }
    const SlotSeconds& slot = *slots[static_cast<std::size_t>(s)];
    now = max(now, there[static_cast<std::size_t>(s)]) + (kBackward ? slot.backward : slot.forward);
    if (kBackward && slot.reduce.v[0] > 0) lane = max(lane, now) + slot.reduce;
  }
  return max(now, lane);
}

}  // namespace

Four forward_seconds(std::span<const SlotRun> runs, std::span<const SlotSeconds> kinds, PassOptions options) {
  return options.prefetch > 1 ? walk<false>(runs, kinds, options) : pass<false>(runs, kinds, options);
}
Four backward_seconds(std::span<const SlotRun> runs, std::span<const SlotSeconds> kinds, PassOptions options) {
  return options.prefetch > 1 ? walk<true>(runs, kinds, options) : pass<true>(runs, kinds, options);
}

}  // namespace moeplan
