#include <algorithm>

#include "planner/evaluator_shared.hpp"
#include "planner/intervals.hpp"
#include "planner/scorer.hpp"

namespace moeplan {
namespace {

/// The four lanes of a plan's step.
Four step_lanes(const Evaluator& shared, Evaluator::Group& group, const Plan& plan) {
  const Splits as_given{{plan.parallelism.pp, {VirtualSplit{plan.virtual_stages, plan.stage_layers}}}};
  const ShardTable table = shard_table(shared.shared(), plan, {plan.parallelism}, as_given);
  GroupScorer scorer(shared, group, plan, table);
  return scorer.step({.reshard = plan.reshard_after_forward, .prefetch = plan.prefetch, .schedule = plan.schedule}, plan);
}

/// Whether the closed forms cover a plan as it is.
bool covered(const Evaluator& shared, Evaluator::Group& group, const Plan& plan) {
  if (plan.schedule == Schedule::one_forward_one_backward) return plan.micro_batches >= plan.parallelism.pp;
  const ShardTable table = shard_table(shared.shared(), plan, {plan.parallelism});
  return GroupScorer(shared, group, plan, table).covers_schedules();
}

/// The same plan as far as they do: 1F1B, a filled pipeline, nothing on the host.
Plan nearest_covered(const Plan& plan) {
  Plan out = plan;
  out.offload = Offload::none;
  out.micro_batches = std::max<std::int64_t>(out.micro_batches, out.parallelism.pp);
  out.schedule = Schedule::one_forward_one_backward;
  out.virtual_stages = 1;
  out.stage_layers.assign(static_cast<std::size_t>(plan.parallelism.pp), 0);
  for (std::size_t i = 0; i < plan.stage_layers.size(); ++i) out.stage_layers[i % out.stage_layers.size()] += plan.stage_layers[i];
  return out;
}

}  // namespace

void add_intervals(Forecast& out, const Evaluator& shared, Evaluator::Group& group, const Plan& plan) {
  Four step;
  if (covered(shared, group, plan)) {
    step = step_lanes(shared, group, plan);
  } else {
    const Plan other = nearest_covered(plan);
    Evaluator::Group plain(shared, other);
    step = step_lanes(shared, plain, other);
  }
  // What is not covered keeps the relative interval of what is.
  step = step * (out.step.value / step.median());
  step.v[0] = out.step.value;
  step.v[1] = out.step_p95.value;
  add_intervals(out, step, shared.shared().problem);
}

Forecast forecast(const Problem& problem, const Plan& plan, bool full_attention_flops, bool contention) {
  Evaluator shared(problem, full_attention_flops, plan.parallelism.ep, contention);
  shared.prepare(plan);
  Evaluator::Group group(shared, plan);
  Forecast out = group.forecast(plan);
  add_intervals(out, shared, group, plan);
  return out;
}

}  // namespace moeplan
