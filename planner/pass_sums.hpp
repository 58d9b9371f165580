#pragma once
/// A pass in fewer steps than it has runs, for stages whose kinds alternate. Where all slots gather, or none does and no reduction outlasts
/// the slot after it, the lead of the second lane is the reduction before (stage_pass.hpp), so a pass is a sum over its slots of
/// max(c, r + g) (prefetch 1) or r + g + c (prefetch 0), with r of the slot before and g of the one behind (prefetch 0: its own). Kinds that
/// differ in compute alone share r and g: their slots between equal neighbours are one group, whose sum of maxima is sum(c) where r + g is no
/// more than any c of it, and n (r + g) where it is no less.

#include <optional>
#include <vector>

#include "planner/stage_pass.hpp"

namespace moeplan {

/// Second lane of a kind of weights.
struct WeightSeconds {
  Four gather, reduce;
};

class PassSums {
 public:
  /// `weight_of`: which weights a kind has.
  PassSums(std::span<const SlotRun> runs, std::span<const SlotSeconds> kinds, std::span<const std::size_t> weight_of);

  /// As `forward_seconds` and `backward_seconds` of the runs; nothing where the pass is no such sum or of one slot.
  [[nodiscard]] std::optional<Four> forward(std::span<const WeightSeconds> weights, PassOptions options) const;
  [[nodiscard]] std::optional<Four> backward(std::span<const WeightSeconds> weights, PassOptions options) const;

 private:
  /// Compute of a group's slots in one direction.
  struct Compute {
    Four sum{}, least{}, most{};
    std::vector<std::pair<Four, double>> each;   ///< seconds and slots
    void add(const Four& seconds, double slots);
  };
  /// Slots of one kind of weights between two others, -1 where the stage begins or ends.
  struct Group {
    std::int32_t before = -1, weight = 0, after = -1;
    double slots = 0;
    Compute forward{}, backward{};
  };
  template <bool kBackward>
  [[nodiscard]] std::optional<Four> seconds(std::span<const WeightSeconds> weights, PassOptions options) const;

  std::vector<Group> groups_;
};

}  // namespace moeplan
