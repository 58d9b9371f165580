#pragma once
/// One rank of a plan, alone (executor/slice): the rows that reach its experts, drawn from the problem's load model,
/// and what the cost model says of its computing and of the communication that is not there. docs/executor.md, "One
/// rank of many".

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/spec/plan.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

struct SliceDraw {
  /// By decoder layer and micro-batch: rows of each of the rank's experts, over all ranks of its expert group.
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int64_t>> rows;
  /// Same keys: rows of the group's busiest rank over the mean, which paces an exchange.
  std::map<std::pair<std::int32_t, std::int32_t>, double> busiest;
  double mean = 1, most = 1;  ///< rows of this rank over the balanced share: over all, and where they are most
};

/// Each layer's shares are those of the load model; each micro-batch realises its own around them (docs/load.md), a
/// trace and a uniform load are taken as they are. Rows of all experts sum to the group's tokens times top-k. Empty at
/// ep = 1. Throws InputError for a rank outside the plan and a load that does not fit the model.
[[nodiscard]] SliceDraw draw_slice(const Problem& problem, const Plan& plan, int rank);

struct SliceForecast {
  Seconds compute{}, low{}, high{};          ///< of a step: passes, repeated ones, optimizer; central 90 %
  Seconds communication{};                   ///< charged: each call alone on its links, nothing hidden
  std::map<std::string, Seconds> operators;  ///< "linear backward": of a step; views take none
  std::array<double, 3> basis{};             ///< share of `compute` by what it rests on
  std::optional<double> clock;               ///< MHz that the device holds while it computes, where its power is known
};

/// Prices the rank's program call by call, experts at the rows drawn, at the clock that just these calls hold with the copies that stand for communication between them. They took `copies`;
/// nothing: as long as memory's achieved rate allows.
[[nodiscard]] SliceForecast slice_forecast(const Problem& problem, const Plan& plan, int rank, const SliceDraw& draw, std::optional<Seconds> copies = {});

}  // namespace moeplan
