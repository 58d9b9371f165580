#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <stdexcept>

#include "core/checked.hpp"
#include "core/error.hpp"
#include "sim/program/architectures/compose.hpp"
#include "sim/program/program.hpp"
#include "sim/program/unnamed.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// Without `named`, nothing in the graph has a name: what only counts and prices does not pay for them.
Graph compose_slot(const Problem& problem, const Plan& plan, std::int32_t layer, double routed_scale, bool named = true) {
  const ModelSpec& model = problem.model;
  const auto layers = static_cast<std::int32_t>(model.layers.size());
  const std::string name = !named ? "" : layer < 0 ? "embedding" : layer == layers ? "head" : layer_kind(model, layer);
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

/// Whether a runtime chooses value by value what is kept. Those with an allocator and its overhead are frameworks that repeat whole layers;
/// one that lays out an arena from the program's lifetimes (moeplan itself) keeps what it likes.
bool chooses_values(const Runtime& runtime) { return runtime.allocator_overhead == 0; }

/// The slots and chunk ends as issuing sees them.
Issuer issuer(const Program& p, const Plan& plan) {
  std::vector<IssueSlot> slots;
  for (const Slot& s : p.slots) {
    const Block& b = p.blocks[index(s.block)];
    slots.push_back({.gathers = s.sharding.gathered.value > 0, .reduces = s.sharding.reduces(),
                     .backward = !b.backward.empty(), .weight_backward = !b.weight_backward.empty()});
  }
  std::vector<IssueChunk> chunks;
  for (const ProgramChunk& c : p.chunks) chunks.push_back({c.first, c.end, c.receives ? c.stream + c.carried : Bytes{}, c.leaving});
  return {plan, std::move(slots), std::move(chunks)};
}

}  // namespace

BlockContext block_context(const Problem& problem, const Plan& plan, double routed_scale) {
  BlockContext c;
  c.tokens = checked_mul(plan.micro_batch, problem.workload.sequence_length, "micro_batch x sequence_length") / plan.parallelism.cp;
  c.sequence_length = problem.workload.sequence_length;
  c.tp = plan.parallelism.tp;
  c.cp = plan.parallelism.cp;
  c.ep = plan.parallelism.ep;
  c.etp = plan.parallelism.etp;
  c.context_exchange = plan.context_exchange;
  c.state_passing = plan.state_passing;
  c.runs = context_runs(problem.model, plan);
  c.routed_scale = routed_scale;
  c.merges_loss = chooses_values(problem.runtime);
  c.dropless = !plan.experts.capacity_factor;
  c.dispatch = plan.experts.dispatch;
  c.direct = plan.experts.route == DispatchRoute::direct;
  c.replicas = plan.experts.replicas;
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

int context_runs(const ModelSpec& model, const Plan& plan) {
  if (plan.parallelism.cp == 1) return 1;
  for (const LayerSpec& layer : model.layers)
    for (const Sublayer& s : layer.sublayers) {
      const auto* gqa = std::get_if<GqaAttention>(&s.mixer);
      const auto* mla = std::get_if<MlaAttention>(&s.mixer);
      const bool whole = (gqa && !gqa->window && gqa->index_topk == 0) || (mla && !mla->indexer);   // every query sees all keys before it
      if (whole && plan.context_exchange == ContextExchange::ring) return 2;
      if ((mla && mla->indexer) || (gqa && gqa->index_topk > 0) || std::holds_alternative<CompressedAttention>(s.mixer)) return 2;
    }
  return 1;
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

namespace {

/// Keeps in every recompute mode what is a row or a few numbers a token and costs much to repeat: the gradient that a fused loss has made (behind
/// it are two products of the vocabulary), what tensor ranks have merged of a loss, and a router's weights (its projection reads all tokens).
void keep_small_results(Graph& graph, bool merged) {
  for (const GraphNode& node : graph.nodes) {
    const Op* op = std::get_if<Op>(&node.call);
    if (op == nullptr) continue;
    const auto* loss = std::get_if<op::CrossEntropy>(op);
    if ((loss && (loss->fused() || merged)) || std::holds_alternative<op::Router>(*op))
      for (const ValueId v : node.outputs) graph.values[index(v)].always_kept = true;
  }
}

Block lowered(const Problem& problem, const Plan& plan, const ModelOutline& outline, std::int32_t layer, double routed_scale, bool named) {
  const bool before = std::any_of(outline.trained.begin(), outline.trained.begin() + layer + 1, [](bool t) { return t; });
  Graph graph = compose_slot(problem, plan, layer, routed_scale, named);
  if (chooses_values(problem.runtime)) keep_small_results(graph, plan.parallelism.tp > 1);
  Block block = differentiate(std::move(graph), plan.recompute, before, splits_backward(plan), offloads_activations(plan.offload));
  apply_runtime(block, problem, plan);
  if (plan.experts.chunks > 1) return chunked_exchange(std::move(block), plan.experts.chunks);
  return block;
}

}  // namespace

Block lower_slot(const Problem& problem, const Plan& plan, const ModelOutline& outline, std::int32_t layer, double routed_scale) {
  return lowered(problem, plan, outline, layer, routed_scale, true);
}

Block lower_slot_unnamed(const Problem& problem, const Plan& plan, const ModelOutline& outline, std::int32_t layer, double routed_scale) {
  return lowered(problem, plan, outline, layer, routed_scale, false);
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

LayerRange chunk_layers(const Plan& plan, int stage, int chunk) {
  const std::size_t at = static_cast<std::size_t>(chunk) * static_cast<std::size_t>(plan.parallelism.pp) + static_cast<std::size_t>(stage);
  LayerRange out;
  for (std::size_t i = 0; i < at; ++i) out.first += static_cast<std::int32_t>(plan.stage_layers[i]);
  out.end = out.first + static_cast<std::int32_t>(plan.stage_layers[at]);
  return out;
}

Program lower_unverified(const Problem& problem, const Plan& plan, int rank, double routed_scale) {
  if (rank < 0 || rank >= plan.parallelism.world())
    throw InputError("rank", fmt::format("{} is outside the plan's {} ranks", rank, plan.parallelism.world()));
  Program p;
  p.rank = rank;
  p.stage = rank / plan.parallelism.stage_ranks();
  p.optimizer = problem.workload.optimizer;
  const ModelOutline model = outline(problem.model, problem.workload);
  const auto model_layers = static_cast<std::int32_t>(problem.model.layers.size());
  std::map<std::string, std::int32_t> known;
  for (int c = 0; c < plan.virtual_stages; ++c) {
    const LayerRange range = chunk_layers(plan, p.stage, c);
    const bool begins = p.stage == 0 && c == 0, ends = range.end == model_layers;
    ProgramChunk chunk{.first = static_cast<std::int32_t>(p.slots.size()), .receives = !begins};
    for (std::int32_t layer = begins ? -1 : range.first; layer < range.end + (ends ? 1 : 0); ++layer) {
      const bool inner = layer >= 0 && layer < model_layers;
      const bool before = std::any_of(model.trained.begin(), model.trained.begin() + layer + 1, [](bool t) { return t; });
      const std::string key = inner ? model.kinds[index(layer)] + (before ? "" : " (first trained)") : layer < 0 ? "embedding" : "head";
      const auto [it, fresh] = known.try_emplace(key, static_cast<std::int32_t>(p.blocks.size()));
      if (fresh) p.blocks.push_back(lower_slot(problem, plan, model, layer, routed_scale));
      const Block& block = p.blocks[index(it->second)];
      p.slots.push_back({.block = it->second, .layer = layer, .chunk = c, .sharding = slot_sharding(block, problem, plan), .state = state_bytes(block, problem, plan)});
    }
    chunk.end = static_cast<std::int32_t>(p.slots.size());
    const Block &entrance = p.blocks[index(p.slots[index(chunk.first)].block)], &exit = p.blocks[index(p.slots.back().block)];
    if (chunk.receives) {
      for (std::size_t i = 0; i < entrance.inputs.size(); ++i) (i == 0 ? chunk.stream : chunk.carried) += entrance.values[index(entrance.inputs[i])].bytes();
    } else if (!exit.outputs.empty()) {
      chunk.stream = exit.values[index(exit.outputs.front())].bytes();
    }
    if (!ends) {
      const Graph next = compose_slot(problem, plan, range.end, 1.0);
      for (const ValueId in : next.inputs) chunk.leaving += next.values[index(in)].bytes();
    }
    p.chunks.push_back(chunk);
  }
  if (p.stage == 0) p.resident = idle_state(problem, plan);
  Issuer issue = issuer(p, plan);
  for (const Turn& turn : turns(plan, p.stage)) issue.issue(turn, p.instances);
  p.instances.push_back({.phase = Phase::optimizer});
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
  for (std::size_t s = 0; s < stages.size() && stages.size() > 1; ++s) {
    const std::size_t next = (s + 1) % stages.size();
    if (messages(stages[s], true, &Instance::sent) != messages(stages[next], false, &Instance::received))
      faults.push_back(fmt::format("what stage {} sends is not what stage {} receives", s, next));
    if (messages(stages[next], false, &Instance::sent) != messages(stages[s], true, &Instance::received))
      faults.push_back(fmt::format("what stage {} sends back is not what stage {} receives", next, s));
  }
  return faults;
}

std::vector<std::string> verify(const Program& program) {
  std::vector<std::string> faults;
  for (const Block& b : program.blocks)
    for (std::string& fault : verify(b)) faults.push_back(std::move(fault));
  std::map<std::int32_t, bool> gathered;
  std::map<std::pair<std::int32_t, std::int32_t>, bool> open, put_off;  // (slot, micro-batch) between forward and backward, backward and weights
  const auto use = [&](std::int32_t slot) {
    if (program.slots[index(slot)].sharding.gathered.value > 0 && !gathered[slot]) faults.push_back(fmt::format("slot {} runs without its weights", slot));
  };
  const auto close = [&](std::int32_t slot, std::int32_t j) {
    if (!open[{slot, j}]) faults.push_back(fmt::format("slot {} runs backward before forward of micro-batch {}", slot, j));
    open[{slot, j}] = false;
    put_off[{slot, j}] = !program.blocks[index(program.slots[index(slot)].block)].weight_backward.empty();
  };
  for (std::size_t i = 0; i < program.instances.size(); ++i) {
    const Instance& x = program.instances[i];
    for (const std::int32_t a : x.after) if (a < 0 || index(a) >= i) faults.push_back(fmt::format("instance {} waits for {}, which does not come before it", i, a));
    if (x.slot < 0) continue;
    switch (x.phase) {
      case Phase::gather:
        if (gathered[x.slot]) faults.push_back(fmt::format("slot {} is gathered twice", x.slot));
        gathered[x.slot] = true;
        break;
      case Phase::release: gathered[x.slot] = false; break;
      case Phase::forward:
        use(x.slot);
        open[{x.slot, x.micro_batch}] = true;
        break;
      case Phase::backward:
        use(x.slot);
        close(x.slot, x.micro_batch);
        break;
      case Phase::forward_backward:
        use(x.slot);
        use(x.forward_slot);
        close(x.slot, x.micro_batch);
        open[{x.forward_slot, x.forward_micro_batch}] = true;
        break;
      case Phase::weight_backward:
        if (!put_off[{x.slot, x.micro_batch}]) faults.push_back(fmt::format("slot {} makes weight gradients of micro-batch {} before its backward pass", x.slot, x.micro_batch));
        put_off[{x.slot, x.micro_batch}] = false;
        break;
      default: break;
    }
  }
  for (const auto& [key, still] : put_off) if (still) faults.push_back(fmt::format("slot {} never makes its weight gradients of micro-batch {}", key.first, key.second));
  for (const auto& [slot, there] : gathered) if (there) faults.push_back(fmt::format("slot {} is never released", slot));
  return faults;
}

}  // namespace moeplan
