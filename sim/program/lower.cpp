#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <stdexcept>

#include "core/checked.hpp"
#include "core/error.hpp"
#include "sim/program/architectures/compose.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

Graph compose_slot(const Problem& problem, const Plan& plan, std::int32_t layer, double routed_scale) {
  const ModelSpec& model = problem.model;
  const auto layers = static_cast<std::int32_t>(model.layers.size());
  const std::string name = layer < 0 ? "embedding" : layer == layers ? "head" : layer_kind(model, layer);
  Builder b(name, block_context(problem, plan, routed_scale));
  if (layer < 0) {
    Stream stream;
    compose_embedding(b, model, stream);
    stream_outputs(b, stream);
  } else if (layer < layers) {
    Stream stream = stream_inputs(b, model, layer);
    compose_layer(b, model, model.layers[index(layer)], stream);
    stream_outputs(b, stream);
  } else {
    Stream stream = stream_inputs(b, model, layer);
    compose_head(b, model, stream, plan.loss_chunks);
  }
  return b.take();
}

bool trains(const Graph& graph) {
  return std::any_of(graph.weights.begin(), graph.weights.end(), [](const Weight& w) { return w.trained; });
}

/// Appends the instances of one rank under 1F1B.
class Scheduler {
 public:
  Scheduler(Program& program, const Plan& plan) : p_(program), plan_(plan), slots_(static_cast<std::int32_t>(program.slots.size())) {}

  void run() {
    const std::int64_t m = plan_.micro_batches, p = plan_.parallelism.pp;
    const std::int64_t warm = std::min<std::int64_t>(m, p - 1 - p_.stage);
    for (std::int64_t j = 0; j < warm; ++j) forward(j);
    for (std::int64_t j = warm; j < m; ++j) { forward(j); backward(j - warm); }
    for (std::int64_t j = m - warm; j < m; ++j) backward(j);
    add({.phase = Phase::optimizer, .after = {}});
  }

 private:
  std::int32_t add(Instance i) {
    p_.instances.push_back(std::move(i));
    return static_cast<std::int32_t>(p_.instances.size() - 1);
  }

  bool gathers(std::int32_t slot) const { return p_.slots[index(slot)].sharding.gathered.value > 0; }

  /// Issues the gather of `slot` if it is not there.
  void gather(std::int32_t slot, std::int64_t j) {
    if (slot < 0 || slot >= slots_ || !gathers(slot) || gathered_.count(slot)) return;
    gathered_[slot] = add({.phase = Phase::gather, .slot = slot, .micro_batch = static_cast<std::int32_t>(j), .after = {}});
  }
  void release(std::int32_t slot, std::int64_t j, std::int32_t user) {
    if (gathered_.erase(slot)) add({.phase = Phase::release, .slot = slot, .micro_batch = static_cast<std::int32_t>(j), .after = {user}});
  }

  void forward(std::int64_t j) {
    std::int32_t before = -1;
    if (p_.stage > 0) before = add({.phase = Phase::send_receive, .micro_batch = static_cast<std::int32_t>(j), .received = p_.stream + p_.carried, .after = {}});
    for (std::int32_t s = 0; s < slots_; ++s) {
      for (std::int32_t ahead = s; ahead <= s + plan_.prefetch; ++ahead) gather(ahead, j);
      Instance i{.phase = Phase::forward, .slot = s, .micro_batch = static_cast<std::int32_t>(j), .after = {}};
      if (before >= 0) i.after.push_back(before);
      if (const auto it = gathered_.find(s); it != gathered_.end()) i.after.push_back(it->second);
      before = add(std::move(i));
      // The last slot's copy is kept: its backward pass comes next (FSDP2 does not reshard the last block either).
      if (plan_.reshard_after_forward && (s + 1 < slots_ || p_.stage + 1 < plan_.parallelism.pp)) release(s, j, before);
    }
    if (p_.stage + 1 < plan_.parallelism.pp) add({.phase = Phase::send_receive, .micro_batch = static_cast<std::int32_t>(j), .with_next = true, .sent = p_.leaving, .after = {before}});
  }

  void backward(std::int64_t j) {
    std::int32_t before = -1;
    if (p_.stage + 1 < plan_.parallelism.pp) before = add({.phase = Phase::send_receive, .micro_batch = static_cast<std::int32_t>(j), .with_next = true, .received = p_.leaving, .after = {}});
    for (std::int32_t s = slots_; s-- > 0;) {
      if (p_.blocks[index(p_.slots[index(s)].block)].backward.empty()) continue;
      for (std::int32_t ahead = s; ahead >= s - plan_.prefetch; --ahead) gather(ahead, j);
      Instance i{.phase = Phase::backward, .slot = s, .micro_batch = static_cast<std::int32_t>(j), .after = {}};
      if (before >= 0) i.after.push_back(before);
      if (const auto it = gathered_.find(s); it != gathered_.end()) i.after.push_back(it->second);
      before = add(std::move(i));
      release(s, j, before);
      const SlotSharding& sharding = p_.slots[index(s)].sharding;
      if (sharding.dense_reduce.value + sharding.expert_reduce.value > 0)
        add({.phase = Phase::reduce, .slot = s, .micro_batch = static_cast<std::int32_t>(j), .after = {before}});
    }
    std::vector<std::int32_t> rest;
    for (const auto& [slot, at] : gathered_) rest.push_back(slot);
    for (const std::int32_t slot : rest) release(slot, j, before);
    if (p_.stage > 0 && before >= 0) add({.phase = Phase::send_receive, .micro_batch = static_cast<std::int32_t>(j), .sent = p_.stream + p_.carried, .after = {before}});
  }

  Program& p_;
  const Plan& plan_;
  std::int32_t slots_;
  std::map<std::int32_t, std::int32_t> gathered_;
};

}  // namespace

BlockContext block_context(const Problem& problem, const Plan& plan, double routed_scale) {
  BlockContext c;
  c.tokens = checked_mul(plan.micro_batch, problem.workload.sequence_length, "micro_batch x sequence_length") / plan.parallelism.cp;
  c.sequence_length = problem.workload.sequence_length;
  c.tp = plan.parallelism.tp;
  c.cp = plan.parallelism.cp;
  c.ep = plan.parallelism.ep;
  c.etp = plan.parallelism.etp;
  c.routed_scale = routed_scale;
  c.expert_storage = plan.frozen_storage;
  // Types that only expert checkpoints come in (mxfp4, nvfp4, int4) leave the other projections as they ship; fp8, int8 and nf4
  // are quantisations that frameworks apply to every linear layer. A model without experts takes the type everywhere.
  const bool everywhere = plan.frozen_storage == DType::fp8 || plan.frozen_storage == DType::int8 || plan.frozen_storage == DType::nf4;
  const bool has_experts = std::any_of(problem.model.layers.begin(), problem.model.layers.end(), [](const LayerSpec& l) {
    return std::any_of(l.sublayers.begin(), l.sublayers.end(), [](const Sublayer& s) { return std::holds_alternative<MoeFfn>(s.mixer); });
  });
  c.linear_storage = everywhere || !has_experts ? plan.frozen_storage : DType::bf16;
  c.workload = problem.workload;
  return c;
}

ModelOutline outline(const ModelSpec& model, const Workload& workload) {
  ModelOutline out;
  Problem probe;
  probe.model = model;
  probe.workload = workload;
  probe.workload.sequence_length = 1;
  const Plan plan;
  std::map<std::string, bool> known;
  const auto layers = static_cast<std::int32_t>(model.layers.size());
  std::int64_t stored = 0;
  out.trained.push_back(trains(compose_slot(probe, plan, -1, 1.0)));
  for (std::int32_t l = 0; l < layers; ++l) {
    out.kinds.push_back(layer_kind(model, l));
    const auto [it, fresh] = known.try_emplace(out.kinds.back(), false);
    if (fresh) it->second = trains(compose_slot(probe, plan, l, 1.0));
    out.trained.push_back(it->second);
    out.stored_before.push_back(stored);
    stored += model.layers[index(l)].stores_block ? 1 : 0;
  }
  out.trained.push_back(trains(compose_slot(probe, plan, layers, 1.0)));
  return out;
}

Block lower_slot(const Problem& problem, const Plan& plan, const ModelOutline& outline, std::int32_t layer, double routed_scale) {
  const bool before = std::any_of(outline.trained.begin(), outline.trained.begin() + layer + 1, [](bool t) { return t; });
  return differentiate(compose_slot(problem, plan, layer, routed_scale), plan.recompute, before);
}

Block slot_weights(const Problem& problem, const Plan& plan, std::int32_t layer) {
  Plan smallest = plan;
  smallest.micro_batch = 1;
  Block out;
  out.weights = compose_slot(problem, smallest, layer, 1.0).weights;
  return out;
}

StateBytes idle_state(const Problem& problem, const Plan& plan) {
  Builder b("idle", block_context(problem, plan));
  compose_idle(b, problem.model);
  Block block;
  for (Weight& w : b.take().weights) if (w.cls == WeightClass::vision) block.weights.push_back(std::move(w));
  return state_bytes(block, problem, plan);
}

Program lower_unverified(const Problem& problem, const Plan& plan, int rank, double routed_scale) {
  if (rank < 0 || rank >= plan.parallelism.world())
    throw InputError("rank", fmt::format("{} is outside the plan's {} ranks", rank, plan.parallelism.world()));
  Program p;
  p.rank = rank;
  p.stage = rank / plan.parallelism.stage_ranks();
  p.in_flight = in_flight(plan, p.stage);
  const ModelOutline model = outline(problem.model, problem.workload);
  std::int32_t first = 0;
  for (int i = 0; i < p.stage; ++i) first += static_cast<std::int32_t>(plan.stage_layers[static_cast<std::size_t>(i)]);
  const std::int32_t end = first + static_cast<std::int32_t>(plan.stage_layers[static_cast<std::size_t>(p.stage)]);
  std::vector<std::int32_t> layers;
  if (p.stage == 0) layers.push_back(-1);
  for (std::int32_t l = first; l < end; ++l) layers.push_back(l);
  if (p.stage + 1 == plan.parallelism.pp) layers.push_back(static_cast<std::int32_t>(problem.model.layers.size()));
  std::map<std::string, std::int32_t> known;
  for (const std::int32_t layer : layers) {
    const bool inner = layer >= 0 && layer < static_cast<std::int32_t>(problem.model.layers.size());
    const bool before = std::any_of(model.trained.begin(), model.trained.begin() + layer + 1, [](bool t) { return t; });
    const std::string key = inner ? model.kinds[index(layer)] + (before ? "" : " (first trained)") : layer < 0 ? "embedding" : "head";
    const auto [it, fresh] = known.try_emplace(key, static_cast<std::int32_t>(p.blocks.size()));
    if (fresh) p.blocks.push_back(lower_slot(problem, plan, model, layer, routed_scale));
    const Block& block = p.blocks[index(it->second)];
    p.slots.push_back({.block = it->second, .layer = layer, .sharding = slot_sharding(block, problem, plan), .state = state_bytes(block, problem, plan)});
  }
  if (p.stage == 0) p.resident = idle_state(problem, plan);
  if (p.stage > 0) {
    const Block& entrance = p.blocks[index(p.slots.front().block)];
    for (std::size_t i = 0; i < entrance.inputs.size(); ++i)
      (i == 0 ? p.stream : p.carried) += entrance.values[index(entrance.inputs[i])].bytes();
  } else {
    const Block& exit = p.blocks[index(p.slots.back().block)];
    if (!exit.outputs.empty()) p.stream = exit.values[index(exit.outputs.front())].bytes();
  }
  if (p.stage + 1 < plan.parallelism.pp) {
    const Graph next = compose_slot(problem, plan, end, 1.0);
    for (const ValueId in : next.inputs) p.leaving += next.values[index(in)].bytes();
  }
  Scheduler(p, plan).run();
  return p;
}

Program lower(const Problem& problem, const Plan& plan, int rank, double routed_scale) {
  Program p = lower_unverified(problem, plan, rank, routed_scale);
  if (const auto faults = verify(p); !faults.empty()) throw std::logic_error("unsound program: " + faults.front());
  return p;
}

std::vector<std::string> verify_exchange(const std::vector<Program>& stages) {
  std::vector<std::string> faults;
  using Messages = std::vector<std::pair<std::int32_t, std::int64_t>>;   // micro-batch, bytes
  const auto messages = [](const Program& p, bool with_next, Bytes Instance::*direction) {
    Messages out;
    for (const Instance& i : p.instances)
      if (i.phase == Phase::send_receive && i.with_next == with_next && (i.*direction).value > 0) out.emplace_back(i.micro_batch, (i.*direction).value);
    return out;
  };
  for (std::size_t s = 0; s + 1 < stages.size(); ++s) {
    if (messages(stages[s], true, &Instance::sent) != messages(stages[s + 1], false, &Instance::received))
      faults.push_back(fmt::format("what stage {} sends is not what stage {} receives", s, s + 1));
    if (messages(stages[s + 1], false, &Instance::sent) != messages(stages[s], true, &Instance::received))
      faults.push_back(fmt::format("what stage {} sends back is not what stage {} receives", s + 1, s));
  }
  return faults;
}

std::vector<std::string> verify(const Program& program) {
  std::vector<std::string> faults;
  for (const Block& b : program.blocks)
    for (std::string& fault : verify(b)) faults.push_back(std::move(fault));
  std::map<std::int32_t, bool> gathered;
  std::map<std::pair<std::int32_t, std::int32_t>, bool> open;  // (slot, micro-batch) between forward and backward
  for (std::size_t i = 0; i < program.instances.size(); ++i) {
    const Instance& x = program.instances[i];
    for (const std::int32_t a : x.after) if (a < 0 || index(a) >= i) faults.push_back(fmt::format("instance {} waits for {}, which does not come before it", i, a));
    if (x.slot < 0) continue;
    const bool needs = program.slots[index(x.slot)].sharding.gathered.value > 0;
    switch (x.phase) {
      case Phase::gather:
        if (gathered[x.slot]) faults.push_back(fmt::format("slot {} is gathered twice", x.slot));
        gathered[x.slot] = true;
        break;
      case Phase::release: gathered[x.slot] = false; break;
      case Phase::forward:
      case Phase::backward:
        if (needs && !gathered[x.slot]) faults.push_back(fmt::format("slot {} runs without its weights", x.slot));
        if (x.phase == Phase::backward && !open[{x.slot, x.micro_batch}]) faults.push_back(fmt::format("slot {} runs backward before forward of micro-batch {}", x.slot, x.micro_batch));
        open[{x.slot, x.micro_batch}] = x.phase == Phase::forward;
        break;
      default: break;
    }
  }
  for (const auto& [slot, there] : gathered) if (there) faults.push_back(fmt::format("slot {} is never released", slot));
  return faults;
}

}  // namespace moeplan
