/// Context ranks: runs of every sequence, and the loss and the gradients of one rank.

#include "core/error.hpp"
#include "executor/ranks/runnable.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

class ContextRanks : public testing::TestWithParam<ParityCase> {};

/// As many heads as any rank count here divides.
void four_heads(Problem& p) {
  for (LayerSpec& layer : p.model.layers)
    for (Sublayer& each : layer.sublayers) {
      if (auto* a = std::get_if<GqaAttention>(&each.mixer)) a->kv_heads = 4;
      if (auto* a = std::get_if<MlaAttention>(&each.mixer)) a->heads = 4;
    }
}

TEST_P(ContextRanks, ThatExchangeHeadsDoWhatOneRankDoes) {
  expect_parity(GetParam(), [](Problem& p, Plan& q) {
    q.context_exchange = ContextExchange::all_to_all;
    q.state_passing = StatePassing::chain;
    if (q.parallelism.tp > 1) four_heads(p);
  });
}

class RingRanks : public testing::TestWithParam<ParityCase> {};

TEST_P(RingRanks, DoWhatOneRankDoes) { expect_parity(GetParam()); }

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json",
                     *deepseek = "deepseek/deepseek-v3.json";
constexpr auto f1b = Schedule::one_forward_one_backward;
INSTANTIATE_TEST_SUITE_P(
    Parallelisms, ContextRanks,
    testing::Values(
        ParityCase{"qwen_cp2", qwen, true, {.cp = 2}},
        ParityCase{"qwen_cp2_ep2_recompute", qwen, true, {.cp = 2, .ep = 2}, Recompute::full, 2},
        ParityCase{"deepseek_cp2", deepseek, true, {.cp = 2}, Recompute::selective},
        ParityCase{"deepseek_cp2_ep4_fsdp2", deepseek, false, {.cp = 2, .ep = 4, .dp_shard = 2}},
        ParityCase{"minimax_m2_cp2", "minimax/minimax-m2.5.json", true, {.cp = 2}},
        ParityCase{"gemma_cp2_windows", "gemma/gemma-4-26b-a4b.json", true, {.cp = 2}},
        ParityCase{"qwen_cp2_pp2_fsdp2", qwen, false, {.pp = 2, .cp = 2, .dp_shard = 2}, Recompute::full, 3},
        ParityCase{"k3_cp2", k3, false, {.cp = 2}},
        ParityCase{"k3_cp2_full_recomputed", k3, true, {.cp = 2}, Recompute::full, 2},
        ParityCase{"k3_cp2_ep4_fsdp2", k3, true, {.cp = 2, .ep = 4, .dp_shard = 2}, Recompute::selective},
        ParityCase{"k3_cp2_tp2_pp2", k3, false, {.pp = 2, .tp = 2, .cp = 2}, Recompute::full, 2, f1b, 12},
        ParityCase{"qwen3_next_cp2", "qwen/qwen3-next-80b-a3b.json", true, {.cp = 2}},
        ParityCase{
            "qwen35_cp2_tp2", "qwen/qwen3.5-35b-a3b.json", true, {.tp = 2, .cp = 2}, Recompute::none, 1, f1b, 12},
        ParityCase{"llama_cp2_tp2_hsdp2",
                   "llama/llama-3.1-8b.json",
                   true,
                   {.tp = 2, .cp = 2, .dp_replicate = 2},
                   Recompute::none,
                   1,
                   f1b,
                   8}),
    [](const auto& each) { return std::string(each.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Parallelisms, RingRanks,
    testing::Values(
        ParityCase{"qwen_cp2", qwen, true, {.cp = 2}, Recompute::none, 1, f1b, 8},
        ParityCase{"qwen_cp4_recomputed", qwen, true, {.cp = 4}, Recompute::full, 2, f1b, 16},
        ParityCase{"deepseek_cp2_ep4_fsdp2",
                   deepseek,
                   true,
                   {.cp = 2, .ep = 4, .dp_shard = 2},
                   Recompute::selective,
                   1,
                   f1b,
                   8},
        ParityCase{"k3_cp2", k3, true, {.cp = 2}, Recompute::full, 1, f1b, 12},
        ParityCase{"gemma_windows_cp2", "gemma/gemma-4-26b-a4b.json", true, {.cp = 2}, Recompute::none, 1, f1b, 16},
        ParityCase{"gpt_oss_windows_and_sinks_cp2_tp2",
                   "gpt-oss/gpt-oss-20b.json",
                   false,
                   {.tp = 2, .cp = 2},
                   Recompute::full,
                   2,
                   f1b,
                   16},
        ParityCase{"glm_dsa_cp2", "glm/glm-5.json", true, {.cp = 2}, Recompute::none, 1, f1b, 16},
        ParityCase{"deepseek_dsa_cp2_ep2",
                   "deepseek/deepseek-v3.2.json",
                   false,
                   {.cp = 2, .ep = 2},
                   Recompute::full,
                   2,
                   f1b,
                   16},
        ParityCase{
            "minimax_m3_blocks_cp2", "minimax/minimax-m3.json", true, {.cp = 2}, Recompute::selective, 1, f1b, 16},
        ParityCase{"k3_cp4_tp2", k3, false, {.tp = 2, .cp = 4}, Recompute::full, 1, f1b, 32},
        ParityCase{"k3_cp8", k3, false, {.cp = 8}, Recompute::none, 1, f1b, 64},
        ParityCase{"qwen3_next_cp2_pp2",
                   "qwen/qwen3-next-80b-a3b.json",
                   false,
                   {.pp = 2, .cp = 2},
                   Recompute::selective,
                   2,
                   f1b,
                   12}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(ContextRanks, TakeSeveralSequencesAtOnce) {
  const Problem p = problem(shrunk(shipped(qwen), 2), full(6));
  Plan one = plan(p, 2, 1), many = on_ranks(p, {.cp = 2}, 1);
  many.micro_batch = 2, many.context_exchange = ContextExchange::all_to_all;
  const std::vector<std::vector<Batch>> batches{{batch(p, one, 3)}};
  TrainOptions options;
  options.walk.routed_bound = 8;
  const Outcome a = run_plan(p, one, batches, options), b = run_plan(p, many, batches, options);
  expect_same_outcome(a, b, options.learning_rate);
  EXPECT_EQ(b.counted, b.predicted);
}

TEST(ContextRanks, RefuseWhatTheyCannotContinueByName) {
  const auto refused = [](const char* file, const Workload& workload, ContextExchange exchange) -> std::string {
    const Problem p = problem(shrunk(shipped(file), 4), workload);
    Plan q = on_ranks(p, {.cp = 2}, 1);
    q.context_exchange = exchange;
    try {
      refuse_what_cannot_run(p, q, *cpu_backend(CpuStorage::wide), {}, 2);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const char* const oss = "gpt-oss/gpt-oss-20b.json";
  EXPECT_EQ(refused(oss, lora(16), ContextExchange::ring), "");
  EXPECT_NE(refused(oss, full(16), ContextExchange::ring).find("trained attention sinks"), std::string::npos);
  EXPECT_NE(refused(oss, lora(16), ContextExchange::all_to_all).find("sinks of exchanged heads"), std::string::npos);
  EXPECT_NE(refused(oss, lora(4), ContextExchange::ring).find("a window of 3 reaches beyond the 1 tokens of a run"),
            std::string::npos);
  EXPECT_NE(refused("jamba/jamba-v0.1.json", lora(16), ContextExchange::ring).find("a state of this mixer"),
            std::string::npos);
}

TEST(ContextRanks, DealEarlyAndLateRunsOut) {
  const Batch whole{.tokens = {0, 1, 2, 3, 4, 5, 6, 7}, .labels = {1, 2, 3, 4, 5, 6, 7, -100}, .starts = {}};
  const ContextRuns runs{.sequences = 1, .ranks = 2, .per_rank = 2};
  const Batch first = context_share(whole, runs, 0), second = context_share(whole, runs, 1);
  EXPECT_EQ(first.tokens, (std::vector<std::int32_t>{0, 1, 6, 7}));
  EXPECT_EQ(first.labels, (std::vector<std::int32_t>{1, 2, 7, -100}));
  EXPECT_EQ(first.positions, first.tokens);
  EXPECT_EQ(second.positions, (std::vector<std::int32_t>{2, 3, 4, 5}));
  Batch packed = whole;
  packed.starts = {0, 3, 8};
  EXPECT_THROW((void)context_share(packed, runs, 0), InputError);
}

}  // namespace
}  // namespace moeplan
