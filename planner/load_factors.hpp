#pragma once
/// What the load model means for a plan's expert degree: rows that reach the hottest rank over the balanced share.

#include <optional>

#include "core/spec/plan.hpp"
#include "sim/load/expert_load.hpp"

namespace moeplan {

class LoadFactors {
 public:
  /// Draws the loads once for all expert degrees that divide the experts. The token noise is that of `kSequences` sequences a
  /// micro-batch and expert group: larger groups are a little calmer (docs/load.md: rank noise stays under 4 %).
  explicit LoadFactors(const Problem& problem);

  /// Decoder layers [first, last). Neutral at ep = 1 and for models without experts.
  [[nodiscard]] FactorBand stage(int ep, std::int64_t first, std::int64_t last) const;

  static constexpr std::int64_t kSequences = 16;

 private:
  std::vector<std::size_t> moe_before_;   ///< MoE layers before each layer
  std::optional<LoadTable> table_;
};

}  // namespace moeplan
