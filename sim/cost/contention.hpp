#pragma once
/// What a slot's pass and the gathers and reductions beside it cost each other on a device's links and multiprocessors. The pass moves tokens between
/// experts (and activations between tensor and context ranks) for some of its seconds and computes for others, the second lane moves weights and gradients
/// for all of its own. While both move, they share each link as the engine's flows do (sim/engine/fair_share.hpp): max-min, so that each has a speed s of its
/// own. While the pass computes, the lane's kernels hold the share m of the multiprocessors: s_e = 1 - m for the pass, s_l = 1 for the lane.
///
/// Exchanges and compute are taken to be spread evenly over the pass. With c the seconds of the pass alone, e those of its parts, l those of the
/// second lane, a = sum of e (1 / s_e - 1) and d = sum of e (1 - s_l / s_e), a second of the pass beside the lane takes 1 + a / c and moves
/// the lane on by 1 - d / c. So both are over after
///     c + a l / (c - d)    where the lane is done first (l <= c - d),
///     l + a + d            where the pass is,
/// against max(c, l) alone. Where the pass only computes that is max(l, c + m l). Held to the engine in tests/planner/contention_test.cpp.

#include <algorithm>
#include <span>
#include <vector>

#include "core/spec/plan.hpp"
#include "sim/cost/block_time.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

/// Seconds of calls alone, the bytes that a device puts on its link of each tier meanwhile, and the share of its multiprocessors that their kernels hold.
struct Transfer {
  double seconds = 0;
  TierBytes bytes{};
  double lent = 0;
  bool computes = false;   ///< not a transfer but what a pass computes, which has what others leave it
  Transfer& operator+=(const Transfer& other);
};

/// Bytes/s that a device's link of each tier takes. As sim/engine/network.hpp: what the better of collectives and exchanges reaches; what crosses an
/// outer network tier passes the network ports below too.
class Ports {
 public:
  explicit Ports(const ClusterSpec& cluster);
  /// Shares of their full speeds that two transfers have side by side.
  struct Speeds {
    double first = 1, second = 1;
  };
  [[nodiscard]] Speeds beside(const Transfer& first, const Transfer& second) const;

 private:
  [[nodiscard]] std::array<double, kMaxTiers> rates(const Transfer& t) const;
  std::array<double, kMaxTiers> capacity_{};
  std::size_t tiers_ = 0, network_ = kMaxTiers;   ///< `network_`: the innermost network tier
};

/// l a and l d of a pass and transfers beside it, s^2: they add up over transfers that follow each other.
struct Crossing {
  double stretch = 0, drag = 0;
  [[nodiscard]] bool any() const { return stretch > 0 || drag > 0; }
  Crossing& operator+=(const Crossing& other) { return stretch += other.stretch, drag += other.drag, *this; }
};
[[nodiscard]] Crossing crossing(const Ports& ports, std::span<const Transfer> pass, const Transfer& lane);

/// Seconds that a pass and the lane beside it take longer than the longer of them alone.
[[nodiscard]] double delay(double pass, double lane, const Crossing& crossing);

/// A slot's gather and reduction in seconds, and each call's seconds times the share of the multiprocessors that it holds: by so much does what computes
/// beside them for longer end later.
struct SlotCollectives {
  double gather = 0, reduce = 0, gather_lends = 0, reduce_lends = 0;
  SlotCollectives& operator+=(const SlotCollectives& other);
  /// Of these once a step what a step waits for, `first` being those of the pass's first slot: a reduction under `pass` seconds, a gather.
  [[nodiscard]] double reduce_waited(const SlotCollectives& first, double pass) const { return std::max(first.reduce + reduce_lends - first.reduce_lends, reduce - pass); }
  [[nodiscard]] double gather_waited(const SlotCollectives& first, double pass) const { return std::max(first.gather + gather_lends - first.gather_lends, gather - pass); }
};

/// Of a slot under one sharding: its gather and reduction, and what they do to its passes. Slots beside each other are taken to be alike.
struct SlotCrossings {
  SlotCollectives weights;
  Crossing forward, backward, reduction;   ///< gather beside forward and backward pass, reduction beside the backward pass
  SlotCrossings& operator+=(const SlotCrossings& other);
  [[nodiscard]] bool any() const { return forward.any() || backward.any() || reduction.any(); }
};
[[nodiscard]] SlotCrossings slot_crossings(const Ports& ports, std::span<const Transfer> forward, std::span<const Transfer> backward, const Transfer& gather, std::span<const Transfer> reductions);

/// The same of what a sharding moves for each pass under a runtime.
[[nodiscard]] SlotCrossings slot_crossings(const Runtime& runtime, const Ports& ports, const Links& links, const Parallelism& parallelism, const SlotSharding& cut, std::span<const Transfer> forward,
                                           std::span<const Transfer> backward);

/// Seconds that each slot of a pass but the first adds: a forward pass that gathers, a backward pass that gathers, one that only reduces.
struct SlotDelays {
  double forward = 0, backward = 0, reduced = 0;
  SlotCollectives beside{};   ///< gather and reduction, for passes side by side
};
[[nodiscard]] SlotDelays slot_delays(double forward, double backward, const SlotCrossings& crossings);

/// Seconds that two passes side by side (expert overlap) take longer beside calls that take `lane` seconds and lend `lends`: their exchanges have compute to hide in, so
/// that all of `both` seconds are taken to compute.
[[nodiscard]] double paired_delay(double both, double lane, double lends);

/// The exchanges of a pass, equal calls together, and what it computes. What compute hides of them anyway counts by its exposed share. `seconds`: of each node, as it was priced.
[[nodiscard]] std::vector<Transfer> transfers(std::span<const BlockNode> nodes, std::span<const double> seconds, const PassTime& took, const Links& links, const Parallelism& parallelism);

/// What `block_time` asks. `links` must outlive it.
[[nodiscard]] LentTo lent_to(const Links& links, const Parallelism& parallelism);

/// Of a slot of this sharding.
[[nodiscard]] SlotCollectives slot_collectives(const Links& links, const Parallelism& parallelism, const SlotSharding& cut);

/// One call of a group, of nothing where the group is of one.
[[nodiscard]] Transfer transfer(const CommCall& call, const Links& links, const Parallelism& parallelism);

}  // namespace moeplan
