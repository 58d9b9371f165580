#pragma once
/// How far a plan's tokens travel to their experts, in figures that a user can follow.

#include <optional>
#include <string>

#include "core/spec/plan.hpp"

namespace moeplan {

/// Over the widest links that an expert group crosses.
struct ExchangeReach {
  std::string tier;             ///< name of those links
  double top_k = 0;             ///< experts of a token
  double domains = 1;           ///< parts of the expert group that they join (nodes), not whole where ranks do not fill the last
  double distinct = 1;          ///< of these, those that hold a token's experts, in the mean
  bool once = false;            ///< a token travels once to each (or, directly, to each rank) instead of once for each expert
  bool direct = false;
  double copies = 0;            ///< of a token over those links
  double copies_by_load = 0;    ///< the same with experts placed by load over all ranks
  double copies_in_order = 0;   ///< ... in their order
};

/// Nothing where no token leaves its rank.
[[nodiscard]] std::optional<ExchangeReach> exchange_reach(const Problem& problem, const Plan& plan);

}  // namespace moeplan
