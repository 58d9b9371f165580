/// moeplan plan MODEL --cluster C: the best plans, and why the others fell.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/forecast_text.hpp"
#include "cli/problem_options.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"
#include "planner/searched_space.hpp"

namespace moeplan::cli {
namespace {

constexpr int kInfeasible = 3;

struct PlanOptions {
  std::shared_ptr<ProblemOptions> problem;
  std::string output, space = "narrow";
  int top = 5;
};

/// How many candidates were decided in each way.
struct Ways {
  std::int64_t priced = 0, time_bound = 0, memory = 0, rules = 0;
};

Ways ways(const Answer& a) {
  Ways out{.priced = a.feasible - a.bounded, .time_bound = a.bounded + a.dominated};
  for (const auto& [rule, count] : a.rejected) (rule == "memory_states" || rule == "memory_peak" || rule == "host_memory" ? out.memory : out.rules) += count;
  return out;
}

/// The problem under the optimizer of plan `i`.
Problem problem_of(const Problem& problem, const Answer& answer, std::size_t i) {
  Problem out = problem;
  if (!answer.optimizers.empty()) out.workload.optimizer = answer.optimizers[i];
  return out;
}

Json answer_json(const Problem& problem, const Answer& answer, double seconds) {
  Json out = Json::object();
  if (answer.infeasible) {
    const Infeasible& no = *answer.infeasible;
    Json largest = Json::array();
    for (const auto& each : no.largest) largest.push_back({{"name", each.name}, {"bytes", each.bytes.value}});
    out["infeasible"] = {{"binding", no.binding}, {"need_bytes", no.need.value}, {"have_bytes", no.have.value}, {"largest", std::move(largest)}, {"nearest_fix", no.nearest_fix}};
  }
  std::vector<Plan> plans;
  for (const RankedPlan& r : answer.plans) plans.push_back(r.plan);
  out["problem"] = problem_json(problem, plans);
  out["searched"] = answer.searched;
  out["feasible"] = answer.feasible;
  out["bounded"] = answer.bounded;
  out["dominated"] = answer.dominated;
  const Ways by = ways(answer);
  out["decided"] = {{"priced", by.priced}, {"time_bound", by.time_bound}, {"memory", by.memory}, {"rules", by.rules}};
  out["seconds"] = seconds;
  out["rejected"] = Json::object();
  for (const auto& [rule, count] : answer.rejected) out["rejected"][rule] = count;
  out["examples"] = Json::object();
  for (const auto& [rule, reason] : answer.example) out["examples"][rule] = reason;
  if (answer.infeasible) return out;
  out["plans"] = Json::array();
  for (std::size_t i = 0; i < answer.plans.size(); ++i) {
    out["plans"].push_back(plan_json(answer.plans[i]));
    if (!answer.optimizers.empty()) out["plans"].back()["optimizer"] = std::string(name_of(answer.optimizers[i]));
  }
  out["pareto"] = answer.pareto;
  return out;
}

std::string rejected_text(const Context& context, const Answer& answer) {
  if (answer.rejected.empty()) return "";
  std::vector<std::pair<std::string, std::int64_t>> rules(answer.rejected.begin(), answer.rejected.end());
  std::stable_sort(rules.begin(), rules.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::vector<std::string>> rows;
  for (const auto& [rule, count] : rules) {
    const auto example = answer.example.find(rule);
    std::string name = rule;
    std::replace(name.begin(), name.end(), '_', ' ');
    rows.push_back({name, grouped(count), example == answer.example.end() ? "" : printable(example->second)});
  }
  return heading(context, "why the others fell") + "\n" + table({{"rule"}, {"plans", true}, {"for example"}}, rows);
}

std::string found_text(const Context& context, const Problem& problem, const Answer& answer, const PlanOptions& options) {
  std::vector<std::vector<std::string>> rows;
  const bool priced = std::any_of(answer.plans.begin(), answer.plans.end(), [](const auto& p) { return p.forecast.cost_usd.has_value(); });
  const bool hours = std::any_of(answer.plans.begin(), answer.plans.end(), [](const auto& p) { return p.forecast.device_hours.has_value(); });
  const std::size_t shown_plans = std::min(answer.plans.size(), static_cast<std::size_t>(options.top));
  std::string besides;   // of plans that do more than their layout says
  const auto on_front = [&](std::size_t i) { return std::find(answer.pareto.begin(), answer.pareto.end(), i) != answer.pareto.end(); };
  const auto add = [&](std::size_t i) {
    const RankedPlan& r = answer.plans[i];
    const Forecast& f = r.forecast;
    std::vector<std::string> row{fmt::format("{}{}", i + 1, on_front(i) ? "*" : ""), layout_text(r.plan.parallelism), fmt::format("{} x {}", r.plan.micro_batch, r.plan.micro_batches),
                                 std::string(name_of(r.plan.recompute)) + (r.plan.offload == Offload::none ? "" : fmt::format(", host: {}", name_of(r.plan.offload))), std::string(name_of(r.plan.frozen_storage)), duration(f.step),
                                 fmt::format("{:.0f}", f.tokens_per_second_per_device), percent(f.mfu), human(f.memory_p95.peak())};
    if (priced) row.push_back(f.cost_usd ? dollars(*f.cost_usd) : "");
    else if (hours) row.push_back(f.device_hours ? grouped(static_cast<std::int64_t>(*f.device_hours + 0.5)) : "");
    rows.push_back(std::move(row));
    const std::string more = (answer.optimizers.empty() ? "" : fmt::format(", {}", name_of(answer.optimizers[i]))) + order_text(r.plan);
    if (!more.empty()) besides += "  " + wrapped(fmt::format("{}: {}", i + 1, more.substr(2)), kWidth - 2, 6) + "\n";
  };
  for (std::size_t i = 0; i < shown_plans; ++i) add(i);
  // Of the Pareto front behind the best ones, the plan that needs least memory says how far one can go down.
  if (!answer.pareto.empty() && answer.pareto.back() >= shown_plans) add(answer.pareto.back());
  std::vector<Column> columns{{"#"}, {"layout"}, {"batch"}, {"recompute"}, {"frozen"}, {"step", true}, {"tok/s/GPU", true}, {"MFU", true}, {"peak", true}};
  if (priced) columns.push_back({"cost", true});
  else if (hours) columns.push_back({"GPU-hours", true});
  std::string out = heading(context, "plans, best first") + "\n" + table(columns, rows) + besides;
  out += wrapped("  layout: degrees above 1 (dpRxS: R replicas of S shards, es: shards of the experts); batch: sequences a micro-batch x micro-batches a step; peak: memory of the fullest GPU, 95th percentile of the expert load; *: on the Pareto front of speed and memory, "
                 "whose last plan closes the list.", kWidth, 2) + "\n";
  const Forecast& best = answer.plans.front().forecast;
  if (best.device_hours)
    out += fmt::format("Plan 1: {} tokens take {} GPU-hours ({}){}.\n", short_count(*problem.workload.tokens), grouped(static_cast<std::int64_t>(*best.device_hours + 0.5)),
                       duration({*best.device_hours * 3600 / static_cast<double>(problem.cluster.devices())}), best.cost_usd ? " and cost " + dollars(*best.cost_usd) : "");
  out += wrapped(fmt::format("Plan 1 in 90 % of cases: a step of {} to {}, {:.0f} to {:.0f} tokens/s a GPU{}; {} of the load draws run out of memory. Plans are ranked by the lower end of their speed.", duration({best.step_interval.low}),
                             duration({best.step_interval.high}), best.tokens_per_second_interval.low / static_cast<double>(problem.cluster.devices()), best.tokens_per_second_interval.high / static_cast<double>(problem.cluster.devices()),
                             best.cost_interval ? fmt::format(", {} to {}", dollars(best.cost_interval->low), dollars(best.cost_interval->high)) : "", percent(best.out_of_memory_risk)),
                 kWidth, 2) + "\n";
  if (best.dropped > 0) out += fmt::format("Plan 1 drops {} of the assignments to experts.\n", percent(best.dropped));
  return out + "\n" + breakdown_text(context, problem, answer.plans.front().plan, best);
}

std::string infeasible_text(const Context& context, const Infeasible& no, std::int64_t devices) {
  std::string out = heading(context, "nothing fits") + "\n";
  out += fmt::format("  {}: the closest plan needs {}, there are {}", no.binding, human(no.need), human(no.have));
  if (no.have.value > 0) out += fmt::format(" ({:.2f} times as much)", no.need / no.have);
  out += fmt::format("\n  on all {} devices: {} against {}", grouped(devices), human(Bytes{no.need.value * devices}), human(Bytes{no.have.value * devices}));
  out += "\n  largest:";
  for (std::size_t i = 0; i < no.largest.size(); ++i) out += fmt::format("{} {} {}", i ? "," : "", no.largest[i].name, human(no.largest[i].bytes));
  return out + "\n  " + wrapped("what would do: " + printable(no.nearest_fix), kWidth - 2, 4) + "\n";
}

Output run(const Context& context, const PlanOptions& options) {
  Output out;
  const Problem problem = make_problem(context.configs, options.problem->request());
  SearchOptions search = options.problem->search();
  check_micro_batch(problem, search.pins.micro_batch.value_or(1), "--micro-batch");
  search.wide = options.space == "wide";
  search.top = options.top;
  search.threads = context.threads;
  search.progress = context.show_progress;
  const auto start = std::chrono::steady_clock::now();
  const Answer answer = plan(problem, search);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!options.output.empty()) {
    if (answer.plans.empty()) out.notes.push_back(options.output + " is not written: there is no plan");
    else write_text_file(options.output, plan_file(problem_of(problem, answer, 0), answer.plans.front(), searched_space(search)).dump(1) + "\n");
  }
  out.exit_code = answer.infeasible ? kInfeasible : 0;
  if (context.json) {
    out.text = answer_json(problem, answer, seconds).dump(2) + "\n";
    return out;
  }
  out.text = problem_text(problem);
  out.text += fmt::format("searched {} plans in {}: {} fit\n", grouped(answer.searched), human(Seconds{seconds}), grouped(answer.feasible));
  const Ways by = ways(answer);
  out.text += fmt::format("decided: {} priced in full, {} by a bound on time, {} by memory, {} by a rule\n", grouped(by.priced), grouped(by.time_bound), grouped(by.memory), grouped(by.rules));
  if (answer.dominated > 0) out.text += fmt::format("of those by a bound {} rank behind plans that need no more memory, whether they fit or not\n", grouped(answer.dominated));
  out.text += "\n";
  if (answer.infeasible) out.text += infeasible_text(context, *answer.infeasible, problem.cluster.devices());
  else out.text += found_text(context, problem, answer, options);
  out.text += "\n" + rejected_text(context, answer);
  for (const std::string& what : problem.model.uncovered) out.notes.push_back(problem.model_name + ": not run yet: " + what);
  return out;
}

}  // namespace

Command plan_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("plan", "the best plans for a model on a cluster, ranked, and why the others fell");
  app->footer("Example: moeplan plan kimi-k3 --cluster 128xh200 --method lora --rank 64 -o plan.json");
  const auto options = std::make_shared<PlanOptions>();
  options->problem = add_problem_options(*app);
  app->add_option("-o,--output", options->output, "write the best plan to this file");
  app->add_option("--search", options->space, "narrow, or wide: also schedules, virtual stages, uneven stages, pieces, route, placement and replicas of the expert exchange")->check(CLI::IsMember({"narrow", "wide"}));
  app->add_option("--top", options->top, "plans to list (default 5)")->check(CLI::Range(1, 10000));
  return {app, [options](const Context& context) { return run(context, *options); }};
}

}  // namespace moeplan::cli
