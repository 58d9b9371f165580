#pragma once
/// What `moeplan calibrate` reads of whole steps: the clock that a device holds and what it draws while the calls of a plan follow each other.

#include <optional>
#include <string>
#include <vector>

#include "executor/calibrate/power.hpp"
#include "planner/planner.hpp"
#include "planner/step_calls.hpp"

namespace moeplan::cli {

/// The first and the last of the plans of one model, from short steps to long ones, that are for one device, need no more than `room`, and whose steps last long enough for the meters and no
/// longer than need be: 0.12 to 1 s, as predicted.
[[nodiscard]] std::vector<LoadedPlan> chosen_mixes(const std::vector<LoadedPlan>& candidates, Bytes room);

/// Its steps on a backend of its own (executor/calibrate/mix.hpp), at the load that the routers made. Nothing where the meters said too little; throws InputError for a plan that does not
/// run here.
[[nodiscard]] std::optional<MixReading> read_mix(const std::string& backend, const PowerMeter& meter, const LoadedPlan& mix);

/// "qwen3-30b-a3b, 1 x 2048, none".
[[nodiscard]] std::string mix_name(const LoadedPlan& mix);

}  // namespace moeplan::cli
