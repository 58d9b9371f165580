#pragma once
/// What data sharding costs the weights of a model, per layer kind: states, gathered copies, gathers and reductions. Dense weights depend
/// on (stages, shard degree) and routed experts on (stages, expert shard degree) alone, so a layout's figures are one entry of each;
/// what a kind costs does not depend on which stage holds it, so all splits over as many stages share it.

#include <map>
#include <memory>

#include "planner/splits.hpp"

namespace moeplan {

/// One half (dense or expert) of a layout's sharding, per kind.
struct ShardPrices {
  std::vector<Four> gather, reduce;             ///< seconds a pass
  std::vector<Four> once_gather, once_reduce;   ///< seconds that cross the network once a step instead
  std::vector<Four> once_gather_lends, once_reduce_lends;   ///< the same times the share of the multiprocessors that each call holds
  std::vector<Transfer> gathers;                ///< of `gather` and `reduce` at the median, with their bytes
  std::vector<std::array<Transfer, 3>> reductions;
  std::vector<std::int64_t> host_fetch;         ///< bytes a pass that come from the host, in one copy with the other half's
  std::vector<std::int64_t> gathered;           ///< bytes while it runs
  std::vector<std::int64_t> staged;             ///< of the buffer that its gradients pass through
  std::vector<bool> reduces;                    ///< something is summed over ranks
  std::vector<std::int64_t> states, host, host_optimizer, trained;   ///< bytes that stay, in host memory, of them what the optimizer streams; elements
  std::vector<double> orthogonal;               ///< flops of Muon's steps
  /// Of what the first stage holds besides.
  std::int64_t idle_states = 0, idle_host = 0, idle_host_optimizer = 0, idle_trained = 0;
};

struct ShardEntry {
  int shard = 1;                           ///< dp_shard, or expert_shard
  bool gathers = false;                    ///< weights are cut over more than one rank, or come from the host
  std::shared_ptr<const ShardPrices> prices;
  std::vector<Four> stage_gather, stage_reduce, stage_gather_lends, stage_reduce_lends; ///< sums per stage of what crosses once a step
  std::vector<std::int64_t> stage_states;  ///< bytes per stage that stay
  std::vector<std::int64_t> stage_staged;  ///< and of the buffer that gradients pass through
  std::vector<std::int64_t> stage_host;    ///< bytes per stage that stay in host memory
  std::vector<std::int64_t> stage_host_optimizer;  ///< of them, what the optimizer streams through the device
  std::vector<std::int64_t> stage_trained; ///< elements per stage that the optimizer updates
  std::vector<double> stage_orthogonal;            ///< flops of Muon's steps on them
};

/// Layers of each virtual stage, in model order.
struct VirtualSplit {
  int virtual_stages = 1;
  std::vector<std::int64_t> layers;
  bool operator==(const VirtualSplit&) const = default;
};
/// The splits that are looked at, by number of stages.
using Splits = std::map<int, std::vector<VirtualSplit>>;

/// Layouts of one split.
struct ShardStages {
  int pp = 1;
  int stage_ranks = 1, dp = 1, expert_data = 1;
  int virtual_stages = 1;
  StageSplit split;                        ///< without stages where a stage would hold no layer
  std::vector<ShardEntry> dense, expert;
  /// Optimizer seconds, dense x expert: the slowest stage's, and those of each. Empty where several splits share their stages:
  /// most of those are decided without them.
  std::vector<Four> optimizer;
  std::vector<std::vector<Four>> stage_optimizer;
};

struct ShardTable {
  std::vector<ShardStages> stages;         ///< those of equal pp follow each other
  std::vector<std::size_t> weight_of;      ///< per kind: kinds whose weights cost the same under every sharding of the table share a number
};

/// Optimizer seconds of a rank's trained elements, remembered.
class OptimizerPrices {
 public:
  explicit OptimizerPrices(const Evaluator::Shared& shared) : shared_(shared) {}
  /// Per stage.
  [[nodiscard]] std::vector<Four> of(const ShardEntry& dense, const ShardEntry& expert);

 private:
  const Evaluator::Shared& shared_;
  std::map<std::tuple<std::int64_t, double, std::int64_t>, Four> known_;   ///< by elements, flops and bytes in host memory
};

/// Stages hold what `splits` or `block.stage_layers` say where they fit their number, else equal parts. All of `layouts` share tensor, context, expert and
/// expert-tensor degrees and the storage of `block`; the evaluator must be prepared for it.
[[nodiscard]] ShardTable shard_table(const Evaluator::Shared& shared, const Plan& block, const std::vector<Parallelism>& layouts, const Splits& splits = {});

}  // namespace moeplan
