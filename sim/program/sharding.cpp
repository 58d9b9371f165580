#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

bool is_expert(const Weight& w) { return w.split == WeightSplit::expert || w.split == WeightSplit::expert_row; }

/// Ranks over which FSDP cuts a weight. Context ranks hold the same dense weights, so they join the dense shard group.
std::int64_t shard_degree(const Weight& w, const Parallelism& p) {
  return is_expert(w) ? p.expert_shard : static_cast<std::int64_t>(p.dp_shard) * p.cp;
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
  trained_elements += o.trained_elements;
  return *this;
}

SlotSharding slot_sharding(const Block& block, const Problem& problem, const Plan& plan) {
  SlotSharding out;
  for (const Weight& w : block.weights) {
    const std::int64_t degree = shard_degree(w, plan.parallelism);
    const Bytes whole = stored_bytes(w.dtype, w.shape);
    const bool cast = w.trained && problem.runtime.master_weights && !problem.runtime.compute_copy;
    if (degree > 1) (is_expert(w) ? out.expert_gather : out.dense_gather) += whole;
    if ((degree > 1 && !problem.runtime.distributed_optimizer) || cast) out.gathered += whole;
    if (w.trained) {
      const Bytes gradient = stored_bytes(problem.runtime.reduce, w.shape);
      const std::int64_t replicas = is_expert(w) ? plan.parallelism.expert_data() : plan.parallelism.dp() * plan.parallelism.cp;
      if (replicas > 1) (is_expert(w) ? out.expert_reduce : out.dense_reduce) += gradient;
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
      out.weights += part(stored_bytes(w.dtype, w.shape), degree);
      continue;
    }
    const std::int64_t updated = ceil_div(w.shape.elements(), shard_degree(w, plan.parallelism));
    const DType master = w.adapter ? runtime.adapter : runtime.master_weights ? DType::f32 : DType::bf16;
    Bytes held = stored_bytes(master, {runtime.compute_copy ? updated : elements});
    if (runtime.compute_copy && master == DType::f32) held += stored_bytes(DType::bf16, {elements});
    (w.adapter ? out.adapters : out.weights) += held;
    out.gradients += stored_bytes(runtime.gradient, {elements});
    out.optimizer += Bytes{static_cast<std::int64_t>(std::ceil(static_cast<double>(updated) * optimizer_bytes(problem.workload.optimizer, w.shape, runtime.moment)))};
    out.trained_elements += updated;
  }
  return out;
}

std::int64_t in_flight(const Plan& plan, int stage) {
  return std::min<std::int64_t>(plan.micro_batches, plan.parallelism.pp - stage);
}

}  // namespace moeplan
