/// Tokens that go once to each rank, or to each node and there once to each rank: the same numbers, fewer bytes.

#include <gtest/gtest.h>

#include "executor/ranks/runnable.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json";

struct OnceCase {
  ParityCase parity;
  int node = 0;  ///< devices of a node: two hops; 0: one
  std::int64_t replicas = 0;
};

void once(Problem& p, Plan& q, int node) {
  p.runtime.deduplicated_dispatch = true;
  p.cluster.devices_per_node = node > 0 ? node : 8;
  q.experts.route = node > 0 ? DispatchRoute::two_hop : DispatchRoute::direct;
}

class Once : public testing::TestWithParam<OnceCase> {};

TEST_P(Once, DoesWhatOneRankDoes) {
  const OnceCase& c = GetParam();
  expect_parity(c.parity, [&](Problem& p, Plan& q) {
    once(p, q, c.node);
    ASSERT_EQ(ranks_of_a_node(p, q) > 0, c.node > 0);
    if (c.replicas == 0) return;
    place_by_load(p, q, c.replicas);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Exchanges, Once,
    testing::Values(
        OnceCase{{"direct", qwen, true, {.ep = 4, .dp_replicate = 4}}},
        OnceCase{{"direct_lora_recomputed", k3, false, {.ep = 4, .dp_shard = 4}, Recompute::full, 2}},
        OnceCase{{"direct_selective", k3, true, {.ep = 2, .dp_shard = 4, .expert_shard = 2}, Recompute::selective}},
        OnceCase{{"direct_of_placed_experts", qwen, true, {.ep = 4, .dp_replicate = 4}}, 0, 4},
        OnceCase{{"direct_cut_experts", qwen, true, {.ep = 2, .etp = 2, .dp_shard = 4}}},
        OnceCase{{"direct_over_tensor_ranks", qwen, true, {.tp = 2, .ep = 4, .dp_shard = 2}}},
        OnceCase{{"direct_put_off",
                  k3,
                  true,
                  {.pp = 2, .ep = 2, .dp_replicate = 2},
                  Recompute::selective,
                  3,
                  Schedule::zero_bubble}},
        OnceCase{{"two_hops", qwen, true, {.ep = 4, .dp_replicate = 4}}, 2},
        OnceCase{{"two_hops_recomputed", k3, false, {.ep = 8, .dp_shard = 8}, Recompute::full, 2}, 4},
        OnceCase{{"two_hops_many_nodes", k3, true, {.ep = 8, .dp_replicate = 8}, Recompute::selective}, 2},
        OnceCase{{"two_hops_of_placed_experts", qwen, true, {.ep = 4, .dp_replicate = 4}}, 2, 8},
        OnceCase{{"two_hops_on_stages", k3, false, {.pp = 2, .ep = 4, .dp_shard = 4}, Recompute::none, 2}, 2}),
    [](const auto& each) { return std::string(each.param.parity.name); });

/// Of all ranks: payload and sent bytes of their exchanges.
CommCounter exchanges(const std::vector<CommCounters>& of) {
  CommCounter out;
  for (const CommCounters& c : of) {
    const CommCounter& each = c[static_cast<std::size_t>(CommKind::all_to_all)];
    out.calls += each.calls, out.payload += each.payload, out.sent += each.sent;
  }
  return out;
}

TEST(OnceByHand, ATokenOfAllExpertsCrossesOnceToEachRank) {
  // Six tokens a rank on four ranks, each of all eight experts: by copy each token goes to each rank twice.
  Problem p = problem(shrunk(shipped(qwen), 1), full(6));
  for (Sublayer& s : p.model.layers[0].sublayers)
    if (auto* f = std::get_if<MoeFfn>(&s.mixer)) f->top_k = 8;
  Plan q = on_ranks(p, {.ep = 4, .dp_replicate = 4}, 1);
  const auto batches = data(p, 1, 4);
  const TrainOptions options{.walk = {.routed_bound = 4}};
  const std::int64_t row = 4 * 32, tokens = 6, ranks = 4, word = 4, top_k = 8;
  // There, back, and both ways with gradients.
  const CommCounter copies = exchanges(run_plan(p, q, batches, options).counted);
  EXPECT_EQ(copies.payload, ranks * 4 * tokens * top_k * row);
  once(p, q, 0);
  const Outcome direct = run_plan(p, q, batches, options);
  // Choices and weights go with the tokens, the weights' gradients come back.
  const std::int64_t beside = 3 * top_k * word;
  EXPECT_EQ(exchanges(direct.counted).payload, ranks * ranks * tokens * (4 * row + beside));
  EXPECT_EQ(exchanges(direct.counted).sent, exchanges(direct.counted).payload * 3 / 4) << "a quarter stays";
  // Two nodes of two: once to each node (half of it stays), then each of those 12 tokens to both ranks (half stays).
  once(p, q, 2);
  const Outcome hops = run_plan(p, q, batches, options);
  EXPECT_EQ(exchanges(hops.counted).payload, ranks * (2 * tokens + 2 * 2 * tokens) * (4 * row + beside));
  EXPECT_EQ(exchanges(hops.counted).sent, exchanges(hops.counted).payload / 2);
  EXPECT_EQ(hops.counted, hops.predicted);
  EXPECT_NEAR(hops.steps[0].gradient_norm, direct.steps[0].gradient_norm, 1e-4 * direct.steps[0].gradient_norm);
}

TEST(OnceBlocks, NoExchangeOfCopiesIsLeft) {
  for (const char* file : {qwen, k3})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (const bool whole : {false, true})
        for (const Schedule schedule : {Schedule::one_forward_one_backward, Schedule::zero_bubble}) {
          Problem p = problem(shrunk(shipped(file), 4), whole ? full(6) : lora(6));
          Plan q = on_ranks(p, {.pp = 2, .ep = 2, .dp_replicate = 2}, 2, recompute);
          q.schedule = schedule;
          once(p, q, 0);
          Program program = lower_for_run(p, q, {}, 3);
          exchange_once(program, p, q, {});
          int there = 0, sums = 0;
          for (const Block& b : program.blocks)
            for (const auto* list : {&b.forward, &b.backward})
              for (const BlockNode& n : *list) {
                const CommCall* comm = std::get_if<CommCall>(&n.call);
                if (comm && comm->group == Group::expert) {
                  ++there;
                  EXPECT_FALSE(n.operands.empty()) << b.name;
                }
                const OpCall* call = std::get_if<OpCall>(&n.call);
                sums += call && (std::holds_alternative<op::Combine>(call->op) ||
                                 std::holds_alternative<op::Permute>(call->op));
              }
          EXPECT_GT(there, 3);
          EXPECT_EQ(sums, 0) << "copies are made and summed where the experts are";
        }
}

TEST(OnceByHand, DropsWhatOneRankDrops) {
  // Overflow of every kind: the loss of a step is that of copies that travel by themselves.
  Problem p = problem(shrunk(shipped(qwen), 2), lora(6));
  Plan q = on_ranks(p, {.ep = 2, .dp_replicate = 2}, 1);
  const auto batches = data(p, 1, 2);
  for (const Overflow overflow : {Overflow::drop_position, Overflow::drop_probability, Overflow::reroute}) {
    TrainOptions options{.walk = {.capacity_factor = 0.5, .overflow = overflow, .routed_bound = 2}};
    p.runtime.deduplicated_dispatch = false;
    const Outcome copies = run_plan(p, q, batches, options);
    once(p, q, 0);
    const Outcome tokens = run_plan(p, q, batches, options);
    EXPECT_GT(copies.steps[0].drop_rate, 0) << name_of(overflow);
    EXPECT_EQ(copies.steps[0].drop_rate, tokens.steps[0].drop_rate);
    EXPECT_NEAR(copies.steps[0].loss, tokens.steps[0].loss, 1e-5) << name_of(overflow);
    EXPECT_NEAR(copies.steps[0].gradient_norm, tokens.steps[0].gradient_norm, 1e-4 * copies.steps[0].gradient_norm);
    expect_same(copies.gradients, tokens.gradients, 2e-4, "gradient");
    EXPECT_EQ(tokens.counted, tokens.predicted);
  }
}

TEST(OnceByHand, TakesTwoHopsWhereTheGroupSpansWholeNodes) {
  const Problem any = problem(shrunk(shipped(qwen), 1), lora(6));
  const auto node = [&](int devices, Parallelism ranks, DispatchRoute route) {
    Problem p = any;
    Plan q = on_ranks(p, ranks, 1);
    p.cluster.devices_per_node = devices, q.experts.route = route;
    return ranks_of_a_node(p, q);
  };
  EXPECT_EQ(node(2, {.ep = 8, .dp_shard = 8}, DispatchRoute::two_hop), 2);
  EXPECT_EQ(node(2, {.ep = 8, .dp_shard = 8}, DispatchRoute::direct), 0);
  EXPECT_EQ(node(8, {.ep = 8, .dp_shard = 8}, DispatchRoute::two_hop), 0) << "one node";
  EXPECT_EQ(node(1, {.ep = 8, .dp_shard = 8}, DispatchRoute::two_hop), 0) << "a node is a rank";
  EXPECT_EQ(node(3, {.ep = 8, .dp_shard = 8}, DispatchRoute::two_hop), 0) << "parts of nodes";
  EXPECT_EQ(node(4, {.ep = 4, .etp = 2, .dp_shard = 8}, DispatchRoute::two_hop), 2)
      << "neighbours of an expert are on a node";
}

}  // namespace
}  // namespace moeplan
