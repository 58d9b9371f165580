#include "gui/models/draft.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"

namespace moeplan::gui {

ProblemRequest request_of(const Draft& d) {
  return {.model = d.model, .cluster = d.cluster, .device = d.device, .gpus = d.gpus, .workload = d.workload, .load = d.load, .runtime = d.runtime, .profile = d.profile,
          .sequence_length = d.sequence_length, .global_batch = d.global_batch, .rank = d.rank, .tokens = d.tokens, .method = d.method, .targets = d.targets,
          .optimizer = d.optimizer, .frozen_storage = d.frozen_storage};
}

Pins pins_of(const Draft& d) {
  Pins pins;
  pins.pp = d.pp, pins.tp = d.tp, pins.ep = d.ep, pins.dp_replicate = d.dp_replicate, pins.dp_shard = d.dp_shard, pins.expert_shard = d.expert_shard;
  pins.cp = d.cp, pins.etp = d.etp;
  pins.context_exchange = d.context_exchange, pins.state_passing = d.state_passing;
  pins.dispatch = d.dispatch, pins.route = d.route, pins.capacity_factor = d.capacity_factor, pins.overflow = d.overflow;
  pins.expert_replicas = d.expert_replicas, pins.placement = d.placement;
  // As the command line: nothing on the host unless asked for.
  if (d.offload != "auto") {
    pins.offload = Offload::none;
    bool known = d.offload.empty();
    for (const auto& [value, name] : EnumNames<Offload>::names)
      if (d.offload == name) pins.offload = value, known = true;
    if (!known) throw InputError("--offload", "unknown value " + shown(d.offload), "none, auto, or a sum of optimizer, weights and activations");
  }
  pins.micro_batch = d.micro_batch;
  pins.schedule = d.schedule, pins.virtual_stages = d.virtual_stages, pins.expert_chunks = d.expert_chunks;
  pins.recompute = d.recompute;
  return pins;
}

Problem applied(Problem problem, const WhatIf& what_if) {
  for (LinkTier& tier : problem.cluster.tiers) tier.bandwidth.value *= what_if.bandwidth;
  if (what_if.price) {
    problem.cluster.price = DollarsPerHour{*what_if.price};
    problem.cluster.price_source = "what-if";
  }
  if (what_if.imbalance == 1) return problem;
  std::visit([&]<class T>(T& load) {
    const double f = what_if.imbalance;
    if constexpr (std::is_same_v<T, ZipfLoad>) load.exponent = std::min(8.0, load.exponent * f);
    if constexpr (std::is_same_v<T, LogNormalLoad>) load.expert_sigma = std::min(4.0, load.expert_sigma * f), load.group_sigma = std::min(4.0, load.group_sigma * f);
    // The spread of Dirichlet shares goes with 1 / sqrt(alpha).
    if constexpr (std::is_same_v<T, DirichletLoad>) load.alpha = std::min(1e9, load.alpha / std::max(1e-6, f * f));
    if constexpr (std::is_same_v<T, TraceLoad>)
      for (auto& row : load.counts) {
        double mean = 0;
        for (const double c : row) mean += c / static_cast<double>(row.size());
        if (mean > 0)
          for (double& c : row) c = c > 0 || f == 0 ? mean * std::pow(c / mean, f) : 0;
      }
  }, problem.load.distribution);
  problem.load.name += fmt::format(" (spread x {:g})", what_if.imbalance);
  return problem;
}

Problem problem_of(const std::filesystem::path& configs, const Draft& draft, const Problem* like) {
  Problem problem = make_problem(configs, request_of(draft), like);
  check_micro_batch(problem, draft.micro_batch.value_or(1), "--micro-batch");
  return applied(std::move(problem), draft.what_if);
}

std::string shell_quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) || std::string_view("-_./,=+:@%").find(static_cast<char>(c)) != std::string_view::npos; });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string command_of(const Draft& d) {
  std::string out = "moeplan plan " + shell_quoted(d.model);
  const auto text = [&](const char* flag, const std::string& value) { out += fmt::format(" --{} {}", flag, shell_quoted(value)); };
  const auto number = [&](const char* flag, const auto& value) {
    if (value) out += fmt::format(" --{} {}", flag, *value);
  };
  const auto word = [&](const char* flag, const auto& value) {
    if (value) out += fmt::format(" --{} {}", flag, name_of(*value));
  };
  const Draft none;
  if (d.cluster) text("cluster", *d.cluster);
  if (d.device) text("device", *d.device);
  number("gpus", d.gpus);
  if (d.workload != none.workload) text("workload", d.workload);
  if (d.load != none.load) text("load", d.load);
  if (d.runtime != none.runtime) text("runtime", d.runtime);
  if (d.profile) text("profile", *d.profile);
  number("seq", d.sequence_length);
  number("global-batch", d.global_batch);
  number("tokens", d.tokens);
  word("method", d.method);
  number("rank", d.rank);
  if (!d.targets.empty()) text("targets", fmt::format("{}", fmt::join(d.targets, ",")));
  word("optimizer", d.optimizer);
  word("frozen-storage", d.frozen_storage);
  number("pp", d.pp);
  number("tp", d.tp);
  number("cp", d.cp);
  number("ep", d.ep);
  number("etp", d.etp);
  number("dp-replicate", d.dp_replicate);
  number("dp-shard", d.dp_shard);
  number("expert-shard", d.expert_shard);
  number("micro-batch", d.micro_batch);
  word("recompute", d.recompute);
  word("schedule", d.schedule);
  number("virtual-stages", d.virtual_stages);
  number("expert-chunks", d.expert_chunks);
  if (!d.offload.empty()) text("offload", d.offload);
  word("context-exchange", d.context_exchange);
  word("state-passing", d.state_passing);
  word("dispatch", d.dispatch);
  word("dispatch-route", d.route);
  number("capacity-factor", d.capacity_factor);
  word("overflow", d.overflow);
  number("expert-replicas", d.expert_replicas);
  word("expert-placement", d.placement);
  if (d.what_if != WhatIf{})
    out += fmt::format("\n# what-if, not a flag: imbalance x {:g}, bandwidth x {:g}{}", d.what_if.imbalance, d.what_if.bandwidth,
                       d.what_if.price ? fmt::format(", ${:g} per device-hour", *d.what_if.price) : "");
  return out;
}

}  // namespace moeplan::gui
