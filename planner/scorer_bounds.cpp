/// What no candidate undercuts: bounds on memory and step time of one split, and of all splits of a layout at once (docs/planner.md).

#include <algorithm>
#include <cmath>

#include "planner/scorer.hpp"

namespace moeplan {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Of a stage's first `flying` forward passes those of chunk `c`, of `v` over `p` stages.
std::int64_t passes_of_chunk(std::int64_t flying, std::int64_t p, std::int64_t v, std::int64_t c) {
  return v == 1 ? flying : flying / (p * v) * p + std::clamp<std::int64_t>(flying % (p * v) - c * p, 0, p);
}

}  // namespace

/// What a micro-batch takes: compute, and on the second lane gathers and reductions beside it or, without a gather ahead, before it.
/// A backward pass gives its copy up, so each needs one gather at least; where a forward pass gives it up too, both need one, but
/// passes side by side may share it.
Four GroupScorer::Load::micro_batch(const Choice& c) const {
  const bool overlap = c.schedule == Schedule::expert_overlap;
  const Four gathers = !c.reshard ? gather_back : overlap ? gather : gather + gather_again;
  return c.prefetch > 0 ? max(overlap ? busy : full, gathers + reduce) : gathers + max(overlap ? busy : full, reduce);
}

void GroupScorer::add_gathers(Load& load, std::size_t kind, std::int64_t slots) const {
  const auto n = static_cast<double>(slots);
  const Four gather = slots_[kind].gather * n;
  load.gather += gather;
  load.reduce += slots_[kind].reduce * n;
  if (!kinds_[kind].has_backward) return;
  load.gather_back += gather;
  load.gather_again += gather;
}

/// Every split's heaviest stage holds at least what an average weighted by 1 / (states + passes in flight x kept) does: each slot counts with
/// the stage on which it weighs least, the first or the last. 1F1B has the fewest passes in flight of all orders.
SplitFloor GroupScorer::any_split(const Choice& c) {
  const ShardStages& s = table_.stages[c.stages];
  const std::vector<std::int64_t>&dense = s.dense[c.dense].prices->states, &expert = s.expert[c.expert].prices->states;
  double states = 0, kept = 0, most_kept = 0;
  for (std::size_t k = 0; k < counts_.size(); ++k) states += static_cast<double>(counts_[k] * (dense[k] + expert[k]));
  SplitFloor out{with_reserve(c, static_cast<std::int64_t>(states / s.pp)), 0};
  out.bytes = out.states;
  const std::vector<std::int64_t>* held = states > 0 && !block_.experts.capacity_factor ? kept_ever() : nullptr;
  if (!held) return out;
  for (std::size_t k = 0; k < counts_.size(); ++k) {
    kept += static_cast<double>(counts_[k] * (*held)[k]);
    most_kept = std::max(most_kept, static_cast<double>((*held)[k]));
  }
  const auto flying = [&](int stage) { return static_cast<double>(std::min<std::int64_t>(micro_batches_[c.stages], s.pp - stage)); };
  double weights = 0, sum = 0;
  for (int i = 0; i < s.pp; ++i) weights += 1 / (states + flying(i) * kept);
  for (std::size_t k = 0; k < counts_.size(); ++k) {
    const auto at_stage = [&](int i) { return (static_cast<double>(dense[k] + expert[k]) + flying(i) * static_cast<double>((*held)[k])) / (states + flying(i) * kept); };
    sum += static_cast<double>(counts_[k]) * std::min(at_stage(0), at_stage(s.pp - 1));
  }
  out.bytes = std::max(out.bytes, with_reserve(c, static_cast<std::int64_t>(sum / weights * (1 - 1e-12) - most_kept)));
  return out;
}

/// Some stage takes at least the average; under 1F1B, whose stages also wait for the first pass to come and the last to go back, at least the
/// average weighted by (1 - 1/m)^(stages behind), in which every slot counts alike.
Four GroupScorer::any_split_step(const Choice& c) {
  hold();
  price_times();
  set_slots(c);
  if (whole_of_ != slots_of_) {
    whole_of_ = slots_of_;
    whole_.gather = whole_.gather_back = whole_.gather_again = whole_.reduce = {};
    for (std::size_t k = 0; k < kinds_.size(); ++k) add_gathers(whole_, k, counts_[k]);
    if (const std::size_t last = shared_.kind_of.back(); kinds_[last].has_backward) whole_.gather_again = whole_.gather_again - slots_[last].gather;
  }
  const double m = static_cast<double>(micro_batches_[c.stages]), p = table_.stages[c.stages].pp;
  Four floor = whole_.micro_batch(c) * (m / p);
  if (c.schedule == Schedule::one_forward_one_backward) floor = max(floor, whole_.full * (1 / (1 - std::pow(1 - 1 / m, p))));
  return floor * (1 - 1e-12) + Four::of(shared_.problem.runtime.step_overhead.value);
}

const std::vector<std::int64_t>* GroupScorer::kept_ever() {
  if (kept_.empty()) {
    const std::lock_guard lock(shared_.mutex);
    if (const auto known = shared_.kept.find(kept_key(block_)); known != shared_.kept.end()) kept_ = known->second;
  }
  return kept_.empty() ? nullptr : &kept_;
}

std::optional<std::int64_t> GroupScorer::least(const Choice& c) {
  OrderTable& t = order(c.stages, c.schedule);
  if (t.no_least) return std::nullopt;
  if (t.least.empty()) {
    const std::vector<std::int64_t>* kept = kept_ever();
    if (!kept) return std::nullopt;
    t.least = least_kept(c.stages, c.schedule, *kept);
    t.no_least = t.least.empty();
    if (t.no_least) return std::nullopt;
  }
  std::int64_t most = 0;
  for (std::size_t i = 0; i < t.least.size(); ++i) most = std::max(most, stage_states(c, i) + t.least[i]);
  return with_reserve(c, most);
}

/// Forward passes of a chunk before the first backward pass begins.
std::int64_t GroupScorer::passes_in_flight(std::size_t stages, Schedule schedule, std::int64_t stage) const {
  const std::int64_t p = table_.stages[stages].pp, v = table_.stages[stages].virtual_stages;
  const bool cut = schedule == Schedule::interleaved || schedule == Schedule::expert_overlap;
  return std::min(micro_batches_[stages] * v, cut ? 2 * (p - 1 - stage) + (v - 1) * p + 1 : p - stage);
}

/// All micro-batches in flight at the balanced load, but for the slot that turns round. Nothing where the 95th percentile of the load may
/// keep less.
std::vector<std::int64_t> GroupScorer::least_kept(std::size_t stages, Schedule schedule, const std::vector<std::int64_t>& kept) const {
  const ShardStages& s = table_.stages[stages];
  const std::int64_t p = s.pp, v = s.virtual_stages;
  const bool cut = schedule == Schedule::interleaved || schedule == Schedule::expert_overlap;
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < p; ++i) {
    const SplitStage& stage = s.split.stages[at(i)];
    const std::int64_t flying = passes_in_flight(stages, schedule, i);
    std::int64_t sum = 0, largest = 0;
    for (std::int64_t c = 0; c < v; ++c) {
      const SplitChunk& chunk = stage.chunks[at(c)];
      if (block_.experts.capacity_factor && shared_.load.stage(block_, chunk.first_layer, chunk.end_layer).p95.saved < 1) return {};   // a capacity may keep less than the balanced load
      const std::int64_t passes = passes_of_chunk(flying, p, v, c);
      for (std::size_t k = chunk.first; k < chunk.end; ++k) {
        sum += passes * kept[stage.kinds[k]];
        largest = std::max(largest, kept[stage.kinds[k]]);
      }
    }
    out.push_back(sum - (v == 1 && !cut ? kept[stage.kinds.back()] : largest));
  }
  return out;
}

/// What no order can undercut: a stage works off all its passes, after the first forward pass of the stages before has reached it and
/// before the last backward pass (under a split schedule none) has gone back through them.
Four GroupScorer::floor(const Choice& c) {
  prepare_times(c.stages);
  const ShardStages& s = table_.stages[c.stages];
  std::vector<Load>& loads = stage_[c.stages].loads;
  if (loads.empty()) {
    for (const SplitStage& stage : s.split.stages) {
      Load load;
      for (std::size_t k = 0; k < stage.kinds.size(); ++k) {
        const KindPrice& price = kinds_[stage.kinds[k]];
        load.full += price.forward + price.backward + price.weight;
        load.busy += price.busy;
        if (k < stage.chunks.front().end) load.forth += price.forward, load.back += price.backward;
      }
      loads.push_back(load);
    }
  }
  set_slots(c);
  if (const std::array here{c.dense, c.expert}; stage_[c.stages].loads_of != here) {
    stage_[c.stages].loads_of = here;
    for (std::size_t i = 0; i < loads.size(); ++i) {
      Load& load = loads[i];
      load.gather = load.gather_again = load.gather_back = load.reduce = {};
      const SplitStage& stage = s.split.stages[i];
      for (std::size_t k = 0; k < kinds_.size(); ++k)
        if (stage.count[k] > 0) add_gathers(load, k, stage.count[k]);
      // The model's last slot keeps its copy between the passes.
      if (stage.chunks.back().ends_model && kinds_[stage.kinds.back()].has_backward) load.gather_again = load.gather_again - slots_[stage.kinds.back()].gather;
    }
  }
  const bool split = c.schedule == Schedule::zero_bubble;
  const Four waits = stage_[c.stages].exchange * (split ? 1 : 2);
  const auto m = static_cast<double>(micro_batches_[c.stages]);
  Four before{}, floor{};
  for (const Load& load : loads) {
    floor = max(floor, before + load.micro_batch(c) * m);
    before += (split ? load.forth : load.forth + load.back) + waits;
  }
  const Four optimizer = s.optimizer.empty() ? Four{} : s.optimizer[c.dense * s.expert.size() + c.expert];
  return floor * (1 - 1e-12) + optimizer + Four::of(shared_.problem.runtime.step_overhead.value);
}

/// The same with what passes side by side take together, which has to be lowered.
Four GroupScorer::close_floor(const Choice& c) {
  const ShardStages& s = table_.stages[c.stages];
  const Four far = floor(c);
  if (c.schedule != Schedule::expert_overlap) return far;
  std::optional<Four>& known = order(c.stages, c.schedule).floor;
  if (!known) {
    known.emplace();
    Four before{};
    const std::vector<Load>& loads = stage_[c.stages].loads;
    for (std::size_t i = 0; i < loads.size(); ++i) {
      *known = max(*known, before + overlapped(c.stages, i));
      before += loads[i].forth + loads[i].back + stage_[c.stages].exchange * 2;
    }
  }
  const Four optimizer = s.optimizer.empty() ? Four{} : s.optimizer[c.dense * s.expert.size() + c.expert];
  return max(far, *known * (1 - 1e-12) + optimizer + Four::of(shared_.problem.runtime.step_overhead.value));
}

/// What a stage's turns take together under expert overlap.
Four GroupScorer::overlapped(std::size_t stages, std::size_t stage) {
  const ShardStages& s = table_.stages[stages];
  std::vector<OverlapCounts>& counted = overlaps_[{s.pp, s.virtual_stages, micro_batches_[stages]}];
  for (int i = static_cast<int>(counted.size()); i < s.pp; ++i) counted.push_back(overlap_counts(s.pp, s.virtual_stages, micro_batches_[stages], i));
  const OverlapCounts& n = counted[stage];
  const SplitStage& of = s.split.stages[stage];
  const auto kinds = [&](std::size_t chunk) { return std::span(of.kinds).subspan(of.chunks[chunk].first, of.chunks[chunk].end - of.chunks[chunk].first); };
  Four sum{};
  for (std::size_t f = 0; f < of.chunks.size(); ++f) {
    if (n.forward[f] > 0) sum += beside(kinds(f), {}) * static_cast<double>(n.forward[f]);
    if (n.backward[f] > 0) sum += beside({}, kinds(f)) * static_cast<double>(n.backward[f]);
    for (std::size_t b = 0; b < of.chunks.size(); ++b)
      if (const std::int64_t times = n.both[f * of.chunks.size() + b]; times > 0) sum += beside(kinds(f), kinds(b)) * static_cast<double>(times);
  }
  return sum;
}

/// A chunk forward beside one backward: its k-th slot beside the k-th from behind that has a backward pass.
Four GroupScorer::beside(std::span<const std::size_t> forward, std::span<const std::size_t> backward) {
  Four sum{};
  std::size_t f = 0, b = backward.size();
  while (f < forward.size() || b > 0) {
    if (b > 0 && !kinds_[backward[b - 1]].has_backward) { --b; continue; }
    const bool goes = f < forward.size(), comes = b > 0;
    sum += goes && comes ? pair(forward[f], backward[b - 1], PairPart::seconds).seconds : goes ? kinds_[forward[f]].forward : kinds_[backward[b - 1]].backward;
    f += goes ? 1 : 0;
    b -= comes ? 1 : 0;
  }
  return sum;
}

std::int64_t GroupScorer::warm_peak(const Choice& c) {
  std::vector<std::int64_t>& known = order(c.stages, c.schedule).warm;
  if (known.empty()) known = warm_peaks(c.stages, c.schedule);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < known.size(); ++i) most = std::max(most, stage_states(c, i) + known[i]);
  return with_reserve(c, most);
}

/// What the passes in flight keep but for the last slot of the last of them, and that slot's own peak; copies of gathered weights are left out.
std::vector<std::int64_t> GroupScorer::warm_peaks(std::size_t stages, Schedule schedule) {
  prepare_turns(stages);
  const StageTable& t = stage_[stages];
  const std::int64_t p = table_.stages[stages].pp, v = table_.stages[stages].virtual_stages;
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < p; ++i) {
    const std::vector<TurnSlot>& slots = t.slots[at(i)];
    const std::vector<TurnChunk>& chunks = t.chunks[at(i)];
    const std::int64_t flying = passes_in_flight(stages, schedule, i), last = v == 1 ? 0 : (flying - 1) % (p * v) / p;
    std::int64_t sum = 0;
    for (std::int64_t c = 0; c < v; ++c) {
      std::int64_t kept = chunks[at(c)].carried;
      for (std::int32_t k = chunks[at(c)].first; k < chunks[at(c)].end; ++k) kept += slots[at(k)].kept[1];
      sum += passes_of_chunk(flying, p, v, c) * kept;
    }
    const TurnSlot& turns = slots[at(chunks[at(last)].end - 1)];
    std::int64_t most = sum - turns.kept[1] + kinds_[turns.kind].forward95;
    const TurnSlot& first_back = slots[at(chunks.back().end - 1)];
    if (schedule == Schedule::interleaved && kinds_[first_back.kind].has_backward) most = std::max(most, sum - first_back.kept[1] + kinds_[first_back.kind].backward95);
    out.push_back(most);
  }
  return out;
}

}  // namespace moeplan
