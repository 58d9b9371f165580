#include "planner/searched_space.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "planner/problem.hpp"

namespace moeplan {
namespace {

TEST(SearchedSpace, a_plan_file_remembers_it_and_one_that_does_not_means_the_narrow_one) {
  ProblemRequest r;
  r.model = "tiny-kimi-k3";
  r.device = "h200";
  r.gpus = 8;
  const Problem p = make_problem(MOEPLAN_SOURCE "/configs", r);
  SearchOptions options;
  options.wide = options.search_dispatch = options.search_capacity = true;
  options.pins.pp = 1, options.pins.micro_batch = 1, options.pins.ep = 1;
  options.pins.capacity_factor = 1;
  const RankedPlan best = plan(p, options).plans.front();
  const SearchedSpace space = searched_space(options);
  EXPECT_EQ(space, (SearchedSpace{.wide = true, .dispatch = true, .capacity = true}));
  Json file = plan_file(p, best, space);
  EXPECT_EQ(read_plan_file(file, "plan.json").plan, best.plan);
  EXPECT_EQ(read_searched_space(file, "plan.json"), space);
  EXPECT_EQ(searched_space(search_of(space)), space);
  EXPECT_EQ(read_searched_space(plan_file(p, best), "plan.json"), SearchedSpace{});
  file["search"]["wide"] = "yes";
  EXPECT_THROW((void)read_plan_file(file, "plan.json"), InputError);
  file["search"] = {{"all", true}};
  EXPECT_THROW((void)read_plan_file(file, "plan.json"), InputError);
}

}  // namespace
}  // namespace moeplan
