/// Adapters as PEFT has them: both dialects, there and back, and what is refused.

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "executor/adapter/modules.hpp"
#include "executor/adapter/peft.hpp"
#include "tests/executor/run/scratch.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;

void stir(TinyRun& run, unsigned seed) {
  std::mt19937_64 random(seed);
  for (Parameter& p : run.trainer->parameters().all()) {
    if (!p.adapter) continue;
    std::vector<float> v(static_cast<std::size_t>(p.shape.elements()));
    for (float& x : v) x = std::uniform_real_distribution<float>(-1, 1)(random);
    set_values(p, v, *run.backend);
  }
}

std::vector<float> pairs(TinyRun& run) {
  std::vector<float> out;
  for (const Parameter& p : run.trainer->parameters().all()) {
    if (!p.adapter) continue;
    const auto v = values_of(p, *run.backend);
    out.insert(out.end(), v.begin(), v.end());
  }
  return out;
}

Workload everywhere() {
  Workload w = lora(4, 3);
  w.embedding = w.head = w.attention;
  return w;
}

AdapterFiles exported(TinyRun& run, AdapterDialect dialect) {
  return export_adapter(run.trainer->parameters(), run.problem, [&](const Parameter& p) { return values_of(p, *run.backend); }, dialect);
}

TEST(Adapter, ComesBackAsItWentInBothDialects) {
  for (const char* file : {"kimi/kimi-k3.json", "gpt-oss/gpt-oss-20b.json", "deepseek/deepseek-v3.2.json", "nemotron/nemotron-3-nano-30b-a3b.json"}) {
    const Problem p = problem(shrunk(shipped(file)), everywhere());
    for (const AdapterDialect dialect : {AdapterDialect::per_expert, AdapterDialect::param_wrapper}) {
      TinyRun a(p, plan(p), cpu_backend(CpuStorage::wide)), b(p, plan(p), cpu_backend(CpuStorage::wide));
      stir(a, 1), stir(b, 2);
      const Scratch dir;
      save_adapter(dir.path() / "adapter", exported(a, dialect));
      save_adapter(dir.path() / "adapter", exported(a, dialect));   // in place of the first
      load_adapter(dir.path() / "adapter", p, b.trainer->parameters(), *b.backend);
      EXPECT_EQ(pairs(a), pairs(b)) << file;
      std::size_t entries = 0;
      for (const auto& each : std::filesystem::directory_iterator(dir.path())) (void)each, ++entries;
      EXPECT_EQ(entries, 1u) << "nothing temporary stays";
    }
  }
}

TEST(Adapter, NamesModulesOfAnotherRankAsTransformersDoes) {
  Workload w = lora(4, 3);
  w.experts = {.training = Training::lora, .rank = 5, .alpha = 40};
  const Problem p = problem(shrunk(shipped("mixtral/mixtral-8x7b.json"), 1), w);
  TinyRun run(p, plan(p), cpu_backend(CpuStorage::wide)), other(p, plan(p), cpu_backend(CpuStorage::wide));
  stir(run, 4);
  for (const auto& [dialect, module] : {std::pair{AdapterDialect::param_wrapper, "mlp.experts.gate_up_proj"}, std::pair{AdapterDialect::per_expert, "model.layers.0.block_sparse_moe.experts.2.w1"}}) {
    const AdapterFiles files = exported(run, dialect);
    const bool experts_differ = files.config.at("r") == 3;
    EXPECT_EQ(files.config.at(experts_differ ? "rank_pattern" : "alpha_pattern").value(experts_differ ? module : "model.layers.0.self_attn.q_proj", 0.0), experts_differ ? 5.0 : 6.0) << files.config.dump();
    const Scratch dir;
    save_adapter(dir.path() / "a", files);
    load_adapter(dir.path() / "a", p, other.trainer->parameters(), *other.backend);
    EXPECT_EQ(pairs(run), pairs(other));
  }
}

TEST(Adapter, PacksExpertsTheWayPeftUnpacksThem) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), lora(4, 2));
  TinyRun run(p, plan(p), cpu_backend(CpuStorage::wide));
  stir(run, 4);
  const AdapterFiles packed = exported(run, AdapterDialect::param_wrapper), apart = exported(run, AdapterDialect::per_expert);
  const auto find = [](const AdapterFiles& files, const std::string& name) {
    for (const NamedTensor& t : files.tensors) if (t.name == name) return t;
    ADD_FAILURE() << name;
    return NamedTensor{};
  };
  const std::string experts = "base_model.model.model.layers.0.mlp.experts.";
  const NamedTensor a = find(packed, experts + "lora_A.weight"), b = find(packed, experts + "lora_B.weight");
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{8 * 2, 10}));
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{32, 8 * 2}));
  const NamedTensor a5 = find(apart, experts + "5.down_proj.lora_A.weight"), b5 = find(apart, experts + "5.down_proj.lora_B.weight");
  EXPECT_EQ(a.values[(5 * 2 + 1) * 10 + 3], a5.values[1 * 10 + 3]) << "row e r + k";
  EXPECT_EQ(b.values[7 * 16 + 1 * 8 + 5], b5.values[7 * 2 + 1]) << "column k E + e";
  EXPECT_EQ(packed.config.at("target_parameters"), (Json{"mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
  EXPECT_EQ(packed.config.at("r"), 2);
  EXPECT_EQ(packed.config.at("lora_alpha"), 4.0);
}

TEST(Adapter, NamesExpertsWithoutAGateByTheParameterThatTheyHave) {
  const Problem p = problem(shrunk(shipped("nemotron/nemotron-3-nano-30b-a3b.json")), lora(4, 2));
  TinyRun run(p, plan(p), cpu_backend(CpuStorage::wide));
  EXPECT_EQ(exported(run, AdapterDialect::param_wrapper).config.at("target_parameters"), (Json{"mixer.experts.down_proj", "mixer.experts.up_proj"}));
}

TEST(Adapter, RefusesWhatItWouldMisread) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), lora(4, 2));
  const auto message = [&](const std::function<void(AdapterFiles&)>& spoil) {
    TinyRun run(p, plan(p), cpu_backend(CpuStorage::wide));
    AdapterFiles files = exported(run, AdapterDialect::per_expert);
    spoil(files);
    const Scratch dir;
    save_adapter(dir.path() / "a", files);
    try {
      load_adapter(dir.path() / "a", p, run.trainer->parameters(), *run.backend);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message([](AdapterFiles&) {}), "accepted");
  EXPECT_NE(message([](AdapterFiles& f) { f.config["r"] = 4; }).find("rank 2"), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) { f.config["lora_alpha"] = 2; }).find("scale of 1"), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) { f.config["use_rslora"] = true; }).find("scale"), std::string::npos);
  // Patterns hold for the modules that they name, and for no other.
  EXPECT_EQ(message([](AdapterFiles& f) { f.config["rank_pattern"] = {{"no.such.module", 64}}; }), "accepted");
  EXPECT_NE(message([](AdapterFiles& f) { f.config["rank_pattern"] = {{"self_attn.q_proj", 64}}; }).find("is 64 for \"model.layers.0.self_attn.q_proj\""), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) { f.config["alpha_pattern"] = {{"mlp.experts.3.up_proj", 1}}; }).find("scale of 0.5"), std::string::npos);
  EXPECT_EQ(message([](AdapterFiles& f) { f.config["alpha_pattern"] = {{"^self_attn.q_proj", 1}}; }), "accepted") << "the whole path is longer";
  EXPECT_NE(message([](AdapterFiles& f) { f.config["r"] = 8, f.config["rank_pattern"] = {{"q_proj", 2}}; }).find("is 8 for"), std::string::npos) << "the others have r";
  EXPECT_NE(message([](AdapterFiles& f) { f.config["rank_pattern"] = {{".*_proj", 2}}; }).find("regular expression"), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) { f.config["rank_pattern"] = 3; }).find("rank_pattern"), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) { f.config["use_dora"] = true; }).find("use_dora"), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) { f.config["peft_type"] = "IA3"; }).find("IA3"), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) { f.tensors.pop_back(); }).find("has no tensor"), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) { f.tensors.push_back({"base_model.model.more.lora_A.weight", {1, 1}, {1}}); }).find("belong to nothing"), std::string::npos);
  EXPECT_NE(message([](AdapterFiles& f) {
              for (NamedTensor& t : f.tensors) if (t.name.find("experts.3.up_proj.lora_A") != std::string::npos) t.values[0] += 1;
            }).find("another A"), std::string::npos);
  TinyRun run(p, plan(p), cpu_backend(CpuStorage::wide));
  const Scratch dir;
  dir.write("adapter_config.json", "{}");
  dir.write("adapter_model.bin", "pickle");
  try {
    load_adapter(dir.path(), p, run.trainer->parameters(), *run.backend);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("pickled"), std::string::npos);
  }
}

}  // namespace
}  // namespace moeplan
