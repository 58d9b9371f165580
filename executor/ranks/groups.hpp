#pragma once
/// The communicators of one rank of a plan.

#include <array>
#include <memory>

#include "executor/comm/communicator.hpp"
#include "executor/ranks/place.hpp"

namespace moeplan {

/// One communicator for each group of the plan that has more than one rank, split off the world in a fixed order. All
/// ranks construct theirs together.
class RankGroups {
 public:
  /// Throws InputError if the world has another size than the plan.
  RankGroups(Communicator& world, const Parallelism& parallelism);

  [[nodiscard]] const RankPlace& place() const { return place_; }
  [[nodiscard]] Communicator& world() const { return world_; }
  /// The ranks of this rank's pipeline stage; the world where there is one stage.
  [[nodiscard]] Communicator& stage() const { return stage_ ? *stage_ : world_; }
  /// Null for a group of one.
  [[nodiscard]] Communicator* of(Group group) const;
  /// Of a group that has more than one rank.
  [[nodiscard]] Communicator& need(Group group) const;
  /// What all communicators of this rank have counted together.
  [[nodiscard]] CommCounters counters() const;
  void reset_counters();
  /// Compares, on each communicator, what its ranks have issued so far: the debug check of "the same calls on all
  /// ranks".
  void check_order();
  /// All that this rank has issued, as one number: it must not depend on the routing.
  [[nodiscard]] std::uint64_t order_hash() const;

 private:
  Communicator& world_;
  RankPlace place_;
  std::unique_ptr<Communicator> stage_;
  std::array<std::unique_ptr<Communicator>, EnumNames<Group>::names.size()> groups_;
};

/// Sums over the world's ranks, in rank order: the same bits on every rank.
[[nodiscard]] std::vector<double> sum_over_ranks(Communicator& world, std::span<const double> values);
[[nodiscard]] std::vector<std::int64_t> sum_over_ranks(Communicator& world, std::span<const std::int64_t> values);

}  // namespace moeplan
