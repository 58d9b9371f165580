#include "planner/measured_shares.hpp"

#include <gtest/gtest.h>

#include "planner/problem.hpp"

namespace moeplan {
namespace {

Problem problem() {
  ProblemRequest r;
  r.model = "qwen3-30b-a3b", r.device = "h200", r.gpus = 8;
  Problem p = make_problem(MOEPLAN_SOURCE "/configs", r);
  p.profile.samples.clear();
  for (const char* call : {"all_gather", "reduce_scatter", "dispatch", "send_receive"})
    for (const int ranks : {2, 8})
      for (const bool delay : {false, true})
        p.profile.samples.push_back({.key = std::string(delay ? "delay " : "") + call + " payload=1000000 ranks=" + std::to_string(ranks), .median = {delay ? (ranks == 8 ? 40e-6 : 20e-6) : 100e-6}, .spread = 0.01, .count = 5});
  return p;
}

Plan a_plan(Parallelism parallelism) {
  Plan out;
  out.parallelism = parallelism;
  out.micro_batch = 1, out.micro_batches = 2, out.stage_layers = {48};
  return out;
}

std::vector<std::string> names(const Problem& p, std::vector<Plan> plans) {
  std::vector<std::string> out;
  for (const auto& s : measured_shares(p, plans)) out.push_back(s.collective + " " + std::to_string(s.ranks));
  return out;
}

using Names = std::vector<std::string>;

TEST(MeasuredShares, are_those_of_the_calls_that_the_plans_make) {
  const Problem p = problem();
  EXPECT_EQ(names(p, {a_plan({.dp_replicate = 1, .dp_shard = 8})}), (Names{"all_gather 8", "reduce_scatter 8"})) << "nothing is sent to experts, and nothing over 2 ranks";
  EXPECT_EQ(names(p, {a_plan({.dp_replicate = 4, .dp_shard = 2, .expert_shard = 1})}).front(), "all_gather 2");
  EXPECT_TRUE(names(p, {}).empty());
}

TEST(MeasuredShares, of_another_device_count_for_nothing) {
  Problem p = problem();
  p.profile.device.name = "another";
  EXPECT_TRUE(names(p, {a_plan({.dp_replicate = 1, .dp_shard = 8})}).empty());
}

}  // namespace
}  // namespace moeplan
