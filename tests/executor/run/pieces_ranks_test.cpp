/// Exchanges in pieces: the experts of one piece beside the exchange of the next, and nothing of it in the numbers.

#include <gtest/gtest.h>

#include "executor/rendezvous/rank_process.hpp"
#include "executor/walk/pieces.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json", *gpt = "gpt-oss/gpt-oss-20b.json";

struct PiecesCase {
  ParityCase parity;
  std::int64_t chunks = 2;
  std::int64_t replicas = 0;
};

class Pieces : public testing::TestWithParam<PiecesCase> {};

TEST_P(Pieces, DoWhatOneRankDoes) {
  expect_parity(GetParam().parity, [](Problem& p, Plan& q) {
    q.experts.chunks = GetParam().chunks;
    if (GetParam().replicas == 0) return;
    p.cluster.devices_per_node = 8;
    place_by_load(p, q, GetParam().replicas);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Exchanges, Pieces,
    testing::Values(PiecesCase{{"two", qwen, true, {.ep = 4, .dp_replicate = 4}}},
                    PiecesCase{{"more_than_rows", qwen, true, {.ep = 2, .dp_replicate = 2}}, 16},
                    PiecesCase{{"lora_recomputed", k3, false, {.ep = 4, .dp_shard = 4}, Recompute::full, 2}, 4},
                    PiecesCase{
                        {"selective", k3, true, {.ep = 2, .dp_shard = 4, .expert_shard = 2}, Recompute::selective}, 3},
                    PiecesCase{{"with_biases", gpt, true, {.ep = 2, .dp_replicate = 2}}, 2},
                    PiecesCase{{"of_placed_experts", qwen, true, {.ep = 4, .dp_replicate = 4}}, 2, 4},
                    PiecesCase{{"on_stages", k3, false, {.pp = 2, .ep = 2, .dp_replicate = 2}, Recompute::none, 3}, 2},
                    PiecesCase{{"put_off",
                                k3,
                                true,
                                {.pp = 2, .ep = 2, .dp_replicate = 2},
                                Recompute::selective,
                                3,
                                Schedule::zero_bubble},
                               2},
                    PiecesCase{{"over_tensor_ranks", qwen, true, {.tp = 2, .ep = 4, .dp_shard = 2}}, 2}),
    [](const auto& each) { return std::string(each.param.parity.name); });

TEST(PiecesUnderWay, BlockWhereNothingIsQueuedAndAreAllWaitedFor) {
  Problem p = problem(shrunk(shipped(qwen), 2), lora(6));
  for (const std::int64_t chunks : {1, 3}) {
    Plan q = on_ranks(p, {.ep = 2, .dp_shard = 2}, 1);
    q.experts.chunks = chunks;
    const auto batches = data(p, 1, 2);
    run_ranks(2, [&](Communicator& world) {
      const auto backend = cpu_backend(CpuStorage::as_planned);
      Trainer trainer(p, q, *backend, {.walk = {.routed_bound = 2}}, &world);
      randomise(trainer.parameters(), 1, p.model, *backend);
      double communication = 0;
      trainer.walk().time([&](const Instance&, const BlockNode& n, double begin, double end) {
        if (std::holds_alternative<CommCall>(n.call)) communication += end - begin;
      });
      (void)trainer.step({batches[0][static_cast<std::size_t>(world.rank())]});
      const Overlaps& seen = trainer.walk().overlaps();
      for (const Overlap& of : {seen.exchange, seen.gather}) {
        EXPECT_GT(of.seconds, 0);
        EXPECT_EQ(of.waited, of.seconds);
        EXPECT_EQ(of.hidden(), 0);
      }
      EXPECT_GE(communication, seen.exchange.seconds) << "the timeline has the exchanges too";
    });
  }
}

TEST(PiecesOfRoutes, ARankThatSaysNoNumberOfRowsIsNamed) {
  run_ranks(3, [](Communicator& c) {
    for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{0x7fc07fc07fc07fc0}}) {
      const std::vector<std::int64_t> rows{2, c.rank() == 1 ? wrong : 1, 0};
      try {
        (void)exchange_counts(c, rows);
        ADD_FAILURE() << "it was taken for a size";
      } catch (const RankBlamed& e) {
        EXPECT_EQ(e.culprit(), 1);
        EXPECT_NE(std::string(e.what()).find("rank 1 sent " + std::to_string(wrong) + " as the rows of its tokens for an expert"), std::string::npos) << e.what();
      }
    }
  });
}

TEST(PiecesOfRoutes, AddUpToTheWhole) {
  run_ranks(2, [](Communicator& c) {
    const std::vector<std::int64_t> rows =
        c.rank() == 0 ? std::vector<std::int64_t>{5, 0, 2, 7} : std::vector<std::int64_t>{1, 4, 3, 0};
    const Routes all = exchange_counts(c, rows, {}, 3);
    ASSERT_EQ(all.parts.size(), 3u);
    std::vector<std::int64_t> sent(2, 0), received(4, 0);
    for (const Routes& part : all.parts) {
      EXPECT_EQ(part.sent_before, std::accumulate(sent.begin(), sent.end(), std::int64_t{0}));
      EXPECT_EQ(part.received_before, std::accumulate(received.begin(), received.end(), std::int64_t{0}));
      for (std::size_t r = 0; r < 2; ++r) sent[r] += part.sent[r];
      for (std::size_t s = 0; s < 4; ++s) received[s] += part.received[s];
    }
    EXPECT_EQ(sent, all.sent);
    EXPECT_EQ(received, all.received);
    // Of five rows the pieces are 1, 2 and 2.
    if (c.rank() == 0) {
      EXPECT_EQ(all.parts[1].pieces.front(), (RowRun{1, 2}));
    }
  });
}

}  // namespace
}  // namespace moeplan
