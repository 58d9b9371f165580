#pragma once
/// Walks the lowered program of one rank call by call: the buffers come from the arena, the weights from the parameters, the arithmetic
/// from the backend. What is data rather than program is decided here: token counts of ragged calls, packed sequences, drops.

#include <functional>

#include "core/spec/timeline.hpp"
#include "executor/arena/arena.hpp"
#include "executor/state/parameters.hpp"
#include "executor/walk/batch.hpp"

namespace moeplan {

struct WalkOptions {
  double capacity_factor = 0;   ///< most rows of one expert over the mean, later tokens are dropped; 0: dropless
  double auxiliary = 0;         ///< weight of the routers' balancing loss
};

/// What the routers of a micro-batch did, by decoder layer.
struct RoutingReport {
  std::int32_t layer = -1;
  std::vector<std::int64_t> counts;   ///< choices of each expert
  std::int64_t dropped = 0;           ///< copies beyond the capacity
  double balance = 0;                 ///< E sum_e f_e P_e; 1 when balanced
};

/// A call that has just run, for whoever looks on.
struct CallRecord {
  const BlockNode& node;
  std::int32_t slot = -1, micro_batch = -1;
  std::span<const TensorView> operands;   ///< parallel to the contract
};

class Walk {
 public:
  using Observer = std::function<void(const CallRecord&)>;
  using Clock = std::function<void(const Instance&, const BlockNode&, double begin, double end)>;   ///< seconds since the walk began

  /// Refuses, by name, operators that the backend lacks, several ranks, and what the program does not say how to run.
  Walk(const Program& program, const Problem& problem, const Plan& plan, Parameters& parameters, Backend& backend, const WalkOptions& options);

  /// Forward and backward of one micro-batch; adds to the parameters' gradients. The loss is the mean over the micro-batch's labels; its
  /// gradients are scaled by `share`, the micro-batch's part of the step's labels. Returns the loss.
  float run(std::int32_t micro_batch, const Batch& batch, float share);
  /// Forward only.
  float evaluate(const Batch& batch);

  [[nodiscard]] const std::vector<RoutingReport>& routing() const { return routing_; }   ///< of the last micro-batch
  [[nodiscard]] const ArenaPlan& arena() const { return arena_; }
  void observe(Observer observer) { observer_ = std::move(observer); }
  void time(Clock clock) { clock_ = std::move(clock); }

 private:
  struct RoutedCall {
    std::size_t ordinal = 0;   ///< which router of its block
    bool routed = false;
  };
  struct BlockNotes {
    std::vector<std::vector<std::int32_t>> columns;   ///< per value: columns in its root; empty for what is no view
    std::vector<std::int64_t> root_columns;
    std::vector<RoutedCall> forward, backward;         ///< per node
  };
  void note_block(const Block& block);
  void instance(const Instance& i, const Batch& batch, float share);
  void node(const Instance& i, std::size_t at, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place, const Batch& batch, float share);
  [[nodiscard]] TensorView value_view(std::int32_t slot, const PassPlacement& place, ValueId v, const Shape& shape) const;
  [[nodiscard]] TensorView weight_view(std::int32_t slot, WeightId w) const;
  [[nodiscard]] TensorView buffer_view(std::int32_t buffer, DType type, const Shape& shape) const;
  void feed(const Instance& i, const Batch& batch);
  void cast_weights(std::int32_t slot, std::int32_t buffer);
  void after_backward(const Instance& i);
  void record_routing(std::int32_t slot, std::size_t ordinal, const op::Router& op, std::span<const TensorView> operands);

  const Program& program_;
  const Problem& problem_;
  const Plan& plan_;
  Parameters& parameters_;
  Backend& backend_;
  WalkOptions options_;
  ArenaPlan arena_;
  Backend::Memory memory_;
  Backend::Memory outside_;                            ///< labels, positions, boundaries: the batch's own, not the plan's
  std::vector<BlockNotes> notes_;
  std::vector<std::int32_t> cast_;                     ///< per slot: buffer of the cast weights while they are there
  std::vector<RoutingReport> routing_;
  std::vector<std::vector<std::int64_t>> kept_rows_;   ///< per slot and router: rows of each expert after drops
  std::vector<std::vector<std::size_t>> router_at_;    ///< per slot: index into routing_ of each of its routers
  std::map<std::string, TensorView> feeds_;            ///< by input name
  Observer observer_;
  Clock clock_;
  double began_ = 0;
};

}  // namespace moeplan
