/// Schedules other than 1F1B in the scorer: the same figures from turns (stage_turns.hpp).

#include <algorithm>

#include "planner/scorer.hpp"

namespace moeplan {
namespace {

std::int64_t sum(const std::array<Bytes, kMemoryCategories>& parts) {
  std::int64_t s = 0;
  for (const Bytes b : parts) s += b.value;
  return s;
}

}  // namespace

bool GroupScorer::covers_schedules() {
  if (offloads_activations(block_.offload)) return false;
  hold();
  for (std::size_t slot = 1; slot < shared_.kind_of.size(); ++slot)
    if (!kinds_[shared_.kind_of[slot]].has_backward) return false;
  return true;
}

Plan GroupScorer::order_plan(std::size_t stages, Schedule schedule) const {
  Plan plan;
  plan.parallelism.pp = table_.stages[stages].pp;
  plan.schedule = schedule;
  plan.virtual_stages = table_.stages[stages].virtual_stages;
  plan.micro_batches = micro_batches_[stages];
  return plan;
}

/// What the slots of each stage keep.
void GroupScorer::prepare_turns(std::size_t stages) {
  prepare(stages);
  StageTable& t = stage_[stages];
  if (!t.slots.empty()) return;
  for (const SplitStage& stage : table_.stages[stages].split.stages) {
    std::vector<TurnSlot> slots;
    std::vector<TurnChunk> chunks;
    for (const SplitChunk& c : stage.chunks) {
      const FactorBand load = shared_.load.stage(block_, c.first_layer, c.end_layer);
      chunks.push_back({static_cast<std::int32_t>(c.first), static_cast<std::int32_t>(c.end), c.begins_model ? 0 : kinds_[stage.kinds[c.first]].carried, c.begins_model, c.ends_model});
      for (std::size_t i = c.first; i < c.end; ++i) {
        const PricedKind& k = *priced_[stage.kinds[i]];
        slots.push_back({stage.kinds[i], {sum(kept_at(k, load.p50.saved)), sum(kept_at(k, load.p95.saved))}, {sum(put_off_at(k, load.p50.saved)), sum(put_off_at(k, load.p95.saved))}});
      }
    }
    t.slots.push_back(std::move(slots));
    t.chunks.push_back(std::move(chunks));
  }
}

/// Kinds as turns see them under a choice's shards; times where they are known.
void GroupScorer::turn_kinds(const Choice& c) {
  const ShardPrices &dense = *table_.stages[c.stages].dense[c.dense].prices, &expert = *table_.stages[c.stages].expert[c.expert].prices;
  turn_kinds_.resize(kinds_.size());
  if (timed_) set_slots(c);
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    const KindPrice& price = kinds_[k];
    const PricedKind& held = *priced_[k];
    turn_kinds_[k] = {.forward = price.forward, .backward = price.backward, .weight = price.weight, .gather = slots_[k].gather, .reduce = slots_[k].reduce,
                      .gathers = dense.gathered[k] + expert.gathered[k] > 0, .reduces = dense.reduces[k] || expert.reduces[k], .has_backward = price.has_backward, .has_weight = price.has_weight,
                      .forward_peak = {price.forward50, price.forward95}, .backward_peak = {price.backward50, price.backward95}, .weight_peak = {held.weight50.peak().value, held.weight95.peak().value},
                      .gathered = dense.gathered[k] + expert.gathered[k], .carried_gradients = price.carried_gradients, .unreduced = price.unreduced};
  }
  pair_of_ = [this](std::size_t f, std::size_t b) -> const PairPrice& { return pair(f, b); };
}

const PairPrice& GroupScorer::pair(std::size_t f, std::size_t b) {
  if (pairs_.empty()) pairs_.resize(kinds_.size() * kinds_.size());
  std::optional<PairPrice>& known = pairs_[f * kinds_.size() + b];
  if (known) return *known;
  const PricedPair priced = group_.pair(f, b);
  // Passes of a model share operators, so their errors add.
  const PricedKind &fk = group_.kind(f), &bk = group_.kind(b);
  const double below = fk.forward_spread.below + bk.backward_spread.below, above = fk.forward_spread.above + bk.backward_spread.above;
  return known.emplace(PairPrice{{{priced.median, priced.p95, std::max(0.0, priced.median - below), priced.median + above}}, {priced.peak50.value, priced.peak95.value}});
}

GroupScorer::Transients GroupScorer::turn_transients(const Choice& c) {
  prepare_turns(c.stages);
  turn_kinds(c);
  const StageTable& t = stage_[c.stages];
  // After the warm-up, of less than two rounds of the pipeline, every round of p micro-batches holds what the one before held.
  Plan few = order_plan(c.stages, c.schedule);
  few.micro_batches = std::min<std::int64_t>(few.micro_batches, 4 * few.parallelism.pp);
  Transients out;
  for (std::size_t s = 0; s < t.slots.size(); ++s) {
    const TwoLoads peak = StageTurns(turn_kinds_, t.slots[s], t.chunks[s], c.reshard, c.prefetch, pair_of_).peak(turns(few, static_cast<int>(s)));
    out.median.push_back(peak[0]);
    out.p95.push_back(peak[1]);
  }
  return out;
}

Four GroupScorer::turn_step(const Choice& c) {
  prepare_turns(c.stages);
  turn_kinds(c);
  known_of_.reset();   // what passes took was of another choice
  const ShardStages& split = table_.stages[c.stages];
  StageTable& t = stage_[c.stages];
  OrderTable& o = order(c.stages, c.schedule);
  const Plan plan = order_plan(c.stages, c.schedule);
  if (o.turns.empty())
    for (int s = 0; s < split.pp; ++s) o.turns.push_back(turns(plan, s));
  const unsigned treatment = (c.reshard ? 1u : 0u) | (c.prefetch > 0 ? 2u : 0u);
  std::vector<StageTurns>& stages = o.played[treatment];
  const bool fresh = stages.empty();
  stages_.clear();
  for (std::size_t s = 0; s < t.slots.size(); ++s) {
    if (fresh) stages.emplace_back(turn_kinds_, t.slots[s], t.chunks[s], c.reshard, c.prefetch, pair_of_);
    else stages[s].restart();
    StageSeconds all{};
    for (const TurnSlot& slot : t.slots[s]) {
      all.forward += kinds_[slot.kind].forward;
      all.backward += kinds_[slot.kind].backward + kinds_[slot.kind].weight;
    }
    stages_.push_back(all);
  }
  return play_turns(o.turns, plan.virtual_stages, plan.micro_batches, t.exchange, stages) + after_passes(c);
}

/// The same with what a stage's second lane has to carry: each pass's gathers and the reductions, beside its compute or, without a gather
/// ahead, before it.
Four GroupScorer::turn_floor(const Choice& c) {
  const ShardStages& s = table_.stages[c.stages];
  const auto m = static_cast<double>(micro_batches_[c.stages]);
  if (const std::array here{c.stages, c.dense, c.expert}; known_of_ != here) {
    set_slots(c);
    known_of_.reset();
  }
  // Passes side by side may share a copy; without resharding a copy may serve passes to come.
  const double passes = !c.reshard ? 0 : c.schedule == Schedule::expert_overlap ? 1 : 2;
  Four floor{};
  for (const SplitStage& stage : s.split.stages) {
    Four compute{}, gathers{}, reduces{};
    for (std::size_t i = 0; i < stage.kinds.size(); ++i) {
      const KindPrice& k = kinds_[stage.kinds[i]];
      compute += c.schedule == Schedule::expert_overlap ? k.busy : k.forward + k.backward + k.weight;
      // The model's last slot keeps its copy, what has no backward pass needs none then.
      const bool twice = k.has_backward && !(i + 1 == stage.kinds.size() && stage.chunks.back().ends_model);
      gathers += slots_[stage.kinds[i]].gather * (twice ? passes : std::min(passes, 1.0));
      reduces += slots_[stage.kinds[i]].reduce;
    }
    floor = max(floor, (c.prefetch > 0 ? max(compute, gathers + reduces) : max(compute + gathers, reduces)) * m);
  }
  return floor;
}

/// What no order can undercut: a stage works off all its passes, after the first forward pass of the stages before has reached it and
/// before the last backward pass (under a split schedule none) has gone back through them. Passes side by side count as such where a
/// stage is one chunk, else by their compute.
Four GroupScorer::turn_floor(std::size_t stages, Schedule schedule) {
  const ShardStages& s = table_.stages[stages];
  const bool overlap = schedule == Schedule::expert_overlap;
  const std::int64_t m = micro_batches_[stages];
  Four before{}, floor{};
  for (std::size_t i = 0; i < s.split.stages.size(); ++i) {
    const SplitStage& stage = s.split.stages[i];
    Four all{}, busy{}, around{};
    for (std::size_t k = 0; k < stage.kinds.size(); ++k) {
      const KindPrice& price = kinds_[stage.kinds[k]];
      all += price.forward + price.backward + price.weight;
      busy += price.busy;
      if (k < stage.chunks.front().end) around += schedule == Schedule::zero_bubble ? price.forward : price.forward + price.backward;
    }
    Four takes = (overlap ? busy : all) * static_cast<double>(m);
    if (overlap && s.virtual_stages == 1) {
      const std::int64_t alone = std::min(m, 2 * (s.pp - 1 - static_cast<std::int64_t>(i)) + 1);
      takes = all * static_cast<double>(alone) + beside(stage.kinds) * static_cast<double>(m - alone);
    }
    floor = max(floor, before + takes);
    before += around + stage_[stages].exchange * (schedule == Schedule::zero_bubble ? 1 : 2);
  }
  return floor;
}

/// A chunk forward beside itself backward: its k-th slot beside the k-th from behind that has a backward pass.
Four GroupScorer::beside(const std::vector<std::size_t>& kinds) {
  Four sum{};
  std::size_t f = 0, b = kinds.size();
  while (f < kinds.size() || b > 0) {
    if (b > 0 && !kinds_[kinds[b - 1]].has_backward) { --b; continue; }
    const bool goes = f < kinds.size(), comes = b > 0;
    sum += goes && comes ? pair(kinds[f], kinds[b - 1]).seconds : goes ? kinds_[kinds[f]].forward : kinds_[kinds[b - 1]].backward;
    f += goes ? 1 : 0;
    b -= comes ? 1 : 0;
  }
  return sum;
}

}  // namespace moeplan
