#pragma once
/// What the load model means for one expert degree: rows that reach the hottest rank over the balanced share.

#include "core/spec/plan.hpp"

namespace moeplan {

struct LoadFactors {
  double mean50 = 1, mean95 = 1;     ///< mean over layers of each layer's hottest rank: what a step's time follows, every rank waiting for the hottest
  double worst50 = 1, worst95 = 1;   ///< hottest rank of the worst layer: what a reused buffer must hold
  double stage50 = 1, stage95 = 1;   ///< hottest rank summed over the layers: what is kept for backward
};

/// P50 and P95 over draws of the load, with the token noise of one micro-batch. All 1 without experts or at ep = 1.
[[nodiscard]] LoadFactors load_factors(const Problem& problem, const Plan& plan);

}  // namespace moeplan
