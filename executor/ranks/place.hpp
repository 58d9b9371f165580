#pragma once
/// Where a rank stands in a plan, and which elements of the model's tensors it holds.
///
/// Ranks of a stage count tensor fastest, then context, data shard, data replicate; for experts: expert-tensor fastest,
/// then expert, expert shard, expert replicate (docs/program.md). FSDP cuts each tensor flat into equal pieces of
/// ceil(elements / degree); the last pieces are filled up with zeros. Experts lie on the ranks of an expert group in
/// their order, or as a placement says (executor/ranks/slots.hpp).

#include <functional>
#include <memory>
#include <vector>

#include "sim/program/program.hpp"

namespace moeplan {

/// A rank's number in each of its groups, and how many ranks each has.
struct RankPlace {
  int rank = 0;
  Parallelism parallelism{};

  [[nodiscard]] int in_stage() const { return rank % parallelism.stage_ranks(); }
  [[nodiscard]] int stage() const { return rank / parallelism.stage_ranks(); }
  [[nodiscard]] int size(Group group) const;
  /// Ranks between neighbours of a group.
  [[nodiscard]] int stride(Group group) const;
  /// This rank's number in its group, from 0.
  [[nodiscard]] int index(Group group) const {
    return group == Group::world ? rank : rank / stride(group) % size(group);
  }
  /// World ranks of this rank's group, in the group's order.
  [[nodiscard]] std::vector<int> members(Group group) const;
  /// Which share of the step's data this rank reads: ranks that differ only in tensor, context or stage read the same.
  [[nodiscard]] int data_index() const {
    return index(Group::data_replicate) * parallelism.dp_shard +
           in_stage() / (parallelism.tp * parallelism.cp) % parallelism.dp_shard;
  }
  /// Of the ranks that read the same tokens, the one that counts them; context ranks read their own of a sequence's.
  [[nodiscard]] bool speaks_for_data() const { return stage() == 0 && index(Group::tensor) == 0; }
};

/// Whether FSDP and gradient reduction go over the expert groups.
[[nodiscard]] inline bool is_expert(WeightSplit split) {
  return split == WeightSplit::expert || split == WeightSplit::expert_row;
}
[[nodiscard]] inline Group shard_group(WeightSplit split) {
  return is_expert(split) ? Group::expert_data_shard : Group::data_shard;
}
[[nodiscard]] inline Group replicate_group(WeightSplit split) {
  return is_expert(split) ? Group::expert_data_replicate : Group::data_replicate;
}

/// Over which neighbours hold the same elements (AlikeRows).
[[nodiscard]] inline Group alike_group(WeightSplit split) {
  return is_expert(split) ? Group::expert_tensor : Group::tensor;
}

/// `count` consecutive elements, from `at` of the whole tensor and from `here` of what the rank has of it.
struct ElementRun {
  std::int64_t at = 0, count = 0, here = 0;
  bool operator==(const ElementRun&) const = default;
};

/// Expert of each slot over the ranks of an expert group, rank by rank, as many on each; null: in their order.
using Slots = std::shared_ptr<const std::vector<std::int64_t>>;

/// How a tensor is cut: `part` is what a rank's operator calls see of `whole`.
struct Cut {
  Shape whole{}, part{};
  WeightSplit split = WeightSplit::none;
  std::vector<DealtRows> dealt{};
  Slots slots{};
};

/// Elements of the whole tensor that a rank's operator calls see, in their order.
[[nodiscard]] std::vector<ElementRun> part_runs(const Cut& cut, const RankPlace& place);
/// Of these, what the rank holds between steps; padding is not in them.
[[nodiscard]] std::vector<ElementRun> held_runs(const Cut& cut, const RankPlace& place);

/// Where the weights of a slot lie, unsharded and in the type they compute in, in its gathered buffer.
struct GatherLayout {
  std::vector<std::int64_t> offset;  ///< bytes, per weight; -1: used where it is held
  Bytes bytes{};
};
/// Weights that are sharded, or that are held in another type than they compute in, or that come from host memory (in the type that `fetched`
/// says, if it is set) have a copy; a sharded one has room for its padding.
[[nodiscard]] GatherLayout gather_layout(const Block& block, const Parallelism& parallelism,
                                         const std::function<DType(DType)>& held,
                                         const std::function<DType(const Block&, WeightId)>& fetched = {});

}  // namespace moeplan
