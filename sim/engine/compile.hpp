#pragma once
/// From lowered programs to a job. Operator calls of a pass that run back to back on the compute lane and between which nothing
/// else can start or is waited for become one step, so that a step costs one event; their names and durations stay in its detail.

#include <functional>
#include <span>

#include "core/spec/plan.hpp"
#include "sim/cost/block_time.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/engine/job.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

/// What the engine asks of the cost model.
struct Costs {
  PriceCall price;                                                   ///< operators, communication calls and host waits
  std::function<std::function<Seconds(const BlockNode&)>(const Block&)> beside = {};   ///< what a call of this block takes besides; empty: nothing
  std::function<GroupShape(Group)> shape;                            ///< size and stride of a group
  std::function<TierBytes(const CommCall&)> bytes;                   ///< traffic of a call; empty: no calls contend
  /// What a call takes from compute beside it, and keeps of its speed; empty: nothing is taken, all is kept.
  struct Taken { double multiprocessors = 0, memory = 0, beside_compute = 1; };
  std::function<Taken(const CommCall&, Seconds)> taken = {};
  std::function<double(const OpCall&, Seconds)> memory_bound = {};   ///< share of an operator's time at the memory's bandwidth; empty: 0
};

/// One rank to play. Equal ranks are folded by giving one of them with `stands_for` > 1.
struct PlayedRank {
  const Program* program = nullptr;
  const Costs* costs = nullptr;
  std::int64_t rank = 0;
  std::int64_t stands_for = 1;
  double slowdown = 1;
};

/// Programs and costs are shared by address: ranks that point to the same two are compiled once.
///
/// What waits for what, beyond the program's own edges, as FSDP2 does it (torch/distributed/fsdp/_fully_shard: root pre-forward
/// and `finalize_backward`): a gather starts no sooner than the last block and the last message listed before it have ended, which
/// bounds how far it runs ahead; when the pass of a micro-batch is over, the next one and the message to the neighbour wait for its
/// gradient reductions. The optimizer waits for every played rank, since the gradient norm is over all of them.
[[nodiscard]] Job make_job(std::span<const PlayedRank> ranks, const Parallelism& parallelism);

/// One rank per pipeline stage, the first of each.
[[nodiscard]] std::vector<PlayedRank> folded(std::span<const Program> stages, const Parallelism& parallelism, const Costs& costs);
/// Every rank of the plan.
[[nodiscard]] std::vector<PlayedRank> unfolded(std::span<const Program> stages, const Parallelism& parallelism, const Costs& costs);

/// Steps of one pass of a block. Exposed for tests.
enum class BlockPass : std::uint8_t { forward, backward, weight_backward };
[[nodiscard]] StepGraph compile_pass(Job& job, const Block& block, BlockPass pass, const Costs& costs);

/// "rms_norm forward", "dispatch", "host wait".
[[nodiscard]] std::string call_name(const BlockNode& node);

}  // namespace moeplan
