#include "planner/evaluate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "planner/evaluator_shared.hpp"
#include "planner/load_spread.hpp"
#include "planner/scheduled.hpp"
#include "planner/stage_walk.hpp"
#include "sim/cost/block_time.hpp"
#include "sim/cost/groups.hpp"
#include "sim/memory/memory.hpp"
#include "sim/program/call_scratch.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// What decides how they are sharded and reduced over data ranks.
using ShardKey = std::tuple<int, int, bool, bool, bool, Offload>;
ShardKey shard_key(const Plan& plan) {
  const Parallelism& p = plan.parallelism;
  return {p.dp_shard * p.cp, p.expert_shard, p.dp() * p.cp > 1, p.expert_data() > 1, p.pp == 1, plan.offload};
}

/// States and sharding of every kind under one ShardKey.
struct Sharded {
  std::vector<StateBytes> state;
  std::vector<SlotSharding> sharding;
  StateBytes idle;
};

}  // namespace

Evaluator::Evaluator(const Problem& problem, bool full_attention_flops, std::optional<int> only_ep, bool contention)
    : shared_(new Shared{problem, outline(problem.model, problem.workload), Prices(problem.cluster.device, problem.profile, problem.runtime, load_spread(problem)),
                         Links(problem.cluster, problem.runtime, {}, problem.profile), LoadFactors(problem, only_ep), {}, {}, {}, {}, {}}) {
  Shared& s = *shared_;
  s.contention = contention;
  std::map<std::string, std::size_t> known;
  bool before = false;
  const std::size_t layers = s.outline.kinds.size();
  for (std::size_t i = 0; i < layers + 2; ++i) {
    const std::string name = (i == 0 ? "embedding" : i == layers + 1 ? "head" : s.outline.kinds[i - 1]) + (before ? "" : " (first trained)");
    const auto [it, fresh] = known.try_emplace(name, s.example.size());
    if (fresh) s.example.push_back(static_cast<std::int32_t>(i) - 1);
    s.kind_of.push_back(it->second);
    before = before || s.outline.trained[i];
  }
  for (const std::int32_t layer : s.example) {
    const bool inner = layer >= 0 && layer < static_cast<std::int32_t>(layers);
    s.plain.push_back(!inner || std::none_of(problem.model.layers[index(layer)].sublayers.begin(), problem.model.layers[index(layer)].sublayers.end(),
                                             [](const Sublayer& each) { return std::holds_alternative<MoeFfn>(each.mixer); }));
  }
  Plan uncut;   // what ranks repeat (latents under tensor parallelism, summaries under context parallelism) is no model flop
  uncut.recompute = Recompute::none;
  for (const std::int32_t layer : s.example) s.flops.push_back(model_flops(lower_slot(problem, uncut, s.outline, layer, 1.0), full_attention_flops).value);
}
Evaluator::~Evaluator() = default;

void Evaluator::prepare(const Plan& plan) {
  shared_->load.prepare(plan);
  shared_->experts.prepare(plan);
  std::vector<Block>& blocks = shared_->weights[weight_key(plan)];
  if (!blocks.empty()) return;
  for (const std::int32_t layer : shared_->example) blocks.push_back(slot_weights(shared_->problem, plan, layer));
}

struct Evaluator::Group::State {
  const Shared& shared;
  Plan plan;
  FactorBand load;                              ///< over the whole model
  const std::vector<Block>& weights;            ///< per kind
  std::vector<std::shared_ptr<PricedKind>> kinds;     ///< lowered and priced on first use
  std::map<ShardKey, Sharded> sharded_;
  std::map<std::pair<std::size_t, double>, Block> blocks;
  std::shared_ptr<ScheduledKinds> scheduled;    ///< what schedules other than 1F1B have lowered

  State(const Shared& s, const Plan& p)
      : shared(s), plan(p), load(s.load.stage(p, 0, static_cast<std::int64_t>(s.outline.kinds.size()))), weights(s.weights.at(weight_key(p))), kinds(s.example.size()) {}

  const PricedKind& held(std::size_t id) {
    PricedKind& k = entry(id);
    std::call_once(k.lowered, [&] { hold_kind(k, shared, plan, load, id); });
    return k;
  }
  const PricedKind& loaded(std::size_t id) {
    (void)held(id);
    PricedKind& k = *kinds[id];
    std::call_once(k.loaded, [&] { load_kind(k, shared, plan, load, id); });
    return k;
  }
  const PricedKind& timed(std::size_t id) {
    (void)held(id);
    PricedKind& k = *kinds[id];
    std::call_once(k.timed, [&] { time_kind(k, shared, plan, load, id); });
    return k;
  }
  const PricedKind& kind(std::size_t id) {
    (void)loaded(id);
    return timed(id);
  }

  /// Its block at another load, remembered: pairs share blocks.
  const Block& block_at(std::size_t id, double scale) {
    const auto [it, fresh] = blocks.try_emplace({id, scale});
    if (fresh) it->second = moeplan::block_at(held(id), shared, plan, id, scale);
    return it->second;
  }

  PricedKind& entry(std::size_t id) {
    std::shared_ptr<PricedKind>& k = kinds[id];
    if (!k && shared.plain[id]) {
      const std::lock_guard lock(shared.mutex);
      std::shared_ptr<PricedKind>& all = shared.plain_kinds[plain_key(id, plan)];
      if (!all) all = std::make_shared<PricedKind>();
      k = all;
    } else if (!k) {
      k = std::make_shared<PricedKind>();
    }
    return *k;
  }

  [[nodiscard]] std::size_t layers() const { return shared.outline.kinds.size(); }

  /// [first, end) of the model's slots that a stage holds.
  std::pair<std::size_t, std::size_t> slots_of(const Plan& p, int stage) const {
    std::size_t first = 1;
    for (int i = 0; i < stage; ++i) first += static_cast<std::size_t>(p.stage_layers[static_cast<std::size_t>(i)]);
    std::size_t end = first + static_cast<std::size_t>(p.stage_layers[static_cast<std::size_t>(stage)]);
    if (stage == 0) first = 0;
    if (stage + 1 == p.parallelism.pp) ++end;
    return {first, end};
  }

  const Sharded& sharded(const Plan& p) {
    const auto [it, fresh] = sharded_.try_emplace(shard_key(p));
    if (fresh) {
      for (const Block& b : weights) {
        it->second.state.push_back(state_bytes(b, shared.problem, p));
        it->second.sharding.push_back(slot_sharding(b, shared.problem, p));
      }
      it->second.idle = idle_state(shared.problem, p);
    }
    return it->second;
  }

  StateBytes stage_state(const Plan& p, int stage) {
    const Sharded& s = sharded(p);
    StateBytes sum = stage == 0 ? s.idle : StateBytes{};
    const auto [first, end] = slots_of(p, stage);
    for (std::size_t i = first; i < end; ++i) sum += s.state[shared.kind_of[i]];
    return sum;
  }
};

Evaluator::Group::Group(const Evaluator& shared, const Plan& representative) : state_(std::make_unique<State>(shared.shared(), representative)) {}
Evaluator::Group::~Group() = default;

/// The same plan under 1F1B, each stage holding as many layers.
static Plan plain(const Plan& plan) {
  Plan out = plan;
  out.schedule = Schedule::one_forward_one_backward;
  out.virtual_stages = 1;
  out.stage_layers.assign(static_cast<std::size_t>(plan.parallelism.pp), 0);
  for (std::size_t i = 0; i < plan.stage_layers.size(); ++i) out.stage_layers[i % out.stage_layers.size()] += plan.stage_layers[i];
  return out;
}

const PricedKind& Evaluator::Group::kind(std::size_t id) { return state_->kind(id); }
const PricedKind& Evaluator::Group::held(std::size_t id) { return state_->held(id); }
const PricedKind& Evaluator::Group::loaded(std::size_t id) { return state_->loaded(id); }
const PricedKind& Evaluator::Group::timed(std::size_t id) { return state_->timed(id); }
std::array<double, 2> Evaluator::Group::pair_seconds(std::size_t forward, std::size_t backward) {
  State& s = *state_;
  const auto at = [&](double scale) { return moeplan::pair_seconds(s.block_at(forward, scale), s.block_at(backward, scale), s.shared, s.plan, scale); };
  const double median = at(s.load.p50.step);
  return {median, s.load.p95.step == s.load.p50.step ? median : at(s.load.p95.step)};
}
std::array<std::int64_t, 2> Evaluator::Group::pair_peak(std::size_t forward, std::size_t backward) {
  State& s = *state_;
  const auto at = [&](double scale) {
    const Block &f = s.block_at(forward, scale), &b = s.block_at(backward, scale);
    return side_by_side_memory(side_by_side(f, b), f, b, s.shared.problem.runtime).peak().value;
  };
  const std::int64_t median = at(s.load.p50.buffer);
  return {median, s.load.p95.buffer == s.load.p50.buffer ? median : at(s.load.p95.buffer)};
}

MemoryBreakdown Evaluator::Group::standing(const Plan& plan) {
  if (plan.virtual_stages > 1) return standing(plain(plan));
  State& s = *state_;
  MemoryBreakdown worst;
  for (int stage = 0; stage < plan.parallelism.pp; ++stage) {
    MemoryBreakdown m = standing_memory(s.stage_state(plan, stage), s.shared.problem, plan);
    add_allocator_reserve(m, s.shared.problem.runtime);
    if (m.peak() > worst.peak()) worst = m;
  }
  return worst;
}

/// What follows from step time and model flops.
static void finish(Forecast& out, const Plan& plan, const Problem& problem) {
  const double devices = plan.parallelism.world();
  const double tokens = static_cast<double>(plan.micro_batch) * static_cast<double>(plan.micro_batches) * plan.parallelism.dp() * static_cast<double>(problem.workload.sequence_length);
  out.tokens_per_second = tokens / out.step.value;
  out.tokens_per_second_per_device = out.tokens_per_second / devices;
  out.flops_per_device = {out.model_flops.value / out.step.value / devices};
  out.mfu = out.flops_per_device.value / problem.cluster.device.peak.at("bf16").value;
  if (problem.workload.tokens) {
    out.device_hours = *problem.workload.tokens / out.tokens_per_second / 3600 * devices;
    if (problem.cluster.price) out.cost_usd = *out.device_hours * problem.cluster.price->value;
  }
}

Forecast Evaluator::Group::forecast(const Plan& plan) {
  if (plan.schedule != Schedule::one_forward_one_backward) {
    Forecast out = forecast(plain(plan));
    const Shared& shared = state_->shared;
    const Links links = links_of(shared, plan);
    Prices prices = shared.experts.of(plan);
    prices.hold(shared.clocks.of(plan));
    apply_schedule({shared.problem, shared.outline, prices, links, shared.load, shared.contention ? &shared.ports : nullptr}, plan, out, state_->scheduled);
    finish(out, plan, shared.problem);
    return out;
  }
  State& s = *state_;
  const Schedule lowered_for = s.plan.schedule;   // a split backward pass is lowered as such, whatever is asked for here
  s.plan = plan;
  s.plan.schedule = lowered_for;
  const Problem& problem = s.shared.problem;
  const Parallelism& par = plan.parallelism;
  Forecast out;
  const Sharded& sharded = s.sharded(plan);
  struct PerKind {
    const PricedKind* kind;
    SlotMemory slot;
    double fetch;
    SlotCollectives weights;
    SlotDelays delays;
  };
  const auto collective = [&](Collective c, moeplan::Group g, Bytes payload) {
    const GroupShape where = group_shape(g, par);
    if (where.size <= 1 || payload.value == 0) return 0.0;
    const Estimate e = s.shared.links.price(CommCall{.collective = c, .group = g, .payload = payload}, where, 1.0);
    return e.median.value;
  };
  const auto copied = [&](Collective c, Bytes payload) {
    return payload.value == 0 ? 0.0 : s.shared.links.price({.collective = c, .group = moeplan::Group::world, .payload = payload}, {}).median.value;
  };
  std::vector<PerKind> per_kind;
  for (std::size_t i = 0; i < s.kinds.size(); ++i) {
    const SlotSharding& cut = sharded.sharding[i];
    PerKind v{&s.kind(i), slot_memory(s.kind(i).block, cut), copied(Collective::from_host, cut.host_fetch), slot_collectives(s.shared.links, par, cut), delays_of(s.shared, plan, s.kind(i), cut)};
    if (!s.shared.contention) v.weights.gather_lends = v.weights.reduce_lends = 0;
    per_kind.push_back(v);
  }

  std::vector<double> optimizer;
  StagePasses passes50, passes95;
  struct StageTime { double forward = 0, backward = 0, recompute = 0, expert = 0, weight = 0; };
  std::vector<StageTime> stage_times;
  double model = 0;
  Bytes exchange_bytes{}, host50{}, host95{};   // largest message between stages; what the fullest rank puts into host memory
  std::array<double, 3> basis{};
  for (int stage = 0; stage < par.pp; ++stage) {
    const auto [first, end] = s.slots_of(plan, stage);
    StageMemory m50{.slots = {}, .state = s.stage_state(plan, stage), .in_flight = in_flight(plan, stage), .micro_batches = plan.micro_batches,
                    .prefetch = plan.prefetch, .reshard = plan.reshard_after_forward, .last_stage = stage + 1 == par.pp};
    StageMemory m95 = m50;
    std::vector<double> fc50, bc50, fc95, bc95, gather, reduce, none;
    std::vector<SlotDelays> delays;
    SlotCollectives once;   // what crosses the network once a step
    StageTime t;
    const auto first_layer = static_cast<std::int64_t>(first == 0 ? 0 : first - 1), last_layer = std::min(static_cast<std::int64_t>(end) - 1, static_cast<std::int64_t>(s.layers()));
    const FactorBand load = s.shared.load.stage(plan, first_layer, last_layer);
    for (std::size_t i = first; i < end; ++i) {
      const PerKind& k = per_kind[s.shared.kind_of[i]];
      m50.slots.push_back(with_passes(k.slot, k.kind->forward50, k.kind->backward50, kept_at(*k.kind, load.p50.saved), k.kind->staged50));
      m50.slots.back().host = host_at(*k.kind, load.p50.saved);
      m95.slots.push_back(with_passes(k.slot, k.kind->forward95, k.kind->backward95, kept_at(*k.kind, load.p95.saved), k.kind->staged95));
      m95.slots.back().host = host_at(*k.kind, load.p95.saved);
      fc50.push_back(k.kind->time50.forward.total.value);
      bc50.push_back(k.kind->time50.backward.total.value);
      fc95.push_back(k.kind->time95.forward.total.value);
      bc95.push_back(k.kind->time95.backward.total.value);
      once += k.weights;
      gather.push_back(k.fetch + (problem.runtime.distributed_optimizer ? 0 : k.weights.gather));
      reduce.push_back(problem.runtime.reduce_once ? 0 : k.weights.reduce);
      none.push_back(0);
      delays.push_back(k.delays);
      t.forward += k.kind->time50.forward.compute.value;
      t.backward += k.kind->time50.backward.compute.value;
      t.recompute += k.kind->time50.backward.recompute.value;
      t.expert += k.kind->time50.forward.exposed.value + k.kind->time50.backward.exposed.value;
      for (std::size_t b = 0; b < 3; ++b) basis[b] += k.kind->time50.forward.basis[b] + k.kind->time50.backward.basis[b] + k.kind->time50.weight_backward.basis[b];
      model += s.shared.flops[s.shared.kind_of[i]];
      if (i == first && stage > 0) {
        const Block& entrance = k.kind->block;
        Bytes crossing{};
        for (std::size_t in = 0; in < entrance.inputs.size(); ++in) {
          const Bytes b = entrance.values[index(entrance.inputs[in])].bytes();
          if (in > 0) { m50.carried += b; m95.carried += b; }
          crossing += b;
        }
        exchange_bytes = std::max(exchange_bytes, crossing);
      }
    }
    const MemoryBreakdown p50 = stage_memory(m50, problem, plan), p95 = stage_memory(m95, problem, plan);
    host50 = std::max(host50, p50.host);
    host95 = std::max(host95, p95.host);
    if (stage == 0 || p50.peak() > out.memory.peak()) out.memory = p50;
    if (stage == 0 || p95.peak() > out.memory_p95.peak()) { out.memory_p95 = p95; out.worst_stage = stage; }
    // Without resharding the copies of the forward pass serve the backward pass too.
    // With it, the last stage's last slot keeps its copy: its backward pass comes next (as the program lists it).
    std::vector<double> again = plan.reshard_after_forward ? gather : none;
    if (stage + 1 == par.pp) again.back() = 0;
    const auto reversed = [](std::vector<double> v) { std::reverse(v.begin(), v.end()); return v; };
    /// Adds this stage's passes; what of them weights are waited for.
    const auto add = [&](StagePasses& to, const std::vector<double>& fc, const std::vector<double>& bc) {
      const StageWalk f = walk_stage(fc, gather, none, plan.prefetch), b = walk_stage(reversed(bc), reversed(again), reversed(reduce), plan.prefetch);
      to.forward.push_back(f.total);
      to.backward.push_back(b.total);
      const bool same = plan.reshard_after_forward || par.pp == 1;
      to.forward_again.push_back(same ? to.forward.back() : walk_stage(fc, none, none, plan.prefetch).total);
      to.backward_again.push_back(same ? to.backward.back() : walk_stage(reversed(bc), reversed(gather), reversed(reduce), plan.prefetch).total);
      return f.exposed + b.exposed;
    };
    /// What they add beside compute, every slot but a pass's first alike (sim/cost/contention.hpp), as shares of the passes at the median.
    const bool ahead = plan.prefetch > 0;
    double late_forward = 0, late_gathered = 0, late_reduced = 0;
    for (std::size_t i = 0; i < delays.size(); ++i) {
      if (i > 0 && ahead) late_forward += delays[i].forward;
      if (i + 1 < delays.size()) late_gathered += delays[i].backward, late_reduced += delays[i].reduced;
    }
    t.weight = add(passes50, fc50, bc50);
    add(passes95, fc95, bc95);
    const double late_backward = ahead && plan.reshard_after_forward ? late_gathered : late_reduced, late_again = ahead ? late_gathered : late_reduced;
    const auto stretch = [](std::vector<double>& at50, std::vector<double>& at95, double late) {
      if (late <= 0 || at50.back() <= 0) return;
      const double times = 1 + late / at50.back();
      at50.back() *= times, at95.back() *= times;
    };
    const bool same = plan.reshard_after_forward || par.pp == 1;
    stretch(passes50.forward, passes95.forward, late_forward);
    stretch(passes50.backward, passes95.backward, late_backward);
    stretch(passes50.forward_again, passes95.forward_again, same ? late_forward : 0);
    stretch(passes50.backward_again, passes95.backward_again, same ? late_backward : late_again);
    t.weight += late_forward + late_backward;
    stage_times.push_back(t);
    // The optimizer reads and writes parameter, gradient and moments once: priced as the operator over this rank's trained elements.
    // States in host memory stream in and out beside it.
    const double stepped = m50.state.trained_elements > 0 ? s.shared.prices.price(optimizer_call(m50.state, problem.workload.optimizer)).median.value : 0.0;
    optimizer.push_back(std::max(stepped, copied(Collective::from_host, optimizer_copy(m50.state).payload)));
    // Once a step: the reduction can hide under the last backward pass but for its first slot, the gathering of updated weights under
    // the first forward pass but for that slot. What hides lends from the pass.
    const SlotCollectives& entrance = per_kind[s.shared.kind_of[first]].weights;
    if (problem.runtime.reduce_once) optimizer.back() += problem.runtime.overlap_reduce ? once.reduce_waited(entrance, passes50.backward.back()) : once.reduce;
    if (problem.runtime.distributed_optimizer) optimizer.back() += problem.runtime.overlap_gather ? once.gather_waited(entrance, passes50.forward.back()) : once.gather;
  }
  out.memory.host = host50;
  out.memory_p95.host = host95;
  const double exchange = collective(Collective::send_receive, moeplan::Group::pipeline, exchange_bytes);
  const double tail = *std::max_element(optimizer.begin(), optimizer.end()) + problem.runtime.step_overhead.value;
  const std::vector<double>&f50 = passes50.forward, &b50 = passes50.backward;
  const double step50 = pipeline_seconds(passes50, exchange, plan.micro_batches);
  out.step = {step50 + tail};
  out.step_p95 = {pipeline_seconds(passes95, exchange, plan.micro_batches) + tail};

  std::size_t pace = 0;
  for (std::size_t i = 1; i < f50.size(); ++i) if (f50[i] + b50[i] > f50[pace] + b50[pace]) pace = i;
  const double m = static_cast<double>(plan.micro_batches);
  const auto put = [&](TimeCategory c, double v) { out.time[static_cast<std::size_t>(c)] = {v}; };
  put(TimeCategory::forward, m * stage_times[pace].forward);
  put(TimeCategory::backward, m * stage_times[pace].backward);
  put(TimeCategory::recompute, m * stage_times[pace].recompute);
  put(TimeCategory::expert_communication, m * stage_times[pace].expert);
  put(TimeCategory::weight_communication, m * stage_times[pace].weight);
  put(TimeCategory::optimizer, tail);
  const double exchanged = par.pp > 1 ? std::min(2 * exchange * (par.pp - 1), step50 - m * (f50[pace] + b50[pace])) : 0;
  put(TimeCategory::pipeline_exchange, exchanged);
  put(TimeCategory::pipeline_bubble, step50 - m * (f50[pace] + b50[pace]) - exchanged);

  const double total_basis = basis[0] + basis[1] + basis[2];
  for (std::size_t i = 0; i < 3; ++i) out.basis[i] = total_basis > 0 ? basis[i] / total_basis : 0;
  out.dropped = s.shared.load.dropped(plan);
  out.model_flops = {model * static_cast<double>(plan.micro_batch) * m * par.dp()};
  finish(out, plan, problem);
  return out;
}

std::optional<std::string> host_overflow(const ClusterSpec& cluster, Bytes host_of_a_rank) {
  const Bytes node = host_of_a_rank * cluster.devices_per_node;
  const double have = kHostShare * static_cast<double>(cluster.host_memory.value);
  if (node.value == 0 || static_cast<double>(node.value) <= have) return std::nullopt;
  return fmt::format("{} ranks of a node put {} into host memory, {} of {} may be used", cluster.devices_per_node, human(node), human(Bytes{static_cast<std::int64_t>(have)}), human(cluster.host_memory));
}

}  // namespace moeplan
