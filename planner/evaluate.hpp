#pragma once
/// Prices candidates. Each distinct layer kind under each distinct sharding is lowered and priced once per group; a candidate
/// is then a walk over its stages' slots.

#include <memory>

#include "planner/planner.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/cost/price.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

/// What all candidates of a problem share. Built once, read from any thread.
class Evaluator {
 public:
  explicit Evaluator(const Problem& problem, bool full_attention_flops);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Lowers the weights of every kind under this plan's expert degrees and storage; every group's plan must have been prepared.
  void prepare(const Plan& plan);

  /// Prices plans that share micro-batch, expert degrees, recompute and storage.
  class Group {
   public:
    Group(const Evaluator& shared, const Plan& representative);
    ~Group();
    /// Bytes of the heaviest stage that no recompute or micro-batch changes: weights, adapters, gradients, optimizer, context.
    [[nodiscard]] MemoryBreakdown standing(const Plan& plan);
    [[nodiscard]] Forecast forecast(const Plan& plan);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  struct Shared;
  [[nodiscard]] const Shared& shared() const { return *shared_; }

 private:
  std::unique_ptr<Shared> shared_;
};

/// Per stage, seconds of a pass that follows one of the other direction, and of one that follows its own (`again`): without
/// resharding the first kind of backward and the second kind of forward find their weights gathered.
struct StagePasses {
  std::vector<double> forward, backward, forward_again, backward_again;
};

/// Step time of 1F1B from the stages' forward and backward times (seconds) and the exchange between stages: the schedule's
/// dependencies played exactly, O(stages x micro-batches).
[[nodiscard]] double pipeline_seconds(const StagePasses& passes, double exchange, std::int64_t micro_batches);
[[nodiscard]] double pipeline_seconds(const std::vector<double>& forward, const std::vector<double>& backward, double exchange, std::int64_t micro_batches);

}  // namespace moeplan
