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
  if (covers_) return *covers_;
  if (offloads_activations(block_.offload)) return false;
  hold();
  covers_ = std::all_of(shared_.kind_of.begin() + 1, shared_.kind_of.end(), [&](std::size_t kind) { return kinds_[kind].has_backward; });
  return *covers_;
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
        if (i > c.first && stage.kinds[i] == stage.kinds[i - 1]) {
          slots.push_back(TurnSlot{slots.back()});
          continue;
        }
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
  if (timed_ && moves_) {
    const std::vector<SlotDelays>& late = delays(c);
    const auto lanes = [](const Four& pass, double seconds) { return pass.median() > 0 ? pass * (seconds / pass.median()) : Four{}; };
    for (std::size_t k = 0; k < late.size(); ++k) {
      turn_kinds_[k].late_forward = lanes(kinds_[k].forward, late[k].forward);
      turn_kinds_[k].late_backward = lanes(kinds_[k].backward, late[k].backward), turn_kinds_[k].late_reduced = lanes(kinds_[k].backward, late[k].reduced);
      turn_kinds_[k].beside = late[k].beside;
    }
  }
  pair_of_ = [this](std::size_t f, std::size_t b, PairPart part) -> const PairPrice& { return pair(f, b, part); };
}

const PairPrice& GroupScorer::pair(std::size_t f, std::size_t b, PairPart part) {
  if (pairs_.empty()) pairs_.resize(kinds_.size() * kinds_.size());
  KnownPair& known = pairs_[f * kinds_.size() + b];
  if (part == PairPart::seconds && !known.seconds) {
    const std::array<double, 2> priced = group_.pair_seconds(f, b);
    // Passes of a model share operators, so their errors add.
    const PricedKind &fk = group_.timed(f), &bk = group_.timed(b);
    const double below = fk.forward_spread.below + bk.backward_spread.below, above = fk.forward_spread.above + bk.backward_spread.above;
    known.price.seconds = {{priced[0], priced[1], std::max(0.0, priced[0] - below), priced[0] + above}};
    known.seconds = true;
  } else if (part == PairPart::peak && !known.peak) {
    known.price.peak = group_.pair_peak(f, b);
    known.peak = true;
  }
  return known.price;
}

const std::vector<std::vector<Turn>>& GroupScorer::turns_of(const Plan& plan) {
  std::vector<std::vector<Turn>>& known = turns_[{plan.schedule, plan.parallelism.pp, plan.virtual_stages, plan.micro_batches}];
  if (known.empty())
    for (int s = 0; s < plan.parallelism.pp; ++s) known.push_back(turns(plan, s));
  return known;
}

GroupScorer::Transients GroupScorer::turn_transients(const Choice& c) {
  prepare_turns(c.stages);
  turn_kinds(c);
  const StageTable& t = stage_[c.stages];
  // After the warm-up, of less than two rounds of the pipeline, every round of p micro-batches holds what the one before held.
  Plan few = order_plan(c.stages, c.schedule);
  few.micro_batches = std::min<std::int64_t>(few.micro_batches, 4 * few.parallelism.pp);
  const std::vector<std::vector<Turn>>& order = turns_of(few);
  Transients out;
  for (std::size_t s = 0; s < t.slots.size(); ++s) {
    const TwoLoads peak = StageTurns(turn_kinds_, t.slots[s], t.chunks[s], c.reshard, c.prefetch, pair_of_).peak(order[s]);
    out.median.push_back(peak[0]);
    out.p95.push_back(peak[1]);
  }
  return out;
}

Four GroupScorer::turn_step(const Choice& c) {
  prepare_turns(c.stages);
  turn_kinds(c);
  StageTable& t = stage_[c.stages];
  OrderTable& o = order(c.stages, c.schedule);
  const Plan plan = order_plan(c.stages, c.schedule);
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
  return play_turns(turns_of(plan), plan.virtual_stages, plan.micro_batches, t.exchange, stages) + after_passes(c);
}

}  // namespace moeplan
