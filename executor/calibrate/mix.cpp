#include "executor/calibrate/mix.hpp"

#include "executor/data/packer.hpp"
#include "executor/train/train.hpp"

namespace moeplan {
namespace {

constexpr int kWarmUp = 2;

LoadModel load_of(const StepReport& report, const Problem& problem) {
  TraceLoad trace;
  for (const RoutingReport& r : report.routing) {
    trace.counts.emplace_back(r.counts.begin(), r.counts.end());
    for (const Sublayer& s : problem.model.layers[static_cast<std::size_t>(r.layer)].sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) trace.counts.back().resize(static_cast<std::size_t>(moe->experts));   // not those that do nothing
  }
  if (trace.counts.empty()) return problem.load;
  return {.name = "as measured", .source = "", .distribution = std::move(trace)};
}

}  // namespace

std::optional<HeldPlan> hold_plan(const Problem& problem, const Plan& plan, Backend& backend, const PowerMeter& meter) {
  const TrainOptions options;
  Trainer trainer(problem, plan, backend, options);
  randomise(trainer.parameters(), options.seed, problem.model, backend);
  const std::int64_t length = problem.workload.sequence_length;
  Packer data(random_dataset(problem.model.vocabulary, options.seed, length), plan.micro_batch, length, true, options.seed);
  StepReport last;
  const auto step = [&] {
    std::vector<Batch> batches;
    for (std::int64_t i = 0; i < plan.micro_batches; ++i) batches.push_back(data.next());
    last = trainer.step(batches);
  };
  for (int i = 0; i < kWarmUp; ++i) step();
  const std::optional<Held> held = hold_steps(meter, step);
  if (!held) return std::nullopt;
  return HeldPlan{.step = *held, .load = load_of(last, problem)};
}

}  // namespace moeplan
