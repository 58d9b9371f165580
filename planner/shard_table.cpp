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

/// Sums over the stages of a split.
void stage(ShardEntry& e, const StageSplit& split) {
  e.stage_states.assign(split.stages.size(), 0);
  e.stage_trained.assign(split.stages.size(), 0);
  const ShardPrices& prices = *e.prices;
  for (std::size_t s = 0; s < split.stages.size(); ++s) {
    for (std::size_t kind = 0; kind < prices.states.size(); ++kind) {
      e.stage_states[s] += split.stages[s].count[kind] * prices.states[kind];
      e.stage_trained[s] += split.stages[s].count[kind] * prices.trained[kind];
    }
  }
  e.stage_states.front() += prices.idle_states;
  e.stage_trained.front() += prices.idle_trained;
}

ShardEntry entry(const Evaluator::Shared& shared, const std::vector<Block>& weights, const Plan& plan, bool expert) {
  ShardEntry entry_of;
  auto priced_weights = std::make_shared<ShardPrices>();
  ShardPrices& out = *priced_weights;
  const Parallelism& par = plan.parallelism;
  const auto collective = [&](Collective c, Group g, Bytes payload) -> Four {
    const GroupShape where = group_shape(g, par);
    if (where.size <= 1 || payload.value == 0) return {};
    return four(shared.links.price(CommCall{.collective = c, .group = g, .payload = payload}, where, 1.0));
  };
  const int degree = expert ? par.expert_shard : par.dp_shard * par.cp;
  entry_of.shard = expert ? par.expert_shard : par.dp_shard;
  entry_of.gathers = degree > 1;
  std::vector<std::pair<Bytes, Bytes>> priced;   // per kind: what was gathered and reduced; equal kinds are priced once
  for (const Block& b : weights) {
    const SlotSharding cut = slot_sharding(b, shared.problem, plan);
    const StateBytes state = state_bytes(b, shared.problem, plan);
    const std::pair<Bytes, Bytes> what = expert ? std::pair{cut.expert_gather, cut.expert_reduce} : std::pair{cut.dense_gather, cut.dense_reduce};
    const auto known = static_cast<std::size_t>(std::find(priced.begin(), priced.end(), what) - priced.begin());
    if (known < priced.size()) {
      out.gather.push_back(Four{out.gather[known]});
      out.reduce.push_back(Four{out.reduce[known]});
    } else {
      const Bytes rest{what.second.value / std::max(1, degree)};
      out.gather.push_back(collective(Collective::all_gather, expert ? Group::expert_data_shard : Group::data_shard, what.first));
      out.reduce.push_back(collective(Collective::reduce_scatter, expert ? Group::expert_data_shard : Group::data_shard, what.second) +
                           collective(Collective::all_reduce, expert ? Group::expert_data_replicate : Group::data_replicate, rest));
    }
    priced.push_back(what);
    out.gathered.push_back(cut.gathered.value);
    out.states.push_back(bytes_of(state));
    out.trained.push_back(state.trained_elements);
  }
  if (!expert) {
    const StateBytes idle = idle_state(shared.problem, plan);
    out.idle_states = bytes_of(idle);
    out.idle_trained = idle.trained_elements;
  }
  entry_of.prices = std::move(priced_weights);
  return entry_of;
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

ShardTable shard_table(const Evaluator::Shared& shared, const Plan& block, const std::vector<Parallelism>& layouts, const std::map<int, std::vector<std::vector<std::int64_t>>>& splits) {
  const std::vector<Block>& weights = shared.weights.at(weight_key(block));
  const std::vector<Block> dense = part_of(weights, false), expert = part_of(weights, true);
  const auto layers = static_cast<std::int64_t>(shared.outline.kinds.size());
  Plan plan = block;
  ShardTable out;
  for (const Parallelism& p : layouts) {
    const auto at = static_cast<std::size_t>(std::find_if(out.stages.begin(), out.stages.end(), [&](const ShardStages& s) { return s.pp == p.pp; }) - out.stages.begin());
    if (at == out.stages.size()) {
      out.stages.push_back({.pp = p.pp, .stage_ranks = p.stage_ranks(), .dp = p.dp(), .expert_data = p.expert_data(),
                            .split = p.pp <= layers ? stage_split(shared, layers_of(block, p.pp, layers)) : StageSplit{}, .dense = {}, .expert = {}, .optimizer = {}});
    }
    ShardStages& stages = out.stages[at];
    if (stages.split.stages.empty()) continue;   // a rule rejects it
    plan.parallelism = p;
    const auto missing = [](const std::vector<ShardEntry>& list, int shard) { return std::none_of(list.begin(), list.end(), [&](const ShardEntry& e) { return e.shard == shard; }); };
    if (missing(stages.dense, p.dp_shard)) {
      stages.dense.push_back(entry(shared, dense, plan, false));
      stage(stages.dense.back(), stages.split);
    }
    if (missing(stages.expert, p.expert_shard)) {
      stages.expert.push_back(entry(shared, expert, plan, true));
      stage(stages.expert.back(), stages.split);
    }
  }
  // Other splits of as many stages: the same weights, dealt out otherwise.
  const std::size_t even = out.stages.size();
  for (std::size_t i = 0; i < even; ++i) {
    const auto others = splits.find(out.stages[i].pp);
    if (others == splits.end() || out.stages[i].split.stages.empty()) continue;
    for (const std::vector<std::int64_t>& layers_of_stage : others->second) {
      if (layers_of_stage == out.stages[i].split.stage_layers) continue;
      ShardStages other = out.stages[i];
      other.split = stage_split(shared, layers_of_stage);
      for (auto* list : {&other.dense, &other.expert})
        for (ShardEntry& e : *list) stage(e, other.split);
      out.stages.push_back(std::move(other));
    }
  }
  std::map<std::int64_t, Four> seconds;   // by elements
  for (ShardStages& s : out.stages) {
    for (const ShardEntry& d : s.dense) {
      for (const ShardEntry& e : s.expert) {
        Four slowest{};
        for (std::size_t i = 0; i < s.split.stages.size(); ++i) {
          op::AdamW adam{};
          adam.elements = d.stage_trained[i] + e.stage_trained[i];
          if (adam.elements == 0) continue;
          const auto [it, fresh] = seconds.try_emplace(adam.elements);
          if (fresh) it->second = four(shared.prices.price(OpCall{adam, Pass::forward, {}}));
          slowest = max(slowest, it->second);
        }
        s.optimizer.push_back(slowest);
      }
    }
  }
  return out;
}

}  // namespace moeplan
