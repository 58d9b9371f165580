#pragma once
/// Turns of a stage in closed form, for schedules other than plain 1F1B: what each takes in the four lanes and what it does to memory,
/// found slot by slot in the order of `Issuer` (sim/program/issue.hpp) without listing instances, and remembered: a stage meets few
/// distinct turns. `play_turns` then plays the turns of all stages against each other's messages. Equal to the walk over the issued
/// instances (planner/scheduled.hpp; tests/planner/stage_turns_test.cpp).

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "planner/lanes.hpp"
#include "sim/cost/contention.hpp"
#include "sim/program/schedules/schedule.hpp"

namespace moeplan {

/// Bytes at the median and at the 95th percentile of the load draws.
using TwoLoads = std::array<std::int64_t, 2>;

/// A layer kind as turns see it.
struct TurnKind {
  Four forward, backward, weight;            ///< seconds of its passes
  Four gather, reduce;                       ///< of its collectives, each pass
  Four late_forward{}, late_backward{}, late_reduced{};   ///< that these add (SlotDelays of sim/cost/contention.hpp)
  SlotCollectives beside{};                  ///< of SlotDelays
  bool gathers = false, reduces = false;     ///< something is gathered, summed
  bool has_backward = true, has_weight = false;
  TwoLoads forward_peak{}, backward_peak{}, weight_peak{};   ///< transient bytes
  std::int64_t gathered = 0, carried_gradients = 0, unreduced = 0;
};

/// A slot of a stage: its kind, and what it keeps, which depends on the stage.
struct TurnSlot {
  std::size_t kind = 0;
  TwoLoads kept{}, put_off{};
};

/// A virtual stage: slots [first, end).
struct TurnChunk {
  std::int32_t first = 0, end = 0;
  std::int64_t carried = 0;                  ///< bytes per micro-batch in flight
  bool begins_model = false, ends_model = false;
};

struct TurnTimes {
  Four duration, forward_done, backward_done;
};

/// A forward and a backward pass side by side, by kinds.
struct PairPrice {
  Four seconds;
  TwoLoads peak{};
};
enum class PairPart : std::uint8_t { seconds, peak };
/// Gives a price of which at least the part asked for is filled in.
using PairOf = std::function<const PairPrice&(std::size_t forward, std::size_t backward, PairPart part)>;

/// One stage under one treatment of gathered weights. What it points to must outlive it.
class StageTurns {
 public:
  StageTurns(std::span<const TurnKind> kinds, std::vector<TurnSlot> slots, std::vector<TurnChunk> chunks, bool reshard, std::int64_t prefetch, const PairOf& pair)
      : kinds_(kinds), slots_(std::move(slots)), chunks_(std::move(chunks)), reshard_(reshard), prefetch_(prefetch), pair_(pair), there_(slots_.size(), 0), ready_(slots_.size()) {
    states_.push_back(there_);
  }

  /// The next turn's times; turns are asked for in order.
  const TurnTimes& next(const Turn& turn);
  /// From the first turn again, with the kinds' seconds as they are now.
  void restart();

  /// Peak over the turns beyond the stage's states; the walk starts where nothing is gathered.
  [[nodiscard]] TwoLoads peak(std::span<const Turn> turns);

 private:
  template <class Visit>
  void issue(const Turn& turn, Visit& visit);
  [[nodiscard]] const TurnKind& kind(std::int32_t slot) const { return kinds_[slots_[static_cast<std::size_t>(slot)].kind]; }
  [[nodiscard]] std::size_t state_of_copies();

  struct Known {
    std::uint32_t turn = 0;                  ///< kind and chunks
    std::size_t before = 0, after = 0;       ///< which copies are there
    TurnTimes times;
  };
  struct Held {
    std::uint32_t turn = 0;
    std::size_t before = 0, after = 0;
    std::int64_t unreduced_before = 0, unreduced_after = 0;
    TwoLoads peak{}, change{};
  };
  struct Clock;
  struct Bytes;

  std::span<const TurnKind> kinds_;
  std::vector<TurnSlot> slots_;
  std::vector<TurnChunk> chunks_;
  bool reshard_;
  std::int64_t prefetch_;
  const PairOf& pair_;
  std::vector<char> there_;                  ///< copies at the moment
  std::vector<Four> ready_;                  ///< when the copy gathered in this turn is there
  std::vector<std::vector<char>> states_;    ///< sets of copies met between turns
  std::size_t state_ = 0;
  std::vector<Known> known_;
  std::vector<Held> held_;
};

/// How often a stage takes each pass under expert overlap: alone by chunk, side by side by (forward chunk, backward chunk).
struct OverlapCounts {
  std::vector<std::int64_t> forward, backward, both;
  bool operator==(const OverlapCounts&) const = default;
};
/// As `turns` lists them, counted in runs of equal turns.
[[nodiscard]] OverlapCounts overlap_counts(int stages, int virtual_stages, std::int64_t micro_batches, int stage);

/// Step time without the optimizer. `orders`: each stage's turns; `exchange`: of one message. As `turns_seconds`, in four lanes.
[[nodiscard]] Four play_turns(std::span<const std::vector<Turn>> orders, int chunks, std::int64_t micro_batches, const Four& exchange, std::span<StageTurns> stages);

}  // namespace moeplan
