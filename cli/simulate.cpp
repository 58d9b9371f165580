/// moeplan simulate PLAN: one step through simulated time.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/forecast_text.hpp"
#include "cli/load_report.hpp"
#include "cli/output_files.hpp"
#include "cli/table.hpp"
#include "core/write.hpp"
#include "planner/load_factors.hpp"
#include "planner/planner.hpp"
#include "sim/engine/costs.hpp"
#include "sim/engine/gantt.hpp"
#include "sim/engine/idle.hpp"
#include "sim/engine/memory_snapshot.hpp"
#include "sim/engine/trace.hpp"

namespace moeplan::cli {
namespace {

struct Options {
  std::string plan, trace, memory_timeline, timeline;
  bool no_contention = false, steps_only = false;
  LoadOptions load;
};

/// A played plan with what its reports need.
struct Simulation {
  std::vector<Program> stages;
  Job job;
  Played played;
  CriticalPath critical;
  std::vector<RankIdle> idle;
};

Simulation simulate(const LoadedPlan& loaded, const Options& options) {
  const Problem& problem = loaded.problem;
  const Parallelism& par = loaded.plan.parallelism;
  // The load at which the planner's median step is priced.
  const double load = LoadFactors(problem).stage(par.ep, 0, static_cast<std::int64_t>(problem.model.layers.size())).p50.step;
  const Prices prices(problem.cluster.device, problem.profile, problem.runtime);
  const Links links(problem.cluster, problem.runtime);
  const Costs costs = model_costs(prices, links, par, load);
  Simulation out;
  for (int s = 0; s < par.pp; ++s) out.stages.push_back(lower(problem, loaded.plan, s * par.stage_ranks(), load));
  out.job = make_job(folded(out.stages, par, costs), par);
  out.played = play(out.job, {.cluster = options.no_contention ? nullptr : &problem.cluster});
  out.critical = critical_path(out.job, out.played);
  out.idle = idle_time(out.job, out.played);
  return out;
}

std::vector<MemoryTimeline> memory_of(const Simulation& s, const LoadedPlan& loaded) {
  std::vector<MemoryTimeline> out;
  for (std::size_t r = 0; r < s.stages.size(); ++r) out.push_back(memory_timeline(s.stages[r], loaded.problem, loaded.plan, s.job, s.played, static_cast<std::int32_t>(r)));
  return out;
}

Json times_json(const ActivityTimes& times) {
  Json out = Json::object();
  for (const auto& [activity, name] : EnumNames<Activity>::names)
    if (const Picoseconds t = times[static_cast<std::size_t>(activity)]; t > 0) out[std::string(name)] = to_seconds(t).value;
  return out;
}

Json report_json(const Simulation& s, const Forecast& f, const std::vector<MemoryTimeline>& memory) {
  Json ranks = Json::array();
  for (std::size_t r = 0; r < s.idle.size(); ++r)
    ranks.push_back({{"rank", s.job.ranks[r].rank}, {"stage", s.job.ranks[r].stage}, {"stands_for", s.job.ranks[r].stands_for}, {"busy_seconds", to_seconds(s.idle[r].busy).value},
                     {"bubble_seconds", to_seconds(s.idle[r].bubble).value}, {"waiting_seconds", times_json(s.idle[r].waiting)},
                     {"peak_memory_bytes", memory[r].peak.peak().value}, {"peak_at_seconds", to_seconds(memory[r].peak_at).value}, {"peak_at", memory[r].peak.peak_at}});
  return {{"step_seconds", to_seconds(s.played.step).value}, {"planned_step_seconds", f.step.value}, {"events", s.played.events}, {"critical_path", times_json(s.critical.time)}, {"ranks", std::move(ranks)}};
}

std::string spaced(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

std::string report_text(const Context& context, const LoadedPlan& loaded, const Simulation& s, const Forecast& f, const StepTimeline& t, const std::vector<MemoryTimeline>& memory) {
  const Seconds step = to_seconds(s.played.step);
  const Plan& p = loaded.plan;
  std::string out = problem_text(loaded.problem);
  out += fmt::format("plan: {}; micro-batch {} x {}; recompute {}\n", layout_text(p.parallelism), p.micro_batch, p.micro_batches, name_of(p.recompute));
  const double difference = 100 * (step / f.step - 1);
  out += fmt::format("step: {} simulated, {} planned{}\n\n", duration(step), duration(f.step), std::abs(difference) < 0.005 ? std::string() : fmt::format(" ({:+.2f} %)", difference));
  out += heading(context, "compute lane of one rank per stage") + "\n" + gantt(t, kWidth - 14);
  out += "F forward  B backward  r recompute  O optimizer  e expert exchange  t tensor or context  w weights  . idle\n\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& [activity, name] : EnumNames<Activity>::names)
    if (const Picoseconds time = s.critical.time[static_cast<std::size_t>(activity)]; time > 0)
      rows.push_back({duration(to_seconds(time)), percent(to_seconds(time) / step), spaced(name)});
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return std::stod(a[1]) > std::stod(b[1]); });
  out += heading(context, fmt::format("critical path ({} events)", s.critical.records.size())) + "\n" + table({{"time", true}, {"share", true}, {"spent on"}}, rows) + "\n";
  rows.clear();
  for (std::size_t r = 0; r < s.idle.size(); ++r) {
    const RankIdle& idle = s.idle[r];
    std::string causes = idle.bubble > 0 ? "bubble " + percent(to_seconds(idle.bubble) / step) : "";
    for (const auto& [activity, name] : EnumNames<Activity>::names)
      if (const Picoseconds w = idle.waiting[static_cast<std::size_t>(activity)]; w > 0) causes += (causes.empty() ? "" : ", ") + spaced(name) + " " + percent(to_seconds(w) / step);
    rows.push_back({std::to_string(s.job.ranks[r].stage), percent(to_seconds(idle.busy) / step), human(memory[r].peak.peak()), causes});
  }
  out += heading(context, "each stage: compute busy, peak memory, and what the rest of the step waits for") + "\n" + table({{"stage", true}, {"busy", true}, {"peak", true}, {"idle"}}, rows);
  return out;
}

Output run(const Context& context, const Options& options) {
  LoadedPlan loaded = read_plan_file(load_json(options.plan), options.plan);
  OutputFiles files({options.trace, options.memory_timeline, options.timeline});
  const std::optional<LoadDraws> draws = drawn_loads(context, loaded.problem, loaded.plan, options.load);
  const Simulation s = simulate(loaded, options);
  const StepTimeline t = timeline(s.job, s.played);
  const std::vector<MemoryTimeline> memory = memory_of(s, loaded);
  const Forecast f = forecast(loaded.problem, loaded.plan);
  Output out;
  const auto write = [&](const std::string& file, const std::string& text, const char* what) {
    files.write(file, text);
    out.notes.push_back(fmt::format("{}: {}", file, what));
  };
  if (!options.trace.empty()) write(options.trace, chrome_trace(t, {.only_rank = {}, .parts = !options.steps_only}), "trace, opens in ui.perfetto.dev");
  if (!options.memory_timeline.empty()) {
    const bool pickle = options.memory_timeline.ends_with(".pickle") || options.memory_timeline.ends_with(".pkl");
    write(options.memory_timeline, pickle ? memory_snapshot_pickle(memory) : memory_snapshot(memory), pickle ? "memory timeline, opens in pytorch.org/memory_viz" : "memory timeline");
  }
  if (!options.timeline.empty()) write(options.timeline, to_json(t).dump() + "\n", "timeline");
  files.done();
  if (context.json) {
    Json report = report_json(s, f, memory);
    if (draws) report["load"] = load_json_report(*draws, options.load);
    out.text = report.dump(2) + "\n";
    return out;
  }
  out.text = report_text(context, loaded, s, f, t, memory);
  if (draws) out.text += "\n" + load_text(context, loaded.problem, *draws, options.load);
  return out;
}

}  // namespace

Command simulate_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("simulate", "one step of a plan through simulated time: what each stage does when, and what it waits for");
  app->footer("Example: moeplan plan kimi-k3 --cluster 128xh200 -o plan.json && moeplan simulate plan.json --trace trace.json");
  const auto options = std::make_shared<Options>();
  app->add_option("PLAN", options->plan, "a plan file, as `moeplan plan ... -o` writes it")->required();
  app->add_option("--trace", options->trace, "write a Chrome trace (Perfetto, Holistic Trace Analysis)");
  app->add_flag("--trace-blocks", options->steps_only, "in the trace, one event per stretch of a block instead of one per operator call");
  app->add_option("--memory-timeline", options->memory_timeline, "write allocations and frees in the shape of PyTorch's memory snapshot: JSON, or for a name in .pickle what memory_viz reads");
  app->add_option("--timeline", options->timeline, "write the timeline as moeplan's own JSON");
  app->add_flag("--no-contention", options->no_contention, "every transfer has its links to itself, as the planner assumes");
  add_load_options(*app, options->load);
  return {app, [options](const Context& context) { return run(context, *options); }};
}

}  // namespace moeplan::cli
