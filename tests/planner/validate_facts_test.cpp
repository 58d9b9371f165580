/// What is known of measured rows beyond their own fields: sources, models by name, devices by name.

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "planner/validate/facts.hpp"
#include "planner/validate/predict.hpp"
#include "tests/planner/validate_library.hpp"

namespace moeplan::validation {
namespace {

Row row(const char* framework, const char* title, const char* method) {
  Row r;
  r.id = "r", r.framework = framework, r.source_title = title, r.method = method, r.hardware = "h100-sxm-80gb";
  r.model = "llama3-8b", r.gpus = 8, r.sequence = 4096, r.micro_batch = 1, r.global_batch = 8;
  r.measured.step_time_s = 1;
  return r;
}

std::string device(const char* hardware) {
  Row r = row("torchtitan", "s", "pretrain");
  r.hardware = hardware;
  static const Words words = load_words(kConfigs);
  const HardwareWords* found = hardware_of(r, words);
  return found ? found->device : "";
}

TEST(Devices, AreFoundByTheWordsOfTheirNamesAndNotByPartsOfOthers) {
  for (const auto& [hardware, expected] : std::initializer_list<std::pair<const char*, const char*>>{
           {"RTX 4090", "rtx4090"}, {"4090", "rtx4090"}, {"rtx4090-24gb + Xeon Platinum 8488C (AMX)", "rtx4090"}, {"B200", "b200"},
           {"b200-180gb (power-limited)", "b200"}, {"GB200 NVL72", "gb200"}, {"gb300-288gb", "gb300"}, {"H200", "h200"},
           {"H20", "h20"}, {"H100-SXM5-80GB", "h100"}, {"8xH100", "h100"}, {"DGXH100", "h100"}, {"H100-SXM5-80GB (PCIe Gen5 hosts)", "h100"}, {"A100-40G", "a100-40gb"}, {"A100 40 GB", "a100-40gb"}, {"h100-96gb-hbm2e-500w", "h100-96gb"}, {"h100-pcie-80gb", "h100-pcie"},
           {"A100-40GB", "a100-40gb"}, {"A100-SXM4-40GB", "a100-40gb"}, {"NVIDIA A100 80GB", "a100"}, {"a10g-24gb", "a10g"},
           {"L40S", "l40s"}, {"rtx-a6000-48gb", "a6000"}, {"mi325x-256gb", "mi325x"}, {"V100-SXM2-32GB", "v100"},
           {"gpu-80gb (type unstated)", ""}, {"gh200-96gb", ""}})
    EXPECT_EQ(device(hardware), expected) << hardware;
}

TEST(Sources, TellOfDocumentsWhereTheirRowsFineTune) {
  const Words words = load_words(kConfigs);
  EXPECT_EQ(with_facts(row("NeMo 2.0", "NVIDIA DGX Cloud benchmarking recipes", "lora"), words).document, 200);
  EXPECT_FALSE(with_facts(row("NeMo 2.0", "NVIDIA DGX Cloud benchmarking recipes", "pretrain"), words).document.has_value());
  EXPECT_FALSE(with_facts(row("NeMo 2.0", "another source", "lora"), words).document.has_value());
  Row said = row("NeMo 2.0", "NVIDIA DGX Cloud benchmarking recipes", "lora");
  said.document = 512;  // what a row says itself stays
  EXPECT_EQ(with_facts(said, words).document, 512);
}

TEST(Sources, TellOfTheUnitOfTheirMemory) {
  Row r = row("Megatron-DeepSpeed", "BigScience BLOOM prequel 3D-topology sweep (Jean Zay A100 80GB)", "pretrain");
  r.hardware = "a100-sxm-80gb", r.measured.peak_memory_gib_per_gpu = 64;
  const Case c = convert(r, library());
  ASSERT_EQ(c.targets.size(), 2u);
  EXPECT_DOUBLE_EQ(c.targets[1].measured, 62.5 * 1024 * 1024 * 1024);  // 64,000 MiB
}

TEST(Sources, TellOfVersionsAndVariantsOfDevices) {
  const Words words = load_words(kConfigs);
  const Row r = with_facts(row("torchtitan + torchao", "torchao training e2e benchmarks (torchtitan)", "pretrain"), words);
  EXPECT_EQ(hardware_of(r, words)->device, "h100-96gb");
  EXPECT_NE(r.framework_version.value_or("").find("torchtitan 0.0.2"), std::string::npos);
}

// Dimensions as the collection of rows has them: no vocabulary, no word about positions.
TEST(Models, TakeWhatTheirDimensionsLeaveOutFromTheirNames) {
  Library l = library();
  ModelDims dims;
  dims.hidden = 1024, dims.layers = 4, dims.heads = 16, dims.ffn = 4096, dims.glu = false;
  l.models = {{"gpt-9b-vtrain", dims}, {"bloom-like-h1-l1-a1", dims}, {"unheard-of", dims}};
  Row r = row("Megatron-DeepSpeed", "s", "pretrain");
  r.model = "gpt-9b-vtrain";
  EXPECT_EQ(convert(r, l).problem.model.vocabulary, 51200);
  r.model = "bloom-like-h1-l1-a1";
  EXPECT_EQ(convert(r, l).problem.model.vocabulary, 250880);
  EXPECT_EQ(dims_of(r, l).extra.at("positions"), "alibi");
  r.model = "unheard-of";
  EXPECT_THROW((void)convert(r, l), InputError);
}

TEST(Models, AreKnownByNamesThatDifferInPunctuationAndMaker) {
  Library l = library();
  l.models.clear();
  Row r = row("torchtitan", "s", "pretrain");
  for (const char* name : {"meta-llama/Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B", "llama3.1-8b", "llama-3.1-8b"}) {
    r.model = name;
    EXPECT_EQ(model_in_library(r, dims_of(r, l), l), "llama-3.1-8b") << name;
    EXPECT_FALSE(missing_field(r, l).has_value()) << name;
  }
  r.model = "llama-2-7b-chat-hf";
  EXPECT_EQ(model_in_library(r, dims_of(r, l), l), "llama-2-7b");
  for (const char* name : {"llama-3.1-9b", "gpt3-1.75b", "qwen2-57b", "mpt-1.3b"}) {   // no gpt3-175b, no qwen2.5-7b
    r.model = name;
    EXPECT_TRUE(missing_field(r, l).has_value()) << name;
  }
}

TEST(Models, KeepTheDimensionsThatTheirRowsComeWith) {
  ModelDims own, shipped;
  own.hidden = 1024, own.layers = 4;
  shipped.library_model = "llama-3-8b";
  fill_in(own, shipped);
  EXPECT_FALSE(own.library_model.has_value());
  shipped.library_model.reset(), shipped.hidden = 4096, shipped.vocab = 7;
  fill_in(own, shipped);
  EXPECT_FALSE(own.vocab.has_value()) << "another model of the same name";
  own.hidden = 4096;
  fill_in(own, shipped);
  EXPECT_EQ(own.vocab, 7);
}

TEST(Sources, AreNotThoseThatNotesSpeakOf) {
  const Words words = load_words(kConfigs);
  Row r = row("NeMo AutoModel", "s", "pretrain");
  r.model = "deepseek-v3-671b", r.notes = "differs from Megatron-Bridge";
  EXPECT_FALSE(with_facts(r, words).mtp_depth.has_value());
  r.framework = "Megatron-Bridge", r.notes.reset();
  EXPECT_EQ(with_facts(r, words).mtp_depth, 1);
  r.method = "lora";
  EXPECT_FALSE(with_facts(r, words).mtp_depth.has_value());
}

TEST(Models, AreFilledInWithoutLosingWhatTheySay) {
  ModelDims into, other;
  into.vocab = 7, into.extra = {{"tied_embeddings", true}};
  other.vocab = 8, other.layers = 3, other.extra = {{"tied_embeddings", false}, {"positions", "rope"}};
  fill_in(into, other);
  EXPECT_EQ(into.vocab, 7);
  EXPECT_EQ(into.layers, 3);
  EXPECT_EQ(into.extra, (Json{{"tied_embeddings", true}, {"positions", "rope"}}));
}

// One block (attention, experts) that predicts twice behind the 88 others, each time with a head; not where a row says 0,
// nor in another framework.
TEST(Models, PredictSeveralTokensWhereTheirRecipeDoes) {
  const Library l = library();
  Row r = row("Megatron-Bridge (Megatron-Core)", "s", "pretrain");
  r.model = "nemotron-3-super-120b-a12b", r.gpus = 64, r.ep = 64, r.hardware = "gb300-288gb", r.global_batch = 512;
  const Case c = convert(r, l);
  EXPECT_EQ(c.problem.model.layers.size(), 92u);
  EXPECT_EQ(c.extra_heads, 2);
  r.moe_notes = "dropless; MTP layers=0";
  const Case without = convert(r, l);
  EXPECT_EQ(without.problem.model.layers.size(), 88u);
  const double heads = predict(c, l.words).step.value - predict(without, l.words).step.value;
  // 8 sequences of 4,096: two heads of 4096 x 131072 take 0.21 Eflop at 2.5 Pflop/s at most.
  EXPECT_GT(heads, 2 * 6.0 * 8 * 4096 * 4096 * 131072 / 2.5e15);
  r.moe_notes = std::nullopt, r.framework = "torchtitan";
  EXPECT_EQ(convert(r, l).extra_heads, 0);
}

// gpt-oss: 8 x 4,096 tokens x 4 experts x 2,880 x 36 layers are 1.36e10 elements, 68 bytes each at 8 TB/s at most.
TEST(Models, AddTheirExpertsBiasesOneByOneUnlessInAGraph) {
  const Library l = library();
  Row r = row("Megatron-Bridge (Megatron-Core)", "s", "pretrain");
  r.model = "gpt-oss-120b", r.gpus = 64, r.ep = 64, r.hardware = "gb200-186gb", r.global_batch = 512;
  Case c = convert(r, l);
  c.host = {};
  c.problem.runtime.host_call = {};
  const double with = predict(c, l.words).step.value;
  c.problem.runtime.traffic.erase("expert_bias");
  const double added = with - predict(c, l.words).step.value;
  const DeviceSpec& device = c.problem.cluster.device;
  EXPECT_NEAR(added, 8.0 * 4096 * 4 * 2880 * 36 * 68 / (device.memory_bandwidth.value * device.achieved_bandwidth), 1e-6);
  c.problem.runtime.traffic["expert_bias"] = 34, c.host.graphs = Graphs::whole;
  EXPECT_NEAR(predict(c, l.words).step.value, with - added, 1e-9);
}

TEST(Attention, ReachesLessInShortSequences) {
  EXPECT_DOUBLE_EQ(reach_at({512, 1024}, {0.5, 0.8}, 256), 0.25);
  EXPECT_DOUBLE_EQ(reach_at({512, 1024}, {0.5, 0.8}, 768), 0.65);
  EXPECT_DOUBLE_EQ(reach_at({512, 1024}, {0.5, 0.8}, 8192), 0.8);
  EXPECT_DOUBLE_EQ(reach_at({}, {}, 8192), 1);
  const Library l = library();
  Row r = row("fms-acceleration", "s", "pretrain");  // the same 8,192 tokens, twice the flops of attention at most
  r.hardware = "a100-sxm-80gb", r.sequence = 512, r.micro_batch = 16, r.gpus = 1, r.global_batch = 16;
  const double published = predict(convert(r, l), l.words).step.value;
  Library flat = l;
  flat.words.attention_reach = {};
  EXPECT_GT(published, predict(convert(r, flat), l.words).step.value);
}

// Ten sequences over four data ranks: two ranks have three, in micro-batches of two and one.
TEST(Batches, TakeTheTimeOfTheFullestRank) {
  Row r = row("torchtitan", "s", "pretrain");
  r.gpus = 4, r.global_batch = 10, r.micro_batch = 2;
  const Case c = convert(r, library());
  EXPECT_EQ(c.plan.micro_batch, 2);
  EXPECT_EQ(c.plan.micro_batches, 2);
}

}  // namespace
}  // namespace moeplan::validation
