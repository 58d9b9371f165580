/// moeplan simulate PLAN: one step through simulated time.

#include <fmt/format.h>

#include <cmath>

#include "cli/forecast_text.hpp"
#include "cli/load_report.hpp"
#include "cli/output_files.hpp"
#include "cli/simulation.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"
#include "core/quantity.hpp"
#include "core/write.hpp"
#include "sim/engine/gantt.hpp"
#include "sim/engine/memory_snapshot.hpp"
#include "sim/engine/trace.hpp"

namespace moeplan::cli {
namespace {

struct Options {
  std::string plan, trace, memory_timeline, timeline;
  bool no_contention = false, steps_only = false;
  std::string host_launch;
  SimulationOptions simulation;
  LoadOptions load;
};

Json report_json(const Simulation& s, const Forecast& f, const std::vector<MemoryTimeline>& memory) {
  Json ranks = Json::array();
  for (std::size_t r = 0; r < s.idle.size(); ++r)
    ranks.push_back({{"rank", s.job.ranks[r].rank}, {"stage", s.job.ranks[r].stage}, {"stands_for", s.job.ranks[r].stands_for}, {"busy_seconds", to_seconds(s.idle[r].busy).value},
                     {"bubble_seconds", to_seconds(s.idle[r].bubble).value}, {"waiting_seconds", times_json(s.idle[r].waiting)},
                     {"peak_memory_bytes", memory[r].peak.peak().value}, {"peak_at_seconds", to_seconds(memory[r].peak_at).value}, {"peak_at", memory[r].peak.peak_at}});
  return {{"step_seconds", to_seconds(s.played.step).value}, {"planned_step_seconds", f.step.value}, {"events", s.played.events}, {"critical_path", times_json(s.critical.time)}, {"ranks", std::move(ranks)}};
}

std::string report_text(const Context& context, const LoadedPlan& loaded, const Simulation& s, const Forecast& f, const StepTimeline& t, const std::vector<MemoryTimeline>& memory) {
  const Seconds step = to_seconds(s.played.step);
  const Plan& p = loaded.plan;
  std::string out = problem_text(loaded.problem);
  out += fmt::format("plan: {}; micro-batch {} x {}; recompute {}{}\n", layout_text(p.parallelism), p.micro_batch, p.micro_batches, name_of(p.recompute), schedule_text(p));
  const double difference = 100 * (step / f.step - 1);
  out += fmt::format("step: {} simulated, {} planned{}\n\n", duration(step), duration(f.step), std::abs(difference) < 0.005 ? std::string() : fmt::format(" ({:+.2f} %)", difference));
  out += heading(context, "compute lane of one rank per stage") + "\n" + gantt(t, kWidth - 14);
  out += "F forward  B backward  r recompute  O optimizer  e expert exchange  t tensor or context  w weights  . idle\n\n";
  out += critical_path_text(context, s) + "\n";
  std::vector<Bytes> peak;
  for (const MemoryTimeline& m : memory) peak.push_back(m.peak.peak());
  out += idle_text(context, s, peak);
  return out;
}

Output run(const Context& context, const Options& options) {
  LoadedPlan loaded = read_plan_file(load_json(options.plan), options.plan);
  OutputFiles files({options.trace, options.memory_timeline, options.timeline});
  const std::optional<LoadDraws> draws = drawn_loads(context, loaded.problem, loaded.plan, options.load);
  SimulationOptions how = options.simulation;
  how.contention = !options.no_contention;
  if (!options.host_launch.empty()) {
    const std::optional<Seconds> launch = parse_quantity<Seconds>(options.host_launch);
    if (!launch || launch->value < 0 || launch->value > 1) throw InputError("--host-launch", shown(options.host_launch), "give a time from 0 to 1 s, e.g. \"5 us\"");
    how.host_launch = *launch;
  }
  const Simulation s = simulate(loaded.problem, loaded.plan, how);
  const StepTimeline t = timeline(s.job, s.played);
  const std::vector<MemoryTimeline> memory = memory_timelines(s, loaded.problem, loaded.plan);
  const Forecast f = forecast(loaded.problem, loaded.plan, false, how.contention);
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
    if (draws) report["load"] = load_json_report(*draws);
    out.text = report.dump(2) + "\n";
    return out;
  }
  out.text = report_text(context, loaded, s, f, t, memory);
  if (draws) out.text += "\n" + load_text(context, loaded.problem, *draws);
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
  app->add_flag("--no-contention", options->no_contention, "transfers have their links to themselves and compute its multiprocessors, in the step as it is planned too");
  app->add_flag("--interference", options->simulation.interference, "communication takes memory bandwidth from compute too, and exchanges are slowed by it");
  app->add_option("--host-launch", options->host_launch, "time in which the host issues one call, e.g. \"5 us\" (default: none)");
  app->add_option("--straggler", options->simulation.straggler, "a rank whose compute is slower")->check(CLI::NonNegativeNumber);
  app->add_option("--straggler-slowdown", options->simulation.straggler_slowdown, "how many times as long it takes (default 1)")->check(CLI::Range(1.0, 1000.0));
  add_load_options(*app, options->load);
  return {app, [options](const Context& context) { return run(context, *options); }};
}

}  // namespace moeplan::cli
