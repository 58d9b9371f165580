#include "sim/load/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/configs.hpp"
#include "core/error.hpp"

namespace moeplan {
namespace {

std::vector<Shares> v3(const std::string& workload) {
  return expert_shares(load_load(std::filesystem::path(MOEPLAN_SOURCE) / "configs", "deepseek-v3-" + workload), 58, 256);
}

/// Mean over the layers of the busiest rank, planned on one load and serving another.
double mean_factor(const std::vector<Shares>& plan, const std::vector<Shares>& serve, std::int64_t ranks, std::int64_t extra, std::int64_t groups = 1, std::int64_t nodes = 1) {
  double sum = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) sum += rank_factor(serve[i], balanced(plan[i], ranks, 256 + extra, groups, nodes));
  return sum / static_cast<double>(plan.size());
}

TEST(Placement, contiguous_is_the_identity) {
  const Placement p = contiguous(4, 2);
  EXPECT_EQ(p.expert, (std::vector<std::int64_t>{0, 1, 2, 3}));
  const Shares s{0.4, 0.1, 0.2, 0.3};
  EXPECT_EQ(rank_factor(s, p), rank_factor(s, 2));
}

TEST(Placement, a_hot_expert_is_replicated_until_ranks_are_even_by_hand) {
  // One expert of three quarters, one of a quarter, four slots on two ranks: three copies of a quarter each and the other: even.
  const Placement p = balanced({0.75, 0.25}, 2, 4);
  EXPECT_EQ(std::count(p.expert.begin(), p.expert.end(), 0), 3);
  EXPECT_DOUBLE_EQ(rank_factor({0.75, 0.25}, p), 1.0);
  EXPECT_DOUBLE_EQ(floor_without_replicas({0.75, 0.25}, 2), 1.5);
}

TEST(Placement, eplb_on_the_v3_counts_reaches_its_published_figures) {
  const auto a = v3("prefill-in1024");
  EXPECT_NEAR(mean_factor(a, a, 8, 0), 1.005, 0.002) << "re-ordering alone";
  EXPECT_NEAR(mean_factor(a, a, 16, 0), 1.02, 0.006);
  EXPECT_NEAR(mean_factor(a, a, 32, 0), 1.14, 0.006);
  EXPECT_NEAR(mean_factor(a, a, 64, 0), 1.76, 0.006);
  EXPECT_NEAR(mean_factor(a, a, 128, 0), 3.33, 0.01);
  EXPECT_NEAR(mean_factor(a, a, 32, 32), 1.007, 0.002);
  EXPECT_NEAR(mean_factor(a, a, 64, 64), 1.019, 0.003);
  EXPECT_NEAR(mean_factor(a, a, 128, 128), 1.051, 0.004);
  EXPECT_NEAR(mean_factor(a, a, 256, 256), 1.04, 0.01);
}

TEST(Placement, hierarchical_keeps_groups_together_and_inherits_their_skew) {
  const auto a = v3("prefill-in1024");
  EXPECT_NEAR(mean_factor(a, a, 32, 32, 8, 4), 1.17, 0.01);
  const double one_group_a_node = mean_factor(a, a, 64, 64, 8, 8);
  EXPECT_GT(one_group_a_node, 1.6);
  EXPECT_LT(one_group_a_node, 2.1);
  // Groups stay whole: the experts of a group are on one node.
  const Placement p = balanced(a[0], 32, 288, 8, 4);
  std::vector<std::int64_t> node_of_group(8, -1);
  for (std::size_t s = 0; s < p.expert.size(); ++s) {
    const auto node = static_cast<std::int64_t>(s) / (288 / 4);
    auto& known = node_of_group[static_cast<std::size_t>(p.expert[s] / 32)];
    if (known < 0) known = node;
    EXPECT_EQ(known, node);
  }
}

TEST(Placement, a_stale_plan_loses_part_of_the_gain) {
  const auto a = v3("prefill-in1024"), b = v3("prefill-in4096"), d = v3("decode-in1000out1000");
  EXPECT_NEAR(mean_factor(a, b, 32, 32), 1.23, 0.02);
  EXPECT_NEAR(mean_factor(a, b, 64, 64), 1.34, 0.02);
  EXPECT_NEAR(mean_factor(a, b, 128, 128), 1.52, 0.03);
  const double other = mean_factor(d, a, 32, 32);
  EXPECT_GT(other, 1.38);
  EXPECT_LT(other, 1.52);
}

TEST(Placement, more_replicas_never_raise_the_worst_rank_by_more_than_a_packing_step) {
  const auto a = v3("prefill-in512");
  for (std::size_t l = 0; l < a.size(); l += 9) {
    double last = 1e9;
    for (const std::int64_t extra : {0, 64, 128, 256}) {
      const double f = rank_factor(a[l], balanced(a[l], 64, 256 + extra));
      EXPECT_LE(f, last * 1.02) << "layer " << l << ", " << extra;
      last = f;
    }
  }
}

TEST(Placement, every_expert_has_a_slot_and_every_rank_as_many) {
  const auto a = v3("prefill-in512");
  const Placement p = balanced(a[0], 32, 320);
  EXPECT_EQ(p.slots_per_rank(), 10);
  for (std::int64_t e = 0; e < 256; ++e) EXPECT_NE(std::find(p.expert.begin(), p.expert.end(), e), p.expert.end());
}

TEST(Placement, numbers_that_do_not_divide_are_refused) {
  const Shares s(256, 1.0 / 256);
  EXPECT_THROW((void)balanced(s, 32, 255), InputError);
  EXPECT_THROW((void)balanced(s, 32, 257), InputError);
  EXPECT_THROW((void)balanced(s, 0, 256), InputError);
  EXPECT_THROW((void)balanced(s, 32, 256, 3, 1), InputError);
  EXPECT_THROW((void)contiguous(256, 3), InputError);
  EXPECT_THROW((void)rank_factor({0.5, 0.5}, contiguous(4, 2)), InputError);
}

}  // namespace
}  // namespace moeplan
