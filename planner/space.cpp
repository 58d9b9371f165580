#include "planner/space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "core/error.hpp"
#include "planner/exchange_options.hpp"
#include "planner/rules.hpp"
#include "sim/cost/groups.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

std::vector<int> divisors(std::int64_t n) {
  std::vector<int> out;
  for (std::int64_t d = 1; d <= n; ++d) if (n % d == 0) out.push_back(static_cast<int>(d));
  return out;
}

std::vector<int> options_of(const std::optional<int>& pin, std::int64_t n) {
  if (!pin) return divisors(n);
  return n % *pin == 0 ? std::vector<int>{*pin} : std::vector<int>{};
}

/// The stages that a pinned split has.
std::optional<int> stages_pin(const Pins& pins) {
  if (pins.stage_layers.empty()) return pins.pp;
  const int numbers = static_cast<int>(pins.stage_layers.size()), chunks = pins.virtual_stages.value_or(1);
  const int stages = numbers / chunks;
  if (numbers % chunks != 0 || (pins.pp && *pins.pp != stages))
    throw InputError("--stage-layers", fmt::format("{} numbers for {} pipeline stages{}", numbers, pins.pp ? std::to_string(*pins.pp) : "whole", chunks > 1 ? fmt::format(" of {} chunks", chunks) : ""),
                     "give one number of layers for each virtual stage");
  return stages;
}

/// Degrees of a kind that is cut over tensor ranks: the pin, else divisors of `n` up to `most` that cut the model's shapes.
template <class Set>
std::vector<int> tensor_options(const Problem& problem, const std::optional<int>& pin, std::int64_t n, std::int64_t most, Set set) {
  std::vector<int> out;
  for (const int d : options_of(pin, n)) {
    Plan probe;
    set(probe.parallelism, d);
    const auto reason = rules_of::tensor_divides(problem, probe);
    if (pin && reason) throw InputError(probe.parallelism.tp > 1 ? "--tp" : "--etp", *reason, "use a degree that divides heads and widths");
    if (pin || (d <= most && !reason)) out.push_back(d);
  }
  return out;
}

/// Cutting an expert's matrices pays only where there are too few experts to deal out: finer expert parallelism moves the same rows
/// to whole matrices.
constexpr std::int64_t kCoarseExperts = 16;

/// Context ranks hold at least this many tokens of a sequence each, unless pinned: below it the attention of a part is too short to
/// hide its exchange, and data parallelism cuts the activations as well.
constexpr std::int64_t kTokensPerContextRank = 4096;

std::vector<int> context_options(const Problem& problem, const Pins& pins, std::int64_t n) {
  std::vector<int> out;
  for (const int d : options_of(pins.cp, n))
    if (pins.cp || d == 1 || (problem.workload.sequence_length % d == 0 && problem.workload.sequence_length / d >= kTokensPerContextRank)) out.push_back(d);
  return out;
}

std::vector<Parallelism> layouts(const Problem& problem, const Pins& pins) {
  std::vector<Parallelism> out;
  const std::int64_t world = problem.cluster.devices(), experts = routed_experts(problem.model);
  const std::int64_t domain = scale_up_domain(problem.cluster);
  const std::vector<int> tps = tensor_options(problem, pins.tp, world, domain, [](Parallelism& p, int d) { p.tp = d; });
  const std::vector<int> etps = tensor_options(problem, pins.etp, world, experts > kCoarseExperts || experts == 0 ? 1 : domain, [](Parallelism& p, int d) { p.etp = d; });
  const std::vector<int> cps = context_options(problem, pins, world);
  for (const int pp : options_of(stages_pin(pins), world)) for (const int tp : tps) for (const int cp : cps) {
    const std::int64_t stage = world / pp;
    if (stage % (static_cast<std::int64_t>(tp) * cp) != 0) continue;
    Plan probe;
    probe.parallelism.tp = tp, probe.parallelism.cp = cp;
    probe.context_exchange = pins.context_exchange.value_or(ContextExchange::ring);
    if (const auto reason = rules_of::context_divides(problem, probe)) {
      if ((pins.cp || cp == 1) && (pins.tp || tp == 1)) throw InputError(pins.cp ? "--cp" : "--tp", *reason, "use a degree that divides the sequence");
      continue;
    }
    const std::int64_t dp = stage / tp / cp;
    for (const int shard : options_of(pins.dp_shard, dp)) {
      if (pins.dp_replicate && *pins.dp_replicate != dp / shard) continue;
      for (const int ep : options_of(pins.ep, stage)) for (const int etp : etps) {
        if (stage % (static_cast<std::int64_t>(ep) * etp) != 0) continue;
        if (!pins.ep && experts == 0 && ep > 1) continue;
        if (!pins.ep && experts > 0 && (experts + pins.expert_replicas.value_or(0)) % ep != 0) continue;
        for (const int expert_shard : options_of(pins.expert_shard, stage / ep / etp)) {
          if (experts == 0 && expert_shard > 1 && !pins.expert_shard) continue;
          out.push_back({.pp = pp, .tp = tp, .cp = cp, .ep = ep, .etp = etp, .dp_replicate = static_cast<int>(dp / shard), .dp_shard = shard, .expert_shard = expert_shard});
        }
      }
    }
  }
  return out;
}

/// Ring and exchange of heads where softmax attention crosses context ranks and its heads divide; one of them where nothing differs.
std::vector<ContextExchange> exchanges(const Problem& problem, const Pins& pins, const Parallelism& p) {
  if (pins.context_exchange) {
    Plan pinned;
    pinned.parallelism = p;
    pinned.context_exchange = *pins.context_exchange;
    const auto reason = rules_of::heads_exchange(problem, pinned);
    if (!reason) return {*pins.context_exchange};
    if (pins.cp) throw InputError("--context-exchange", *reason, "use ring, or fewer context ranks");
    return {};
  }
  const bool crosses = p.cp > 1 && std::any_of(problem.model.layers.begin(), problem.model.layers.end(), [](const LayerSpec& l) {
    return std::any_of(l.sublayers.begin(), l.sublayers.end(), [](const Sublayer& s) {
      const auto* gqa = std::get_if<GqaAttention>(&s.mixer);
      const auto* mla = std::get_if<MlaAttention>(&s.mixer);
      return (gqa && gqa->index_topk == 0) || (mla && !mla->indexer);
    });
  });
  Plan probe;
  probe.parallelism = p;
  probe.context_exchange = ContextExchange::all_to_all;
  if (!crosses || rules_of::heads_exchange(problem, probe)) return {ContextExchange::ring};
  return {ContextExchange::ring, ContextExchange::all_to_all};
}

/// Nothing, the pin, or every set of parts whose bytes exist: frozen weights only where some are frozen.
std::vector<Offload> offloads(const Problem& problem, const SearchOptions& options) {
  if (options.pins.offload) return {*options.pins.offload};
  if (!options.search_offload) return {Offload::none};
  const Workload& w = problem.workload;
  bool frozen = false;
  for (const Tuning* t : {&w.attention, &w.dense, &w.shared, &w.experts, &w.embedding, &w.head}) frozen = frozen || t->training != Training::full;
  std::vector<Offload> out;
  for (const auto& [value, name] : EnumNames<Offload>::names)
    if (frozen || !offloads_weights(value)) out.push_back(value);
  return out;
}

/// Whether states go down a chain or through a scan: what the links do faster, unless pinned.
StatePassing passing(const Problem& problem, const Links& links, const Pins& pins, const Plan& plan) {
  if (pins.state_passing) return *pins.state_passing;
  const Parallelism& p = plan.parallelism;
  const StateFloats floats = largest_state(problem.model, p.tp);
  if (p.cp == 1 || floats.state == 0) return StatePassing::scan;
  const std::int64_t runs = context_runs(problem.model, plan), bytes = 4 * runs * plan.micro_batch;
  const auto seconds = [&](Collective c, std::int64_t payload) {
    return links.price({.collective = c, .group = Group::context, .payload = {payload}, .rows = runs}, group_shape(Group::context, p)).median;
  };
  return seconds(Collective::state_chain, bytes * floats.state) < seconds(Collective::state_scan, bytes * (floats.state + floats.transition)) ? StatePassing::chain : StatePassing::scan;
}

/// Micro-batches that keep a device busy and stay within what a step can hold: 1, 2, 4 ... sequences, at most 128 Ki tokens unless one sequence is longer.
std::vector<std::int64_t> micro_batches(const Problem& problem, const Pins& pins) {
  if (pins.micro_batch) return {*pins.micro_batch};
  std::vector<std::int64_t> out;
  for (std::int64_t b = 1; b <= 64 && (b == 1 || b * problem.workload.sequence_length <= (1 << 17)); b *= 2) out.push_back(b);
  return out;
}

/// Virtual stages a stage: those pinned, else what the schedule asks for.
std::vector<int> virtual_stages(const Pins& pins, std::optional<Schedule> schedule, bool wide) {
  if (pins.virtual_stages) return {*pins.virtual_stages};
  if (!schedule) return wide ? std::vector<int>{1, 2, 4, 8} : std::vector<int>{1};
  if (*schedule == Schedule::interleaved) return {2, 4, 8};
  return *schedule == Schedule::expert_overlap ? std::vector<int>{1, 2, 4} : std::vector<int>{1};
}

/// Layers that the first stage (most micro-batches in flight, the embedding) and the last (head and loss) may give to the others; the same of
/// virtual stages, which hold fewer.
constexpr std::int64_t kGivenAway = 3, kGivenAwayVirtual = 2;

/// Equal parts; `wide`: also with fewer layers on the first and the last (virtual) stage, or on two stages on either.
std::vector<std::vector<std::int64_t>> uneven_stages(std::int64_t layers, int stages, std::int64_t given, bool wide) {
  std::vector<std::vector<std::int64_t>> out{even_stages(layers, stages)};
  if (!wide || stages == 1 || stages > layers) return out;
  const std::int64_t each = layers / stages;
  for (std::int64_t first = stages == 2 ? -given : 0; first <= given; ++first) {
    for (std::int64_t last = 0; last <= (stages == 2 ? 0 : given); ++last) {
      std::vector<std::int64_t> split;
      if (stages == 2) {
        split = {each - first, layers - each + first};
      } else {
        split = even_stages(layers - 2 * each + first + last, stages - 2);
        split.insert(split.begin(), each - first);
        split.push_back(each - last);
      }
      const bool held = std::all_of(split.begin(), split.end(), [](std::int64_t n) { return n > 0; });
      if (held && std::find(out.begin(), out.end(), split) == out.end()) out.push_back(std::move(split));
    }
  }
  return out;
}

/// The splits of `pp` stages.
std::vector<VirtualSplit> splits_of(const Pins& pins, const std::vector<int>& virtual_stages, std::int64_t layers, int pp, bool wide) {
  std::vector<VirtualSplit> out;
  for (const int v : virtual_stages) {
    if (v > 1 && !pins.virtual_stages && (pp == 1 || static_cast<std::int64_t>(pp) * v > layers)) continue;   // a layer each
    if (static_cast<int>(pins.stage_layers.size()) == pp * v) out.push_back({v, pins.stage_layers});
    else for (auto& split : uneven_stages(layers, pp * v, v > 1 ? kGivenAwayVirtual : kGivenAway, wide && pins.stage_layers.empty())) out.push_back({v, std::move(split)});
  }
  return out;
}

}  // namespace

std::vector<std::int64_t> even_stages(std::int64_t layers, int stages) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages), layers / stages);
  std::int64_t rest = layers % stages;
  for (std::size_t i = 1; rest > 0 && i + 1 < out.size(); ++i, --rest) ++out[i];
  for (std::size_t i = 0; rest > 0; ++i, --rest) ++out[i % out.size()];
  return out;
}

std::vector<Schedule> Grid::orders(const Plan& block, int pp, int virtual_stages) const {
  using enum Schedule;
  if (block.schedule == zero_bubble) return virtual_stages == 1 && (pp > 1 || pinned_schedule) ? std::vector{zero_bubble} : std::vector<Schedule>{};
  if (pinned_schedule) return {*pinned_schedule};
  std::vector<Schedule> out{virtual_stages > 1 ? interleaved : one_forward_one_backward};
  if (wide && block.parallelism.ep > 1) out.push_back(expert_overlap);   // without an exchange there is nothing to hide
  return out;
}

std::vector<DType> storages(const Problem& problem) {
  if (problem.workload.frozen_storage) return {*problem.workload.frozen_storage};
  std::vector<DType> out{DType::bf16};
  for (const DType shipped : {problem.model.stored.experts, problem.model.stored.attention, problem.model.stored.dense})
    if (problem.runtime.runs_quantised && shipped != DType::bf16 && shipped != DType::f16 && shipped != DType::f32 && std::find(out.begin(), out.end(), shipped) == out.end())
      out.push_back(shipped);
  return out;
}

std::int64_t default_global_batch(const Problem& problem) { return 8 * problem.cluster.devices(); }

Grid grid(const Problem& problem, const SearchOptions& options) {
  const Pins& pins = options.pins;
  const std::vector<Parallelism> all = layouts(problem, pins);
  if (all.empty()) {
    const auto shown_pin = [](const char* name, const std::optional<int>& v) { return v ? fmt::format(" --{} {}", name, *v) : std::string(); };
    const std::optional<int> stages = stages_pin(pins);
    throw InputError("parallelism", fmt::format("no layout of {} devices has{}{}{}{}{}{}{}{}{}", problem.cluster.devices(), pins.pp || !stages ? "" : fmt::format(" {} stages (--stage-layers)", *stages), shown_pin("pp", pins.pp), shown_pin("tp", pins.tp),
                                                shown_pin("cp", pins.cp), shown_pin("ep", pins.ep), shown_pin("etp", pins.etp), shown_pin("dp-replicate", pins.dp_replicate), shown_pin("dp-shard", pins.dp_shard), shown_pin("expert-shard", pins.expert_shard)),
                     "pp x tp x cp x dp must be the number of devices, and ep x etp must divide the ranks of a stage");
  }
  Grid out;
  const auto layers = static_cast<std::int64_t>(problem.model.layers.size());
  if (const std::int64_t sum = std::accumulate(pins.stage_layers.begin(), pins.stage_layers.end(), std::int64_t{0}); !pins.stage_layers.empty() && sum != layers)
    throw InputError("--stage-layers", fmt::format("stages_hold_layers: {} layers in all, the model has {}", sum, layers), "give numbers that add up to the model's layers");
  std::map<std::tuple<int, int, int, int>, std::vector<Parallelism>> by_degrees;
  for (const Parallelism& p : all) by_degrees[{p.tp, p.cp, p.ep, p.etp}].push_back(p);
  for (auto& [degrees, layouts] : by_degrees) out.layouts.push_back(std::move(layouts));
  const std::vector<Recompute> recomputes = pins.recompute ? std::vector{*pins.recompute} : std::vector{Recompute::none, Recompute::selective, Recompute::full};
  const std::vector<DType> types = pins.frozen_storage ? std::vector{*pins.frozen_storage} : storages(problem);
  out.wide = options.wide;
  out.pinned_schedule = pins.schedule;
  if (!out.pinned_schedule && pins.virtual_stages.value_or(1) > 1) out.pinned_schedule = Schedule::interleaved;
  const std::vector<int> virtual_degrees = virtual_stages(pins, out.pinned_schedule, options.wide);
  for (const auto& list : out.layouts)
    for (const Parallelism& p : list)
      if (!out.splits.contains(p.pp)) out.splits.emplace(p.pp, splits_of(pins, virtual_degrees, layers, p.pp, options.wide));
  // Weight gradients of their own pay where weights are trained; adapters' are a few per cent of a backward pass.
  bool trained = false;
  for (const Tuning* t : {&problem.workload.attention, &problem.workload.dense, &problem.workload.shared, &problem.workload.experts}) trained = trained || t->training == Training::full;
  std::vector<Schedule> lowered{out.pinned_schedule == Schedule::zero_bubble ? Schedule::zero_bubble : Schedule::one_forward_one_backward};
  if (options.wide && !out.pinned_schedule && trained) lowered.push_back(Schedule::zero_bubble);
  out.pinned_reshard = pins.reshard_after_forward.has_value();
  out.reshards = out.pinned_reshard ? std::vector<bool>{*pins.reshard_after_forward} : std::vector<bool>{true, false};
  out.prefetches = {problem.runtime.prefetch};
  if (pins.prefetch) out.prefetches = {*pins.prefetch};
  else if (problem.runtime.prefetch > 0) out.prefetches.push_back(0);
  const std::vector<Offload> offloaded = offloads(problem, options);
  const Links links(problem.cluster, problem.runtime, {}, problem.profile);
  for (const std::int64_t micro_batch : micro_batches(problem, pins)) for (const Recompute recompute : recomputes) for (const DType type : types) {
    for (std::size_t l = 0; l < out.layouts.size(); ++l) for (const ContextExchange exchange : exchanges(problem, pins, out.layouts[l].front())) {
      Plan plan;
      plan.parallelism = out.layouts[l].front();
      plan.micro_batch = micro_batch;
      plan.recompute = recompute;
      plan.frozen_storage = type;
      plan.prefetch = out.prefetches.front();
      plan.context_exchange = exchange;
      plan.state_passing = passing(problem, links, pins, plan);
      plan.stage_layers = pins.stage_layers;
      for (const Offload offload : offloaded) {
        plan.offload = offload;
        for (const ExpertExchange& experts : exchange_options(problem, options, plan.parallelism, offload)) {
          plan.experts = experts;
          for (const Schedule schedule : lowered) {
            if (schedule == Schedule::zero_bubble && !out.pinned_schedule && offloads_activations(offload)) continue;
            plan.schedule = schedule;
            out.blocks.push_back({plan, l});
          }
        }
      }
    }
  }
  return out;
}

std::vector<CandidateGroup> candidates(const Problem& problem, const SearchOptions& options) {
  const Grid space = grid(problem, options);
  const std::int64_t batch = problem.workload.global_batch.value_or(default_global_batch(problem));
  std::vector<CandidateGroup> groups;
  for (const Grid::Block& block : space.blocks) {
    CandidateGroup group;
    Plan plan = block.plan;
    for (const Parallelism& p : space.layouts[block.layouts]) {
      plan.parallelism = p;
      plan.micro_batches = std::max<std::int64_t>(1, batch / (plan.micro_batch * p.dp()));
      for (const VirtualSplit& split : space.splits.at(p.pp)) {
        plan.virtual_stages = split.virtual_stages;
        plan.stage_layers = split.layers;
        for (const Schedule schedule : space.orders(block.plan, p.pp, split.virtual_stages)) {
          plan.schedule = schedule;
          for (const bool reshard : space.reshards) {
            for (const std::int64_t prefetch : space.prefetches) {
              if (!space.distinct(p.dp_shard * p.cp > 1 || p.expert_shard > 1 || offloads_weights(plan.offload), reshard, prefetch)) continue;
              plan.reshard_after_forward = reshard;
              plan.prefetch = prefetch;
              group.plans.push_back(plan);
            }
          }
        }
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace moeplan
