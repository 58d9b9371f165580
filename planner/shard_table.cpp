#include "planner/shard_table.hpp"

#include <algorithm>
#include <set>

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

ShardPrices prices(const Evaluator::Shared& shared, const std::vector<Block>& weights, const Plan& plan, bool expert) {
  const Parallelism& par = plan.parallelism;
  const auto collective = [&](Collective c, Group g, Bytes payload) -> Four {
    const GroupShape where = group_shape(g, par);
    if (where.size <= 1 || payload.value == 0) return {};
    return four(shared.links.price(CommCall{.collective = c, .group = g, .payload = payload}, where, 1.0));
  };
  const auto lent = [&](Collective c, Group g) { return shared.contention ? shared.links.lent({.collective = c, .group = g}, group_shape(g, par)) : 0.0; };
  const auto moved = [&](Collective c, Group g, Bytes payload) { return transfer({.collective = c, .group = g, .payload = payload}, shared.links, par); };
  const int degree = expert ? par.expert_shard : par.dp_shard * par.cp;
  ShardPrices out;
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
      for (std::vector<Four>* list : {&out.gather, &out.reduce, &out.once_gather, &out.once_reduce, &out.once_gather_lends, &out.once_reduce_lends}) list->push_back(Four{(*list)[known]});
      out.gathers.push_back(Transfer{out.gathers[known]});
      out.reductions.push_back(std::array<Transfer, 3>{out.reductions[known]});
    } else {
      const Bytes rest{reduced.value / std::max(1, degree)};
      const Group shard = expert ? Group::expert_data_shard : Group::data_shard, replicate = expert ? Group::expert_data_replicate : Group::data_replicate;
      const Four together = collective(Collective::all_gather, shard, gathered);
      const Four over_tensor = collective(Collective::all_reduce, Group::tensor, cut.tensor_reduce), over_shard = collective(Collective::reduce_scatter, shard, reduced),
                 over_replicas = collective(Collective::all_reduce, replicate, rest);
      const Four summed = over_tensor + over_shard + over_replicas;
      out.gather.push_back(runtime.distributed_optimizer ? Four{} : together);
      out.once_gather.push_back(runtime.distributed_optimizer ? together : Four{});
      out.reduce.push_back(runtime.reduce_once ? Four{} : summed);
      out.once_reduce.push_back(runtime.reduce_once ? summed : Four{});
      out.once_gather_lends.push_back(out.once_gather.back() * lent(Collective::all_gather, shard));
      out.once_reduce_lends.push_back(!runtime.reduce_once ? Four{} : over_tensor * lent(Collective::all_reduce, Group::tensor) + over_shard * lent(Collective::reduce_scatter, shard) + over_replicas * lent(Collective::all_reduce, replicate));
      out.gathers.push_back(runtime.distributed_optimizer || !shared.contention ? Transfer{} : moved(Collective::all_gather, shard, gathered));
      out.reductions.emplace_back();
      if (!runtime.reduce_once && shared.contention)
        out.reductions.back() = {moved(Collective::all_reduce, Group::tensor, cut.tensor_reduce), moved(Collective::reduce_scatter, shard, reduced), moved(Collective::all_reduce, replicate, rest)};
    }
    priced.push_back(what);
    out.reduces.push_back(cut.reduces());
    out.host_fetch.push_back(cut.host_fetch.value);
    out.gathered.push_back(cut.gathered.value);
    out.staged.push_back(cut.staged.value);
    out.states.push_back(bytes_of(state));
    out.trained.push_back(state.trained_elements);
    out.host.push_back((state.host_weights + state.host_optimizer).value);
    out.host_optimizer.push_back(state.host_optimizer.value);
    out.orthogonal.push_back(state.orthogonal_flops);
  }
  if (!expert) {
    const StateBytes idle = idle_state(shared.problem, plan);
    out.idle_states = bytes_of(idle);
    out.idle_trained = idle.trained_elements;
    out.idle_host = (idle.host_weights + idle.host_optimizer).value;
    out.idle_host_optimizer = idle.host_optimizer.value;
  }
  return out;
}

/// The same summed over the slots of each stage.
ShardEntry entry(const StageSplit& split, std::shared_ptr<const ShardPrices> prices, int shard, bool gathers, bool once) {
  const std::size_t stages = split.stages.size();
  ShardEntry out;
  out.shard = shard;
  out.gathers = gathers;
  out.stage_states.assign(stages, 0);
  out.stage_staged.assign(stages, 0);
  out.stage_trained.assign(stages, 0);
  out.stage_orthogonal.assign(stages, 0);
  out.stage_host.assign(stages, 0);
  out.stage_host_optimizer.assign(stages, 0);
  if (once)
    for (std::vector<Four>* list : {&out.stage_gather, &out.stage_reduce, &out.stage_gather_lends, &out.stage_reduce_lends}) list->assign(stages, {});
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::size_t kind = 0; kind < prices->states.size(); ++kind) {
      const std::int64_t n = split.stages[s].count[kind];
      if (n == 0) continue;
      const auto times = static_cast<double>(n);
      out.stage_states[s] += n * prices->states[kind];
      out.stage_staged[s] = std::max(out.stage_staged[s], prices->staged[kind]);
      out.stage_trained[s] += n * prices->trained[kind];
      out.stage_host[s] += n * prices->host[kind];
      out.stage_host_optimizer[s] += n * prices->host_optimizer[kind];
      out.stage_orthogonal[s] += times * prices->orthogonal[kind];
      if (!once) continue;
      out.stage_gather[s] += prices->once_gather[kind] * times;
      out.stage_reduce[s] += prices->once_reduce[kind] * times;
      out.stage_gather_lends[s] += prices->once_gather_lends[kind] * times;
      out.stage_reduce_lends[s] += prices->once_reduce_lends[kind] * times;
    }
  }
  if (stages > 0) {
    out.stage_states.front() += prices->idle_states;
    out.stage_trained.front() += prices->idle_trained;
    out.stage_host.front() += prices->idle_host;
    out.stage_host_optimizer.front() += prices->idle_host_optimizer;
  }
  out.prices = std::move(prices);
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

/// Every layout of as many stages, under each of the splits.
void add_stages(ShardTable& out, const Evaluator::Shared& shared, const Plan& block, const std::vector<const Parallelism*>& layouts, const std::vector<VirtualSplit>& splits, const std::array<std::vector<Block>, 2>& weights) {
  const Parallelism& first = *layouts.front();
  Plan plan = block;
  std::array<std::vector<std::pair<int, std::shared_ptr<const ShardPrices>>>, 2> priced;   // dense and expert, by degree
  for (const Parallelism* p : layouts) {
    plan.parallelism = *p;
    for (const std::size_t half : {0, 1}) {
      const int shard = half == 1 ? p->expert_shard : p->dp_shard;
      if (std::any_of(priced[half].begin(), priced[half].end(), [&](const auto& each) { return each.first == shard; })) continue;
      priced[half].emplace_back(shard, std::make_shared<const ShardPrices>(prices(shared, weights[half], plan, half == 1)));
    }
  }
  const bool once = shared.problem.runtime.reduce_once || shared.problem.runtime.distributed_optimizer, fetched = offloads_weights(block.offload);
  OptimizerPrices optimizer(shared);
  for (const VirtualSplit& each : splits) {
    ShardStages s{.pp = first.pp, .stage_ranks = first.stage_ranks(), .dp = first.dp(), .expert_data = first.expert_data(), .virtual_stages = each.virtual_stages, .split = {}, .dense = {}, .expert = {},
                  .optimizer = {}, .stage_optimizer = {}};
    const bool held = std::all_of(each.layers.begin(), each.layers.end(), [](std::int64_t n) { return n > 0; });
    if (held) {   // else a rule rejects it
      s.split = stage_split(shared, each.layers, each.virtual_stages);
      for (const auto& [shard, dense] : priced[0]) s.dense.push_back(entry(s.split, dense, shard, shard * first.cp > 1 || fetched, once));
      for (const auto& [shard, expert] : priced[1]) s.expert.push_back(entry(s.split, expert, shard, shard > 1 || fetched, once));
    }
    if (splits.size() == 1) {
      for (const ShardEntry& d : s.dense) {
        for (const ShardEntry& e : s.expert) {
          s.stage_optimizer.push_back(optimizer.of(d, e));
          Four slowest{};
          for (const Four& t : s.stage_optimizer.back()) slowest = max(slowest, t);
          s.optimizer.push_back(slowest);
        }
      }
    }
    out.stages.push_back(std::move(s));
  }
}

/// Numbers the distinct weights of the kinds.
std::vector<std::size_t> distinct_weights(const ShardTable& table, std::size_t kinds) {
  std::set<const ShardPrices*> priced;
  for (const ShardStages& s : table.stages)
    for (const std::vector<ShardEntry>* half : {&s.dense, &s.expert})
      for (const ShardEntry& e : *half) priced.insert(e.prices.get());
  const auto alike = [&](std::size_t a, std::size_t b) {
    return std::all_of(priced.begin(), priced.end(), [&](const ShardPrices* p) { return p->gather[a].v == p->gather[b].v && p->reduce[a].v == p->reduce[b].v && p->host_fetch[a] == p->host_fetch[b]; });
  };
  std::vector<std::size_t> example, out;
  for (std::size_t k = 0; k < kinds; ++k) {
    const auto same = std::find_if(example.begin(), example.end(), [&](std::size_t e) { return alike(e, k); });
    out.push_back(static_cast<std::size_t>(same - example.begin()));
    if (same == example.end()) example.push_back(k);
  }
  return out;
}

}  // namespace

std::vector<Four> OptimizerPrices::of(const ShardEntry& dense, const ShardEntry& expert) {
  std::vector<Four> out(dense.stage_trained.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    StateBytes state;
    state.trained_elements = dense.stage_trained[i] + expert.stage_trained[i];
    state.orthogonal_flops = dense.stage_orthogonal[i] + expert.stage_orthogonal[i];
    state.host_optimizer = {dense.stage_host_optimizer[i] + expert.stage_host_optimizer[i]};
    if (state.trained_elements == 0) continue;
    const auto [it, fresh] = known_.try_emplace({state.trained_elements, state.orthogonal_flops, state.host_optimizer.value});
    if (fresh) {
      it->second = four(shared_.prices.price(optimizer_call(state, shared_.problem.workload.optimizer)));
      if (state.host_optimizer.value > 0) it->second = max(it->second, four(shared_.links.price(optimizer_copy(state), {})));
    }
    out[i] = it->second;
  }
  return out;
}

ShardTable shard_table(const Evaluator::Shared& shared, const Plan& block, const std::vector<Parallelism>& layouts, const Splits& splits) {
  const std::vector<Block>& weights = shared.weights.at(weight_key(block));
  const std::array parts{part_of(weights, false), part_of(weights, true)};
  const auto layers = static_cast<std::int64_t>(shared.outline.kinds.size());
  std::vector<std::vector<const Parallelism*>> by_stages;   // in the order in which their numbers appear
  for (const Parallelism& p : layouts) {
    auto at = std::find_if(by_stages.begin(), by_stages.end(), [&](const auto& list) { return list.front()->pp == p.pp; });
    if (at == by_stages.end()) at = by_stages.emplace(at);
    at->push_back(&p);
  }
  ShardTable out;
  for (const auto& list : by_stages) {
    const int pp = list.front()->pp;
    const auto given = splits.find(pp);
    add_stages(out, shared, block, list, given != splits.end() ? given->second : std::vector{VirtualSplit{1, layers_of(block, pp, layers)}}, parts);
  }
  out.weight_of = distinct_weights(out, weights.size());
  return out;
}

}  // namespace moeplan
