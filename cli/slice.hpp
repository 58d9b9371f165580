#pragma once
/// What is predicted of one rank run alone, for `run --rank-slice` and `compare`.

#include <optional>

#include "cli/command.hpp"
#include "executor/walk/walk.hpp"
#include "planner/planner.hpp"
#include "planner/slice.hpp"

namespace moeplan::cli {

struct SlicePrediction {
  int rank = 0;
  double routed_bound = 1;  ///< of the run's buffers: rows over the balanced share
  SliceDraw draw;
  SliceForecast time;
  MemoryBreakdown memory;  ///< communicators, which are not there, left out; their scratch in
};

/// `bound`: of the buffers, if the user gave one; otherwise what the rows drawn need. `copies`: a step's, that stood for communication, once they have run.
[[nodiscard]] SlicePrediction predict_slice(const LoadedPlan& loaded, int rank, std::optional<double> bound,
                                            const WalkOptions& options, const HeldType& held, std::optional<Seconds> copies = {});

/// As measured.json keeps it.
[[nodiscard]] Json slice_json(const SlicePrediction& slice);
/// The prediction that a measured.json was made beside, made again from the plan for a run whose copies took so long. Throws InputError.
[[nodiscard]] SlicePrediction slice_of(const Json& measured, const LoadedPlan& loaded, Seconds copies, const std::string& where);
/// Seconds of a step in copies that stood for communication. Throws InputError where the step does not say.
[[nodiscard]] double copied_seconds(const Json& step, const std::string& where);

/// Seconds of a step that this rank computed: what stands for communication is left out. Throws InputError where the
/// step's numbers do not say.
[[nodiscard]] double computing_seconds(const Json& step, const std::string& where);

/// "computing a step: ..." with the error, what was charged and what was left out.
[[nodiscard]] std::string slice_text(const SlicePrediction& slice, double computing, double copies);

}  // namespace moeplan::cli
