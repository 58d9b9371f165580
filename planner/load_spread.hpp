#pragma once
/// How unequal experts are under a problem's load, in a form that prices ragged products (sim/cost/price.hpp).

#include <vector>

#include "core/spec/plan.hpp"

namespace moeplan {

/// Rows of experts over their mean: at most 128 values of mean 1, ascending, each the mean of as many experts of all layers. Empty where all are
/// alike: a uniform load, a model without experts. Throws InputError for a trace that does not fit the model.
[[nodiscard]] std::vector<double> load_spread(const Problem& problem);

/// The same of what a plan's exchange leaves: a capacity cuts the tail, rerouting fills those with room, padding makes all alike, copies of hot
/// experts share their rows (then the values are those of slots).
[[nodiscard]] std::vector<double> load_spread(const Problem& problem, const ExpertExchange& exchange, const Parallelism& parallelism);

}  // namespace moeplan
