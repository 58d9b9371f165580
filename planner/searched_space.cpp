#include "planner/searched_space.hpp"

#include "core/read.hpp"
#include "core/write.hpp"

namespace moeplan {

SearchedSpace searched_space(const SearchOptions& o) { return {o.wide, o.search_offload, o.search_dispatch, o.search_capacity, o.search_overflow}; }

SearchOptions search_of(const SearchedSpace& s) {
  SearchOptions out;
  out.wide = s.wide;
  out.search_offload = s.offload, out.search_dispatch = s.dispatch, out.search_capacity = s.capacity, out.search_overflow = s.overflow;
  return out;
}

Json plan_file(const Problem& problem, const RankedPlan& ranked, const SearchedSpace& space) {
  Json out = plan_file(problem, ranked);
  out["search"] = to_json(space);
  return out;
}

SearchedSpace read_searched_space(const Json& plan_file, const std::string& where) {
  const Place top(plan_file, where);
  return plan_file.contains("search") ? read<SearchedSpace>(top.at("search")) : SearchedSpace{};
}

}  // namespace moeplan
