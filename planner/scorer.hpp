#pragma once
/// Prices every layout of a group of candidates without lowering, allocating or looking anything up by name: a candidate's time is a sum
/// over cached prices per (layer kind, sharding) and the closed forms of the pass (stage_pass.hpp) and of the schedule
/// (pipeline_step.hpp); its memory a maximum over stages of sums known beforehand. Equal to `Evaluator::Group::forecast`, which walks
/// every slot and names every part (tests/planner/scorer_test.cpp).
///
/// Other schedules than 1F1B are played turn by turn (stage_turns.hpp), equal to `apply_schedule`; so are virtual stages.

#include <array>
#include <deque>
#include <optional>

#include "planner/pipeline_step.hpp"
#include "planner/shard_table.hpp"
#include "planner/stage_turns.hpp"

namespace moeplan {

/// A layout of a group, as indices into its ShardTable, how gathered weights are treated, and in which order passes are taken.
struct Choice {
  std::size_t stages = 0, dense = 0, expert = 0;
  bool reshard = true;
  std::int64_t prefetch = 1;
  Schedule schedule = Schedule::one_forward_one_backward;
};

/// Bytes of the fullest stage.
struct PeakBytes {
  std::int64_t states = 0;          ///< what stays alone, reserve included
  std::int64_t median = 0, p95 = 0; ///< peak over the step
  std::int64_t host = 0;            ///< in host memory
};

class GroupScorer {
 public:
  /// `block` is the group's representative: micro-batch, recompute, storage and block degrees. Tables must outlive the scorer.
  GroupScorer(const Evaluator& evaluator, Evaluator::Group& group, const Plan& block, const ShardTable& table);

  /// Whether the closed forms cover the block's other schedules: what is kept stays on the device, and all but the embedding have a
  /// backward pass. Lowers the layer kinds.
  [[nodiscard]] bool covers_schedules();

  /// Micro-batches a step and data rank under these stages.
  [[nodiscard]] std::int64_t micro_batches(std::size_t stages) const { return micro_batches_[stages]; }
  /// What stays alone; lowers nothing.
  [[nodiscard]] std::int64_t states(const Choice& c) const;
  /// Never more than the 95th percentile of `memory`, from what a group of other expert degrees has found to be kept; lowers nothing. Nothing
  /// if there is none yet.
  [[nodiscard]] std::optional<std::int64_t> least(const Choice& c);
  [[nodiscard]] PeakBytes memory(const Choice& c);
  /// Step time. Seconds.
  [[nodiscard]] Four step(const Choice& c);
  /// Same with the micro-batches of a plan as it is given.
  [[nodiscard]] Four step(const Choice& c, const Plan& given);
  /// Never more than `step`: nothing waits for weights.
  [[nodiscard]] Four floor(const Choice& c);
  /// Never more than that: nor does the optimizer take time. Equal for all shards of the same stages.
  [[nodiscard]] const Four& least_step(std::size_t stages, Schedule schedule);
  /// The candidate as a plan.
  [[nodiscard]] Plan plan(const Choice& c) const;

 private:
  struct KindPrice {
    Four forward, backward, weight;                              ///< once `timed`
    Four busy;                                                   ///< compute of all three
    std::int64_t forward50, forward95, backward50, backward95;   ///< transient peaks, bytes
    std::int64_t carried_gradients, unreduced;
    std::int64_t entering, carried;                              ///< bytes per micro-batch at a stage's entrance
    bool has_backward, has_weight;
  };
  /// Memory of a stage beyond its states: 2 x 2 x 2 x 2 cases of (dense cut, experts cut, reshard, prefetch).
  struct Transients {
    std::vector<std::int64_t> median, p95;
  };
  /// Of one schedule.
  struct OrderTable {
    std::vector<std::int64_t> least;                          ///< per stage, beyond its states
    bool no_least = false;                                    ///< the load's 95th percentile may keep less than the balanced load
    std::optional<Four> floor;                                ///< nothing gathered, no optimizer
    std::vector<std::vector<Turn>> turns;                     ///< per stage
    std::array<std::vector<StageTurns>, 4> played;            ///< per stage, by treatment of gathered weights
    std::vector<std::pair<unsigned, Transients>> transients;  ///< by case, the few that are asked for
  };
  struct StageTable {
    std::vector<std::vector<std::int64_t>> kept50, kept95;   ///< stage x kind
    std::vector<std::int64_t> host;                           ///< per stage: activations in host memory, 95th percentile
    std::int64_t crossing = 0;                                ///< bytes of the largest message between stages
    Four exchange;
    std::array<std::unique_ptr<OrderTable>, 4> orders;        ///< by schedule, those asked for
    std::vector<std::vector<TurnSlot>> slots;                 ///< per stage, for other schedules than 1F1B
    std::vector<std::vector<TurnChunk>> chunks;
    bool ready = false, timed = false;
  };

  void hold();
  void prepare(std::size_t stages);
  void price_times();
  void prepare_times(std::size_t stages);
  const Transients& transients(const Choice& c);
  [[nodiscard]] OrderTable& order(std::size_t stages, Schedule schedule) {
    std::unique_ptr<OrderTable>& known = stage_[stages].orders[static_cast<std::size_t>(schedule)];
    if (!known) known = std::make_unique<OrderTable>();
    return *known;
  }
  [[nodiscard]] Plan order_plan(std::size_t stages, Schedule schedule) const;
  void prepare_turns(std::size_t stages);
  void turn_kinds(const Choice& c);
  const PairPrice& pair(std::size_t forward, std::size_t backward);
  [[nodiscard]] Transients turn_transients(const Choice& c);
  [[nodiscard]] Four turn_step(const Choice& c);
  [[nodiscard]] Four turn_floor(std::size_t stages, Schedule schedule);
  [[nodiscard]] Four turn_floor(const Choice& c);
  [[nodiscard]] Four beside(const std::vector<std::size_t>& kinds);
  [[nodiscard]] std::vector<std::int64_t> least_kept(std::size_t stages, Schedule schedule, const std::vector<std::int64_t>& kept) const;
  [[nodiscard]] std::int64_t stage_states(const Choice& c, std::size_t stage) const;
  [[nodiscard]] std::int64_t with_reserve(const Choice& c, std::int64_t allocated) const;
  [[nodiscard]] Four after_passes(const Choice& c);
  void set_slots(const Choice& c);
  [[nodiscard]] Four pass(const std::vector<SlotRun>& runs, std::size_t of_class, bool backward, PassOptions options);
  [[nodiscard]] std::int64_t transient(const Choice& c, std::size_t stage, bool p95) const;

  const Evaluator::Shared& shared_;
  Evaluator::Group& group_;
  bool timed_ = false;
  Plan block_;
  const ShardTable& table_;
  std::vector<KindPrice> kinds_;
  std::vector<const PricedKind*> priced_;
  std::vector<StageTable> stage_;
  std::vector<std::int64_t> micro_batches_;
  std::vector<SlotSeconds> slots_;
  std::vector<StageSeconds> classes_, stages_;
  /// Passes of a class under the layout looked at last: how gathered weights are treated leaves most of them as they are.
  struct KnownPass {
    bool backward = false, gathers = false, first_is_there = false;
    std::int64_t prefetch = 0;
    Four seconds;
  };
  std::vector<std::vector<KnownPass>> known_;   ///< per class
  std::optional<std::array<std::size_t, 3>> known_of_;   ///< stages, dense, expert
  PipelineRoom room_;
  OptimizerPrices optimizer_;
  std::vector<TurnKind> turn_kinds_;
  std::deque<std::optional<PairPrice>> pairs_;   ///< kind x kind
  PairOf pair_of_;
};

}  // namespace moeplan
