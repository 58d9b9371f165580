#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "sim/program/staging.hpp"

namespace moeplan {
namespace {

bool is_expert(const Weight& w) { return w.split == WeightSplit::expert || w.split == WeightSplit::expert_row; }

/// Ranks over which FSDP cuts a weight. Context ranks hold the same dense weights, so they join the dense shard group.
std::int64_t shard_degree(const Weight& w, const Parallelism& p) {
  return is_expert(w) ? p.expert_shard : static_cast<std::int64_t>(p.dp_shard) * p.cp;
}

/// Ranks over which its gradient is summed.
std::int64_t gradient_ranks(const Weight& w, const Parallelism& p) {
  return is_expert(w) ? p.expert_data() : static_cast<std::int64_t>(p.dp()) * p.cp;
}

Bytes part(Bytes whole, std::int64_t degree) { return {ceil_div(whole.value, degree)}; }

/// Bytes of optimizer state per trained element. AdamW: two fp32 moments. 8-bit: two bytes and an fp32 scale per block of 256
/// for each (Dettmers et al. 2022 with bitsandbytes' block size). Muon: one fp32 momentum (matrices; vectors take AdamW's two).
double optimizer_bytes(OptimizerKind kind, const Shape& shape, DType moment) {
  switch (kind) {
    case OptimizerKind::adamw: return moment == DType::f32 ? 8 : 4;
    case OptimizerKind::adamw8bit: return 2 * (1 + 4.0 / 256);
    case OptimizerKind::muon: return shape.rank >= 2 ? 4 : 8;
  }
  return 8;
}

}  // namespace

std::vector<AlikeRows> alike_rows(const Weight& w, const Parallelism& p) {
  const int ranks = is_expert(w) ? p.etp : p.tp;
  if (ranks == 1 || w.split == WeightSplit::first || w.split == WeightSplit::row) return {};
  if (w.split == WeightSplit::none) return {{ranks, 0, w.shape.elements()}};
  if (is_expert(w)) {
    const bool cut = w.shape.elements() / w.shape[0] < w.full_shape.elements() / w.full_shape[0];
    return cut ? std::vector<AlikeRows>{} : std::vector<AlikeRows>{{ranks, 0, w.shape.elements()}};
  }
  std::vector<AlikeRows> out;
  const std::int64_t inner = w.shape.elements() / w.shape[0];
  std::int64_t at = 0;
  for (const DealtRows& rows : w.dealt.empty() ? std::vector<DealtRows>{{w.full_shape[0], w.shape[0]}} : w.dealt) {
    if (const std::int64_t sharers = rows.sharers(ranks); sharers > 1) out.push_back({static_cast<int>(sharers), at * inner, rows.here * inner});
    at += rows.here;
  }
  return out;
}

bool accumulates_in_place(const Weight& w, const Problem& problem, const Plan& plan) {
  // A runtime whose products add to the accumulated gradient says so by moving no bytes for it.
  if (!problem.runtime.traffic.contains("accumulate")) return false;
  return problem.runtime.distributed_optimizer || shard_degree(w, plan.parallelism) == 1;
}

StateBytes& StateBytes::operator+=(const StateBytes& o) {
  weights += o.weights;
  adapters += o.adapters;
  gradients += o.gradients;
  optimizer += o.optimizer;
  host_weights += o.host_weights;
  host_optimizer += o.host_optimizer;
  orthogonal_flops += o.orthogonal_flops;
  trained_elements += o.trained_elements;
  return *this;
}

Bytes staged_gradients(const std::vector<Weight>& weights, DType type, const Parallelism& p) {
  Bytes most{};
  for (const Weight& w : weights) {
    if (!w.trained || (gradient_ranks(w, p) == 1 && alike_rows(w, p).empty())) continue;
    const std::int64_t degree = shard_degree(w, p);
    most = std::max(most, stored_bytes(type, {ceil_div(w.shape.elements(), degree) * degree}));
  }
  return most;
}

SlotSharding slot_sharding(const Block& block, const Problem& problem, const Plan& plan) {
  SlotSharding out;
  if (problem.runtime.staged) out.staged = staged_gradients(block.weights, problem.runtime.reduce, plan.parallelism);
  for (const Weight& w : block.weights) {
    const std::int64_t degree = shard_degree(w, plan.parallelism);
    const Bytes whole = stored_bytes(w.dtype, w.shape);
    const bool cast = w.trained && problem.runtime.master_weights && !problem.runtime.compute_copy;
    if (degree > 1) (is_expert(w) ? out.expert_gather : out.dense_gather) += whole;
    const bool fetched = !w.trained && offloads_weights(plan.offload);
    if (fetched) out.host_fetch += part(whole, degree);
    if ((degree > 1 && !problem.runtime.distributed_optimizer) || cast || fetched) out.gathered += whole;
    if (w.trained) {
      const Bytes gradient = stored_bytes(problem.runtime.reduce, w.shape);
      if (gradient_ranks(w, plan.parallelism) > 1) (is_expert(w) ? out.expert_reduce : out.dense_reduce) += gradient;
      for (const AlikeRows& alike : alike_rows(w, plan.parallelism)) out.tensor_reduce += stored_bytes(problem.runtime.reduce, {alike.elements});
    }
  }
  return out;
}

StateBytes state_bytes(const Block& block, const Problem& problem, const Plan& plan) {
  StateBytes out;
  const Runtime& runtime = problem.runtime;
  for (const Weight& w : block.weights) {
    // ZeRO-1 cuts what only the update reads: master weights and moments.
    const std::int64_t degree = runtime.distributed_optimizer ? 1 : shard_degree(w, plan.parallelism);
    const std::int64_t elements = ceil_div(w.shape.elements(), degree);
    // A tied head is the embedding itself where both are on one stage, and a copy of it elsewhere.
    if (w.sources.empty() && !w.adapter && plan.parallelism.pp == 1) continue;
    if (!w.trained) {
      (offloads_weights(plan.offload) ? out.host_weights : out.weights) += part(stored_bytes(w.dtype, w.shape), degree);
      continue;
    }
    const std::int64_t updated = ceil_div(w.shape.elements(), shard_degree(w, plan.parallelism));
    const DType master = w.adapter ? runtime.adapter : runtime.master_weights ? DType::f32 : DType::bf16;
    const bool away = offloads_optimizer(plan.offload);
    Bytes held = stored_bytes(master, {runtime.compute_copy ? updated : elements});
    // A master copy beside the weights that are used is part of what the optimizer alone reads; without one it is the weights.
    if (runtime.compute_copy && master == DType::f32) {
      if (away) out.host_optimizer += held, held = {};
      held += stored_bytes(DType::bf16, {elements});
    }
    (w.adapter ? out.adapters : out.weights) += held;
    out.gradients += stored_bytes(runtime.gradient, {elements});
    (away ? out.host_optimizer : out.optimizer) += Bytes{static_cast<std::int64_t>(std::ceil(static_cast<double>(updated) * optimizer_bytes(problem.workload.optimizer, w.shape, runtime.moment)))};
    out.trained_elements += updated;
    if (problem.workload.optimizer == OptimizerKind::muon && w.shape.rank >= 2) {
      const std::int64_t columns = w.shape[w.shape.rank - 1], rows = w.shape[w.shape.rank - 2];
      op::AdamW whole{.elements = updated, .optimizer = OptimizerKind::muon, .rows = rows, .columns = columns};
      const double all = whole.flops(Pass::forward, {}).value;
      whole.rows = whole.columns = 0;
      out.orthogonal_flops += all - whole.flops(Pass::forward, {}).value;
    }
  }
  return out;
}

OpCall optimizer_call(const StateBytes& state, OptimizerKind kind) {
  op::AdamW call{.elements = state.trained_elements, .optimizer = kind};
  if (kind == OptimizerKind::muon && state.orthogonal_flops > 0) {
    // A square matrix of side s costs 5 (4 + 2) s^3 flops, 30 s for each of its elements.
    const double side = state.orthogonal_flops / (30 * static_cast<double>(std::max<std::int64_t>(1, state.trained_elements)));
    call.rows = call.columns = std::max<std::int64_t>(1, std::llround(side));
  }
  return {call, Pass::forward, {}};
}

CommCall optimizer_copy(const StateBytes& state) { return {.collective = Collective::from_host, .group = Group::world, .payload = state.host_optimizer}; }

Bytes optimizer_window(const StateBytes& state) {
  constexpr std::int64_t kPiece = std::int64_t{256} << 20;
  return {std::min(state.host_optimizer.value, 2 * kPiece)};
}

std::int64_t in_flight(const Plan& plan, int stage) {
  return std::min<std::int64_t>(plan.micro_batches, plan.parallelism.pp - stage);
}

}  // namespace moeplan
