/// moeplan compare PLAN MEASURED: what was predicted beside what was measured, and where the gap comes from.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cli/backends.hpp"
#include "cli/command.hpp"
#include "cli/compare_parts.hpp"
#include "cli/forecast_text.hpp"
#include "cli/output_files.hpp"
#include "cli/simulation.hpp"
#include "cli/slice.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/read.hpp"
#include "planner/prices.hpp"
#include "sim/engine/trace.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan::cli {
namespace {

struct Options {
  std::string plan, measured, trace;
};

/// Seconds of each operator on one rank, all micro-batches together; parts stretch with their event. "communication": the calls inside blocks, which
/// a plan draws on lanes of their own and a run times among the others. Copies over the host link have a lane in both.
std::map<std::string, double> operators(const StepTimeline& t, std::int32_t rank) {
  std::map<std::string, double> out;
  for (const TimelineEvent& e : t.events) {
    if (e.rank != rank) continue;
    if (e.kind == Activity::expert_communication || e.kind == Activity::tensor_communication) out["communication"] += to_seconds(e.duration).value;
    if (e.kind == Activity::copy && e.name >= 0)
      if (const std::string& name = t.names[static_cast<std::size_t>(e.name)]; name == name_of(Collective::to_host) || name == name_of(Collective::from_host))
        out["copies " + name] += to_seconds(e.duration).value;
    if (e.detail < 0) continue;
    const TimelineDetail& d = t.details[static_cast<std::size_t>(e.detail)];
    const double stretch = d.duration > 0 ? static_cast<double>(e.duration) / static_cast<double>(d.duration) : 1;
    for (const TimelinePart& p : d.parts) out[t.names[static_cast<std::size_t>(p.name)]] += to_seconds(p.duration).value * stretch;
  }
  return out;
}

/// Indices of a file that was not written here must lie in its tables.
void check_tables(const StepTimeline& t, const std::string& where) {
  const auto inside = [&](std::int32_t i, std::size_t size, const char* what) {
    if (i < -1 || i >= static_cast<std::int32_t>(size)) throw InputError(where + ".timeline", fmt::format("{} {} is outside its table of {}", what, i, size), "the file is damaged: run again");
  };
  for (const TimelineEvent& e : t.events) inside(e.detail, t.details.size(), "detail"), inside(e.rank, t.ranks.size(), "rank"), inside(e.name, t.names.size(), "name");
  for (const TimelineDetail& d : t.details)
    for (const TimelinePart& p : d.parts) inside(p.name, t.names.size(), "name");
}

/// Times of one device, driver and build say less of another: the band that the cost model gives a table borrowed from elsewhere.
constexpr Interval kElsewhere{0.80, 1.35};

/// Where the plan's calibrated times and the run come from, if that is not the same.
std::optional<std::string> measured_elsewhere(const DeviceProfile& profile, const Json& file) {
  if (!profile.source.starts_with("moeplan calibrate")) return std::nullopt;
  const Json from = file.value("provenance", Json::object());
  const auto word = [&](const char* name) { return from.is_object() && from.contains(name) && from[name].is_string() ? from[name].get<std::string>() : std::string("unknown"); };
  const std::string here = calibration_origin(word("device"), word("version"), word("backend"));
  if (here == profile.driver) return std::nullopt;
  return fmt::format("the plan's times were measured on {}, the run was on {}: the interval is widened to {} and {} times its ends", profile.driver, here, kElsewhere.low, kElsewhere.high);
}

template <class Shown>
std::vector<std::vector<std::string>> rows_of(const Pairs& pairs, Shown shown) {
  std::vector<std::vector<std::string>> out;
  for (const auto& [name, p] : pairs) out.push_back({name, shown(p.predicted), shown(p.measured), error_text(p)});
  return out;
}

/// Whether a step stands for the run: the first warms up, the second is recorded for the device, the last is timed call by call. Of short runs
/// what there is.
bool is_undisturbed(std::size_t step, std::size_t steps) { return steps < 3 || (step + 1 < steps && step >= (steps < 5 ? 1u : 2u)); }

/// The load that the routers made in one step, as counts of each expert; nothing for models without experts, and for files without counts.
std::optional<LoadModel> measured_load(const Json& steps, std::size_t step, const ModelSpec& model, const std::string& where) {
  std::vector<std::vector<double>> counts;
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    std::vector<double> of_experts;
    for (const Sublayer& s : model.layers[l].sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) of_experts.assign(static_cast<std::size_t>(moe->experts), 0);
    if (of_experts.empty()) continue;
    double all = 0;
    const Json of = steps[step].value("expert_tokens", Json::object()).value(std::to_string(l), Json::array());
    if (of.size() < of_experts.size()) return std::nullopt;
    for (std::size_t e = 0; e < of_experts.size(); ++e) {
      if (!of[e].is_number() || of[e].get<double>() < 0) throw InputError(fmt::format("{}.steps[{}].expert_tokens", where, step), "holds what is no count", "`moeplan run` writes it");
      of_experts[e] = of[e].get<double>(), all += of_experts[e];
    }
    if (all <= 0) return std::nullopt;
    counts.push_back(std::move(of_experts));
  }
  if (counts.empty()) return std::nullopt;
  LoadModel out{.name = "as measured", .source = where, .distribution = TraceLoad{std::move(counts)}};
  return out;
}

/// The median of what is predicted at the loads of these steps, one at a time: the sum of several steps is evener than each of them, and tiles of
/// 128 rows see each. At most `kForecasts` of them, evenly spread; the plan's own load where the file has no counts.
constexpr std::size_t kForecasts = 15;
Forecast forecast_at(const std::vector<LoadModel>& loads, Problem problem, const Plan& plan) {
  if (loads.empty()) return forecast(problem, plan);
  std::vector<Forecast> all;
  const std::size_t n = std::min(loads.size(), kForecasts);
  for (std::size_t i = 0; i < n; ++i) problem.load = loads[i * loads.size() / n], all.push_back(forecast(problem, plan));
  std::sort(all.begin(), all.end(), [](const Forecast& a, const Forecast& b) { return a.step < b.step; });
  Forecast out = all[all.size() / 2];
  if (all.size() % 2 == 0) {   // as `median` of what was measured
    const Forecast& below = all[all.size() / 2 - 1];
    out.step = (out.step + below.step) * 0.5;
    out.step_interval = {(out.step_interval.low + below.step_interval.low) * 0.5, (out.step_interval.high + below.step_interval.high) * 0.5};
  }
  return out;
}

Output run(const Context& context, const Options& options) {
  const LoadedPlan loaded = read_plan_file(load_json(options.plan), options.plan);
  const Json file = load_json(options.measured);
  if (!file.is_object() || file.value("format", Json()) != "moeplan.measured.v1") throw InputError(options.measured + ".format", "is not \"moeplan.measured.v1\"", "`moeplan run PLAN -o FILE` writes one");
  OutputFiles files({options.trace});

  Output out;
  std::optional<SlicePrediction> slice;
  const bool alone = file.contains("rank_slice");
  std::vector<double> seconds, copies;
  const Json steps = file.value("steps", Json::array());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].is_object() || !steps[i].contains("step_s") || !steps[i]["step_s"].is_number()) throw InputError(fmt::format("{}.steps[{}].step_s", options.measured, i), "is missing or no number", "`moeplan run` writes it");
    if (is_undisturbed(i, steps.size())) {
      seconds.push_back(alone ? computing_seconds(steps[i], fmt::format("{}.steps[{}]", options.measured, i)) : steps[i]["step_s"].get<double>());
      if (alone) copies.push_back(copied_seconds(steps[i], fmt::format("{}.steps[{}]", options.measured, i)));
    }
  }
  if (seconds.empty()) throw InputError(options.measured + ".steps", "has no steps", "run at least one");
  if (alone) slice = slice_of(file, loaded, {median(copies)}, options.measured);
  if (steps.size() < 3) out.notes.push_back("fewer than three steps: the step time includes the first, which warms up");
  // A plan is made for a load; what the routers did is the run's. Times are compared at what they did, and the plan's own stands beside: the step
  // at each undisturbed step's load, the calls at that of the last, in which they were timed.
  std::vector<LoadModel> loads;
  for (std::size_t i = 0; i < steps.size() && !slice; ++i)
    if (is_undisturbed(i, steps.size()))
      if (std::optional<LoadModel> load = measured_load(steps, i, loaded.problem.model, options.measured)) loads.push_back(std::move(*load));
  const Forecast forecast = forecast_at(loads, loaded.problem, loaded.plan);
  const Seconds as_planned = loads.empty() ? forecast.step : moeplan::forecast(loaded.problem, loaded.plan).step;
  Problem served = loaded.problem;
  if (std::optional<LoadModel> load = slice ? std::nullopt : measured_load(steps, steps.size() - 1, served.model, options.measured)) served.load = std::move(*load);
  const Pair step{slice ? slice->time.compute.value : forecast.step.value, median(seconds)};
  Interval interval = slice ? Interval{slice->time.low.value, slice->time.high.value} : forecast.step_interval;

  if (const auto elsewhere = measured_elsewhere(loaded.problem.profile, file)) {
    interval = {interval.low * kElsewhere.low, interval.high * kElsewhere.high};
    out.notes.push_back(*elsewhere);
  }
  const Simulation simulation = simulate(served, loaded.plan);
  StepTimeline predicted = timeline(simulation.job, simulation.played);
  Pairs calls;
  if (slice)
    for (const auto& [name, s] : slice->time.operators) calls[name].predicted = s.value;
  else
    for (const auto& [name, s] : operators(predicted, 0)) calls[name].predicted = s;
  std::optional<StepTimeline> measured;
  if (file.contains("timeline") && !file["timeline"].is_null()) {
    measured = read<StepTimeline>(Place(file, options.measured).at("timeline"));
    check_tables(*measured, options.measured);
    for (const auto& [name, s] : operators(*measured, 0))
      if (!slice || name != "communication") calls[name].measured = s;
  }

  Pairs memory;
  const MemoryBreakdown planned = slice ? slice->memory : moeplan::memory(lower(loaded.problem, loaded.plan, 0), loaded.problem, loaded.plan);
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names)
    if (planned[category].value > 0) memory[std::string(name)].predicted = static_cast<double>(planned[category].value);
  if (planned.host.value > 0) memory["host_bytes"].predicted = static_cast<double>(planned.host.value);
  double planned_peak = static_cast<double>(planned.peak().value);
  // A run makes room for --routed-bound times the balanced rows, a plan for the load that it was priced at: what `run` foretold for its own bound,
  // before its first step, stands beside what it measured.
  if (const Json before = file.value("predicted_memory", Json::object()); !slice && loaded.plan.parallelism.ep > 1 && before.is_object() && before.contains("peak_bytes") && before["peak_bytes"].is_number()) {
    for (auto& [name, pair] : memory) pair.predicted = 0;
    for (const auto& [name, value] : before.items())
      if (value.is_number() && name != "peak_bytes") memory[name].predicted = value.get<double>();
    out.notes.push_back(fmt::format("memory is that foretold for the run's --routed-bound; the plan's own load needs {}", human(planned.peak())));
    planned_peak = before["peak_bytes"].get<double>();
  }
  const Json kept = file.value("memory", Json::object());
  for (const auto& [name, value] : kept.items())
    if (value.is_number() && name != "peak_bytes") memory[name].measured = value.get<double>();
  const Pair peak{planned_peak, kept.value("peak_bytes", 0.0)};
  const Pairs at_work = measured ? lanes_of(calls) : Pairs{};
  const Pairs load = loads.empty() ? Pairs{} : expert_loads(loaded.problem, loaded.plan, served.load);
  // A rank alone, and one of several, is laid out for its bound: over the step only their peak has a prediction.
  std::vector<Pair> over_step;
  if (const Json held = file.value("memory_over_step", Json()); held.is_array() && measured && !slice && loaded.plan.parallelism.ep == 1)
    over_step = memory_over_passes(memory_timelines(simulation, served, loaded.plan).front(), passes_end(predicted, 0), held, passes_end(*measured, 0), options.measured + ".memory_over_step");

  std::vector<std::pair<std::string, Pair>> by_gap;
  for (const auto& each : calls)
    if (each.second.predicted > 0 || each.second.measured > 0) by_gap.emplace_back(each);   // views take no time
  std::sort(by_gap.begin(), by_gap.end(), [](const auto& a, const auto& b) { return std::abs(a.second.gap()) > std::abs(b.second.gap()); });

  if (!options.trace.empty()) {   // both as processes of one trace, predicted first
    StepTimeline both = predicted;
    both.source = "predicted and measured";
    if (measured) {
      const auto ranks = static_cast<std::int32_t>(both.ranks.size()), lanes = static_cast<std::int32_t>(both.lanes.size()), names = static_cast<std::int32_t>(both.names.size()), details = static_cast<std::int32_t>(both.details.size()), called = static_cast<std::int32_t>(both.calls.size());
      for (TimelineRank r : measured->ranks) r.rank += loaded.plan.parallelism.world(), both.ranks.push_back(r);
      for (const std::string& lane : measured->lanes) both.lanes.push_back(lane + ", measured");
      for (const std::string& name : measured->names) both.names.push_back(name);
      for (TimelineDetail d : measured->details) {
        for (TimelinePart& p : d.parts) p.name += names;
        both.details.push_back(std::move(d));
      }
      for (const TimelineCall& c : measured->calls) both.calls.push_back(c);
      for (TimelineEvent e : measured->events) {
        e.rank += ranks, e.lane += lanes, e.name += names;
        if (e.detail >= 0) e.detail += details;
        if (e.call >= 0) e.call += called;
        both.events.push_back(e);
      }
      std::stable_sort(both.events.begin(), both.events.end(), [](const TimelineEvent& a, const TimelineEvent& b) { return std::tie(a.start, a.rank, a.lane) < std::tie(b.start, b.rank, b.lane); });
      both.flows.clear();   // they point into the order of one timeline
    }
    files.write(options.trace, chrome_trace(both));
    out.notes.push_back(options.trace + ": predicted and measured, one trace");
  }
  files.done();

  const std::optional<double> clock = slice ? slice->time.clock : context.json ? prices_of(loaded.problem, loaded.plan).clock() : std::nullopt;
  if (context.json) {
    Json largest = Json::array(), tenths = Json::array();
    for (const Pair& p : over_step) tenths.push_back(pair_json(p));
    for (std::size_t i = 0; i < std::min<std::size_t>(3, by_gap.size()); ++i) largest.push_back({{"name", by_gap[i].first}, {"seconds", by_gap[i].second.gap()}});
    out.text = Json{{"step_seconds", pair_json(step)}, {"step_seconds_as_planned", slice ? step.predicted : as_planned.value}, {"interval", Json::array({interval.low, interval.high})}, {"peak_bytes", pair_json(peak)}, {"memory", pairs_json(memory)}, {"memory_over_step", tenths}, {"lanes", pairs_json(at_work)}, {"expert_load", pairs_json(load)}, {"operators", pairs_json(calls)}, {"largest_gaps", largest}, {"clock_mhz", clock ? Json(*clock) : Json(nullptr)}}.dump(2) + "\n";
    return out;
  }
  out.text = problem_text(loaded.problem) + (slice ? "" : clock_text(loaded.problem, loaded.plan));
  if (slice) out.text += slice_text(*slice, step.measured, median(copies));
  else out.text += fmt::format("step: {} predicted ({} to {}), {} measured: {}\n", duration({step.predicted}), duration({interval.low}), duration({interval.high}), duration({step.measured}), error_text(step));
  if (!loads.empty()) out.text += fmt::format("  at the expert load that was measured; {} at the plan's, {}\n", duration(as_planned), loaded.problem.load.name);
  out.text += fmt::format("peak memory: {} predicted, {} measured: {}\n\n", human(Bytes{static_cast<std::int64_t>(peak.predicted)}), human(Bytes{static_cast<std::int64_t>(peak.measured)}), error_text(peak));
  if (measured) {
    std::vector<std::vector<std::string>> rows;
    for (const auto& [name, p] : by_gap) rows.push_back({name, duration({p.predicted}), duration({p.measured}), fmt::format("{}{}", p.gap() < 0 ? "-" : "+", duration({std::abs(p.gap())})), error_text(p)});
    out.text += heading(context, "operators of a step, largest gap first") + "\n" + table({{""}, {"predicted", true}, {"measured", true}, {"gap", true}, {"error", true}}, rows) + "\n";
    std::string three;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, by_gap.size()); ++i) three += (i ? ", " : "") + fmt::format("{} {}{}", by_gap[i].first, by_gap[i].second.gap() < 0 ? "-" : "+", duration({std::abs(by_gap[i].second.gap())}));
    out.text += wrapped("most of the gap: " + three, kWidth, 2) + "\n\n" + heading(context, "lanes, at work") + "\n" + table({{""}, {"predicted", true}, {"measured", true}, {"error", true}}, rows_of(at_work, [](double s) { return duration({s}); })) + "\n";
  } else {
    out.notes.push_back(options.measured + " has no timeline: only totals are compared");
  }
  if (!load.empty())
    out.text += heading(context, "expert load, over the mean, in the last step") + "\n" + table({{""}, {"predicted", true}, {"measured", true}, {"error", true}}, rows_of(load, [](double f) { return fmt::format("{:.2f}", f); })) + "\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, p] : memory) {
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    rows.push_back({name == "allocator_reserve" ? "gaps of the arena" : name == "host_bytes" ? "in host memory" : words, human(Bytes{static_cast<std::int64_t>(p.predicted)}), human(Bytes{static_cast<std::int64_t>(p.measured)}), error_text(p)});
  }
  const auto bytes = [](double b) { return human(Bytes{static_cast<std::int64_t>(b)}); };
  out.text += heading(context, "memory at the peak") + "\n" + table({{""}, {"predicted", true}, {"measured", true}, {"error", true}}, rows);
  if (over_step.empty()) return out;
  rows.clear();
  for (std::size_t i = 0; i < over_step.size(); ++i) rows.push_back({fmt::format("{} to {} %", 100 * i / over_step.size(), 100 * (i + 1) / over_step.size()), bytes(over_step[i].predicted), bytes(over_step[i].measured), error_text(over_step[i])});
  out.text += "\n" + heading(context, "memory over the passes of a step: most in each tenth") + "\n" + table({{"of them"}, {"predicted", true}, {"measured", true}, {"error", true}}, rows);
  return out;
}

}  // namespace

Command compare_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("compare", "a plan's prediction beside what `run` measured: step time, each operator, memory, and where the gap comes from");
  app->footer("Example: moeplan run plan.json --steps 5 -o measured.json && moeplan compare plan.json measured.json");
  const auto o = std::make_shared<Options>();
  app->add_option("PLAN", o->plan, "the plan file that was run")->required();
  app->add_option("MEASURED", o->measured, "what `moeplan run PLAN -o` wrote")->required();
  app->add_option("--trace", o->trace, "write both as one Chrome trace");
  return {app, [o](const Context& context) { return run(context, *o); }};
}

}  // namespace moeplan::cli
