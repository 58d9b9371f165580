#pragma once
/// Which space of plans a search looked at, as a plan file remembers it: what is compared with the plan afterwards comes from the same.

#include "planner/planner.hpp"

namespace moeplan {

/// The optimizer is the plan's own, searched or not.
struct SearchedSpace {
  bool wide = false;
  bool offload = false, dispatch = false, capacity = false, overflow = false;   ///< searched because that was asked for
  bool operator==(const SearchedSpace&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("wide", &SearchedSpace::wide), field("offload", &SearchedSpace::offload), field("dispatch", &SearchedSpace::dispatch),
                           field("capacity", &SearchedSpace::capacity), field("overflow", &SearchedSpace::overflow));
  }
};

[[nodiscard]] SearchedSpace searched_space(const SearchOptions& options);
/// Options that search it, nothing pinned.
[[nodiscard]] SearchOptions search_of(const SearchedSpace& space);

/// `plan_file`, which remembers the space.
[[nodiscard]] Json plan_file(const Problem& problem, const RankedPlan& ranked, const SearchedSpace& space);
/// That of a plan file which `read_plan_file` has read; the narrow one where it says nothing.
[[nodiscard]] SearchedSpace read_searched_space(const Json& plan_file, const std::string& where);

}  // namespace moeplan
