/// What rows say of their runtime reaches the prediction: host work, CUDA graphs, overlap, broadcasts.

#include <gtest/gtest.h>

#include "planner/validate/predict.hpp"
#include "planner/validate/versions.hpp"
#include "tests/planner/validate_library.hpp"

namespace moeplan::validation {
namespace {

Row row_of(Json changes) {
  Json json = Json::parse(R"row({"id": "r", "source_title": "s", "framework": "Megatron-Bridge (Megatron-Core)",
    "hardware": "gb200", "num_gpus": 8, "gpus_per_node": 4, "model": "qwen3-30b-a3b", "method": "pretrain",
    "precision": "mxfp8", "seq_len": 4096, "global_batch_size": 64, "micro_batch_size": 1, "tp": 1, "pp": 1, "cp": 1,
    "ep": 8, "dp_or_fsdp": "dist-optimizer dp=8", "recompute": "none", "measured": {"step_time_s": 1}})row");
  if (!changes.is_null()) json.update(changes);
  Rows rows;
  read_rows(Json::array({json}), "rows.json", rows);
  return rows.rows.at(0);
}

double step(const Json& changes) { return predict(convert(row_of(changes), library()), library().words).step.value; }

TEST(HostWork, IsWhatNoGraphHolds) {
  const auto seconds = [](const char* notes, const char* precision) {
    const Case c = convert(row_of({{"notes", notes}, {"precision", precision}}), library());
    return host_seconds(lower_unverified(c.problem, c.plan, 0), c.problem.runtime, c.host).all;
  };
  const double eager = seconds("", "bf16");
  const double scoped = seconds("cuda graph impl=transformer_engine scope=['attn', 'moe_router']", "bf16");
  EXPECT_GT(eager, 0);
  EXPECT_GT(scoped, 0.2 * eager);
  EXPECT_LT(scoped, 0.8 * eager);
  EXPECT_EQ(seconds("cuda graph impl=full_iteration scope=[]", "bf16"), 0);
  EXPECT_EQ(seconds("cuda graph impl=none scope=full_iteration", "bf16"), eager);
  EXPECT_GT(seconds("", "mxfp8"), 1.2 * eager);
}

TEST(HostWork, SetsTheTimeOfSmallMicroBatchesAndNotOfThoseInGraphs) {
  const Case c = convert(row_of({}), library());
  const double host = 8 * host_seconds(lower_unverified(c.problem, c.plan, 0), c.problem.runtime, c.host).all;
  EXPECT_GE(step({}), host);
  EXPECT_LT(step({{"notes", "cuda graph impl=full_iteration"}}), host);
}

// Large micro-batches, so that the device sets the time: 8 of them, each with the host time of the experts' calls in its forward pass.
TEST(HostWork, LeavesTheDeviceIdleBehindTheCountsUnlessTokensAreDropped) {
  const Json large = {{"micro_batch_size", 8}, {"global_batch_size", 512}};
  Json drops = large;
  drops["moe_notes"] = "forced load balance, token-drop (capacity)";
  const Case c = convert(row_of(large), library()), dropped = convert(row_of(drops), library());
  ASSERT_TRUE(c.host.reads_counts);
  ASSERT_FALSE(dropped.host.reads_counts);
  const HostSeconds host = host_seconds(lower_unverified(c.problem, c.plan, 0), c.problem.runtime, c.host);
  EXPECT_GT(host.behind_counts, 0);
  EXPECT_LT(host.behind_counts, 0.5 * host.all);
  EXPECT_NEAR(step(large) - step(drops), static_cast<double>(c.plan.micro_batches) * host.behind_counts, 1e-9);
}

TEST(HostWork, CountsAnExpertsCallAsLongAsTheRuntimeSays) {
  Case c = convert(row_of({}), library());
  c.problem.runtime.traffic.erase("narrow_expert");
  c.problem.runtime.traffic["expert_host"] = 1;
  const Program program = lower_unverified(c.problem, c.plan, 0);
  const HostSeconds alike = host_seconds(program, c.problem.runtime, c.host);
  c.problem.runtime.traffic["expert_host"] = 3;
  const HostSeconds longer = host_seconds(program, c.problem.runtime, c.host);
  EXPECT_NEAR(longer.behind_counts, 3 * alike.behind_counts, 1e-12);
  EXPECT_LT(longer.all, 3 * alike.all);
}

// Products in fp8 are cast and issued expert by expert: two in the forward pass of each of 48 layers.
TEST(HostWork, GrowsWithTheExpertsOfARankInNarrowTypes) {
  const auto behind = [](int ep, const char* precision) {
    const Case c = convert(row_of({{"ep", ep}, {"precision", precision}}), library());
    return host_seconds(lower_unverified(c.problem, c.plan, 0), c.problem.runtime, c.host).behind_counts;
  };
  constexpr double each = 0.345 * 142e-6;
  EXPECT_NEAR(behind(4, "mxfp8") - behind(8, "mxfp8"), 48 * 2 * (32 - 16) * each, 1e-9);
  EXPECT_EQ(behind(4, "bf16"), behind(8, "bf16"));
}

TEST(HostWork, AddsUpWhereEachKernelIsWaitedFor) {
  const Json bloom = {{"framework", "Megatron-DeepSpeed"},
                      {"hardware", "a100-sxm-80gb"},
                      {"num_gpus", 384},
                      {"gpus_per_node", 8},
                      {"model", "bloom-like-h14336-l72-a64"},
                      {"precision", "bf16"},
                      {"seq_len", 2048},
                      {"global_batch_size", 2048},
                      {"micro_batch_size", 2},
                      {"tp", 4},
                      {"pp", 12},
                      {"ep", nullptr},
                      {"dp_or_fsdp", "ds-zero1 dp=8"},
                      {"recompute", "full activation checkpointing"}};
  Json waiting = bloom;
  waiting["source_title"] = "BLOOM";
  Case c = convert(row_of(waiting), library());
  ASSERT_TRUE(c.host.takes_turns);
  const double turns = predict(c, library().words).step.value;
  c.host.takes_turns = false;
  const double ahead = predict(c, library().words).step.value;
  const double host = host_seconds(lower_unverified(c.problem, c.plan, 4), c.problem.runtime, c.host).all;
  EXPECT_NEAR(turns - ahead, (128 + 11) * host, 0.2 * (turns - ahead));
  EXPECT_FALSE(convert(row_of(bloom), library()).host.takes_turns);
}

TEST(Overlap, HidesItsShareOfTheExchangesOnlyWhereTheRowSaysSo) {
  const auto overlaps = [](const char* notes) {
    return convert(row_of({{"moe_notes", notes}}), library()).overlaps_exchange;
  };
  EXPECT_TRUE(overlaps("dispatcher flex/hybridep; EP A2A overlap + delayed wgrad; forced load balance, dropless"));
  EXPECT_TRUE(overlaps("dispatcher flex/hybridep; forced balance=True; EP overlap=True; delayed wgrad=True"));
  EXPECT_FALSE(
      overlaps("dispatcher alltoall (NCCL); forced balance; dropless; A2A overlap off; shared-expert overlap off"));
  EXPECT_FALSE(overlaps("dispatcher flex/hybridep; forced load balance, dropless"));
  const Json graph = {{"notes", "cuda graph impl=full_iteration"}};
  Json with = graph;
  with["moe_notes"] = "EP A2A overlap";
  EXPECT_LT(step(with), step(graph));
}

TEST(Broadcasts, CostTheRingsLatencyOnceARank) {
  const Json inside = {{"framework", "InternEvo"},
                       {"hardware", "a100-sxm-80gb"},
                       {"num_gpus", 1024},
                       {"gpus_per_node", 8},
                       {"model", "internlm-7b"},
                       {"precision", "bf16"},
                       {"seq_len", 2048},
                       {"global_batch_size", 8192},
                       {"micro_batch_size", 2},
                       {"ep", nullptr},
                       {"dp_or_fsdp", "zero-1 size 8, dp=1024"}};
  Json everywhere = inside;
  everywhere["dp_or_fsdp"] = "zero-1 size all dp, dp=1024";
  EXPECT_EQ(convert(row_of(inside), library()).plan.parallelism.dp_shard, 8);
  EXPECT_EQ(convert(row_of(everywhere), library()).plan.parallelism.dp_shard, 1024);
  // 1,023 hops of at least 1.9 us for each of 1,024 broadcasts, less what a smaller share of the update saves.
  EXPECT_GT(step(everywhere) - step(inside), 0.95 * 1024 * 1023 * 1.9e-6);
}

TEST(Gathers, AreWaitedForWhereComposerPrefetchesAfterABackwardPass) {
  const auto mpt = [](const char* hardware, int gpus) {
    return Json{{"framework", "llm-foundry / Composer (PyTorch FSDP)"},
                {"hardware", hardware},
                {"num_gpus", gpus},
                {"gpus_per_node", 8},
                {"model", "mpt-7b"},
                {"precision", "amp_bf16"},
                {"seq_len", 2048},
                {"global_batch_size", 6 * gpus},
                {"micro_batch_size", 6},
                {"ep", nullptr},
                {"dp_or_fsdp", "fsdp FULL_SHARD"}};
  };
  Case c = convert(row_of(mpt("h100-sxm-80gb", 8)), library());
  const double waited = predict(c, library().words).step.value;
  c.problem.runtime.traffic.erase("gathers_after_backward");
  const double ahead = predict(c, library().words).step.value;
  // 6.65 billion weights in bf16, seven eighths of them from others, at 361 GB/s: 32 ms, less what no longer lends
  // multiprocessors to a hidden gather.
  EXPECT_GT(waited - ahead, 0.7 * 0.032);
  EXPECT_LT(waited - ahead, 1.1 * 0.032);
  EXPECT_FALSE(
      convert(row_of(mpt("h100-sxm-80gb", 128)), library()).problem.runtime.traffic.contains("gathers_after_backward"));
}

TEST(Gradients, CostTheirPassesOverMemory) {
  const Json one = {{"framework", "InternEvo"},
                    {"hardware", "a100-sxm-80gb"},
                    {"num_gpus", 8},
                    {"gpus_per_node", 8},
                    {"model", "internlm-7b"},
                    {"precision", "bf16"},
                    {"seq_len", 2048},
                    {"global_batch_size", 64},
                    {"micro_batch_size", 2},
                    {"ep", nullptr},
                    {"dp_or_fsdp", "zero-1 size 8, dp=8"}};
  Case c = convert(row_of(one), library());
  const double with = predict(c, library().words).step.value;
  c.problem.runtime.traffic.erase("gradient_copies");
  c.problem.runtime.traffic.erase("gradient_sum");
  const double without = predict(c, library().words).step.value;
  // 7.3 billion elements, 8 bytes once and 6 for each of three further micro-batches, at 1.58 TB/s.
  EXPECT_NEAR(with - without, 7.3e9 * (8 + 3 * 6) / 1.58e12, 0.01);
}

// 7.9 billion weights on a rank of two data ranks: 12 bytes each at an H200's 4.8 TB/s and its efficiency; one data rank clears its buffer and scales nothing.
TEST(Gradients, AreClearedAndScaledByMegatron) {
  const auto passes = [](std::int64_t gpus) {
    const Json one = {{"framework", "Megatron-Core"}, {"hardware", "h200-sxm-141gb"}, {"num_gpus", gpus}, {"gpus_per_node", 8}, {"model", "llama3-8b"},
                      {"precision", "bf16"}, {"global_batch_size", 8 * gpus}, {"ep", nullptr}, {"dp_or_fsdp", nullptr}};
    Case c = convert(row_of(one), library());
    EXPECT_EQ(c.problem.runtime.traffic.at("gradient_scaled"), 8);
    const double with = predict(c, library().words).step.value;
    c.problem.runtime.traffic.erase("gradient_scaled");
    const double unscaled = predict(c, library().words).step.value;
    c.problem.runtime.traffic.erase("gradient_zeroed");
    const DeviceSpec& d = c.problem.cluster.device;
    const double rate = d.memory_bandwidth.value * d.achieved_bandwidth;
    return std::pair{(with - unscaled) * rate, (unscaled - predict(c, library().words).step.value) * rate};
  };
  const auto [scaled, cleared] = passes(2);
  EXPECT_NEAR(cleared, 4 * 8.03e9, 0.02 * 4 * 8.03e9);
  EXPECT_NEAR(scaled, 2 * cleared, 1e-3 * cleared);
  EXPECT_EQ(passes(1).first, 0);
}

TEST(FineTuning, HoldsWhatTheScriptAndItsLibrariesHold) {
  const auto row = [](const Json& changes) {
    Json fine = {{"framework", "HF Trainer + PEFT (Qwen finetune.py)"}, {"hardware", "a100-sxm-80gb"}, {"num_gpus", 1}, {"gpus_per_node", 1}, {"model", "qwen1-1.8b"},
                 {"method", "lora"}, {"precision", "bf16"}, {"seq_len", 512}, {"global_batch_size", 8}, {"ep", 1}, {"dp_or_fsdp", "single"}, {"recompute", "gradient checkpointing (all layers)"}};
    if (!changes.is_null()) fine.update(changes);
    return convert(row_of(fine), library());
  };
  const Runtime plain = row({}).problem.runtime;
  EXPECT_EQ(plain.logit_bytes, 12);
  const Runtime quantised = row({{"method", "qlora"}}).problem.runtime;
  EXPECT_EQ(quantised.logit_bytes, 6) << "DeepSpeed's engine, no autocast";
  EXPECT_EQ((quantised.bucket - plain.bucket).value, 800'000'000) << "its two buckets";
  const Runtime copies = row({{"lora_targets", "c_attn + trainable embedding & lm_head"}}).problem.runtime;
  EXPECT_EQ((copies.workspace - plain.workspace).value, 2 * 2 * std::int64_t{151936} * 2048) << "the originals of two tables";
  EXPECT_EQ(copies.moment, DType::bf16);
  // Liger's loss goes over hidden states in pieces: no logits, of 8 x 512 tokens over 151,936 words.
  const Case whole = row({{"micro_batch_size", 8}}), pieces = row({{"micro_batch_size", 8}, {"notes", "packed; liger kernel"}});
  EXPECT_FALSE(pieces.problem.runtime.whole_logits);
  EXPECT_NEAR(predict(whole, library().words).allocated.value - predict(pieces, library().words).allocated.value, 12 * 8 * 512 * 151936.0, 0.1 * 12 * 8 * 512 * 151936.0);
  // A second list of all that is trained, 1.8 G elements in fp32.
  const auto peak = [&](const char* version) { return predict(row({{"method", "full_ft"}, {"framework_version", version}}), library().words).allocated.value; };
  EXPECT_NEAR(peak("PyTorch 2.0, CUDA 11.8") - peak("PyTorch 2.1"), 4 * 1.84e9, 0.03 * 4 * 1.84e9);
}

/// An 8B model on 8 H100 under FSDP2, in GiB of reserved memory.
double torchtitan_gib(const Json& changes) {
  Json row = {{"framework", "torchtitan (FSDP2)"}, {"hardware", "h100-96gb-hbm2e-500w"}, {"gpus_per_node", 8}, {"model", "llama3.1-8b"},
              {"precision", "bf16"}, {"seq_len", 8192}, {"global_batch_size", 16}, {"micro_batch_size", 2}, {"ep", 1},
              {"dp_or_fsdp", "fsdp2 8"}, {"recompute", "selective AC"}, {"notes", "torch.compile"}, {"year", 2024}};
  row.update(changes);
  return predict(convert(row_of(row), library()), library().words).reserved.value / (1024.0 * 1024 * 1024);
}

// 32 layers of 16,384 tokens and 4,096 channels in bf16: 4 GiB for each kept tensor of the stream's width.
TEST(Torchtitan, SavesWhatPerOperatorCheckpointingSaves) {
  const double compiled = torchtitan_gib(Json::object());
  EXPECT_NEAR(torchtitan_gib({{"notes", ""}}) - compiled, 4, 1.5);  // eager: the seventh product's result too
  // On Blackwell, in 2025 from May to November: cuDNN's attention was not on the list.
  const auto in = [](const char* month, const char* device) {
    return torchtitan_gib({{"framework_version", "torchtitan 6fc499f (2025-" + std::string(month) + ")"}, {"hardware", device}});
  };
  EXPECT_NEAR(in("12", "b200-180gb") - in("11", "b200-180gb"), 4, 0.5);
  EXPECT_EQ(in("12", "h100-96gb-hbm2e-500w"), in("11", "h100-96gb-hbm2e-500w"));
  const double everything = torchtitan_gib({{"recompute", "full AC"}});
  EXPECT_GT(compiled, everything + 15);
}

TEST(Torchtitan, CompilesTheLossSinceApril2025AndGroupsTheEndsUntilJuly) {
  const double early = torchtitan_gib({{"year", 2025}, {"framework_version", "torchtitan 0.0.2"}}), later = torchtitan_gib({{"year", 2025}});
  const double logits = 2.0 * 8192 * 128256 / (1024.0 * 1024 * 1024);
  EXPECT_NEAR(early - later, 10 * logits, 2.5 * logits);  // 14 bytes a logit, and 4
  const auto in = [](const char* month) {
    return torchtitan_gib({{"framework_version", "torchtitan 6fc499f (2025-" + std::string(month) + ")"}});
  };
  EXPECT_EQ(in("03"), early);
  EXPECT_EQ(in("04"), later);
  EXPECT_EQ(in("07"), later);
  EXPECT_LT(in("08"), later);
  EXPECT_EQ(torchtitan_gib({{"year", 2026}}), in("08"));
}

TEST(Versions, AreReleasesAndMonthsOfCommits) {
  const auto version = [](const char* text) { return row_of({{"framework_version", text}}); };
  EXPECT_EQ(release_of(version("torch 2.4.1, peft 0.13.2"), "torch"), (Release{2, 4, 1}));
  EXPECT_EQ(release_of(version("torch 2.4.1, peft 0.13.2"), "peft"), (Release{0, 13, 2}));
  EXPECT_EQ(release_of(version("PyTorch 2.10, CUDA 12"), "pytorch"), (Release{2, 10, 0}));
  EXPECT_LT((Release{2, 9, 0}), (Release{2, 10, 0}));
  EXPECT_FALSE(release_of(version("PyTorch 2.0"), "torch"));
  EXPECT_FALSE(release_of(version("torch 1963fc8, torch nightly"), "torch"));
  EXPECT_FALSE(release_of(version("torch 99999999999999.1"), "torch"));
  EXPECT_EQ(sources_of(version("torchtitan 6fc499f (main, 1963fc8) (2025-08; as built)")), (Month{2025, 8}));
  EXPECT_FALSE(sources_of(version("(2025-13), (12-25)")));
  EXPECT_FALSE(sources_of(version("")));
  EXPECT_EQ(sources_of(version("torchtitan 0.0.2")), (Month{2025, 2}));
}

// Weights read and written in both passes, gradients read in bf16 and written in fp32: 14 bytes of each of 8 billion.
TEST(Torchtitan, CopiesWeightsAndGradientsOnTheComputeStream) {
  const Json row = {{"framework", "torchtitan (FSDP2)"}, {"hardware", "h100-96gb-hbm2e-500w"}, {"gpus_per_node", 8}, {"model", "llama3.1-8b"},
                    {"precision", "bf16"}, {"seq_len", 8192}, {"global_batch_size", 16}, {"micro_batch_size", 2}, {"ep", 1},
                    {"dp_or_fsdp", "fsdp2 8"}, {"recompute", "full AC"}, {"notes", "torch.compile"}, {"year", 2024}};
  Case c = convert(row_of(row), library());
  const double with = predict(c, library().words).step.value;
  c.problem.runtime.kept.erase("copied_out");
  const DeviceSpec& device = c.problem.cluster.device;
  EXPECT_NEAR(with - predict(c, library().words).step.value, 14 * 8.03e9 / (device.memory_bandwidth.value * device.achieved_bandwidth), 1e-3);
}

// 32,768 tokens a rank and 4,096 channels of queries, each of 32 layers: three gathers of keys and values of all heads, a
// step's fp32 gradients sent on cp times, over NVLink of 450 GB/s; and what is merged.
TEST(Torchtitan, WaitsForItsRingOfAttentionWhereItIsCompiled) {
  const auto ring = [](std::int64_t cp, const char* notes) {
    Case c = convert(row_of({{"framework", "torchtitan (FSDP2)"}, {"hardware", "h100-96gb-hbm2e-500w"}, {"gpus_per_node", 8},
                             {"model", "llama3.1-8b"}, {"precision", "bf16"}, {"seq_len", 32768 * cp}, {"cp", cp}, {"global_batch_size", 8 / cp},
                             {"ep", 1}, {"dp_or_fsdp", "fsdp2"}, {"recompute", "full AC"}, {"notes", notes}, {"year", 2024}}), library());
    const double with = predict(c, library().words).step.value;
    c.problem.runtime.traffic.erase("context_ring");
    return with - predict(c, library().words).step.value;
  };
  EXPECT_EQ(ring(1, "torch.compile"), 0);
  EXPECT_EQ(ring(4, "eager"), 0);
  const DeviceSpec device = convert(row_of({{"hardware", "h100-96gb-hbm2e-500w"}}), library()).problem.cluster.device;
  for (const std::int64_t cp : {2, 4, 8}) {
    const double elements = 32.0 * 32768 * 4096, n = static_cast<double>(cp);
    const double merged = elements * (2 * (10 * n + 10) + 30 * n + 26) / (device.memory_bandwidth.value * device.achieved_bandwidth);
    const double arrives = elements * (3 * 4 * (n - 1) + 8 * n);
    EXPECT_GT(ring(cp, "torch.compile"), merged + arrives / 450e9) << cp;
    EXPECT_LT(ring(cp, "torch.compile"), merged + arrives / 250e9) << cp;
  }
}

// Copied out twice (4 bytes), gradients copied (6); on one device also cast twice (6).
TEST(PrimeRl, CastsItsWeightsOnTheComputeStreamOfOneDevice) {
  const auto copies = [](std::int64_t gpus) {
    Case c = convert(row_of({{"framework", "prime-rl trainer (FSDP2)"}, {"hardware", "h200-141gb"}, {"num_gpus", gpus}, {"gpus_per_node", 8}, {"model", "llama3.1-8b"},
                             {"precision", "bf16"}, {"global_batch_size", gpus}, {"ep", 1}, {"dp_or_fsdp", "fsdp2 " + std::to_string(gpus)}, {"recompute", "full AC"}}), library());
    const double with = predict(c, library().words).step.value;
    c.problem.runtime.kept.erase("copied_out");
    const DeviceSpec& device = c.problem.cluster.device;
    return (with - predict(c, library().words).step.value) * device.memory_bandwidth.value * device.achieved_bandwidth / 8.03e9;
  };
  EXPECT_NEAR(copies(8), 2 * 4 + 6, 0.1);
  EXPECT_NEAR(copies(1), 2 * (4 + 6) + 6, 0.1);
}

// Four micro-batches: copied once (4 + 6 bytes of the weights that FSDP holds) and summed three times (10), not eight
// times out and four times in. Experts, cut by expert parallelism alone, are not among them.
TEST(AutoModel, CopiesWeightsOnceAStepWhereItHasExperts) {
  const Json row = {{"framework", "NeMo AutoModel (PyTorch FSDP2)"}, {"hardware", "h100-sxm-80gb"}, {"gpus_per_node", 8}, {"precision", "bf16"},
                    {"global_batch_size", 32}, {"dp_or_fsdp", "fsdp2 8"}, {"recompute", "full"}, {"model_kind", "moe"}};
  Case c = convert(row_of(row), library());
  ASSERT_EQ(c.plan.micro_batches, 4);
  const double once = predict(c, library().words).step.value;
  c.problem.runtime.traffic.erase("copied_once");
  const DeviceSpec& device = c.problem.cluster.device;
  const double saved = (predict(c, library().words).step.value - once) * device.memory_bandwidth.value * device.achieved_bandwidth;
  // 48 layers of attention (18.9 M) and router, embedding and head of 151,936 x 2,048.
  const double elements = 48.0 * (2048 * 4096 * 2 + 2048 * 512 * 2 + 2048 * 128) + 2.0 * 151936 * 2048;
  EXPECT_NEAR(saved / elements, (8 * 4 + 4 * 6) - (4 + 6 + 3 * 10), 0.5);
}

TEST(PrimeRl, GoesOverLogitsOperationByOperationUnlessTheyAreWhole) {
  Json row = {{"framework", "prime-rl trainer"}, {"hardware", "h100-sxm-80gb"}, {"num_gpus", 1}, {"gpus_per_node", 1}, {"model", "qwen3-0.6b"},
              {"precision", "bf16"}, {"method", "full_ft"}, {"seq_len", 16384}, {"global_batch_size", 2}, {"ep", 1}, {"dp_or_fsdp", "fsdp2 1"}, {"recompute", "full"}};
  Case c = convert(row_of(row), library());
  const double with = predict(c, library().words).step.value;
  c.problem.runtime.traffic.erase("head_in_pieces");
  const DeviceSpec& device = c.problem.cluster.device;
  EXPECT_NEAR(with - predict(c, library().words).step.value, 120.0 * 2 * 16384 * 151936 / (device.memory_bandwidth.value * device.achieved_bandwidth), 1e-3);
  row["notes"] = "SFT loss, logits not chunked";
  EXPECT_FALSE(convert(row_of(row), library()).problem.runtime.traffic.contains("head_in_pieces"));
}

TEST(PrimeRl, LoopsOverTheExpertsOfItsAdaptersOnAllButHopper) {
  const auto host = [](const char* hardware, const char* method) {
    const Json row = {{"framework", "prime-rl trainer"}, {"hardware", hardware}, {"gpus_per_node", 8}, {"model", "qwen3-30b-a3b"}, {"precision", "bf16"},
                      {"method", method}, {"lora_rank", 16}, {"seq_len", 16384}, {"global_batch_size", 16}, {"ep", 1}, {"dp_or_fsdp", "fsdp2 8"}, {"recompute", "full"}};
    const Case c = convert(row_of(row), library());
    return host_seconds(lower_unverified(c.problem, c.plan, 0), c.problem.runtime, c.host);
  };
  EXPECT_EQ(host("h200-141gb", "lora").all, 0);
  EXPECT_EQ(host("b200-180gb", "full_ft").all, 0);
  const HostSeconds looped = host("b200-180gb", "lora");
  // 48 layers of 128 experts: two products forward at 121 us each, behind the counts.
  EXPECT_GE(looped.behind_counts, 48 * 128 * 2 * 121e-6);
  EXPECT_GT(looped.all, 2 * looped.behind_counts);
}

// 200 tokens a document: 4,096 / 200 = 20 of them, and 16 is the next number of equal parts.
TEST(PackedDocuments, AreSequencesOfTheirOwnOfTheSameTokens) {
  const Json dense = {{"model", "llama3-8b"}, {"ep", 1}, {"precision", "bf16"}};
  Json packed = dense, cut = dense;
  packed["document_tokens"] = 200;
  const Case whole = convert(row_of(dense), library()), parts = convert(row_of(packed), library());
  EXPECT_EQ(parts.problem.workload.sequence_length, 256);
  EXPECT_EQ(parts.plan.micro_batch, 16);
  EXPECT_EQ(parts.plan.micro_batches, whole.plan.micro_batches);
  EXPECT_EQ(parts.targets.front().measured, whole.targets.front().measured);
  EXPECT_LT(step(packed), 0.97 * step(dense));
  packed["cp"] = cut["cp"] = 2;  // context ranks cut whole sequences
  EXPECT_EQ(step(packed), step(cut));
}

TEST(DeepSpeed, FillsStagesFromTheFront) {
  const Json row = {{"framework", "Megatron-DeepSpeed"}, {"hardware", "a100-sxm-80gb"}, {"gpus_per_node", 8}, {"num_gpus", 384},
                    {"model", "bloom-like-h13824-l78-a64"}, {"precision", "bf16"}, {"seq_len", 2048}, {"global_batch_size", 2048},
                    {"micro_batch_size", 2}, {"tp", 4}, {"pp", 12}, {"ep", 1}, {"dp_or_fsdp", "ds-zero1 dp=8"}};
  std::vector<std::int64_t> filled(11, 7);
  filled.push_back(1);
  EXPECT_EQ(convert(row_of(row), library()).plan.stage_layers, filled);
}

}  // namespace
}  // namespace moeplan::validation
