#include "planner/validate/predict.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/planner.hpp"
#include "sim/memory/replay.hpp"

namespace moeplan::validation {
namespace {

/// Where no residuals are kept for a kind of case.
constexpr double kWideLow = 0.6, kWideHigh = 1.8;

Predicted with_band(double value, Measure measure, const Case& c, const Words& words) {
  for (const BandWords& b : words.bands)
    if (b.quantity == name_of(measure) && b.kind == c.kind) return {value, value * b.low, value * b.high};
  return {value, value * kWideLow, value * kWideHigh};
}

/// What lowering the stages says beyond the forecast.
struct Stages {
  ReplayedPeak peak;
  double host = 0;  ///< seconds that the host needs to issue one micro-batch on the busiest stage
};

/// The stages whose buffers differ most: first, last, and the one that the forecast finds fullest.
Stages walk_stages(const Case& c, int worst_stage) {
  const int stages = c.plan.parallelism.pp;
  Plan plan = c.plan;
  plan.micro_batches = std::min<std::int64_t>(plan.micro_batches, stages + 2);
  Stages out;
  for (const int stage : std::set<int>{0, worst_stage, stages - 1}) {
    const Program program = lower_unverified(c.problem, plan, stage * plan.parallelism.stage_ranks());
    const ReplayedPeak p = replay(program, c.problem, plan,
                                  {.expandable_segments = c.problem.runtime.expandable_segments, .capacity = {}});
    out.peak.allocated = std::max(out.peak.allocated, p.allocated);
    out.peak.reserved = std::max(out.peak.reserved, p.reserved);
    std::size_t calls = 0;
    for (const Slot& s : program.slots) {
      const Block& block = program.blocks[static_cast<std::size_t>(s.block)];
      calls += block.forward.size() + block.backward.size();
    }
    out.host = std::max(out.host, static_cast<double>(calls) * c.problem.runtime.host_call.value);
  }
  return out;
}

}  // namespace

Prediction predict(const Case& c, const Words& words) {
  const Forecast f = forecast(c.problem, c.plan);
  const Stages stages = walk_stages(c, f.worst_stage);
  const auto time = [&](TimeCategory t) { return f.time[static_cast<std::size_t>(t)].value; };
  double step = f.step.value;
  if (c.virtual_stages > 1) step -= time(TimeCategory::pipeline_bubble) * (1 - 1.0 / c.virtual_stages);
  if (c.every_second_product) step += 0.5 * time(TimeCategory::forward);
  // A device that has less to do than the host to issue waits for it, micro-batch after micro-batch.
  step = std::max(step, stages.host * static_cast<double>(c.plan.micro_batches + c.plan.parallelism.pp - 1) +
                            time(TimeCategory::optimizer));
  const auto bytes = [&](MemoryCategory k) { return static_cast<double>(f.memory[k].value); };
  const double outside = bytes(MemoryCategory::runtime_context) + bytes(MemoryCategory::communication);
  const double allocated = static_cast<double>(stages.peak.allocated.value),
               reserved = static_cast<double>(stages.peak.reserved.value);
  Prediction out;
  out.step = with_band(step, Measure::step_time, c, words);
  out.allocated = with_band(allocated, Measure::peak_allocated, c, words);
  out.reserved = with_band(reserved, Measure::peak_reserved, c, words);
  out.device = with_band(reserved + outside, Measure::peak_reserved, c, words);
  return out;
}

}  // namespace moeplan::validation
