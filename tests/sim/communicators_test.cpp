#include "sim/memory/communicators.hpp"

#include <gtest/gtest.h>

#include "core/configs.hpp"

namespace moeplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

Problem problem(const std::string& cluster) {
  Problem p;
  p.cluster = load_cluster(kConfigs, cluster);
  p.runtime = load_runtime(kConfigs, "moeplan");
  return p;
}

TEST(Communicators, one_rank_has_none) { EXPECT_EQ(communicator_memory(problem("8xh200"), {}, ContextExchange::ring).value, 0); }

TEST(Communicators, groups_of_the_same_ranks_share_one) {
  // 438 MiB of kernels; made 196, rings 24 x 12 MiB, sends to the other rank 32 x 12 MiB. Measured on two H200: 1306 MiB for a communicator with all calls.
  EXPECT_EQ(communicator_memory(problem("8xh200"), {.ep = 2, .dp_shard = 2}, ContextExchange::ring).value, (438 + 196 + 288 + 384) * kMiB);
  EXPECT_EQ(communicator_memory(problem("8xh200"), {.dp_shard = 2}, ContextExchange::ring).value, (438 + 196 + 288) * kMiB);
}

TEST(Communicators, each_other_set_of_ranks_takes_its_own) {
  // 64 ranks: the world, eight neighbours that share experts, and the eight ranks that hold the same experts, one a node.
  EXPECT_EQ(communicator_memory(problem("64xh200"), {.ep = 8, .dp_shard = 64, .expert_shard = 8}, ContextExchange::ring).value, (438 + 3 * (196 + 288) + 7 * 384) * kMiB);
}

TEST(Communicators, sends_over_a_network_share_a_pool_and_narrow_those_within_a_domain) {
  // 7 ranks of the node, 2 channels each; two pools of 32 channels x 16 x 128 KiB for the other 56.
  EXPECT_EQ(communicator_memory(problem("64xh200"), {.ep = 64, .dp_shard = 64}, ContextExchange::ring).value, (438 + 196 + 288 + 7 * 24 + 128) * kMiB);
  EXPECT_EQ(communicator_memory(problem("128xh200"), {.ep = 128, .dp_shard = 128}, ContextExchange::ring).value, (438 + 196 + 288 + 7 * 12 + 128) * kMiB);
  // Stages of 8 ranks: their own communicator, and one neighbour in each direction, both on other nodes.
  EXPECT_EQ(communicator_memory(problem("64xh200"), {.pp = 8, .dp_shard = 8}, ContextExchange::ring).value, (438 + 3 * (196 + 288) + 128) * kMiB);
}

TEST(Communicators, other_runtimes_have_the_figure_that_their_file_gives_for_each_degree) {
  Problem p = problem("64xh200");
  p.runtime = load_runtime(kConfigs, "megatron-core");
  EXPECT_EQ(communicator_memory(p, {.ep = 8, .dp_shard = 64}, ContextExchange::ring), p.runtime.communicator * 2);
}

}  // namespace
}  // namespace moeplan
