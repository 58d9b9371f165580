#include "sim/cost/expert_places.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "core/configs.hpp"
#include "sim/load/placement.hpp"
#include "sim/load/random.hpp"

namespace moeplan {
namespace {

// DeepSeek-V3: 8 experts out of 4 of 8 groups of 32.
TEST(DistinctDomains, groups_that_are_whole_on_a_node_make_a_token_meet_fewer_of_them) {
  const ExpertPlaces v3{.groups = 8, .top_groups = 4};
  EXPECT_NEAR(distinct_domains(256, 8, 8, v3), 3.63, 0.005) << "one group a node; published";
  EXPECT_NEAR(distinct_domains(256, 8, 4, v3), 2.93, 0.005) << "two groups a node";
  EXPECT_NEAR(distinct_domains(256, 8, 2, v3), 1.93, 0.005) << "four groups a node";
  EXPECT_EQ(distinct_domains(256, 8, 1, v3), 1);
}

TEST(DistinctDomains, grouped_closed_forms_are_those_one_counts_by_hand) {
  // 4 experts in 2 groups, a token takes one group and both its experts.
  const ExpertPlaces one_of_two{.groups = 2, .top_groups = 1};
  EXPECT_NEAR(distinct_domains(4, 2, 2, one_of_two), 1, 1e-12) << "a group is a domain";
  EXPECT_NEAR(distinct_domains(4, 2, 4, one_of_two), 2, 1e-12) << "an expert is a domain";
  // 6 experts {0 1 2} {3 4 5}, one group and 1 expert: always one domain, wherever cuts fall (3 domains of 2 cut a group).
  EXPECT_NEAR(distinct_domains(6, 1, 3, one_of_two), 1, 1e-12);
  // ... and 2 of the 3: group {0 1 2} on domains {0 1} {2 .}: both experts on the first in 1 of 3 cases, else two domains: 5/3. The other group alike.
  EXPECT_NEAR(distinct_domains(6, 2, 3, one_of_two), 5.0 / 3, 1e-12);
  // 2 domains of 4 and 2 experts (12 ranks on nodes of 8): {0 1 2 3} {4 5}. Group 0 stays on the first, group 1 has 3 there and 4, 5 here:
  // pairs of {3 4 5}: 34, 35 meet both, 45 one: 5/3. (1 + 5/3) / 2 = 4/3.
  EXPECT_NEAR(distinct_domains(6, 2, 1.5, one_of_two), 4.0 / 3, 1e-12);
}

TEST(DistinctDomains, all_groups_or_no_order_are_as_if_there_were_no_groups) {
  for (const double domains : {2.0, 4.0, 8.0, 32.0, 256.0}) {
    const double plain = distinct_domains(256, 8, domains);
    EXPECT_NEAR(distinct_domains(256, 8, domains, {.groups = 8, .top_groups = 8}), plain, 1e-9);
    EXPECT_NEAR(distinct_domains(256, 8, domains, {.groups = 8, .top_groups = 4, .runs = 1}), plain, 1e-9) << "placed by load over all ranks";
  }
}

TEST(DistinctDomains, kept_on_nodes_ranks_inside_are_as_without_order) {
  const ExpertPlaces kept{.groups = 8, .top_groups = 4, .runs = 8};
  EXPECT_NEAR(distinct_domains(256, 8, 8, kept), distinct_domains(256, 8, 8, {.groups = 8, .top_groups = 4}), 1e-12) << "nodes hold the groups they hold in order";
  // A node is one group: its ranks hold 4 of 32 experts of it, whichever.
  EXPECT_NEAR(distinct_domains(256, 8, 64, kept), distinct_domains(256, 8, 64, {.groups = 8, .top_groups = 4}), 1e-9);
  // Two groups a node, so 4 of its ranks' 16 experts come from either group by chance: more distinct ranks than in order.
  const ExpertPlaces two{.groups = 8, .top_groups = 4, .runs = 4};
  EXPECT_GT(distinct_domains(256, 8, 32, two), distinct_domains(256, 8, 32, {.groups = 8, .top_groups = 4}));
  EXPECT_LT(distinct_domains(256, 8, 32, two), distinct_domains(256, 8, 32));
}

/// Distinct domains that tokens meet, choosing groups and then experts at random.
double counted(const Placement& placement, std::int64_t experts, std::int64_t k, std::int64_t groups, std::int64_t top, std::int64_t domains) {
  Random random(7);
  const std::int64_t group = experts / groups, tokens = 20000;
  std::vector<std::int64_t> domain(static_cast<std::size_t>(experts));
  const std::int64_t each = std::ssize(placement.expert) / domains;
  for (std::size_t s = 0; s < placement.expert.size(); ++s) domain[static_cast<std::size_t>(placement.expert[s])] = static_cast<std::int64_t>(s) / each;
  double met = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto draw = [&](std::vector<std::int64_t>& from, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) std::swap(from[static_cast<std::size_t>(i)], from[static_cast<std::size_t>(i) + static_cast<std::size_t>(random.uniform() * static_cast<double>(std::ssize(from) - i))]);
      from.resize(static_cast<std::size_t>(n));
    };
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(groups)), pool;
    std::iota(chosen.begin(), chosen.end(), 0);
    draw(chosen, top);
    for (const std::int64_t g : chosen)
      for (std::int64_t e = g * group; e < (g + 1) * group; ++e) pool.push_back(e);
    draw(pool, k);
    std::set<std::int64_t> domains_met;
    for (const std::int64_t e : pool) domains_met.insert(domain[static_cast<std::size_t>(e)]);
    met += static_cast<double>(domains_met.size());
  }
  return met / static_cast<double>(tokens);
}

// The counts of DeepSeek-V3's routers, placed by EPLB as a plan would: the closed forms hold for the placements that come of it.
TEST(DistinctDomains, closed_forms_hold_for_placements_of_real_loads) {
  const auto shares = expert_shares(load_load(std::filesystem::path(MOEPLAN_SOURCE) / "configs", "deepseek-v3-prefill-in1024"), 58, 256);
  for (const std::size_t layer : {std::size_t{3}, std::size_t{30}}) {
    for (const std::int64_t nodes : {4, 8}) {
      const double n = static_cast<double>(nodes);
      EXPECT_NEAR(counted(contiguous(256, 8 * nodes), 256, 8, 8, 4, nodes), distinct_domains(256, 8, n, {.groups = 8, .top_groups = 4}), 0.02);
      EXPECT_NEAR(counted(balanced(shares[layer], 8 * nodes, 256), 256, 8, 8, 4, nodes), distinct_domains(256, 8, n, {.groups = 8, .top_groups = 4, .runs = 1}), 0.1) << layer;
      EXPECT_NEAR(counted(balanced(shares[layer], 8 * nodes, 256, 8, nodes), 256, 8, 8, 4, nodes), distinct_domains(256, 8, n, {.groups = 8, .top_groups = 4, .runs = nodes}), 0.02);
      EXPECT_NEAR(counted(balanced(shares[layer], 8 * nodes, 256, 8, nodes), 256, 8, 8, 4, 8 * nodes), distinct_domains(256, 8, 8 * n, {.groups = 8, .top_groups = 4, .runs = nodes}), 0.06);
    }
  }
}

}  // namespace
}  // namespace moeplan
