/// Tensor ranks with sequence parallelism: parts of every matrix, shares of every sequence, and the loss and the
/// gradients of one rank.

#include "core/error.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

class TensorRanks : public testing::TestWithParam<ParityCase> {};

TEST_P(TensorRanks, DoWhatOneRankDoes) { expect_parity(GetParam()); }

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json";
constexpr auto f1b = Schedule::one_forward_one_backward;
INSTANTIATE_TEST_SUITE_P(
    Parallelisms, TensorRanks,
    testing::Values(
        ParityCase{"k3_tp2", k3, false, {.tp = 2}}, ParityCase{"k3_tp2_full", k3, true, {.tp = 2}, Recompute::full, 2},
        ParityCase{"k3_tp2_ep2", k3, true, {.tp = 2, .ep = 2}, Recompute::selective},
        ParityCase{"k3_tp2_ep4_fsdp2", k3, false, {.tp = 2, .ep = 4, .dp_shard = 2}, Recompute::full, 2},
        ParityCase{"k3_tp2_pp2_ep2_fsdp2", k3, false, {.pp = 2, .tp = 2, .ep = 2, .dp_shard = 2}, Recompute::full, 3},
        ParityCase{"k3_tp2_hsdp_2x2", k3, true, {.tp = 2, .ep = 2, .dp_replicate = 2, .dp_shard = 2}},
        ParityCase{"qwen_tp4_two_key_value_heads", qwen, true, {.tp = 4}, Recompute::none, 1, f1b, 8},
        ParityCase{"qwen_tp4_ep2_fsdp2_expert_shard2",
                   qwen,
                   true,
                   {.tp = 4, .ep = 2, .dp_shard = 2, .expert_shard = 2},
                   Recompute::full,
                   2,
                   f1b,
                   8},
        ParityCase{"k3_etp2_dp2", k3, true, {.etp = 2, .dp_replicate = 2}},
        ParityCase{"k3_tp2_etp2", k3, false, {.tp = 2, .etp = 2}, Recompute::full},
        ParityCase{"qwen_ep2_etp2_fsdp4", qwen, true, {.ep = 2, .etp = 2, .dp_shard = 4}, Recompute::full, 2},
        ParityCase{"k3_tp2_ep2_etp2_expert_shard2",
                   k3,
                   false,
                   {.tp = 2, .ep = 2, .etp = 2, .dp_shard = 4, .expert_shard = 2},
                   Recompute::selective},
        ParityCase{"qwen35_tp2", "qwen/qwen3.5-35b-a3b.json", true, {.tp = 2}},
        ParityCase{"qwen3_next_tp2_ep2", "qwen/qwen3-next-80b-a3b.json", true, {.tp = 2, .ep = 2}},
        ParityCase{"glm_dsa_tp2", "glm/glm-5.json", false, {.tp = 2}, Recompute::selective},
        ParityCase{"gpt_oss_tp2_biases", "gpt-oss/gpt-oss-20b.json", true, {.tp = 2, .dp_shard = 2}},
        ParityCase{"nemotron_tp2", "nemotron/nemotron-3-nano-30b-a3b.json", true, {.tp = 2}},
        ParityCase{"jamba_tp2", "jamba/jamba-v0.1.json", true, {.tp = 2}, Recompute::full},
        ParityCase{"deepseek_v4_tp2", "deepseek/deepseek-v4-flash.json", true, {.tp = 2}, Recompute::none, 1, f1b, 8}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(TensorRanks, TrainAdaptersOfTheVocabularyToo) {
  expect_parity({"", qwen, false, {.tp = 2}, Recompute::full},
                [](Problem& p, Plan&) { p.workload.embedding = p.workload.head = p.workload.attention; });
}

TEST(TensorRanks, KeepPackedDocumentsApart) {
  const Problem p = problem(shrunk(shipped(k3), 4), full(8));
  auto batches = data(p, 1, 2);
  batches[0][0].starts = {0, 3, 8}, batches[0][1].starts = {0, 1, 6, 8};
  TrainOptions options;
  options.walk.routed_bound = 8;
  const Outcome one = alone(p, batches, options),
                many = run_plan(p, on_ranks(p, {.tp = 2, .ep = 2}, 2, Recompute::selective), batches, options);
  expect_same_outcome(one, many, options.learning_rate);
  batches[0][0].starts = batches[0][1].starts = {};
  EXPECT_GT(std::abs(alone(p, batches, options).steps[0].loss - one.steps[0].loss), 1e-4);
}

TEST(TensorRanks, DropBeyondTheCapacityOfTheirShare) {
  const Problem p = problem(shrunk(shipped(k3), 4), lora(8));
  Plan q = on_ranks(p, {.tp = 2, .ep = 2}, 1);
  TrainOptions options;
  options.walk.routed_bound = 8, options.walk.capacity_factor = 0.5;
  const Outcome run = run_plan(p, q, data(p, 1, 1), options);
  // 4 tokens a rank x 3 choices over 8 experts, half of it: 1 row of each expert and rank is kept.
  const RoutingReport& layer = run.steps[0].routing.back();
  std::int64_t choices = 0;
  for (const std::int64_t each : layer.counts) choices += each;
  EXPECT_EQ(choices, 8 * 3);
  EXPECT_GE(layer.dropped, choices - 2 * 8);
  EXPECT_EQ(run.counted, run.predicted);
}

TEST(TensorRanks, RefuseWhatTheyCannotCutByName) {
  const auto refused = [](const char* file, Workload workload, const Parallelism& parallelism) -> std::string {
    const Problem p = problem(shrunk(shipped(file), 4), workload);
    try {
      (void)run_plan(p, on_ranks(p, parallelism, 1), data(p, 1, parallelism.dp()));
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refused("olmoe/olmoe-1b-7b.json", lora(8), {.tp = 2}).find("a norm over the heads of all tensor ranks"),
            std::string::npos);
  EXPECT_NE(refused("nemotron/nemotron-3-nano-30b-a3b.json", full(8), {.tp = 4}).find("some rows are on one rank"),
            std::string::npos);
  Problem odd = problem(shrunk(shipped(qwen), 2), lora(6));
  odd.model.vocabulary = 63;
  EXPECT_THROW((void)run_plan(odd, on_ranks(odd, {.tp = 2}, 1), data(odd, 1, 1)), InputError);
}

}  // namespace
}  // namespace moeplan
