#include "cli/slice.hpp"

#include <fmt/format.h>

#include "cli/table.hpp"
#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/ranks/runnable.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan::cli {

SlicePrediction predict_slice(const LoadedPlan& loaded, int rank, std::optional<double> bound,
                              const WalkOptions& options, const HeldType& held, std::optional<Seconds> copies) {
  const auto& [problem, plan] = loaded;
  SlicePrediction out{.rank = rank, .draw = draw_slice(problem, plan, rank), .time = {}, .memory = {}};
  out.routed_bound = bound.value_or(out.draw.most);
  out.time = slice_forecast(problem, plan, rank, out.draw, copies);
  WalkOptions bounded = options;
  bounded.routed_bound = out.routed_bound;
  const Program program = lower_for_run(problem, plan, bounded, rank);
  out.memory = memory(program, problem, plan);
  // Its neighbours are made up: no communicators, and each copy of a token goes by itself.
  Problem apart = problem;
  apart.runtime.deduplicated_dispatch = false;
  out.memory[MemoryCategory::communication] = staging(program, apart, plan, held).buffer;
  return out;
}

Json slice_json(const SlicePrediction& s) {
  return {{"rank", s.rank},
          {"routed_bound", s.routed_bound},
          {"rows_over_share", {{"mean", s.draw.mean}, {"most", s.draw.most}}},
          {"predicted",
           {{"compute_s", s.time.compute.value},
            {"interval_s", {s.time.low.value, s.time.high.value}},
            {"charged_communication_s", s.time.communication.value}}}};
}

SlicePrediction slice_of(const Json& measured, const LoadedPlan& loaded, Seconds copies, const std::string& where) {
  const Json& s = measured.at("rank_slice");
  const bool whole = s.is_object() && s.contains("rank") && s["rank"].is_number_integer() &&
                     s.contains("routed_bound") && s["routed_bound"].is_number();
  if (!whole)
    throw InputError(where + ".rank_slice", "has no rank and routed_bound",
                     "`moeplan run PLAN --rank-slice R -o` writes both");
  const double bound = s["routed_bound"].get<double>();
  if (!(bound >= 1 && bound <= 1e4))
    throw InputError(where + ".rank_slice.routed_bound", fmt::format("{} is not within 1 and 10,000", bound));
  const auto rank = s["rank"].get<std::int64_t>();
  const auto held = [](DType t) { return plain_bytes(t) == 0 ? DType::bf16 : t; };
  if (rank < 0 || rank >= loaded.plan.parallelism.world())
    throw InputError(where + ".rank_slice.rank",
                     fmt::format("{} is outside the plan's {} ranks", rank, loaded.plan.parallelism.world()),
                     "the plan that was run");
  return predict_slice(loaded, static_cast<int>(rank), bound, {}, held, copies);
}

namespace {

double seconds_of(const Json& step, const char* name, const std::string& where) {
  if (!step.is_object() || !step.contains(name) || !step[name].is_number())
    throw InputError(where + "." + name, "is missing or no number", "`moeplan run --rank-slice` writes it");
  return step[name].get<double>();
}

}  // namespace

double copied_seconds(const Json& step, const std::string& where) { return seconds_of(step, "communication_s", where); }
double computing_seconds(const Json& step, const std::string& where) { return seconds_of(step, "step_s", where) - copied_seconds(step, where); }

std::string slice_text(const SlicePrediction& s, double computing, double copies) {
  return fmt::format(
             "{}rank {} alone: its experts get {:.2f} of the balanced rows, {:.2f} where most\n"
             "computing a step: {} predicted ({} to {}), {} measured: {:+.1f} %\n",
             s.time.clock ? fmt::format("clock of these calls, with the copies between: {:.0f} MHz\n", *s.time.clock) : "", s.rank, s.draw.mean, s.draw.most, duration(s.time.compute), duration(s.time.low), duration(s.time.high),
             duration({computing}), s.time.compute.value > 0 ? 100 * (computing / s.time.compute.value - 1) : 0) +
         fmt::format("left out of both: communication, charged {} by the model; the copies here took {}\n",
                     duration(s.time.communication), duration({copies}));
}

}  // namespace moeplan::cli
