#include "cli/load_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/forecast_text.hpp"
#include "cli/table.hpp"
#include "core/configs.hpp"
#include "core/error.hpp"

namespace moeplan::cli {

void add_load_options(CLI::App& app, LoadOptions& options) {
  const char* const group = "Expert loads drawn over the step";
  app.add_option("--draws", options.draws, "steps drawn (default 16; 0: none)")->check(CLI::Range(0, 10000))->group(group);
  app.add_option("--seed", options.seed, "instead of the load model's")->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 53))->group(group);
  app.add_option("--placement", options.placement, "experts: contiguous or balanced (EPLB)")->check(CLI::IsMember({"contiguous", "balanced"}))->group(group);
  app.add_option("--replicas", options.replicas, "extra expert slots per layer over the expert group, with --placement balanced")->check(CLI::Range(0, 65536))->group(group);
  const auto drift = app.add_option("--served", options.served, "drift: the load that comes, experts placed for the plan's own")->group(group);
  app.add_option("--placed-on", options.placed_on, "drift the other way: the load that experts were placed for, the plan's own comes")->group(group)->excludes(drift);
  app.add_option("--capacity-factor", options.capacity_factor, "drop what exceeds this many times the mean per expert and source (default: dropless)")->check(CLI::Range(0.01, 1000.0))->group(group);
}

std::optional<LoadDraws> drawn_loads(const Context& context, Problem& problem, const Plan& plan, const LoadOptions& options) {
  if (options.seed) problem.load.seed = *options.seed;
  const bool routes = std::any_of(problem.model.layers.begin(), problem.model.layers.end(), [](const LayerSpec& layer) {
    return std::any_of(layer.sublayers.begin(), layer.sublayers.end(), [](const Sublayer& s) { return std::holds_alternative<MoeFfn>(s.mixer); });
  });
  if (options.draws == 0 || !routes) return std::nullopt;
  LoadDrawOptions draw{.draws = options.draws, .balanced = options.placement == "balanced", .extra_slots = options.replicas, .placed_on = {}, .capacity_factor = options.capacity_factor};
  const bool placed = draw.balanced || plan.experts.placement != ExpertPlacement::contiguous;
  for (const auto& [flag, name] : {std::pair{"--placed-on", &options.placed_on}, std::pair{"--served", &options.served}})
    if (!name->empty() && !placed) throw InputError(flag, "experts lie in their order, whatever the load", "add --placement balanced, or plan with --expert-placement balanced");
  if (!options.placed_on.empty()) draw.placed_on = load_load(context.configs, options.placed_on);
  if (options.served.empty()) return draw_load(problem, plan, draw);
  Problem there = problem;
  there.load = load_load(context.configs, options.served);
  if (options.seed) there.load.seed = *options.seed;
  draw.placed_on = problem.load;
  return draw_load(there, plan, draw);
}

Json load_json_report(const LoadDraws& d) {
  return {{"seed", d.seed}, {"draws", d.draws}, {"load", d.load}, {"placed_on", d.placed_on}, {"micro_batches_drawn", d.micro_batches_drawn}, {"placement", name_of(d.served.placement)}, {"replicas", d.served.replicas},
          {"step_seconds_p50", d.step_at(0.5)}, {"step_seconds_p95", d.step_at(0.95)}, {"peak_memory_bytes_p50", static_cast<std::int64_t>(d.peak_at(0.5))},
          {"peak_memory_bytes_p95", static_cast<std::int64_t>(d.peak_at(0.95))}, {"out_of_memory", d.out_of_memory}, {"dropped", d.dropped}, {"busiest_rank", d.busiest},
          {"replica_bytes", d.replicas.value}, {"step_seconds", d.step}, {"peak_memory_bytes", d.peak}};
}

std::string load_text(const Context& context, const Problem& problem, const LoadDraws& d) {
  const auto bytes = [](double b) { return human(Bytes{static_cast<std::int64_t>(b)}); };
  std::string out = heading(context, fmt::format("expert load {}, {} draws, seed {}; experts {}{}{}", printable(d.load), d.draws, d.seed, name_of(d.served.placement),
                                                 d.served.replicas > 0 ? fmt::format(" with {} more slots a layer", d.served.replicas) : std::string(),
                                                 d.placed_on != d.load ? ", placed for " + printable(d.placed_on) : std::string())) + "\n";
  out += fmt::format("  step        P50 {}, P95 {}; the busiest rank has {:.2f} times the mean\n", duration({d.step_at(0.5)}), duration({d.step_at(0.95)}), d.busiest);
  out += fmt::format("  peak memory P50 {}, P95 {} of {}; out of memory in {} of the draws\n", bytes(d.peak_at(0.5)), bytes(d.peak_at(0.95)), human(problem.cluster.device.memory), percent(d.out_of_memory));
  if (d.served.capacity_factor) out += fmt::format("  dropped     {} of the routed tokens at capacity factor {}\n", percent(d.dropped), *d.served.capacity_factor);
  if (d.micro_batches_drawn > 1) out += fmt::format("  ({} distinct micro-batches a draw, links uncontended)\n", d.micro_batches_drawn);
  return out;
}

}  // namespace moeplan::cli
