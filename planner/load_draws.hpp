#pragma once
/// A plan under drawn expert loads: each draw gives every MoE layer of every micro-batch its own counts per expert, hence rows per
/// rank, hence the time of each pass (all ranks of a group wait for the one with the most rows) and the memory of each expert rank
/// (what it keeps follows its own rows). Step time and peak memory come out as distributions. docs/simulator.md.

#include <optional>

#include "core/spec/plan.hpp"

namespace moeplan {

/// What is tried beyond what the plan says of its experts (capacity, replicas, placement), which the draws follow.
struct LoadDrawOptions {
  std::int64_t draws = 16;
  bool balanced = false;                    ///< experts placed by EPLB on their planned loads, not contiguously
  std::int64_t extra_slots = 0;             ///< replicas per layer beyond the plan's, over the whole expert group
  std::optional<LoadModel> placed_on = {};       ///< the load that the placement was made for; none: the load that is served
  std::optional<double> capacity_factor = {};    ///< Megatron's capacity per source rank; none: the plan's, or dropless
};

struct LoadDraws {
  std::int64_t seed = 0, draws = 0;
  std::string load, placed_on;              ///< names of the load that is served and of the one that experts were placed for
  std::int64_t micro_batches_drawn = 0;     ///< distinct ones per draw; a longer step repeats them
  std::vector<double> step;                 ///< seconds, ascending
  std::vector<double> peak;                 ///< bytes of the fullest rank, allocator's reserve included, ascending
  double out_of_memory = 0;                 ///< share of draws whose peak exceeds the device
  ExpertExchange served;                    ///< what was drawn: the plan's exchange with the options in it
  double dropped = 0;                       ///< share of routed copies beyond the capacity
  double busiest = 1;                       ///< mean over draws, layers and micro-batches of the busiest rank's rows over the mean
  Bytes replicas{};                         ///< of extra slots, per rank of the fullest stage, in `peak`
  [[nodiscard]] double step_at(double quantile) const;
  [[nodiscard]] double peak_at(double quantile) const;
};

/// Links uncontended. Same numbers on any number of threads. Throws InputError for a load that does not fit the model, for slots that
/// do not spread evenly over the expert ranks, for draws below 1.
[[nodiscard]] LoadDraws draw_load(const Problem& problem, const Plan& plan, const LoadDrawOptions& options);

}  // namespace moeplan
