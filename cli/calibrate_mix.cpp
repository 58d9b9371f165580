#include "cli/calibrate_mix.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/backends.hpp"
#include "executor/calibrate/mix.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan::cli {
namespace {

constexpr Seconds kShortest{0.12}, kLongest{1};

bool fits(const LoadedPlan& mix, Bytes room) { return memory(lower(mix.problem, mix.plan, 0), mix.problem, mix.plan).peak() <= room; }
bool lasts(const LoadedPlan& mix) {
  const Seconds step = forecast(mix.problem, mix.plan).step;
  return step >= kShortest && step <= kLongest;
}

}  // namespace

std::vector<LoadedPlan> chosen_mixes(const std::vector<LoadedPlan>& candidates, Bytes room) {
  const auto good = [&](const LoadedPlan& m) { return m.plan.parallelism.world() == 1 && fits(m, room) && lasts(m); };
  const auto least = std::find_if(candidates.begin(), candidates.end(), good);
  if (least == candidates.end()) return {};
  const auto most = std::find_if(candidates.rbegin(), candidates.rend(), good);
  std::vector<LoadedPlan> out{*least};
  if (&*most != &*least) out.push_back(*most);
  return out;
}

std::optional<MixReading> read_mix(const std::string& backend, const PowerMeter& meter, const LoadedPlan& mix) {
  std::optional<HeldPlan> held = hold_plan(mix.problem, mix.plan, *open_backend(backend, false).backend, meter);
  if (!held) return std::nullopt;
  MixReading out{.problem = mix.problem, .plan = mix.plan, .clock = held->step.clock, .watts = held->step.watts};
  out.problem.load = std::move(held->load);
  return out;
}

std::string mix_name(const LoadedPlan& mix) {
  return fmt::format("{}, {} x {}, {}", mix.problem.model_name, mix.plan.micro_batch, mix.problem.workload.sequence_length, name_of(mix.plan.recompute));
}

}  // namespace moeplan::cli
