#include "planner/space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "core/error.hpp"
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

std::int64_t routed_experts(const ModelSpec& model) {
  std::int64_t experts = 0;
  for (const LayerSpec& l : model.layers)
    for (const Sublayer& s : l.sublayers)
      if (const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer)) experts = std::max(experts, moe->experts);
  return experts;
}

/// Whether `tp` tensor ranks cut every block into parts whose shapes meet.
bool cuts(const Problem& problem, int tp) {
  Plan plan;
  plan.parallelism = {.pp = 1, .tp = tp, .ep = 1, .etp = 1, .dp_shard = 1};
  plan.stage_layers = {static_cast<std::int64_t>(problem.model.layers.size())};
  return problem.workload.sequence_length % tp == 0 && verify(lower_unverified(problem, plan, 0)).empty();
}

/// The pin; in a wide search degrees up to those of the innermost links.
std::vector<int> tensor_degrees(const Problem& problem, const SearchOptions& options) {
  if (options.pins.tp) return {*options.pins.tp};
  std::vector<int> out{1};
  if (!options.wide) return out;
  const std::int64_t span = problem.cluster.tiers.front().span, domain = std::min(span == 0 ? problem.cluster.devices() : span, problem.cluster.devices_per_node);
  for (int tp = 2; tp <= domain && problem.cluster.devices() % tp == 0; tp *= 2)
    if (cuts(problem, tp)) out.push_back(tp);
  return out;
}

/// Equal parts; in a wide search also those of which the first stage gives away up to 7 layers and the last up to 7, beside embedding and head.
std::vector<std::vector<std::int64_t>> stage_splits(std::int64_t layers, int pp, bool wide) {
  std::vector<std::vector<std::int64_t>> out{even_stages(layers, pp)};
  if (!wide || pp == 1 || pp > layers) return out;
  for (std::int64_t first = 0; first <= 7; ++first) {
    for (std::int64_t last = 0; last <= 7; ++last) {
      std::vector<std::int64_t> split;
      if (pp == 2) {
        split = {out.front()[0] - first + last, out.front()[1] + first - last};
      } else {
        const std::int64_t each = layers / pp, head = each - first, tail = each - last;
        split = even_stages(layers - head - tail, pp - 2);
        split.insert(split.begin(), head);
        split.push_back(tail);
      }
      const bool held = std::all_of(split.begin(), split.end(), [](std::int64_t n) { return n > 0; });
      if (held && std::find(out.begin(), out.end(), split) == out.end()) out.push_back(std::move(split));
    }
  }
  return out;
}

/// Degrees this version lowers in the search: tensor, context and expert-tensor parallelism are priced only where pinned.
std::vector<Parallelism> layouts(const Problem& problem, const SearchOptions& options) {
  const Pins& pins = options.pins;
  std::vector<Parallelism> out;
  const std::int64_t world = problem.cluster.devices(), experts = routed_experts(problem.model);
  for (const int pp : options_of(pins.pp, world)) for (const int tp : tensor_degrees(problem, options)) {
    const int cp = pins.cp.value_or(1), etp = pins.etp.value_or(1);
    const std::int64_t stage = world / pp;
    if (stage % (static_cast<std::int64_t>(tp) * cp) != 0) continue;
    const std::int64_t dp = stage / tp / cp;
    for (const int shard : options_of(pins.dp_shard, dp)) {
      if (pins.dp_replicate && *pins.dp_replicate != dp / shard) continue;
      for (const int ep : options_of(pins.ep, stage)) {
        if (stage % (static_cast<std::int64_t>(ep) * etp) != 0) continue;
        if (!pins.ep && experts == 0 && ep > 1) continue;
        if (!pins.ep && experts > 0 && experts % ep != 0) continue;
        for (const int expert_shard : options_of(pins.expert_shard, stage / ep / etp)) {
          if (experts == 0 && expert_shard > 1 && !pins.expert_shard) continue;
          out.push_back({.pp = pp, .tp = tp, .cp = cp, .ep = ep, .etp = etp, .dp_replicate = static_cast<int>(dp / shard), .dp_shard = shard, .expert_shard = expert_shard});
        }
      }
    }
  }
  return out;
}

/// Micro-batches that keep a device busy and stay within what a step can hold: 1, 2, 4 ... sequences, at most 128 Ki tokens unless one sequence is longer.
std::vector<std::int64_t> micro_batches(const Problem& problem, const Pins& pins) {
  if (pins.micro_batch) return {*pins.micro_batch};
  std::vector<std::int64_t> out;
  for (std::int64_t b = 1; b <= 64 && (b == 1 || b * problem.workload.sequence_length <= (1 << 17)); b *= 2) out.push_back(b);
  return out;
}

/// Virtual stages a stage: those pinned, else what the schedule asks for.
std::vector<int> virtual_stages(const Pins& pins, Schedule schedule) {
  if (pins.virtual_stages) return {*pins.virtual_stages};
  if (schedule == Schedule::interleaved) return {2, 4, 8};
  return schedule == Schedule::expert_overlap ? std::vector<int>{1, 2, 4} : std::vector<int>{1};
}

/// Pinned tensor degrees must cut every block into parts whose shapes still meet: the program's own check says so.
void require_splits(const Problem& problem, const Parallelism& p) {
  if (p.tp == 1 && p.etp == 1) return;
  Plan plan;
  plan.parallelism = {.pp = 1, .tp = p.tp, .ep = p.ep, .etp = p.etp, .dp_shard = p.ep * p.etp};
  plan.stage_layers = {static_cast<std::int64_t>(problem.model.layers.size())};
  const std::vector<std::string> faults = verify(lower_unverified(problem, plan, 0));
  if (!faults.empty()) throw InputError("--tp", fmt::format("{} (experts {}) does not cut this model: {}", p.tp, p.etp, faults.front()), "use a degree that divides heads and widths");
}

}  // namespace

std::vector<std::int64_t> even_stages(std::int64_t layers, int stages) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages), layers / stages);
  std::int64_t rest = layers % stages;
  for (std::size_t i = 1; rest > 0 && i + 1 < out.size(); ++i, --rest) ++out[i];
  for (std::size_t i = 0; rest > 0; ++i, --rest) ++out[i % out.size()];
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
  if (pins.cp.value_or(1) > 1)
    throw InputError("--cp", fmt::format("{}: context parallelism is not in this version's programs", *pins.cp), "leave --cp at 1; recompute, pipeline stages or more devices make room for long sequences");
  const std::vector<Parallelism> all = layouts(problem, options);
  if (all.empty()) {
    const auto shown_pin = [](const char* name, const std::optional<int>& v) { return v ? fmt::format(" --{} {}", name, *v) : std::string(); };
    throw InputError("parallelism", fmt::format("no layout of {} devices has{}{}{}{}{}{}{}", problem.cluster.devices(), shown_pin("pp", pins.pp), shown_pin("tp", pins.tp),
                                                shown_pin("cp", pins.cp), shown_pin("ep", pins.ep), shown_pin("etp", pins.etp), shown_pin("dp-replicate", pins.dp_replicate), shown_pin("dp-shard", pins.dp_shard)),
                     "pp x tp x cp x dp must be the number of devices, and ep x etp must divide the ranks of a stage");
  }
  require_splits(problem, all.front());
  Grid out;
  std::map<std::tuple<int, int, int, int>, std::vector<Parallelism>> by_degrees;
  for (const Parallelism& p : all) by_degrees[{p.tp, p.cp, p.ep, p.etp}].push_back(p);
  for (auto& [degrees, layouts] : by_degrees) out.layouts.push_back(std::move(layouts));
  const std::vector<Recompute> recomputes = pins.recompute ? std::vector{*pins.recompute} : std::vector{Recompute::none, Recompute::selective, Recompute::full};
  const std::vector<DType> types = pins.frozen_storage ? std::vector{*pins.frozen_storage} : storages(problem);
  out.schedule = pins.schedule.value_or(pins.virtual_stages.value_or(1) > 1 ? Schedule::interleaved : Schedule::one_forward_one_backward);
  out.virtual_stages = virtual_stages(pins, out.schedule);
  out.pinned_virtual = pins.virtual_stages.has_value();
  out.pinned_reshard = pins.reshard_after_forward.has_value();
  out.reshards = out.pinned_reshard ? std::vector<bool>{*pins.reshard_after_forward} : std::vector<bool>{true, false};
  out.losses = {Plan{}.loss_chunks};
  if (options.wide && out.schedule == Schedule::one_forward_one_backward)
    for (const std::int64_t pieces : {1, 2, 4, 16, 32, 64}) out.losses.push_back(pieces);
  const auto layers = static_cast<std::int64_t>(problem.model.layers.size());
  for (const std::vector<Parallelism>& list : out.layouts)
    for (const Parallelism& p : list)
      if (!out.splits.contains(p.pp)) out.splits[p.pp] = stage_splits(layers, p.pp, options.wide && out.schedule == Schedule::one_forward_one_backward);
  out.prefetches = {problem.runtime.prefetch};
  if (pins.prefetch) out.prefetches = {*pins.prefetch};
  else if (problem.runtime.prefetch > 0 && out.schedule == Schedule::one_forward_one_backward) out.prefetches.push_back(0);
  for (const std::int64_t micro_batch : micro_batches(problem, pins)) {
    for (const Recompute recompute : recomputes) {
      for (const DType type : types) {
        for (std::size_t l = 0; l < out.layouts.size(); ++l) {
          Plan plan;
          plan.parallelism = out.layouts[l].front();
          plan.micro_batch = micro_batch;
          plan.recompute = recompute;
          plan.frozen_storage = type;
          plan.prefetch = out.prefetches.front();
          plan.experts.chunks = pins.expert_chunks.value_or(1);
          out.blocks.push_back({std::move(plan), l});
        }
      }
    }
  }
  return out;
}

std::vector<CandidateGroup> candidates(const Problem& problem, const SearchOptions& options) {
  const Grid space = grid(problem, options);
  const auto layers = static_cast<std::int64_t>(problem.model.layers.size());
  const std::int64_t batch = problem.workload.global_batch.value_or(default_global_batch(problem));
  std::vector<CandidateGroup> groups;
  for (const Grid::Block& block : space.blocks) {
    CandidateGroup group;
    Plan plan = block.plan;
    for (const Parallelism& p : space.layouts[block.layouts]) {
      plan.parallelism = p;
      plan.micro_batches = std::max<std::int64_t>(1, batch / (plan.micro_batch * p.dp()));
      for (const int v : space.virtual_stages) {
        if (!space.holds(p.pp, v, layers)) continue;
        plan.schedule = space.schedule;
        plan.virtual_stages = v;
        for (const std::vector<std::int64_t>& split : v > 1 ? std::vector{even_stages(layers, p.pp * v)} : space.splits.at(p.pp)) for (const std::int64_t pieces : space.losses) for (const bool reshard : space.reshards) {
          for (const std::int64_t prefetch : space.prefetches) {
            if (!space.distinct(p.dp_shard * p.cp > 1 || p.expert_shard > 1, reshard, prefetch)) continue;
            plan.reshard_after_forward = reshard;
            plan.prefetch = prefetch;
            plan.stage_layers = split;
            plan.loss_chunks = pieces;
            group.plans.push_back(plan);
          }
        }
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace moeplan
