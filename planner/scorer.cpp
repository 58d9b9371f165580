#include "planner/scorer.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "planner/space.hpp"
#include "sim/cost/groups.hpp"
#include "sim/memory/communicators.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan {
namespace {

/// Runs of a stage up to which they are taken one after another.
constexpr std::size_t kFewRuns = 3;

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

/// Time on the compute lane alone, at the same ends.
Four busy(const PassTime& median, const PassTime& p95, const PassSpread& spread) {
  const auto lane = [](const PassTime& t) { return (t.compute + t.recompute).value; };
  return {{lane(median), lane(p95), std::max(0.0, lane(median) - spread.below), lane(median) + spread.above}};
}

}  // namespace

GroupScorer::GroupScorer(const Evaluator& evaluator, Evaluator::Group& group, const Plan& block, const ShardTable& table)
    : shared_(evaluator.shared()), group_(group), block_(block), table_(table), stage_(table.stages.size()), optimizer_(shared_) {
  const std::int64_t batch = shared_.problem.workload.global_batch.value_or(default_global_batch(shared_.problem));
  for (const ShardStages& s : table.stages) micro_batches_.push_back(std::max<std::int64_t>(1, batch / (block.micro_batch * s.dp)));
  for (std::size_t k = 0; k < table.weight_of.size(); ++k)
    if (table.weight_of[k] == example_.size()) example_.push_back(k);
  weights_.resize(example_.size());
  counts_.assign(shared_.example.size(), 0);
  for (const std::size_t kind : shared_.kind_of) ++counts_[kind];
}

/// Lowers the layer kinds, once a candidate's states fit.
void GroupScorer::hold() {
  if (!kinds_.empty()) return;
  for (std::size_t id = 0; id < shared_.example.size(); ++id) {
    const PricedKind& k = group_.held(id);
    const SlotMemory held = slot_memory(k.block, {});
    KindPrice price{};
    price.carried_gradients = held.carried_gradients.value, price.unreduced = held.unreduced.value;
    price.has_backward = held.has_backward, price.has_weight = !k.block.weight_backward.empty();
    for (std::size_t i = 0; i < k.block.inputs.size(); ++i) {
      const std::int64_t b = k.block.values[at(k.block.inputs[i])].bytes().value;
      price.entering += b;
      if (i > 0) price.carried += b;
    }
    kinds_.push_back(price);
    priced_.push_back(&k);
  }
  slots_.resize(kinds_.size());
  slots_current_ = false;
  kept_.clear();
  for (const PricedKind* k : priced_) kept_.push_back(sum(k->kept));
  const std::lock_guard lock(shared_.mutex);
  shared_.kept_lately.try_emplace(kept_key(block_), kept_);
}

/// Measures them at the load draws, once a candidate's memory is asked for.
void GroupScorer::load() {
  if (loaded_) return;
  loaded_ = true;
  hold();
  for (std::size_t id = 0; id < kinds_.size(); ++id) {
    const PricedKind& k = group_.loaded(id);
    kinds_[id].forward50 = k.forward50.peak().value, kinds_[id].forward95 = k.forward95.peak().value;
    kinds_[id].backward50 = k.backward50.peak().value, kinds_[id].backward95 = k.backward95.peak().value;
    kinds_[id].staged50 = k.staged50, kinds_[id].staged95 = k.staged95;
  }
}

void GroupScorer::prepare(std::size_t stages) {
  StageTable& t = stage_[stages];
  if (t.ready) return;
  t.ready = true;
  load();
  const ShardStages& s = table_.stages[stages];
  for (std::size_t i = 0; i < s.split.stages.size(); ++i) {
    const SplitStage& stage = s.split.stages[i];
    const FactorBand load = shared_.load.stage(block_, stage.first_layer, stage.end_layer);
    std::vector<std::int64_t> kept50(kinds_.size(), 0), kept95 = kept50;
    Staged staged50, staged95;
    const auto join = [](Staged& all, const Staged& kind, std::int64_t slots) { all = {std::max(all.buffer, kind.buffer), all.ways + kind.ways * slots}; };
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      if (stage.count[k] == 0) continue;
      kept50[k] = sum(kept_at(*priced_[k], load.p50.saved));
      kept95[k] = sum(kept_at(*priced_[k], load.p95.saved));
      join(staged50, kinds_[k].staged50, stage.count[k]), join(staged95, kinds_[k].staged95, stage.count[k]);
    }
    t.kept50.push_back(std::move(kept50));
    t.kept95.push_back(std::move(kept95));
    t.staged50.push_back(staged50);
    t.staged95.push_back(staged95);
    std::int64_t host = 0;
    for (std::size_t k = 0; k < kinds_.size(); ++k) host += stage.count[k] * host_at(*priced_[k], load.p95.saved).value;
    t.host.push_back(host * std::min<std::int64_t>(micro_batches_[stages], s.pp - static_cast<std::int64_t>(i)));
  }
}

void GroupScorer::price_times() {
  if (timed_) return;
  timed_ = true;
  hold();
  for (std::size_t id = 0; id < kinds_.size(); ++id) {
    const PricedKind& k = group_.timed(id);
    kinds_[id].forward = lanes(k.time50.forward, k.time95.forward, k.forward_spread);
    kinds_[id].backward = lanes(k.time50.backward, k.time95.backward, k.backward_spread);
    kinds_[id].weight = lanes(k.time50.weight_backward, k.time95.weight_backward, k.weight_spread);
    kinds_[id].busy = busy(k.time50.forward, k.time95.forward, k.forward_spread) + busy(k.time50.backward, k.time95.backward, k.backward_spread) +
                      busy(k.time50.weight_backward, k.time95.weight_backward, k.weight_spread);
    slots_[id].forward = kinds_[id].forward, slots_[id].backward = kinds_[id].backward;
    moves_ = moves_ || !k.forward_transfers.empty() || !k.backward_transfers.empty();
    whole_.full += (kinds_[id].forward + kinds_[id].backward + kinds_[id].weight) * static_cast<double>(counts_[id]);
    whole_.busy += kinds_[id].busy * static_cast<double>(counts_[id]);
  }
}

void GroupScorer::prepare_times(std::size_t stages) {
  StageTable& t = stage_[stages];
  if (t.timed) return;
  t.timed = true;
  price_times();
  const ShardStages& s = table_.stages[stages];
  for (const std::vector<SlotRun>& runs : s.split.classes) {
    t.counts.emplace_back();
    for (const SlotRun& run : runs) {
      const auto kind = static_cast<std::size_t>(run.kind);
      if (priced_[kind]->forward_transfers.empty() && priced_[kind]->backward_transfers.empty()) continue;
      const auto known = std::find_if(t.counts.back().begin(), t.counts.back().end(), [&](const auto& each) { return each.first == kind; });
      if (known == t.counts.back().end()) t.counts.back().emplace_back(kind, run.count);
      else known->second += run.count;
    }
    t.sums.emplace_back();
    if (s.virtual_stages == 1 && runs.size() > kFewRuns) t.sums.back().emplace(runs, slots_, table_.weight_of);
  }
  std::int64_t crossing = 0;
  for (std::size_t i = 1; i < s.split.stages.size(); ++i) crossing = std::max(crossing, kinds_[s.split.stages[i].kinds.front()].entering);
  Parallelism par = block_.parallelism;
  par.pp = s.pp;
  par.dp_shard = s.dp;   // only the ranks of a stage matter to the pipeline's group
  par.dp_replicate = 1;
  const GroupShape where = group_shape(Group::pipeline, par);
  if (s.pp > 1 && crossing > 0) {
    const Estimate e = shared_.links.price(CommCall{.collective = Collective::send_receive, .group = Group::pipeline, .payload = {crossing}}, where, 1.0);
    t.exchange = {{e.median.value, e.median.value, e.low.value, e.high.value}};
  }
}

std::int64_t GroupScorer::transient(const Choice& c, std::size_t stage_index, bool p95) const {
  const ShardStages& s = table_.stages[c.stages];
  const SplitStage& stage = s.split.stages[stage_index];
  const std::vector<std::int64_t>& kept = p95 ? stage_[c.stages].kept95[stage_index] : stage_[c.stages].kept50[stage_index];
  const std::vector<std::int64_t>&dense = s.dense[c.dense].prices->gathered, &expert = s.expert[c.expert].prices->gathered;
  const auto n = static_cast<std::int64_t>(stage.kinds.size());
  const auto gathered = [&](std::int64_t i) { return dense[stage.kinds[at(i)]] + expert[stage.kinds[at(i)]]; };
  const bool last = stage_index + 1 == s.split.stages.size();
  const std::int64_t flying = std::min<std::int64_t>(micro_batches_[c.stages], s.pp - static_cast<std::int64_t>(stage_index));
  std::int64_t all_kept = 0, everything = 0, base = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    all_kept += kept[stage.kinds[at(i)]];
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
    most = std::max(most, before + (p95 ? kinds_[k].forward95 : kinds_[k].forward50) + present(i, 1) + (c.reshard ? 0 : left));
    before += kept[k];
    left += gathered(i);
  }
  std::int64_t unreduced = 0, remaining = everything;
  for (std::int64_t i = n; i-- > 0;) {
    const std::size_t k = stage.kinds[at(i)];
    before -= kept[k];
    if (!kinds_[k].has_backward) continue;
    const std::int64_t carried = i + 1 < n || !last ? kinds_[k].carried_gradients : 0;
    most = std::max(most, before + (p95 ? kinds_[k].backward95 : kinds_[k].backward50) + (c.reshard ? present(i, -1) : remaining) + unreduced + carried);
    unreduced = kinds_[k].unreduced;
    remaining -= gathered(i);
  }
  return base + most;
}

const GroupScorer::Transients& GroupScorer::transients(const Choice& c) {
  prepare(c.stages);
  const ShardStages& s = table_.stages[c.stages];
  const unsigned which = (s.dense[c.dense].gathers ? 1u : 0u) | (s.expert[c.expert].gathers ? 2u : 0u) | (c.reshard ? 4u : 0u) | (c.prefetch > 0 ? 8u : 0u);
  std::vector<std::pair<unsigned, Transients>>& known = order(c.stages, c.schedule).transients;
  for (const auto& [of, t] : known)
    if (of == which) return t;
  if (c.schedule != Schedule::one_forward_one_backward) return known.emplace_back(which, turn_transients(c)).second;
  Transients t;
  for (std::size_t i = 0; i < s.split.stages.size(); ++i) {
    t.median.push_back(transient(c, i, false));
    t.p95.push_back(transient(c, i, true));
  }
  return known.emplace_back(which, std::move(t)).second;
}

std::int64_t GroupScorer::stage_states(const Choice& c, std::size_t stage) const {
  const ShardEntry &dense = table_.stages[c.stages].dense[c.dense], &expert = table_.stages[c.stages].expert[c.expert];
  const std::int64_t held = dense.stage_states[stage] + expert.stage_states[stage], streamed = dense.stage_host_optimizer[stage] + expert.stage_host_optimizer[stage];
  if (streamed == 0) return held;
  StateBytes state;
  state.host_optimizer = {streamed};
  return held + optimizer_window(state).value;
}

/// The runtime's context and communicators.
std::int64_t GroupScorer::runtime_bytes(const Choice& c) const {
  const ShardStages& s = table_.stages[c.stages];
  const Degrees here{s.pp, s.dense[c.dense].shard, s.expert[c.expert].shard};
  if (runtime_of_ != here) {
    runtime_of_ = here;
    Parallelism p = block_.parallelism;
    p.pp = s.pp;
    p.dp_shard = s.dense[c.dense].shard;
    p.dp_replicate = s.dp / p.dp_shard;
    p.expert_shard = s.expert[c.expert].shard;
    runtime_bytes_ = (shared_.problem.runtime.context + communicator_memory(shared_.problem, p, block_.context_exchange)).value;
  }
  return runtime_bytes_;
}

/// With the libraries' workspace and the allocator's reserve, as `standing_memory` and `add_allocator_reserve`.
std::int64_t GroupScorer::reserved(std::int64_t allocated) const {
  const Runtime& runtime = shared_.problem.runtime;
  if (runtime.own_kernels) allocated += runtime.workspace.value;
  const double overhead = runtime.allocator_overhead;
  return overhead > 0 ? allocated + std::llround(static_cast<double>(allocated) * overhead) : allocated;
}

std::int64_t GroupScorer::with_reserve(const Choice& c, std::int64_t allocated) const { return reserved(allocated) + runtime_bytes(c); }

std::int64_t GroupScorer::states(const Choice& c) const {
  std::int64_t most = 0;
  for (std::size_t i = 0; i < table_.stages[c.stages].split.stages.size(); ++i) most = std::max(most, stage_states(c, i));
  return with_reserve(c, most);
}

PeakBytes GroupScorer::memory(const Choice& c) {
  const Transients& t = transients(c);
  const ShardStages& s = table_.stages[c.stages];
  const ShardEntry &dense = s.dense[c.dense], &expert = s.expert[c.expert];
  const StageTable& held = stage_[c.stages];
  const std::int64_t lanes = s.pp > 1 ? micro_batches_[c.stages] : 1;   // `kept_ways` of the plan
  PeakBytes out;
  for (std::size_t i = 0; i < held.host.size(); ++i) {
    const std::int64_t states = stage_states(c, i), gradients = std::max(dense.stage_staged[i], expert.stage_staged[i]);
    const auto staged = [&](const Staged& exchanges) { return std::max(gradients, exchanges.buffer.value) + exchanges.ways.value * lanes; };
    out.host = std::max(out.host, dense.stage_host[i] + expert.stage_host[i] + held.host[i]);
    out.states = std::max(out.states, states);
    out.median = std::max(out.median, reserved(states + t.median[i]) + staged(held.staged50[i]));
    out.p95 = std::max(out.p95, reserved(states + t.p95[i]) + staged(held.staged95[i]));
  }
  const std::int64_t besides = runtime_bytes(c);
  return {reserved(out.states) + besides, out.median + besides, out.p95 + besides, out.host};
}

Four GroupScorer::after_passes(const Choice& c) {
  const ShardStages& s = table_.stages[c.stages];
  const ShardEntry &dense = s.dense[c.dense], &expert = s.expert[c.expert];
  const Runtime& runtime = shared_.problem.runtime;
  const std::size_t pair = c.dense * s.expert.size() + c.expert;
  const Four fixed = Four::of(runtime.step_overhead.value);
  const bool once = runtime.reduce_once || runtime.distributed_optimizer;
  if (!once && !s.optimizer.empty()) return s.optimizer[pair] + fixed;
  const std::vector<Four> fresh = s.stage_optimizer.empty() ? optimizer_.of(dense, expert) : std::vector<Four>{}, &stepped = s.stage_optimizer.empty() ? fresh : s.stage_optimizer[pair];
  // What crosses the network once a step hides under the first forward or the last backward pass, but for the first slot's.
  const auto at_median = [](Four t) { t.v[1] = t.v[0]; return t; };
  Four slowest{};
  for (std::size_t i = 0; i < s.split.stages.size(); ++i) {
    Four t = stepped[i];
    if (once) {
      const std::size_t entrance = s.split.stages[i].kinds.front();
      const auto both = [&](std::vector<Four> ShardEntry::*all) { return (dense.*all)[i] + (expert.*all)[i]; };
      const auto first = [&](std::vector<Four> ShardPrices::*each) { return ((*dense.prices).*each)[entrance] + ((*expert.prices).*each)[entrance]; };
      // As SlotCollectives::reduce_waited.
      const auto waited = [&](const Four& all, const Four& lends, const Four& pass, std::vector<Four> ShardPrices::*each, std::vector<Four> ShardPrices::*each_lends) {
        return max(first(each) + lends - first(each_lends), all - at_median(pass));
      };
      const Four gather = both(&ShardEntry::stage_gather), reduce = both(&ShardEntry::stage_reduce);
      t += runtime.overlap_reduce ? waited(reduce, both(&ShardEntry::stage_reduce_lends), stages_[i].backward, &ShardPrices::once_reduce, &ShardPrices::once_reduce_lends) : reduce;
      t += runtime.overlap_gather ? waited(gather, both(&ShardEntry::stage_gather_lends), stages_[i].forward, &ShardPrices::once_gather, &ShardPrices::once_gather_lends) : gather;
    }
    slowest = max(slowest, t);
  }
  return slowest + fixed;
}

Four GroupScorer::step(const Choice& c) {
  prepare_times(c.stages);
  if (c.schedule != Schedule::one_forward_one_backward) return turn_step(c);
  const ShardStages& s = table_.stages[c.stages];
  const bool same = c.reshard || s.pp == 1;
  classes_.resize(s.split.classes.size());
  if (const Layout here{c.stages, c.dense, c.expert}; known_of_ != here) {
    known_of_ = here;
    if (known_.size() < classes_.size()) known_.resize(classes_.size());
    for (std::size_t i = 0; i < classes_.size(); ++i) known_[i].clear();
  }
  set_weights(c);
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    const bool last = i == s.split.stages.back().runs;
    StageSeconds& t = classes_[i];
    t.forward = pass(c, i, false, {.prefetch = c.prefetch});
    t.backward = pass(c, i, true, {.gathers = c.reshard, .first_is_there = last, .prefetch = c.prefetch});
    t.forward_again = same ? t.forward : pass(c, i, false, {.gathers = false, .prefetch = c.prefetch});
    t.backward_again = same ? t.backward : pass(c, i, true, {.prefetch = c.prefetch});
  }
  stages_.resize(s.split.stages.size());
  for (std::size_t i = 0; i < stages_.size(); ++i) stages_[i] = classes_[s.split.stages[i].runs];
  return pipeline_step(stages_, stage_[c.stages].exchange, micro_batches_[c.stages], room_) + after_passes(c);
}

Four GroupScorer::pass(const Choice& c, std::size_t of_class, bool backward, PassOptions o) {
  if (!o.gathers) o.first_is_there = false, o.prefetch = 0;
  for (const KnownPass& k : known_[of_class])
    if (k.backward == backward && k.gathers == o.gathers && k.first_is_there == o.first_is_there && k.prefetch == o.prefetch) return k.seconds;
  std::optional<Four> seconds;
  if (const std::optional<PassSums>& sums = stage_[c.stages].sums[of_class]) seconds = backward ? sums->backward(weights_, o) : sums->forward(weights_, o);
  if (!seconds) {
    fill_slots();
    const std::vector<SlotRun>& runs = table_.stages[c.stages].split.classes[of_class];
    seconds = backward ? backward_seconds(runs, slots_, o) : forward_seconds(runs, slots_, o);
  }
  if (moves_ && seconds->v[0] > 0) {
    const bool gathers = o.gathers && c.prefetch > 0;
    const SlotDelays& each = late(c)[of_class];
    if (const double more = backward ? (gathers ? each.backward : each.reduced) : gathers ? each.forward : 0; more > 0) seconds = *seconds * (1 + more / seconds->v[0]);
  }
  known_[of_class].push_back({backward, o.gathers, o.first_is_there, o.prefetch, *seconds});
  return *seconds;
}

/// The gathers and reductions of a layout beside the passes as they are timed.
void GroupScorer::set_weights(const Choice& c) {
  const ShardPrices &dense = *table_.stages[c.stages].dense[c.dense].prices, &expert = *table_.stages[c.stages].expert[c.expert].prices;
  if (slots_of_ == Halves{&dense, &expert}) return;
  slots_of_ = {&dense, &expert};
  slots_current_ = false;
  const bool fetched = offloads_weights(block_.offload);
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    const std::size_t k = example_[w];
    weights_[w] = {dense.gather[k] + expert.gather[k], dense.reduce[k] + expert.reduce[k]};
    const std::int64_t bytes = fetched ? dense.host_fetch[k] + expert.host_fetch[k] : 0;
    if (bytes == 0) continue;
    const Estimate e = shared_.links.price(CommCall{.collective = Collective::from_host, .group = Group::world, .payload = {bytes}}, {}, 1.0);
    weights_[w].gather += Four{{e.median.value, e.median.value, e.low.value, e.high.value}};
  }
}

/// The same by kind.
void GroupScorer::fill_slots() {
  if (slots_current_) return;
  slots_current_ = true;
  for (std::size_t k = 0; k < slots_.size(); ++k) slots_[k].gather = weights_[table_.weight_of[k]].gather, slots_[k].reduce = weights_[table_.weight_of[k]].reduce;
}

void GroupScorer::set_slots(const Choice& c) {
  set_weights(c);
  fill_slots();
}

Four GroupScorer::step(const Choice& c, const Plan& given) {
  micro_batches_[c.stages] = given.micro_batches;
  return step(c);
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
  out.schedule = c.schedule;
  out.virtual_stages = s.virtual_stages;
  return out;
}

}  // namespace moeplan
