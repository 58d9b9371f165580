#pragma once
/// Prices candidates. Each distinct layer kind under each distinct sharding is lowered and priced once per group; a candidate
/// is then a walk over its stages' slots.

#include <memory>
#include <mutex>
#include <optional>

#include "planner/planner.hpp"
#include "sim/cost/block_time.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/cost/contention.hpp"
#include "sim/cost/price.hpp"
#include "sim/program/program.hpp"
#include "sim/program/routed_rows.hpp"

namespace moeplan {

/// Half widths of the central 90 % of a pass: seconds below and above its time. Calls of one operator err together, calls of different
/// operators independently: sums inside an operator, the root of squares over them.
struct PassSpread {
  double below = 0, above = 0;
};

/// One layer kind under a group's sharding, lowered and priced.
struct PricedKind {
  Block block;                        ///< at the balanced load; at the median load once it is timed
  double scale = 1;                   ///< its load: rows of the hottest rank over the balanced ones
  std::optional<RoutedRows> rows;     ///< how it takes another load; nothing where it has to be lowered again
  bool routed = false;
  std::once_flag lowered, loaded, timed;
  /// At the balanced load until it is `loaded`.
  PassMemory forward50, backward50, forward95, backward95;   ///< reused buffers hold the worst layer
  PassMemory weight50, weight95;      ///< split schedules
  Staged staged50, staged95;          ///< of what its exchanges hold
  std::array<Bytes, kMemoryCategories> kept{}, kept_more{};  ///< kept at the balanced load, and at `more` times it
  std::array<Bytes, kMemoryCategories> put_off{}, put_off_more{};   ///< split schedules: the same from backward to weight gradients
  Bytes host{}, host_more{};          ///< of what is kept, in host memory, at the same loads
  double more = 1;
  BlockTime time50, time95;
  PassSpread forward_spread, backward_spread, weight_spread;
  std::vector<Transfer> forward_transfers, backward_transfers;   ///< at the median load, compute among them, where links and multiprocessors are shared
};

/// What is kept for backward where the hottest rank of a stage holds `factor` times the balanced rows.
[[nodiscard]] std::array<Bytes, kMemoryCategories> kept_at(const PricedKind& kind, double factor);

/// The same of what is put off from the backward pass to the weight gradients.
[[nodiscard]] std::array<Bytes, kMemoryCategories> put_off_at(const PricedKind& kind, double factor);

/// The same of what leaves for host memory.
[[nodiscard]] Bytes host_at(const PricedKind& kind, double factor);

/// What all candidates of a problem share. Built once, read from any thread.
class Evaluator {
 public:
  /// `only_ep`: the expert degree of all plans that will be priced, where it is one. `contention`: whether passes and the weights that are gathered and
  /// reduced beside them share links and multiprocessors (sim/cost/contention.hpp), or each has them to itself.
  explicit Evaluator(const Problem& problem, bool full_attention_flops, std::optional<int> only_ep = {}, bool contention = true);
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
    /// Lowered and priced on first use.
    [[nodiscard]] const PricedKind& kind(std::size_t id);
    /// Lowered at the balanced load alone; then its memory at the load draws, its times and spreads.
    [[nodiscard]] const PricedKind& held(std::size_t id);
    [[nodiscard]] const PricedKind& loaded(std::size_t id);
    [[nodiscard]] const PricedKind& timed(std::size_t id);
    /// A forward and a backward pass of two kinds side by side: seconds at the median and at the 95th percentile of the load draws.
    [[nodiscard]] std::array<double, 2> pair_seconds(std::size_t forward, std::size_t backward);
    /// The same in transient bytes.
    [[nodiscard]] std::array<std::int64_t, 2> pair_peak(std::size_t forward, std::size_t backward);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  struct Shared;
  [[nodiscard]] const Shared& shared() const { return *shared_; }

 private:
  std::unique_ptr<Shared> shared_;
};

/// Host memory of a node that its ranks may fill; the rest is the system's, the page cache's and the data loader's.
inline constexpr double kHostShare = 0.8;
/// Why the ranks of a node do not fit its host memory, in numbers; nothing if they do.
[[nodiscard]] std::optional<std::string> host_overflow(const ClusterSpec& cluster, Bytes host_of_a_rank);

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
