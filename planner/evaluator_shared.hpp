#pragma once
/// The insides of an evaluator, for those that price many candidates at once (planner/scorer.hpp).

#include <map>
#include <tuple>

#include "planner/evaluate.hpp"
#include "planner/load_factors.hpp"

namespace moeplan {

/// What decides how weights look on a rank before data sharding.
using WeightKey = std::tuple<int, int, int, DType, std::int64_t>;
[[nodiscard]] inline WeightKey weight_key(const Plan& p) { return {p.parallelism.tp, p.parallelism.ep, p.parallelism.etp, p.frozen_storage, p.experts.replicas}; }

struct Evaluator::Shared {
  const Problem& problem;
  ModelOutline outline;
  Prices prices;
  Links links;
  LoadFactors load;
  std::vector<std::size_t> kind_of;      ///< per slot of the model (embedding, layers, head): which kind it is
  std::vector<std::int32_t> example;     ///< per kind: a layer of it
  std::map<WeightKey, std::vector<Block>> weights;   ///< per kind
  std::vector<double> flops;             ///< per kind: model flops of one sequence, from the uncut program
};

}  // namespace moeplan
