#pragma once
/// The ways of an expert exchange that a search looks at.

#include "planner/planner.hpp"

namespace moeplan {

/// Experts of the widest routed layer; 0 without.
[[nodiscard]] std::int64_t routed_experts(const ModelSpec& model);

/// Ranks that share the innermost links: tensor groups stay among them unless pinned.
[[nodiscard]] std::int64_t scale_up_domain(const ClusterSpec& cluster);

/// The pins; what changes results beside them where it is asked for (dispatch type, capacity, overflow); and in a wide search what changes none: pieces that
/// overlap, the route between nodes, placement by load (with groups of experts kept on nodes, where an expert group spans some), and one more slot a rank
/// where experts are frozen.
/// Not searched, since it never wins: padding to capacity adds rows and takes none away; dropping by position costs what dropping by probability does.
[[nodiscard]] std::vector<ExpertExchange> exchange_options(const Problem& problem, const SearchOptions& options, const Parallelism& parallelism, Offload offload);

}  // namespace moeplan
