#pragma once
/// What data sharding costs the weights of a model, per layer kind: states, gathered copies, gathers and reductions. Dense weights depend
/// on (stages, shard degree) and routed experts on (stages, expert shard degree) alone, so a layout's figures are one entry of each.

#include <memory>

#include "planner/splits.hpp"

namespace moeplan {

/// What weights cost per kind, whatever stages hold them.
struct ShardPrices {
  std::vector<Four> gather, reduce;        ///< seconds per kind
  std::vector<std::int64_t> gathered;      ///< bytes per kind while it runs
  std::vector<std::int64_t> states, trained;   ///< per kind: bytes that stay, elements that the optimizer updates
  std::int64_t idle_states = 0, idle_trained = 0;   ///< of the first stage besides
};

/// One half (dense or expert) of a layout's sharding.
struct ShardEntry {
  int shard = 1;                           ///< dp_shard, or expert_shard
  bool gathers = false;                    ///< weights are cut over more than one rank
  std::shared_ptr<const ShardPrices> prices;   ///< shared by the splits of as many stages
  std::vector<std::int64_t> stage_states;  ///< bytes per stage that stay
  std::vector<std::int64_t> stage_trained; ///< elements per stage that the optimizer updates
};

/// Layouts of one number of stages.
struct ShardStages {
  int pp = 1;
  int stage_ranks = 1, dp = 1, expert_data = 1;
  StageSplit split;
  std::vector<ShardEntry> dense, expert;
  /// Optimizer seconds, dense x expert: the slowest stage's.
  std::vector<Four> optimizer;
};

struct ShardTable {
  std::vector<ShardStages> stages;
};

/// Stages hold what `block.stage_layers` says where it fits their number, else equal parts. All of `layouts` share tensor, context, expert and expert-tensor degrees and the storage of `block`; the evaluator must be prepared for it.
[[nodiscard]] ShardTable shard_table(const Evaluator::Shared& shared, const Plan& block, const std::vector<Parallelism>& layouts,
                                     const std::map<int, std::vector<std::vector<std::int64_t>>>& splits = {});

}  // namespace moeplan
