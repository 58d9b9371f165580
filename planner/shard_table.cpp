#include "planner/shard_table.hpp"

#include <algorithm>

#include "planner/space.hpp"
#include "sim/cost/groups.hpp"

namespace moeplan {
namespace {

/// The dense or the routed part of each kind's weights.
std::vector<Block> part_of(const std::vector<Block>& weights, bool expert) {
  std::vector<Block> out;
  for (const Block& b : weights) {
    Block part;
    for (const Weight& w : b.weights)
      if ((w.split == WeightSplit::expert || w.split == WeightSplit::expert_row) == expert) part.weights.push_back(w);
    out.push_back(std::move(part));
  }
  return out;
}

Four four(const Estimate& e) { return {{e.median.value, e.median.value, e.low.value, e.high.value}}; }

std::int64_t bytes_of(const StateBytes& s) { return (s.weights + s.adapters + s.gradients + s.optimizer).value; }

ShardEntry entry(const Evaluator::Shared& shared, const StageSplit& split, const std::vector<Block>& weights, const Plan& plan, bool expert) {
  const Parallelism& par = plan.parallelism;
  const auto collective = [&](Collective c, Group g, Bytes payload) -> Four {
    const GroupShape where = group_shape(g, par);
    if (where.size <= 1 || payload.value == 0) return {};
    return four(shared.links.price(CommCall{.collective = c, .group = g, .payload = payload}, where, 1.0));
  };
  const int degree = expert ? par.expert_shard : par.dp_shard * par.cp;
  ShardEntry out;
  out.shard = expert ? par.expert_shard : par.dp_shard;
  out.gathers = degree > 1 || offloads_weights(plan.offload);
  out.stage_states.assign(split.stages.size(), 0);
  out.stage_trained.assign(split.stages.size(), 0);
  out.stage_orthogonal.assign(split.stages.size(), 0);
  out.stage_host.assign(split.stages.size(), 0);
  out.stage_host_optimizer.assign(split.stages.size(), 0);
  out.stage_gather.assign(split.stages.size(), {});
  out.stage_reduce.assign(split.stages.size(), {});
  const Runtime& runtime = shared.problem.runtime;
  using Moved = std::tuple<Bytes, Bytes, Bytes>;
  std::vector<Moved> priced;   // per kind: what was gathered, summed and reduced; equal kinds are priced once
  for (const Block& b : weights) {
    const SlotSharding cut = slot_sharding(b, shared.problem, plan);
    const StateBytes state = state_bytes(b, shared.problem, plan);
    const Bytes gathered = expert ? cut.expert_gather : cut.dense_gather, reduced = expert ? cut.expert_reduce : cut.dense_reduce;
    const Moved what{gathered, cut.tensor_reduce, reduced};
    const auto known = static_cast<std::size_t>(std::find(priced.begin(), priced.end(), what) - priced.begin());
    if (known < priced.size()) {
      for (std::vector<Four>* list : {&out.gather, &out.reduce, &out.once_gather, &out.once_reduce}) list->push_back(Four{(*list)[known]});
    } else {
      const Bytes rest{reduced.value / std::max(1, degree)};
      const Four together = collective(Collective::all_gather, expert ? Group::expert_data_shard : Group::data_shard, gathered);
      const Four summed = collective(Collective::all_reduce, Group::tensor, cut.tensor_reduce) +
                          collective(Collective::reduce_scatter, expert ? Group::expert_data_shard : Group::data_shard, reduced) +
                          collective(Collective::all_reduce, expert ? Group::expert_data_replicate : Group::data_replicate, rest);
      out.gather.push_back(runtime.distributed_optimizer ? Four{} : together);
      out.once_gather.push_back(runtime.distributed_optimizer ? together : Four{});
      out.reduce.push_back(runtime.reduce_once ? Four{} : summed);
      out.once_reduce.push_back(runtime.reduce_once ? summed : Four{});
    }
    priced.push_back(what);
    out.host_fetch.push_back(cut.host_fetch.value);
    out.gathered.push_back(cut.gathered.value);
    const std::size_t kind = out.gathered.size() - 1;
    for (std::size_t s = 0; s < split.stages.size(); ++s) {
      out.stage_states[s] += split.stages[s].count[kind] * bytes_of(state);
      const std::int64_t n = split.stages[s].count[kind];
      out.stage_trained[s] += n * state.trained_elements;
      out.stage_host[s] += n * (state.host_weights + state.host_optimizer).value;
      out.stage_host_optimizer[s] += n * state.host_optimizer.value;
      const auto times = static_cast<double>(n);
      out.stage_orthogonal[s] += times * state.orthogonal_flops;
      out.stage_gather[s] += out.once_gather[kind] * times;
      out.stage_reduce[s] += out.once_reduce[kind] * times;
    }
  }
  return out;
}

/// Layers per stage: as the plan says (virtual stages together), else in equal parts.
std::vector<std::int64_t> layers_of(const Plan& plan, int pp, std::int64_t layers) {
  const auto stages = static_cast<std::size_t>(pp);
  if (plan.stage_layers.empty() || plan.stage_layers.size() % stages != 0) return even_stages(layers, pp);
  std::vector<std::int64_t> out(stages, 0);
  for (std::size_t i = 0; i < plan.stage_layers.size(); ++i) out[i % stages] += plan.stage_layers[i];
  return out;
}

}  // namespace

ShardTable shard_table(const Evaluator::Shared& shared, const Plan& block, const std::vector<Parallelism>& layouts) {
  const std::vector<Block>& weights = shared.weights.at(weight_key(block));
  const std::vector<Block> dense = part_of(weights, false), expert = part_of(weights, true);
  const auto layers = static_cast<std::int64_t>(shared.outline.kinds.size());
  Plan plan = block;
  ShardTable out;
  for (const Parallelism& p : layouts) {
    const auto at = static_cast<std::size_t>(std::find_if(out.stages.begin(), out.stages.end(), [&](const ShardStages& s) { return s.pp == p.pp; }) - out.stages.begin());
    if (at == out.stages.size()) {
      out.stages.push_back({.pp = p.pp, .stage_ranks = p.stage_ranks(), .dp = p.dp(), .expert_data = p.expert_data(),
                            .split = p.pp <= layers ? stage_split(shared, layers_of(block, p.pp, layers)) : StageSplit{}, .dense = {}, .expert = {}, .optimizer = {}, .stage_optimizer = {}});
    }
    ShardStages& stages = out.stages[at];
    if (stages.split.stages.empty()) continue;   // a rule rejects it
    plan.parallelism = p;
    const auto missing = [](const std::vector<ShardEntry>& list, int shard) { return std::none_of(list.begin(), list.end(), [&](const ShardEntry& e) { return e.shard == shard; }); };
    if (missing(stages.dense, p.dp_shard)) {
      ShardEntry e = entry(shared, stages.split, dense, plan, false);
      const StateBytes idle = idle_state(shared.problem, plan);
      e.stage_states.front() += bytes_of(idle);
      e.stage_trained.front() += idle.trained_elements;
      e.stage_host.front() += (idle.host_weights + idle.host_optimizer).value;
      e.stage_host_optimizer.front() += idle.host_optimizer.value;
      stages.dense.push_back(std::move(e));
    }
    if (missing(stages.expert, p.expert_shard)) stages.expert.push_back(entry(shared, stages.split, expert, plan, true));
  }
  std::map<std::tuple<std::int64_t, double, std::int64_t>, Four> seconds;   // by elements, flops and bytes in host memory
  for (ShardStages& s : out.stages) {
    for (const ShardEntry& d : s.dense) {
      for (const ShardEntry& e : s.expert) {
        Four slowest{};
        std::vector<Four>& of_stage = s.stage_optimizer.emplace_back(s.split.stages.size());
        for (std::size_t i = 0; i < s.split.stages.size(); ++i) {
          StateBytes state;
          state.trained_elements = d.stage_trained[i] + e.stage_trained[i];
          state.orthogonal_flops = d.stage_orthogonal[i] + e.stage_orthogonal[i];
          state.host_optimizer = {d.stage_host_optimizer[i] + e.stage_host_optimizer[i]};
          if (state.trained_elements == 0) continue;
          const auto [it, fresh] = seconds.try_emplace({state.trained_elements, state.orthogonal_flops, state.host_optimizer.value});
          if (fresh) {
            it->second = four(shared.prices.price(optimizer_call(state, shared.problem.workload.optimizer)));
            if (state.host_optimizer.value > 0) it->second = max(it->second, four(shared.links.price(optimizer_copy(state), {})));
          }
          slowest = max(slowest, of_stage[i] = it->second);
        }
        s.optimizer.push_back(slowest);
      }
    }
  }
  return out;
}

}  // namespace moeplan
