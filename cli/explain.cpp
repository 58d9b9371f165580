/// moeplan explain PLAN: where memory and time go, what binds, and what changing one number would do.

#include <fmt/format.h>

#include <algorithm>

#include "cli/forecast_text.hpp"
#include "cli/simulation.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"
#include "planner/planner.hpp"

namespace moeplan::cli {
namespace {

/// The plan with one number changed, as it would do.
struct Neighbour {
  std::string change;
  Forecast forecast;
};

Pins pinned_to(const Plan& plan) {
  const Parallelism& p = plan.parallelism;
  Pins pins;
  pins.pp = p.pp, pins.tp = p.tp, pins.cp = p.cp, pins.ep = p.ep, pins.etp = p.etp;
  pins.dp_replicate = p.dp_replicate, pins.dp_shard = p.dp_shard, pins.expert_shard = p.expert_shard;
  pins.micro_batch = plan.micro_batch, pins.recompute = plan.recompute, pins.frozen_storage = plan.frozen_storage;
  pins.reshard_after_forward = plan.reshard_after_forward;
  pins.schedule = plan.schedule, pins.virtual_stages = plan.virtual_stages, pins.expert_chunks = plan.experts.chunks;
  return pins;
}

/// The best plan with all pins but those that `loosen` frees, if it differs from `plan` and fits.
std::optional<RankedPlan> best_with(const Problem& problem, const Plan& plan, int threads, const std::function<void(Pins&)>& loosen) {
  SearchOptions options;
  options.pins = pinned_to(plan);
  options.top = 2;
  options.threads = threads;
  loosen(options.pins);
  try {
    for (RankedPlan& each : moeplan::plan(problem, options).plans)
      if (each.plan != plan) return std::move(each);
  } catch (const InputError&) {
    // No other layout passes the rules: there is no such neighbour.
  }
  return std::nullopt;
}

std::vector<Neighbour> neighbours(const Problem& problem, const Plan& plan, int threads) {
  std::vector<Neighbour> out;
  const auto try_one = [&](const std::function<void(Pins&)>& loosen, const std::function<std::string(const Plan&)>& change) {
    if (auto found = best_with(problem, plan, threads, loosen)) out.push_back({change(found->plan), found->forecast});
  };
  try_one([](Pins& p) { p.micro_batch.reset(); }, [](const Plan& p) { return fmt::format("micro-batch {}", p.micro_batch); });
  try_one([](Pins& p) { p.recompute.reset(); }, [](const Plan& p) { return fmt::format("recompute {}", name_of(p.recompute)); });
  try_one([](Pins& p) { p.frozen_storage.reset(); }, [](const Plan& p) { return fmt::format("frozen weights as {}", name_of(p.frozen_storage)); });
  try_one([](Pins& p) { p.reshard_after_forward.reset(); },
          [](const Plan& p) { return std::string(p.reshard_after_forward ? "weights gathered again for backward" : "gathered weights kept for backward"); });
  try_one([](Pins& p) { p.ep.reset(), p.expert_shard.reset(); },
          [](const Plan& p) { return fmt::format("expert parallel {}, experts sharded over {}", p.parallelism.ep, p.parallelism.expert_shard); });
  try_one([](Pins& p) { p.pp.reset(), p.dp_shard.reset(), p.dp_replicate.reset(), p.expert_shard.reset(); },
          [](const Plan& p) { return "layout " + layout_text(p.parallelism); });
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.forecast.tokens_per_second > b.forecast.tokens_per_second; });
  return out;
}

/// What limits the plan: the largest part of the step, and how near memory is.
std::string binding(const Problem& problem, const Forecast& f) {
  const auto largest = std::max_element(f.time.begin(), f.time.end());
  const auto name = name_of(static_cast<TimeCategory>(largest - f.time.begin()));
  std::string time(name);
  std::replace(time.begin(), time.end(), '_', ' ');
  const double used = f.memory_p95.peak() / problem.cluster.device.memory;
  if (used > 1) return fmt::format("it does not fit: {} of {} on the fullest GPU", human(f.memory_p95.peak()), human(problem.cluster.device.memory));
  return fmt::format("{} takes {} of the step; {} of memory is free on the fullest GPU", time, percent(*largest / f.step), percent(1 - used));
}

Json explained_json(const LoadedPlan& loaded, const Forecast& f, const std::vector<Neighbour>& near, const Simulation& s) {
  Json changes = Json::array();
  for (const Neighbour& n : near)
    changes.push_back({{"change", n.change}, {"tokens_per_second", n.forecast.tokens_per_second}, {"step_seconds", n.forecast.step.value},
                       {"peak_memory_bytes_p95", n.forecast.memory_p95.peak().value}, {"faster", n.forecast.tokens_per_second / f.tokens_per_second - 1}});
  Json idle = Json::array();
  for (std::size_t r = 0; r < s.idle.size(); ++r)
    idle.push_back({{"stage", s.job.ranks[r].stage}, {"busy_seconds", to_seconds(s.idle[r].busy).value}, {"bubble_seconds", to_seconds(s.idle[r].bubble).value}, {"waiting_seconds", times_json(s.idle[r].waiting)}});
  return Json{{"problem", problem_json(loaded.problem)}, {"plan", plan_json({loaded.plan, f})}, {"binding", binding(loaded.problem, f)}, {"changes", std::move(changes)},
              {"simulated_step_seconds", to_seconds(s.played.step).value}, {"critical_path", times_json(s.critical.time)}, {"idle", std::move(idle)}};
}

Output run(const Context& context, const std::string& file) {
  const LoadedPlan loaded = read_plan_file(load_json(file), file);
  const Forecast f = forecast(loaded.problem, loaded.plan);
  const std::vector<Neighbour> near = neighbours(loaded.problem, loaded.plan, context.threads);
  const Simulation s = simulate(loaded, {});
  if (context.json) return {explained_json(loaded, f, near, s).dump(2) + "\n", {}, 0};
  const Plan& p = loaded.plan;
  std::string out = problem_text(loaded.problem);
  out += fmt::format("plan: {}; micro-batch {} x {}; recompute {}; frozen weights as {}{}; {} tokens/s, MFU {}\n\n", layout_text(p.parallelism), p.micro_batch, p.micro_batches,
                     name_of(p.recompute), name_of(p.frozen_storage), schedule_text(p), short_count(f.tokens_per_second), percent(f.mfu));
  out += breakdown_text(context, loaded.problem, f);
  out += critical_path_text(context, s) + "\n" + idle_text(context, s, {}) + "\n";
  out += wrapped("What binds: " + binding(loaded.problem, f) + ".", kWidth, 2) + "\n\n";
  std::vector<std::vector<std::string>> rows;
  for (const Neighbour& n : near)
    rows.push_back({fmt::format("{:+.1f} %", 100 * (n.forecast.tokens_per_second / f.tokens_per_second - 1)), human(n.forecast.memory_p95.peak()), n.change});
  if (rows.empty()) return {out + "No plan that differs in one number passes the rules and fits.\n", {}, 0};
  out += heading(context, "one number changed (the best of each that fits)") + "\n" + table({{"speed", true}, {"peak", true}, {"change"}}, rows);
  return {out, {}, 0};
}

}  // namespace

Command explain_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("explain", "where a plan's memory and time go, what binds, what one changed number would do");
  app->footer("Example: moeplan plan kimi-k3 --cluster 128xh200 -o plan.json && moeplan explain plan.json");
  const auto file = std::make_shared<std::string>();
  app->add_option("PLAN", *file, "a plan file, as `moeplan plan ... -o` writes it")->required();
  return {app, [file](const Context& context) { return run(context, *file); }};
}

}  // namespace moeplan::cli
