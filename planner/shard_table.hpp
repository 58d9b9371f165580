#pragma once
/// What data sharding costs the weights of a model, per layer kind: states, gathered copies, gathers and reductions. Dense weights depend
/// on (stages, shard degree) and routed experts on (stages, expert shard degree) alone, so a layout's figures are one entry of each.

#include "planner/splits.hpp"

namespace moeplan {

/// One half (dense or expert) of a layout's sharding.
struct ShardEntry {
  int shard = 1;                           ///< dp_shard, or expert_shard
  bool gathers = false;                    ///< weights are cut over more than one rank
  std::vector<Four> gather, reduce;        ///< seconds per kind and pass
  std::vector<std::int64_t> host_fetch;    ///< bytes per kind and pass that come from the host, in one copy with the other half's
  std::vector<Four> once_gather, once_reduce;   ///< seconds per kind that cross the network once a step instead
  std::vector<Four> stage_gather, stage_reduce; ///< their sums per stage
  std::vector<std::int64_t> gathered;      ///< bytes per kind while it runs
  std::vector<std::int64_t> stage_states;  ///< bytes per stage that stay
  std::vector<std::int64_t> stage_host;    ///< bytes per stage that stay in host memory
  std::vector<std::int64_t> stage_host_optimizer;  ///< of them, what the optimizer streams through the device
  std::vector<std::int64_t> stage_trained; ///< elements per stage that the optimizer updates
  std::vector<double> stage_orthogonal;            ///< flops of Muon's steps on them
};

/// Layouts of one number of stages.
struct ShardStages {
  int pp = 1;
  int stage_ranks = 1, dp = 1, expert_data = 1;
  StageSplit split;
  std::vector<ShardEntry> dense, expert;
  /// Optimizer seconds, dense x expert: the slowest stage's, and those of each.
  std::vector<Four> optimizer;
  std::vector<std::vector<Four>> stage_optimizer;
};

struct ShardTable {
  std::vector<ShardStages> stages;
};

/// Stages hold what `block.stage_layers` says where it fits their number, else equal parts. All of `layouts` share tensor, context, expert and expert-tensor degrees and the storage of `block`; the evaluator must be prepared for it.
[[nodiscard]] ShardTable shard_table(const Evaluator::Shared& shared, const Plan& block, const std::vector<Parallelism>& layouts);

}  // namespace moeplan
