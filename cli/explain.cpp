/// moeplan explain PLAN: where memory and time go, what binds, and what changing one number would do.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/forecast_text.hpp"
#include "cli/simulation.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"
#include "core/write.hpp"
#include "planner/exchange_reach.hpp"
#include "planner/planner.hpp"
#include "planner/prices.hpp"
#include "planner/searched_space.hpp"
#include "planner/sensitivity.hpp"

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
  pins.micro_batch = plan.micro_batch, pins.prefetch = plan.prefetch, pins.recompute = plan.recompute, pins.frozen_storage = plan.frozen_storage;
  pins.reshard_after_forward = plan.reshard_after_forward;
  pins.schedule = plan.schedule, pins.virtual_stages = plan.virtual_stages;
  pins.context_exchange = plan.context_exchange, pins.state_passing = plan.state_passing, pins.offload = plan.offload;
  const ExpertExchange& x = plan.experts;
  pins.dispatch = x.dispatch, pins.route = x.route, pins.expert_chunks = x.chunks, pins.expert_replicas = x.replicas, pins.placement = x.placement;
  pins.capacity_factor = x.capacity_factor, pins.overflow = x.overflow, pins.pad = x.pad;
  pins.stage_layers = plan.stage_layers;
  return pins;
}

bool another_plan(const Plan& a, const Plan& b) { return a != b; }
bool other_cuts(const Plan& a, const Plan& b) { return a.parallelism.tp != b.parallelism.tp || a.parallelism.cp != b.parallelism.cp; }

/// The best plan with all pins but those that `loosen` frees, if one fits that differs from `plan` as `differs` says.
std::optional<RankedPlan> best_with(const Problem& problem, const Plan& plan, const SearchedSpace& space, int threads, const std::function<void(Pins&)>& loosen, bool (*differs)(const Plan&, const Plan&)) {
  SearchOptions options = search_of(space);
  options.pins = pinned_to(plan);
  options.top = differs == another_plan ? 2 : 32;   // layouts of the plan's own cuts may fill the first places
  options.threads = threads;
  loosen(options.pins);
  try {
    for (RankedPlan& each : moeplan::plan(problem, options).plans)
      if (differs(each.plan, plan)) return std::move(each);
  } catch (const InputError&) {
    // No other layout passes the rules: there is no such neighbour.
  }
  return std::nullopt;
}

std::vector<Neighbour> neighbours(const Problem& problem, const Plan& plan, const SearchedSpace& space, int threads) {
  std::vector<Neighbour> out;
  const auto try_one = [&](const std::function<void(Pins&)>& loosen, const std::function<std::string(const Plan&)>& change, bool (*differs)(const Plan&, const Plan&) = another_plan) {
    if (auto found = best_with(problem, plan, space, threads, loosen, differs)) out.push_back({change(found->plan), found->forecast});
  };
  try_one([](Pins& p) { p.micro_batch.reset(); }, [](const Plan& p) { return fmt::format("micro-batch {}", p.micro_batch); });
  try_one([](Pins& p) { p.recompute.reset(); }, [](const Plan& p) { return fmt::format("recompute {}", name_of(p.recompute)); });
  try_one([](Pins& p) { p.frozen_storage.reset(); }, [](const Plan& p) { return fmt::format("frozen weights as {}", name_of(p.frozen_storage)); });
  try_one([](Pins& p) { p.reshard_after_forward.reset(); },
          [](const Plan& p) { return std::string(p.reshard_after_forward ? "weights gathered again for backward" : "gathered weights kept for backward"); });
  try_one([](Pins& p) { p.ep.reset(), p.expert_shard.reset(); },
          [](const Plan& p) { return fmt::format("expert parallel {}, experts sharded over {}", p.parallelism.ep, p.parallelism.expert_shard); });
  try_one([](Pins& p) { p.tp.reset(), p.cp.reset(), p.dp_shard.reset(), p.dp_replicate.reset(), p.context_exchange.reset(), p.state_passing.reset(); },
          [](const Plan& p) { return fmt::format("tensor ranks {}, context ranks {}", p.parallelism.tp, p.parallelism.cp); }, other_cuts);
  try_one([](Pins& p) { p.pp.reset(), p.stage_layers.clear(), p.dp_shard.reset(), p.dp_replicate.reset(), p.expert_shard.reset(); },
          [](const Plan& p) { return "layout " + layout_text(p.parallelism); });
  const auto ways = [](const Plan& p) {
    const std::string words = order_text(p);
    return words.empty() ? std::string("1f1b, equal stages, experts in order") : words.substr(2);
  };
  if (space.wide) {
    try_one([](Pins& p) { p.schedule.reset(), p.virtual_stages.reset(), p.stage_layers.clear(); }, [&](const Plan& p) { return "order and split of stages: " + ways(p); });
    try_one([](Pins& p) { p.placement.reset(), p.expert_replicas.reset(); }, [&](const Plan& p) { return "placement of experts: " + ways(p); });
    try_one([](Pins& p) { p.expert_chunks.reset(), p.route.reset(); }, [&](const Plan& p) { return "pieces and route: " + ways(p); });
  }
  if (space.offload) try_one([](Pins& p) { p.offload.reset(); }, [](const Plan& p) { return fmt::format("to host memory: {}", name_of(p.offload)); });
  if (space.dispatch) try_one([](Pins& p) { p.dispatch.reset(); }, [](const Plan& p) { return fmt::format("dispatch as {}", name_of(p.experts.dispatch)); });
  if (space.capacity || space.overflow) try_one([](Pins& p) { p.capacity_factor.reset(), p.overflow.reset(); }, [&](const Plan& p) { return "capacity: " + (p.experts.capacity_factor ? ways(p) : std::string("none")); });
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.forecast.tokens_per_second > b.forecast.tokens_per_second; });
  return out;
}

/// What decides between this plan and others.
struct Choice {
  std::optional<RankedPlan> better;         ///< of the better plans the one that differs least
  std::vector<Threshold> thresholds;
  std::optional<MoreMemory> memory;
  SearchedSpace space;                      ///< in which was looked
  std::int64_t searched = 0;                ///< plans of it
};

Choice choice(const Context& context, const LoadedPlan& loaded, const Forecast& f, const SearchedSpace& space) {
  Choice out;
  out.space = space;
  SearchOptions options = search_of(space);
  options.top = 4;
  options.threads = context.threads;
  options.progress = context.show_progress;
  std::vector<Plan> others;
  try {
    const Answer answer = moeplan::plan(loaded.problem, options);
    out.searched = answer.searched;
    int nearest = std::numeric_limits<int>::max();
    for (const RankedPlan& r : answer.plans) {
      if (r.plan == loaded.plan) continue;
      if (others.size() < 3) others.push_back(r.plan);
      const bool wins = r.forecast.tokens_per_second_interval.low > 1.005 * f.tokens_per_second_interval.low;
      if (const int d = distance(r.plan, loaded.plan); wins && d < nearest) nearest = d, out.better = r;
    }
    out.memory = more_memory(loaded.problem, f, options);
  } catch (const InputError&) {
    // A pinned batch that no searched layout divides: there is nothing to compare with.
  }
  out.thresholds = thresholds(loaded.problem, loaded.plan, others, context.threads);
  return out;
}

std::string plan_words(const Plan& p) {
  return fmt::format("{}{}; micro-batch {}; recompute {}; frozen as {}{}", layout_text(p.parallelism), order_text(p), p.micro_batch, name_of(p.recompute), name_of(p.frozen_storage),
                     p.reshard_after_forward ? "" : "; gathered weights kept");
}

std::string choice_text(const Context& context, const Problem& problem, const Choice& c) {
  std::string out = heading(context, "how sure the choice is") + "\n";
  if (c.better)
    out += wrapped(fmt::format("  Nearest better plan: {} ({:.0f} tokens/s, peak {}).", plan_words(c.better->plan), c.better->forecast.tokens_per_second, human(c.better->forecast.memory_p95.peak())), kWidth, 2) + "\n";
  else out += "  No plan that was searched is better.\n";
  out += wrapped(fmt::format("  Compared with the {} plans of the {} search{}.", grouped(c.searched), c.space.wide ? "wide" : "narrow", c.space.wide ? "" : " (plan with --search wide to compare with all orders, splits and placements)"), kWidth, 2) + "\n";
  for (const Threshold& t : c.thresholds)
    out += wrapped(fmt::format("  With {} x {:.2f} another plan wins: {} ({:+.1f} % at x {:.2f}).", printable(t.number), t.factor, plan_words(t.plan), 100 * t.gain, t.factor * t.factor), kWidth, 2) + "\n";
  if (c.thresholds.empty()) out += "  No rate of the device or its links within a factor of 4 lets one of the next three plans win.\n";
  if (c.memory)
    out += wrapped(fmt::format("  With {} a device instead of {} there is a plan {:.1f} % faster: {}.", human(c.memory->plan.forecast.memory_p95.peak()), human(problem.cluster.device.memory), 100 * c.memory->faster,
                               plan_words(c.memory->plan.plan)), kWidth, 2) + "\n";
  return out;
}

Json choice_json(const Choice& c) {
  Json list = Json::array();
  for (const Threshold& t : c.thresholds) list.push_back({{"number", t.number}, {"factor", t.factor}, {"plan", to_json(t.plan)}, {"gain", t.gain}});
  return {{"search", to_json(c.space)}, {"searched", c.searched}, {"nearest_better", c.better ? plan_json(*c.better) : Json(nullptr)}, {"thresholds", std::move(list)},
          {"more_memory", c.memory ? Json{{"faster", c.memory->faster}, {"plan", plan_json(c.memory->plan)}} : Json(nullptr)}};
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

/// How far tokens travel to their experts, and what another placement would make of that.
std::string reach_text(const ExchangeReach& r) {
  const std::string tier = printable(r.tier);
  if (!r.once)
    return fmt::format("Expert exchange: a token's {:g} experts lie on {:.2f} of {:g} domains joined by {}; this runtime sends one copy for each expert, {:.2f} of them over it, wherever experts lie.", r.top_k, r.distinct, r.domains, tier, r.copies);
  std::string out = fmt::format("Expert exchange: a token's {:g} experts lie on {:.2f} of {:g} domains joined by {}; it travels once to each{}: {:.2f} copies over it", r.top_k, r.distinct, r.domains, tier, r.direct ? " rank that holds one" : "", r.copies);
  if (std::abs(r.copies_by_load - r.copies_in_order) > 0.005) out += fmt::format(" ({:.2f} with experts in their order, {:.2f} placed by load over all ranks)", r.copies_in_order, r.copies_by_load);
  return out + ".";
}

Json reach_json(const std::optional<ExchangeReach>& r) {
  if (!r) return nullptr;
  return {{"tier", r->tier}, {"top_k", r->top_k}, {"domains", r->domains}, {"distinct_domains", r->distinct}, {"once_to_each", r->once},
          {"copies", r->copies}, {"copies_in_order", r->copies_in_order}, {"copies_by_load", r->copies_by_load}};
}

Json explained_json(const LoadedPlan& loaded, const Forecast& f, const std::vector<Neighbour>& near, const Simulation& s, const Choice& sure) {
  Json changes = Json::array();
  for (const Neighbour& n : near)
    changes.push_back({{"change", n.change}, {"tokens_per_second", n.forecast.tokens_per_second}, {"step_seconds", n.forecast.step.value},
                       {"peak_memory_bytes_p95", n.forecast.memory_p95.peak().value}, {"faster", n.forecast.tokens_per_second / f.tokens_per_second - 1}});
  Json idle = Json::array();
  for (std::size_t r = 0; r < s.idle.size(); ++r)
    idle.push_back({{"stage", s.job.ranks[r].stage}, {"busy_seconds", to_seconds(s.idle[r].busy).value}, {"bubble_seconds", to_seconds(s.idle[r].bubble).value}, {"waiting_seconds", times_json(s.idle[r].waiting)}});
  const std::optional<double> clock = prices_of(loaded.problem, loaded.plan).clock();
  return Json{{"problem", problem_json(loaded.problem, {&loaded.plan, 1})}, {"plan", plan_json({loaded.plan, f})}, {"binding", binding(loaded.problem, f)}, {"changes", std::move(changes)}, {"exchange", reach_json(exchange_reach(loaded.problem, loaded.plan))},
              {"simulated_step_seconds", to_seconds(s.played.step).value}, {"critical_path", times_json(s.critical.time)}, {"idle", std::move(idle)}, {"choice", choice_json(sure)}, {"clock_mhz", clock ? Json(*clock) : Json(nullptr)}};
}

Output run(const Context& context, const std::string& file) {
  const Json json = load_json(file);
  const LoadedPlan loaded = read_plan_file(json, file);
  const SearchedSpace space = read_searched_space(json, file);
  const Forecast f = forecast(loaded.problem, loaded.plan);
  const std::vector<Neighbour> near = neighbours(loaded.problem, loaded.plan, space, context.threads);
  const Simulation s = simulate(loaded.problem, loaded.plan);
  const Choice sure = choice(context, loaded, f, space);
  if (context.json) return {explained_json(loaded, f, near, s, sure).dump(2) + "\n", {}, 0};
  const Plan& p = loaded.plan;
  std::string out = problem_text(loaded.problem) + clock_text(loaded.problem, loaded.plan);
  out += fmt::format("plan: {}; micro-batch {} x {}; recompute {}; frozen weights as {}{}; {} tokens/s, MFU {}\n\n", layout_text(p.parallelism), p.micro_batch, p.micro_batches,
                     name_of(p.recompute), name_of(p.frozen_storage), schedule_text(p), short_count(f.tokens_per_second), percent(f.mfu));
  out += breakdown_text(context, loaded.problem, loaded.plan, f);
  out += critical_path_text(context, s) + "\n" + idle_text(context, s, {}) + "\n";
  out += wrapped("What binds: " + binding(loaded.problem, f) + ".", kWidth, 2) + "\n";
  if (const auto reach = exchange_reach(loaded.problem, loaded.plan)) out += wrapped(reach_text(*reach), kWidth, 2) + "\n";
  out += "\n";
  std::vector<std::vector<std::string>> rows;
  for (const Neighbour& n : near)
    rows.push_back({fmt::format("{:+.1f} %", 100 * (n.forecast.tokens_per_second / f.tokens_per_second - 1)), human(n.forecast.memory_p95.peak()), n.change});
  out += choice_text(context, loaded.problem, sure) + "\n";
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
