#pragma once
/// What the user said on the Problem page: names and overriding numbers, pinned degrees, what-if factors. A value: undo, project
/// files, "copy as CLI command" and the planner's request are all made from it.

#include <optional>
#include <string>
#include <vector>

#include "core/spec/workload.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"

namespace moeplan::gui {

/// Factors on the inputs. 1 (or nothing) leaves them as they are.
struct WhatIf {
  double imbalance = 1;                  ///< spread of the expert load (sigma, exponent); 0 is balanced
  double bandwidth = 1;                  ///< of every link
  std::optional<double> price;           ///< dollars per device-hour, instead of the cluster's
  bool operator==(const WhatIf&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("imbalance", &WhatIf::imbalance).between(0, 4), field("bandwidth", &WhatIf::bandwidth).between(0.01, 100),
                           field("price", &WhatIf::price, "dollars per device-hour").above(0).at_most(1e6));
  }
};

struct Draft {
  std::string model = "kimi-k3";
  std::optional<std::string> cluster = "128xh200", device;
  std::optional<std::int64_t> gpus;
  std::string workload = "lora-sft", load = "log-normal-v3", runtime = "moeplan";
  std::optional<std::string> profile;
  std::optional<std::int64_t> sequence_length, global_batch, rank;
  std::optional<double> tokens;
  std::optional<Training> method;
  std::vector<std::string> targets;
  std::optional<OptimizerKind> optimizer;
  std::optional<DType> frozen_storage;
  std::optional<int> pp, tp, cp, ep, etp, dp_replicate, dp_shard, expert_shard, virtual_stages;
  std::optional<std::int64_t> micro_batch, expert_chunks, expert_replicas;
  std::optional<Recompute> recompute;
  std::optional<Schedule> schedule;
  std::string offload;                   ///< empty or "none", "auto" (searched), or what lives on the host
  std::optional<ContextExchange> context_exchange;
  std::optional<StatePassing> state_passing;
  std::optional<DType> dispatch;
  std::optional<DispatchRoute> route;
  std::optional<double> capacity_factor;
  std::optional<Overflow> overflow;
  std::optional<ExpertPlacement> placement;
  WhatIf what_if;
  bool operator==(const Draft&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("model", &Draft::model).required(), field("cluster", &Draft::cluster), field("device", &Draft::device), field("gpus", &Draft::gpus).between(1, 1 << 20),
        field("workload", &Draft::workload), field("load", &Draft::load), field("runtime", &Draft::runtime), field("profile", &Draft::profile),
        field("sequence_length", &Draft::sequence_length).between(1, 1 << 24), field("global_batch", &Draft::global_batch).between(1, 1 << 24), field("rank", &Draft::rank).between(1, 1 << 24),
        field("tokens", &Draft::tokens).above(0), field("method", &Draft::method), field("targets", &Draft::targets), field("optimizer", &Draft::optimizer),
        field("frozen_storage", &Draft::frozen_storage), field("pp", &Draft::pp).between(1, 1 << 20), field("tp", &Draft::tp).between(1, 1 << 20), field("cp", &Draft::cp).between(1, 1 << 20),
        field("ep", &Draft::ep).between(1, 1 << 20), field("etp", &Draft::etp).between(1, 1 << 20),
        field("dp_replicate", &Draft::dp_replicate).between(1, 1 << 20), field("dp_shard", &Draft::dp_shard).between(1, 1 << 20), field("expert_shard", &Draft::expert_shard).between(1, 1 << 20),
        field("micro_batch", &Draft::micro_batch).between(1, 1 << 24), field("recompute", &Draft::recompute), field("schedule", &Draft::schedule),
        field("virtual_stages", &Draft::virtual_stages).between(1, 128), field("expert_chunks", &Draft::expert_chunks).between(1, 64),
        field("offload", &Draft::offload), field("context_exchange", &Draft::context_exchange), field("state_passing", &Draft::state_passing), field("dispatch", &Draft::dispatch),
        field("route", &Draft::route), field("capacity_factor", &Draft::capacity_factor).between(1e-3, 1024), field("overflow", &Draft::overflow),
        field("expert_replicas", &Draft::expert_replicas).between(0, 1 << 20), field("placement", &Draft::placement), field("what_if", &Draft::what_if));
  }
};

[[nodiscard]] ProblemRequest request_of(const Draft& draft);
[[nodiscard]] Pins pins_of(const Draft& draft);   ///< throws InputError for an offload that is none

/// The problem that the draft means, what-if factors applied. Throws InputError, with the line that the command line would print.
[[nodiscard]] Problem problem_of(const std::filesystem::path& configs, const Draft& draft, const Problem* like = nullptr);
[[nodiscard]] Problem applied(Problem problem, const WhatIf& what_if);

/// `moeplan plan ...` for a POSIX shell; a second line names what-if factors, which have no flags.
[[nodiscard]] std::string command_of(const Draft& draft);

/// Quoted for a POSIX shell where it needs to be.
[[nodiscard]] std::string shell_quoted(const std::string& word);

}  // namespace moeplan::gui
