#include "planner/pass_sums.hpp"

#include <algorithm>

namespace moeplan {
namespace {

bool no_more(const Four& a, const Four& b) {
  const Four most = max(a, b);
  return (most.v[0] == b.v[0]) & (most.v[1] == b.v[1]) & (most.v[2] == b.v[2]) & (most.v[3] == b.v[3]);
}

}  // namespace

void PassSums::Compute::add(const Four& seconds, double slots) {
  if (each.empty()) least = most = seconds;
  for (std::size_t l = 0; l < 4; ++l) least.v[l] = std::min(least.v[l], seconds.v[l]);
  most = max(most, seconds);
  sum += seconds * slots;
  each.emplace_back(seconds, slots);
}

PassSums::PassSums(std::span<const SlotRun> runs, std::span<const SlotSeconds> kinds, std::span<const std::size_t> weight_of) {
  const auto weight = [&](std::int32_t kind) { return static_cast<std::int32_t>(weight_of[static_cast<std::size_t>(kind)]); };
  const auto add = [&](std::int32_t before, const SlotRun& run, std::int32_t after, std::int32_t slots) {
    if (slots <= 0) return;
    const std::int32_t here = weight(run.kind);
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.before == before && g.weight == here && g.after == after; });
    if (group == groups_.end()) group = groups_.insert(group, {.before = before, .weight = here, .after = after});
    group->slots += slots;
    group->forward.add(kinds[static_cast<std::size_t>(run.kind)].forward, slots);
    group->backward.add(kinds[static_cast<std::size_t>(run.kind)].backward, slots);
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const SlotRun& run = runs[i];
    const std::int32_t here = weight(run.kind), before = i > 0 ? weight(runs[i - 1].kind) : -1, after = i + 1 < runs.size() ? weight(runs[i + 1].kind) : -1;
    if (run.count == 1) { add(before, run, after, 1); continue; }
    add(before, run, here, 1);
    add(here, run, here, run.count - 2);
    add(here, run, after, 1);
  }
}

template <bool kBackward>
std::optional<Four> PassSums::seconds(std::span<const WeightSeconds> weights, PassOptions o) const {
  if (o.prefetch > 1) return std::nullopt;
  const auto of = [&](std::int32_t w) -> const WeightSeconds& { return weights[static_cast<std::size_t>(w)]; };
  const auto compute = [](const Group& g) -> const Compute& { return kBackward ? g.backward : g.forward; };
  const Group *first = nullptr, *last = nullptr;
  Four x{};
  for (const Group& g : groups_) {
    const std::int32_t earlier = kBackward ? g.after : g.before, later = kBackward ? g.before : g.after;
    if (o.gathers && of(g.weight).gather.v[0] <= 0) return std::nullopt;
    if (earlier < 0) first = &g;
    if (later < 0) {   // the pass's last slot
      if (earlier < 0) return std::nullopt;
      last = &g;
      continue;
    }
    const Compute& c = compute(g);
    if (c.least.v[0] <= 0) return std::nullopt;
    const Four lead = kBackward && earlier >= 0 ? of(earlier).reduce : Four{};
    if (!o.gathers) {
      if (!no_more(lead, c.least)) return std::nullopt;
      x += c.sum;
    } else if (o.prefetch == 0) {
      x += (lead + of(g.weight).gather) * g.slots + c.sum;
    } else if (const Four beside = lead + of(later).gather; no_more(beside, c.least)) {
      x += c.sum;
    } else if (no_more(c.most, beside)) {
      x += beside * g.slots;
    } else {
      for (const auto& [seconds, slots] : c.each) x += max(seconds, beside) * slots;
    }
  }
  if (!last) return std::nullopt;
  if (o.gathers && !o.first_is_there && o.prefetch > 0) x += of(first->weight).gather;
  if (o.gathers && o.first_is_there && o.prefetch == 0) x = x - of(first->weight).gather;
  const Four lead = kBackward ? of(last->after).reduce : Four{}, &c = compute(*last).sum;
  if (o.gathers && o.prefetch == 0 && c.v[0] > 0) x += lead + of(last->weight).gather + c;
  else x += max(c, lead);
  return kBackward ? x + of(last->weight).reduce : x;
}

std::optional<Four> PassSums::forward(std::span<const WeightSeconds> weights, PassOptions options) const { return seconds<false>(weights, options); }
std::optional<Four> PassSums::backward(std::span<const WeightSeconds> weights, PassOptions options) const { return seconds<true>(weights, options); }

}  // namespace moeplan
