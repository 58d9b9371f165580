#include "planner/scorer.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "planner/space.hpp"
#include "sim/cost/groups.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t sum(const std::array<Bytes, kMemoryCategories>& parts) {
  std::int64_t s = 0;
  for (const Bytes b : parts) s += b.value;
  return s;
}

Four lanes(const PassTime& median, const PassTime& p95, const PassSpread& spread) {
  const double t = median.total.value;
  return {{t, p95.total.value, std::max(0.0, t - spread.below), t + spread.above}};
}

}  // namespace

bool GroupScorer::covers(const Plan& plan) { return plan.schedule == Schedule::one_forward_one_backward && plan.virtual_stages == 1 && plan.offload == Offload::none && plan.micro_batches >= plan.parallelism.pp; }

GroupScorer::GroupScorer(const Evaluator& evaluator, Evaluator::Group& group, const Plan& block, const ShardTable& table, std::vector<std::int64_t> losses)
    : shared_(evaluator.shared()), group_(group), block_(block), table_(table), losses_(std::move(losses)), stage_(table.stages.size()) {
  if (losses_.empty()) losses_ = {block.loss_chunks};
  for (std::size_t id = 0; id < shared_.example.size(); ++id) {
    priced_.push_back(&group.held(id));
    kinds_.push_back(held(*priced_.back()));
  }
  for (const std::int64_t pieces : losses_) {
    Plan plan = block;
    plan.loss_chunks = pieces;
    if (pieces != block.loss_chunks) head_groups_.push_back(std::make_unique<Evaluator::Group>(evaluator, plan));
    priced_heads_.push_back(&(pieces == block.loss_chunks ? group : *head_groups_.back()).held(head()));
    heads_.push_back(held(*priced_heads_.back()));
  }
  const std::int64_t batch = shared_.problem.workload.global_batch.value_or(default_global_batch(shared_.problem));
  for (const ShardStages& s : table.stages) micro_batches_.push_back(std::max<std::int64_t>(1, batch / (block.micro_batch * s.dp)));
  slots_.resize(kinds_.size());
}

GroupScorer::KindPrice GroupScorer::held(const PricedKind& k) const {
    const SlotMemory held = slot_memory(k.block, {});
    KindPrice price{.forward = {}, .backward = {}, .forward50 = k.forward50.peak().value, .forward95 = k.forward95.peak().value, .backward50 = k.backward50.peak().value, .backward95 = k.backward95.peak().value,
                    .carried_gradients = held.carried_gradients.value, .unreduced = held.unreduced.value, .entering = 0, .carried = 0, .has_backward = held.has_backward};
    for (std::size_t i = 0; i < k.block.inputs.size(); ++i) {
      const std::int64_t b = k.block.values[at(k.block.inputs[i])].bytes().value;
      price.entering += b;
      if (i > 0) price.carried += b;
    }
    return price;
}

void GroupScorer::prepare(std::size_t stages) {
  StageTable& t = stage_[stages];
  if (t.ready) return;
  t.ready = true;
  const ShardStages& s = table_.stages[stages];
  std::int64_t crossing = 0;
  for (std::size_t i = 0; i < s.split.stages.size(); ++i) {
    const SplitStage& stage = s.split.stages[i];
    const FactorBand load = shared_.load.stage(block_.parallelism.ep, stage.first_layer, stage.end_layer);
    std::vector<std::int64_t> kept50(kinds_.size(), 0), kept95 = kept50;
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      if (stage.count[k] == 0) continue;
      kept50[k] = sum(kept_at(*priced_[k], load.p50.saved));
      kept95[k] = sum(kept_at(*priced_[k], load.p95.saved));
    }
    t.kept50.push_back(std::move(kept50));
    t.kept95.push_back(std::move(kept95));
    if (i + 1 == s.split.stages.size())
      for (const PricedKind* head : priced_heads_) t.head_kept.push_back({sum(kept_at(*head, load.p50.saved)), sum(kept_at(*head, load.p95.saved))});
    if (i > 0) crossing = std::max(crossing, kinds_[stage.kinds.front()].entering);
  }
  t.crossing = crossing;
  t.transients.resize(16 * losses_.size());
}

void GroupScorer::price_times() {
  if (timed_) return;
  timed_ = true;
  for (std::size_t id = 0; id < kinds_.size(); ++id) {
    const PricedKind& k = group_.kind(id);
    kinds_[id].forward = lanes(k.time50.forward, k.time95.forward, k.forward_spread);
    kinds_[id].backward = lanes(k.time50.backward, k.time95.backward, k.backward_spread);
  }
  std::size_t next = 0;
  for (std::size_t l = 0; l < losses_.size(); ++l) {
    const PricedKind& k = (losses_[l] == block_.loss_chunks ? group_ : *head_groups_[next++]).kind(head());
    heads_[l].forward = lanes(k.time50.forward, k.time95.forward, k.forward_spread);
    heads_[l].backward = lanes(k.time50.backward, k.time95.backward, k.backward_spread);
  }
}

void GroupScorer::prepare_times(std::size_t stages) {
  prepare(stages);
  StageTable& t = stage_[stages];
  if (t.timed) return;
  t.timed = true;
  price_times();
  const ShardStages& s = table_.stages[stages];
  Parallelism par = block_.parallelism;
  par.pp = s.pp;
  par.dp_shard = s.dp;   // only the ranks of a stage matter to the pipeline's group
  par.dp_replicate = 1;
  const GroupShape where = group_shape(Group::pipeline, par);
  if (s.pp > 1 && t.crossing > 0) {
    const Estimate e = shared_.links.price(CommCall{.collective = Collective::send_receive, .group = Group::pipeline, .payload = {t.crossing}}, where, 1.0);
    t.exchange = {{e.median.value, e.median.value, e.low.value, e.high.value}};
  }
  for (const KindPrice& loss : heads_) {
    stages_.clear();
    for (const SplitStage& stage : s.split.stages) {
      StageSeconds sum{};
      for (std::size_t k = 0; k < kinds_.size(); ++k) {
        const KindPrice& price = k == head() ? loss : kinds_[k];
        sum.forward += price.forward * static_cast<double>(stage.count[k]);
        sum.backward += price.backward * static_cast<double>(stage.count[k]);
      }
      sum.forward_again = sum.forward;
      sum.backward_again = sum.backward;
      stages_.push_back(sum);
    }
    t.floor.push_back(pipeline_floor(stages_, t.exchange, micro_batches_[stages]));
  }
  t.least_floor = t.floor.front();
  for (const Four& f : t.floor)
    for (std::size_t l = 0; l < 4; ++l) t.least_floor.v[l] = std::min(t.least_floor.v[l], f.v[l]);
}

std::int64_t GroupScorer::transient(const Choice& c, std::size_t stage_index, bool p95) const {
  const ShardStages& s = table_.stages[c.stages];
  const SplitStage& stage = s.split.stages[stage_index];
  const std::vector<std::int64_t>& kept_of = p95 ? stage_[c.stages].kept95[stage_index] : stage_[c.stages].kept50[stage_index];
  const auto kept = [&](std::size_t k) { return k == head() ? stage_[c.stages].head_kept[c.loss][p95 ? 1 : 0] : kept_of[k]; };
  const auto price = [&](std::size_t k) -> const KindPrice& { return k == head() ? heads_[c.loss] : kinds_[k]; };
  const std::vector<std::int64_t>&dense = s.dense[c.dense].prices->gathered, &expert = s.expert[c.expert].prices->gathered;
  const auto n = static_cast<std::int64_t>(stage.kinds.size());
  const auto gathered = [&](std::int64_t i) { return dense[stage.kinds[at(i)]] + expert[stage.kinds[at(i)]]; };
  const bool last = stage_index + 1 == s.split.stages.size();
  const std::int64_t flying = std::min<std::int64_t>(micro_batches_[c.stages], s.pp - static_cast<std::int64_t>(stage_index));
  std::int64_t all_kept = 0, everything = 0, base = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    all_kept += kept(stage.kinds[at(i)]);
    everything += gathered(i);
  }
  base = all_kept * (flying - 1) + (stage_index > 0 ? kinds_[stage.kinds.front()].carried * flying : 0);
  // The walk of sim/memory `stage_memory`, with all categories in one sum.
  const auto present = [&](std::int64_t i, std::int64_t direction) {
    std::int64_t b = 0;
    for (std::int64_t a = 0; a <= c.prefetch; ++a)
      if (const std::int64_t t = i + direction * a; t >= 0 && t < n) b += gathered(t);
    return b;
  };
  std::int64_t most = 0, before = 0, left = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::size_t k = stage.kinds[at(i)];
    most = std::max(most, before + (p95 ? price(k).forward95 : price(k).forward50) + present(i, 1) + (c.reshard ? 0 : left));
    before += kept(k);
    left += gathered(i);
  }
  std::int64_t unreduced = 0, remaining = everything;
  for (std::int64_t i = n; i-- > 0;) {
    const std::size_t k = stage.kinds[at(i)];
    before -= kept(k);
    if (!price(k).has_backward) continue;
    const std::int64_t carried = i + 1 < n || !last ? price(k).carried_gradients : 0;
    most = std::max(most, before + (p95 ? price(k).backward95 : price(k).backward50) + (c.reshard ? present(i, -1) : remaining) + unreduced + carried);
    unreduced = price(k).unreduced;
    remaining -= gathered(i);
  }
  return base + most;
}

const GroupScorer::Transients& GroupScorer::transients(const Choice& c) {
  prepare(c.stages);
  const ShardStages& s = table_.stages[c.stages];
  const std::size_t which = (s.dense[c.dense].gathers ? 1u : 0u) | (s.expert[c.expert].gathers ? 2u : 0u) | (c.reshard ? 4u : 0u) | (c.prefetch > 0 ? 8u : 0u);
  Transients& t = stage_[c.stages].transients[16 * c.loss + which];
  if (t.known) return t;
  t.known = true;
  std::size_t first = 0;
  if (c.loss > 0) {   // only the last stage differs
    Choice base = c;
    base.loss = 0;
    const Transients& same = transients(base);
    t.median = same.median;
    t.p95 = same.p95;
    t.median.pop_back();
    t.p95.pop_back();
    first = t.median.size();
  }
  for (std::size_t i = first; i < s.split.stages.size(); ++i) {
    t.median.push_back(transient(c, i, false));
    t.p95.push_back(transient(c, i, true));
  }
  return t;
}

PeakBytes GroupScorer::memory(const Choice& c) {
  const Transients& t = transients(c);
  const ShardStages& s = table_.stages[c.stages];
  const std::vector<std::int64_t>&dense = s.dense[c.dense].stage_states, &expert = s.expert[c.expert].stage_states;
  PeakBytes out;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    const std::int64_t states = dense[i] + expert[i];
    out.states = std::max(out.states, states);
    out.median = std::max(out.median, states + t.median[i]);
    out.p95 = std::max(out.p95, states + t.p95[i]);
  }
  return {allocated_to_peak(c, out.states), allocated_to_peak(c, out.median), allocated_to_peak(c, out.p95)};
}

PeakRange GroupScorer::range(std::span<const Choice> choices) {
  const ShardStages& s = table_.stages[choices.front().stages];
  const std::vector<std::int64_t>&dense = s.dense[choices.front().dense].stage_states, &expert = s.expert[choices.front().expert].stage_states;
  PeakRange out{0, std::numeric_limits<std::int64_t>::max(), 0};
  for (const Choice& c : choices) {
    const Transients& t = transients(c);
    std::int64_t peak = 0;
    for (std::size_t i = 0; i < dense.size(); ++i) peak = std::max(peak, dense[i] + expert[i] + t.p95[i]);
    out.low = std::min(out.low, peak);
    out.high = std::max(out.high, peak);
  }
  for (std::size_t i = 0; i < dense.size(); ++i) out.states = std::max(out.states, dense[i] + expert[i]);
  for (std::int64_t* b : {&out.states, &out.low, &out.high}) *b = allocated_to_peak(choices.front(), *b);
  return out;
}

std::int64_t GroupScorer::allocated_to_peak(const Choice& c, std::int64_t allocated) const {
  const ShardStages& s = table_.stages[c.stages];
  const Runtime& runtime = shared_.problem.runtime;
  const Parallelism& p = block_.parallelism;
  const int dp_shard = s.dense[c.dense].shard, dp_replicate = s.dp / dp_shard;
  const std::int64_t world = static_cast<std::int64_t>(s.pp) * s.stage_ranks;
  std::int64_t communicators = world > 1 ? 1 : 0;
  for (const int degree : {s.pp, p.tp, p.cp, p.ep, p.etp, dp_replicate, dp_shard, s.expert[c.expert].shard}) communicators += degree > 1 && degree < world;
  const std::int64_t outside = runtime.context.value + runtime.communicator.value * communicators;
  return allocated + outside + std::llround(static_cast<double>(allocated) * runtime.allocator_overhead);
}

Four GroupScorer::step(const Choice& c) {
  prepare_times(c.stages);
  const ShardStages& s = table_.stages[c.stages];
  const ShardEntry &dense = s.dense[c.dense], &expert = s.expert[c.expert];
  for (std::size_t k = 0; k < kinds_.size(); ++k)
    slots_[k] = {kinds_[k].forward, kinds_[k].backward, dense.prices->gather[k] + expert.prices->gather[k], dense.prices->reduce[k] + expert.prices->reduce[k]};
  slots_[head()].forward = heads_[c.loss].forward;
  slots_[head()].backward = heads_[c.loss].backward;
  const bool same = c.reshard || s.pp == 1;
  classes_.resize(s.split.classes.size());
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    const std::vector<SlotRun>& runs = s.split.classes[i];
    const bool last = i == s.split.stages.back().runs;
    StageSeconds& t = classes_[i];
    t.forward = forward_seconds(runs, slots_, {.prefetch = c.prefetch});
    t.backward = backward_seconds(runs, slots_, {.gathers = c.reshard, .first_is_there = last, .prefetch = c.prefetch});
    t.forward_again = same ? t.forward : forward_seconds(runs, slots_, {.gathers = false, .prefetch = c.prefetch});
    t.backward_again = same ? t.backward : backward_seconds(runs, slots_, {.prefetch = c.prefetch});
  }
  stages_.resize(s.split.stages.size());
  for (std::size_t i = 0; i < stages_.size(); ++i) stages_[i] = classes_[s.split.stages[i].runs];
  return pipeline_step(stages_, stage_[c.stages].exchange, micro_batches_[c.stages], room_) + s.optimizer[c.dense * s.expert.size() + c.expert];
}

Four GroupScorer::step(const Choice& c, const Plan& given) {
  micro_batches_[c.stages] = given.micro_batches;
  return step(c);
}

Four GroupScorer::floor(const Choice& c) {
  prepare_times(c.stages);
  const ShardStages& s = table_.stages[c.stages];
  return stage_[c.stages].floor[c.loss] + s.optimizer[c.dense * s.expert.size() + c.expert];
}

Four GroupScorer::least_floor(const Choice& c) {
  prepare_times(c.stages);
  const ShardStages& s = table_.stages[c.stages];
  return stage_[c.stages].least_floor + s.optimizer[c.dense * s.expert.size() + c.expert];
}

Plan GroupScorer::plan(const Choice& c) const {
  const ShardStages& s = table_.stages[c.stages];
  Plan out = block_;
  out.parallelism.pp = s.pp;
  out.parallelism.dp_shard = s.dense[c.dense].shard;
  out.parallelism.dp_replicate = s.dp / out.parallelism.dp_shard;
  out.parallelism.expert_shard = s.expert[c.expert].shard;
  out.micro_batches = micro_batches_[c.stages];
  out.stage_layers = s.split.stage_layers;
  out.reshard_after_forward = c.reshard;
  out.prefetch = c.prefetch;
  out.loss_chunks = losses_[c.loss];
  return out;
}

}  // namespace moeplan
