#pragma once
/// Closed form of the schedules other than plain 1F1B: each distinct turn is timed once by walking what it issues over the compute
/// and the data lane, then the turns of all stages are played against each other's messages. Peak memory by walking the issued
/// instances. `pipeline_seconds` and `stage_memory` are the same for 1F1B without the walk; a test holds them equal.

#include <algorithm>
#include <memory>
#include <span>

#include "core/spec/forecast.hpp"
#include "planner/load_factors.hpp"
#include "sim/cost/block_time.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/cost/contention.hpp"
#include "sim/cost/price.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

/// One turn, alone: seconds from its start, when its messages are there.
struct TurnTime {
  double duration = 0;        ///< until the next turn may start
  double forward_done = 0, backward_done = 0;   ///< when its messages leave
  double exposed = 0;         ///< exchanges inside blocks that nothing hides
  double blocks = 0;          ///< time of blocks; the rest of the duration waits for weights
};

/// Slots whose weights were gathered in a turn.
using Gathered = std::span<const std::int32_t>;

/// Walks what one turn issues over the compute and the data lane. `pass` gives the time of a pass of blocks, `gather` and `reduce` the
/// seconds of a slot's collectives, `late` what they cost a pass but the first beside it (sim/cost/contention.hpp).
[[nodiscard]] TurnTime turn_time(std::span<const Instance> issued, const std::function<PassTime(const Instance&)>& pass, const std::function<double(std::int32_t slot)>& gather,
                                 const std::function<double(std::int32_t slot)>& reduce, const std::function<double(const Instance&, double took, Gathered)>& late = {});

/// Of the delays of slots, `late(slot)`, those of a pass that takes `took` seconds. `ahead`: gathers run beside passes.
template <class Late>
[[nodiscard]] double late_of(const Instance& x, const Late& late, double took, Gathered gathered, bool ahead) {
  const auto beside = [&](std::int32_t slot) { return ahead && std::find(gathered.begin(), gathered.end(), slot) != gathered.end(); };
  switch (x.phase) {
    case Phase::forward: return beside(x.slot) ? late(x.slot).forward : 0;
    case Phase::backward: return beside(x.slot) ? late(x.slot).backward : late(x.slot).reduced;
    case Phase::forward_backward: {
      const SlotCollectives &f = late(x.forward_slot).beside, &b = late(x.slot).beside;
      const double goes = x.forward_slot != x.slot && beside(x.forward_slot) ? 1 : 0, comes = beside(x.slot) ? 1 : 0;
      return paired_delay(took, goes * f.gather + comes * b.gather + b.reduce, goes * f.gather_lends + comes * b.gather_lends + b.reduce_lends);
    }
    default: return 0;
  }
}

/// Step time from every stage's turns. `time(stage, position)` is asked once per turn, in order within a stage. `exchange`: of one
/// message. The orders fit each other (throws std::logic_error if a stage waits for what never comes).
[[nodiscard]] double turns_seconds(const std::vector<std::vector<Turn>>& stages, int chunks, double exchange,
                                   const std::function<const TurnTime&(std::size_t stage, std::size_t position)>& time);

/// What the planner knows of a problem before it looks at plans.
struct ScheduledContext {
  const Problem& problem;
  const ModelOutline& outline;
  const Prices& prices;
  const Links& links;
  const LoadFactors& load;
  const Ports* ports = nullptr;   ///< where links and multiprocessors are shared
};

/// Layer kinds as schedules other than 1F1B see them, lowered and priced.
struct ScheduledKinds;

/// Replaces what depends on the schedule in `out`, the forecast of the same plan under 1F1B: step, memory, time by category. `kinds` is
/// filled on first use and serves plans that share block degrees, micro-batch, recompute, storage and expert exchange.
void apply_schedule(const ScheduledContext& context, const Plan& plan, Forecast& out, std::shared_ptr<ScheduledKinds>& kinds);

}  // namespace moeplan
