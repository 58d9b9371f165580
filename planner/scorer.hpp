#pragma once
/// Prices every layout of a group of candidates without lowering, allocating or looking anything up by name: a candidate's time is a sum
/// over cached prices per (layer kind, sharding) and the closed forms of the pass (stage_pass.hpp) and of the schedule
/// (pipeline_step.hpp); its memory a maximum over stages of sums known beforehand. Equal to `Evaluator::Group::forecast`, which walks
/// every slot and names every part (tests/planner/scorer_test.cpp).
///
/// Other schedules than 1F1B are played turn by turn (stage_turns.hpp), equal to `apply_schedule`; so are virtual stages.

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "planner/pass_sums.hpp"
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

/// Bytes, reserve included: what stays alone, and at the 95th percentile.
struct SplitFloor {
  std::int64_t states = 0, bytes = 0;
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
  /// The same of a schedule other than 1F1B, closer: when the first backward pass begins. Lowers the layer kinds.
  [[nodiscard]] std::int64_t warm_peak(const Choice& c);
  [[nodiscard]] PeakBytes memory(const Choice& c);
  /// Step time. Seconds.
  [[nodiscard]] Four step(const Choice& c);
  /// Same with the micro-batches of a plan as it is given.
  [[nodiscard]] Four step(const Choice& c, const Plan& given);
  /// Never more than `step`: the longest path that stays with one stage.
  [[nodiscard]] Four floor(const Choice& c);
  /// Nor is this, which is no less than `floor` but has to lower more.
  [[nodiscard]] Four close_floor(const Choice& c);
  /// No more memory than any split and order of the choice's layout needs; lowers nothing.
  [[nodiscard]] SplitFloor any_split(const Choice& c);
  /// Never more than the step of any split of the choice's layout under its order and treatment of gathered weights.
  [[nodiscard]] Four any_split_step(const Choice& c);
  /// The candidate as a plan.
  [[nodiscard]] Plan plan(const Choice& c) const;

 private:
  struct KindPrice {
    Four forward, backward, weight;                              ///< once `timed`
    Four busy;                                                   ///< compute of all three
    std::int64_t forward50, forward95, backward50, backward95;   ///< transient peaks, bytes, once `loaded`
    Staged staged50, staged95;                                   ///< of what exchanges hold, once `loaded`
    std::int64_t carried_gradients, unreduced;
    std::int64_t entering, carried;                              ///< bytes per micro-batch at a stage's entrance
    bool has_backward, has_weight;
  };
  /// Seconds of a micro-batch on a stage: its passes, their compute alone, those of its first chunk; on the second lane one gather of each slot, of
  /// each that has a backward pass, one more where it has to be gathered again for that; reductions.
  struct Load {
    Four full{}, busy{}, forth{}, back{}, gather{}, gather_back{}, gather_again{}, reduce{};
    [[nodiscard]] Four micro_batch(const Choice& c) const;
  };
  /// Memory of a stage beyond its states: 2 x 2 x 2 x 2 cases of (dense cut, experts cut, reshard, prefetch).
  struct Transients {
    std::vector<std::int64_t> median, p95;
  };
  /// Of one schedule.
  struct OrderTable {
    std::vector<std::int64_t> least;                          ///< per stage, beyond its states
    bool no_least = false;                                    ///< the load's 95th percentile may keep less than the balanced load
    std::optional<Four> floor;                                ///< of passes side by side, nothing gathered, no optimizer
    std::vector<std::int64_t> warm;                           ///< per stage, beyond its states
    std::array<std::vector<StageTurns>, 4> played;            ///< per stage, by treatment of gathered weights
    std::vector<std::pair<unsigned, Transients>> transients;  ///< by case, the few that are asked for
  };
  struct StageTable {
    std::vector<std::vector<std::int64_t>> kept50, kept95;   ///< stage x kind
    std::vector<Staged> staged50, staged95;                   ///< per stage: the buffer that exchanges pass through, the ways of a micro-batch
    std::vector<std::int64_t> host;                           ///< per stage: activations in host memory, 95th percentile
    Four exchange;                                            ///< of the largest message between stages, once `timed`
    std::array<std::unique_ptr<OrderTable>, 4> orders;        ///< by schedule, those asked for
    std::vector<std::vector<TurnSlot>> slots;                 ///< per stage, for other schedules than 1F1B
    std::vector<std::vector<TurnChunk>> chunks;
    std::vector<std::optional<PassSums>> sums;                ///< per class, where its runs are many
    std::vector<std::vector<std::pair<std::size_t, double>>> counts;   ///< per class: slots of each kind that moves anything
    std::vector<std::vector<SlotDelays>> late;                ///< dense x expert, once asked for: per class, what the weights beside them add to its passes
    std::vector<Load> loads;                                  ///< per stage
    std::optional<std::array<std::size_t, 2>> loads_of;       ///< dense, expert: whose gathers they have
    bool ready = false, timed = false;
  };

  void hold();
  void load();
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
  const PairPrice& pair(std::size_t forward, std::size_t backward, PairPart part);
  /// Each stage's turns, which all splits of as many stages share.
  [[nodiscard]] const std::vector<std::vector<Turn>>& turns_of(const Plan& order_plan);
  [[nodiscard]] const std::vector<std::int64_t>* kept_ever();
  void add_gathers(Load& load, std::size_t kind, std::int64_t slots) const;
  [[nodiscard]] Transients turn_transients(const Choice& c);
  [[nodiscard]] Four turn_step(const Choice& c);
  [[nodiscard]] Four beside(std::span<const std::size_t> forward, std::span<const std::size_t> backward);
  [[nodiscard]] Four overlapped(std::size_t stages, std::size_t stage);
  [[nodiscard]] std::vector<std::int64_t> warm_peaks(std::size_t stages, Schedule schedule);
  [[nodiscard]] std::int64_t passes_in_flight(std::size_t stages, Schedule schedule, std::int64_t stage) const;
  [[nodiscard]] std::vector<std::int64_t> least_kept(std::size_t stages, Schedule schedule, const std::vector<std::int64_t>& kept) const;
  [[nodiscard]] std::int64_t stage_states(const Choice& c, std::size_t stage) const;
  [[nodiscard]] std::int64_t runtime_bytes(const Choice& c) const;
  [[nodiscard]] std::int64_t reserved(std::int64_t allocated) const;
  [[nodiscard]] std::int64_t with_reserve(const Choice& c, std::int64_t allocated) const;
  [[nodiscard]] Four after_passes(const Choice& c);
  void set_weights(const Choice& c);
  void fill_slots();
  [[nodiscard]] const std::vector<SlotCrossings>& crossings(const ShardPrices& prices);
  const std::vector<SlotDelays>& delays(const Choice& c);
  [[nodiscard]] const std::vector<SlotDelays>& late(const Choice& c);
  void set_slots(const Choice& c);
  [[nodiscard]] Four pass(const Choice& c, std::size_t of_class, bool backward, PassOptions options);
  [[nodiscard]] std::int64_t transient(const Choice& c, std::size_t stage, bool p95) const;

  const Evaluator::Shared& shared_;
  Evaluator::Group& group_;
  bool loaded_ = false, timed_ = false;
  std::optional<bool> covers_;
  Plan block_;
  const ShardTable& table_;
  std::vector<KindPrice> kinds_;
  std::vector<const PricedKind*> priced_;
  std::vector<std::int64_t> counts_;                         ///< slots of the model per kind
  std::vector<std::int64_t> kept_;                           ///< per kind at the balanced load, once known
  Load whole_;                                               ///< of the whole model on one stage
  std::vector<StageTable> stage_;
  std::vector<std::int64_t> micro_batches_;
  std::vector<SlotSeconds> slots_;
  std::vector<WeightSeconds> weights_;                       ///< by ShardTable::weight_of
  std::vector<std::size_t> example_;                         ///< a kind of each
  bool slots_current_ = false;                               ///< `slots_` have the gathers of `weights_`
  std::vector<StageSeconds> classes_, stages_;
  /// Passes of a class under the layout looked at last: how gathered weights are treated leaves most of them as they are.
  struct KnownPass {
    bool backward = false, gathers = false, first_is_there = false;
    std::int64_t prefetch = 0;
    Four seconds;
  };
  std::vector<std::vector<KnownPass>> known_;   ///< per class
  /// Compared field by field: an array's comparison is a call.
  struct Layout {
    std::size_t stages, dense, expert;
    bool operator==(const Layout&) const = default;
  };
  struct Degrees {
    int stages, dense, expert;
    bool operator==(const Degrees&) const = default;
  };
  struct Halves {
    const ShardPrices *dense = nullptr, *expert = nullptr;
    bool operator==(const Halves&) const = default;
  };
  std::optional<Layout> known_of_;
  Halves slots_of_, whole_of_, delays_of_;                  ///< whose gathers `weights_`, `whole_` and `delays_` have
  mutable std::optional<Degrees> runtime_of_;               ///< shards that `runtime_bytes_` is of
  mutable std::int64_t runtime_bytes_ = 0;
  std::map<const ShardPrices*, std::vector<SlotCrossings>> crossings_;   ///< per kind, of either half
  std::vector<SlotDelays> delays_;                          ///< per kind; empty where nothing meets
  bool moves_ = false;                                      ///< some kind's passes move or compute anything, as contention sees it
  PipelineRoom room_;
  OptimizerPrices optimizer_;
  std::vector<TurnKind> turn_kinds_;
  struct KnownPair {
    PairPrice price;
    bool seconds = false, peak = false;
  };
  std::deque<KnownPair> pairs_;   ///< kind x kind
  PairOf pair_of_;
  std::map<std::tuple<Schedule, int, int, std::int64_t>, std::vector<std::vector<Turn>>> turns_;   ///< by order, stages, virtual stages, micro-batches
  std::map<std::tuple<int, int, std::int64_t>, std::vector<OverlapCounts>> overlaps_;              ///< of expert overlap, by stages, virtual stages, micro-batches: per stage
};

}  // namespace moeplan
