#pragma once
/// The communicators of one rank of a plan.

#include <array>
#include <map>
#include <memory>

#include "executor/comm/communicator.hpp"
#include "executor/ranks/place.hpp"

namespace moeplan {

/// One communicator for each set of ranks that is a group of the plan, split off the world in a fixed order. Groups of the
/// same ranks share one, which may be the world itself: all ranks of it make the same calls in the same order, and each
/// communicator of NCCL takes half a gigabyte and more. Those that serve groups of the lane of exchanges alone have a queue
/// of their own, beside that of gathers, reductions and messages. All ranks construct theirs together.
class RankGroups {
 public:
  /// Throws InputError if the world has another size than the plan. `neighbours`: so many consecutive tensor ranks hold
  /// some weights alike; the same on all ranks.
  RankGroups(Communicator& world, const Parallelism& parallelism, const std::vector<int>& neighbours = {});

  [[nodiscard]] const RankPlace& place() const { return place_; }
  [[nodiscard]] Communicator& world() const { return world_; }
  /// The ranks of this rank's pipeline stage; the world where there is one stage.
  [[nodiscard]] Communicator& stage() const { return *stage_; }
  /// Null for a group of one.
  [[nodiscard]] Communicator* of(Group group) const { return groups_[static_cast<std::size_t>(group)]; }
  /// Of a group that has more than one rank.
  [[nodiscard]] Communicator& need(Group group) const;
  /// Cuts the expert group into nodes of so many ranks each, and into ways between those of the same number on all
  /// nodes. All its ranks call it.
  void split_nodes(int ranks);
  [[nodiscard]] Communicator* node() const { return node_; }
  [[nodiscard]] Communicator* between_nodes() const { return between_nodes_; }
  /// Until all that was issued on any of them is done.
  void wait();
  /// Makes memory known to all of them (`Communicator::register_memory`); all ranks call it together. `refused`: why one of them has not.
  struct Registrations {
    std::vector<std::shared_ptr<void>> handles;
    std::string refused;
  };
  [[nodiscard]] Registrations register_memory(const std::shared_ptr<void>& memory, Bytes bytes);
  /// `ranks` neighbours of a group, or the whole of it.
  [[nodiscard]] Communicator& sharers(Group group, int ranks) const;
  /// What all communicators of this rank have counted together.
  [[nodiscard]] CommCounters counters() const;
  void reset_counters();
  /// Compares, on each communicator, what its ranks have issued so far: the debug check of "the same calls on all
  /// ranks".
  void check_order();
  /// All that this rank has issued, as one number: it must not depend on the routing.
  [[nodiscard]] std::uint64_t order_hash() const;

 private:
  template <class F>
  void each(const F& f) const;
  Communicator* over(int size, int stride, const std::string& label);
  void part_lanes();

  Communicator& world_;
  RankPlace place_;
  std::map<std::pair<int, int>, Communicator*> by_shape_;    ///< ranks and the distance between them
  std::vector<std::unique_ptr<Communicator>> own_;           ///< what was split off, in that order
  Communicator* stage_ = nullptr;
  std::array<Communicator*, EnumNames<Group>::names.size()> groups_{};
  Communicator *node_ = nullptr, *between_nodes_ = nullptr;  ///< of the expert group
  std::map<int, Communicator*> neighbours_;                  ///< of the tensor group, by how many
};

/// How many consecutive tensor ranks hold some of a plan's weights alike, where it is neither one nor all of them.
[[nodiscard]] std::vector<int> tensor_neighbours(const Problem& problem, const Plan& plan);

/// `all`: equal parts in rank order, as ranks of the group said them. Throws RankBlamed about the first one that said a number below 0 or above `most`:
/// what is said here is used as a size or a place.
void require_counts(const Communicator& group, std::span<const std::int64_t> all, std::int64_t most, const std::string& what);

/// Sums over the world's ranks, in rank order: the same bits on every rank.
[[nodiscard]] std::vector<double> sum_over_ranks(Communicator& world, std::span<const double> values);
[[nodiscard]] std::vector<std::int64_t> sum_over_ranks(Communicator& world, std::span<const std::int64_t> values);

}  // namespace moeplan
