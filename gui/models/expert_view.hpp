#pragma once
/// What the Experts page shows, computed off the GUI thread: shares by layer and expert, ranks' loads before and after a placement,
/// traffic between ranks.

#include <optional>

#include "core/spec/plan.hpp"
#include "sim/load/placement.hpp"

namespace moeplan::gui {

struct ExpertRequest {
  std::int64_t layer = 0;              ///< among the MoE layers
  std::int64_t ranks = 1;              ///< of an expert group
  std::int64_t replicas = 0;           ///< extra slots in all, beyond one an expert
  double capacity = 0;                 ///< factor; 0: dropless
};

struct ExpertView {
  std::vector<Shares> shares;          ///< per MoE layer
  std::vector<std::int64_t> layers;    ///< their decoder layer
  std::int64_t experts = 0, top_k = 0;
  ExpertRequest request;
  std::vector<double> before, after;   ///< load of each rank over the mean, of the layer
  double worstBefore = 1, worstAfter = 1;   ///< busiest rank over the mean, averaged over all layers
  double dropped = 0;                  ///< share of assignments beyond the capacity, of the layer
  std::vector<Placement> placements;   ///< after, per MoE layer
  double bytesPerCopy = 0;             ///< of one token to one expert: width x 2 bytes (bf16)
  double copies = 0;                   ///< assignments that one rank sends a micro-batch
};

/// Empty for a model without experts. Ranks that do not divide the experts are brought down to the next divisor.
[[nodiscard]] ExpertView expertView(const Problem& problem, const Plan* plan, ExpertRequest request);

/// What the heat map lays out from left to right: experts in their order (each rank holds a run of them), slots as the placement puts them on
/// ranks, or the ranks themselves before and after.
enum class HeatMap : std::uint8_t { experts_before, slots_after, ranks_before, ranks_after };

/// One row per MoE layer. Experts and slots: load over the mean of an expert, an expert's replicas sharing it; ranks: load over the mean of a rank.
[[nodiscard]] std::vector<std::vector<double>> heatCells(const ExpertView& view, HeatMap map);
/// Expert behind a cell; nothing where the cells are ranks.
[[nodiscard]] std::optional<std::int64_t> expertAt(const ExpertView& view, HeatMap map, std::size_t layer, std::int64_t cell);

/// Degrees of expert parallelism that divide the experts, up to the cluster.
[[nodiscard]] std::vector<std::int64_t> expertDegrees(const Problem& problem);

}  // namespace moeplan::gui
