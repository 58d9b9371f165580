/// Every input that is wrong ends in one line, exit 2, little memory: kinds of files, fields, flags, and inputs that do not fit
/// each other.

#include <sys/stat.h>

#include <functional>

#include "tests/cli/program.hpp"

namespace moeplan::cli_test {
namespace {

class BadInput : public Folder {
 protected:
  /// A shipped config with one thing changed, written to a file.
  [[nodiscard]] std::string changed(const std::string& source, const std::function<void(Json&)>& change) const {
    Json json = load_json(config(source), {.tolerate_nonfinite_literals = true});
    change(json);
    return write("changed.json", json.dump());
  }
};

const std::string kModel = "tiny-qwen3-moe";

std::vector<std::string> plan_on(const std::string& cluster) { return {"plan", kModel, "--cluster", cluster}; }
std::vector<std::string> plan_with(const std::vector<std::string>& flags) {
  std::vector<std::string> out{"plan", kModel, "--cluster", "8xh200"};
  out.insert(out.end(), flags.begin(), flags.end());
  return out;
}

TEST_F(BadInput, FilesOfTheWrongKind) {
  ASSERT_EQ(::mkfifo((folder / "fifo.json").c_str(), 0600), 0);
  std::filesystem::create_directory(folder / "folder.json");
  const std::vector<std::pair<std::string, std::string>> files{
      {(folder / "absent.json").string(), "cannot open"},
      {(folder / "fifo.json").string(), "is not a regular file"},
      {"/dev/zero", "is not a regular file"},
      {write("empty.json", ""), "the file is empty"},
      {write("blank.json", " \n"), "the file is empty"},
      {write("bom.json", "\xef\xbb\xbf{}"), "byte order mark"},
      {write("latin.json", "{\"a\": \"\xe9\"}"), "UTF-8"},
      {write("deep.json", std::string(100000, '[')), "nested deeper"},
      {write("twice.json", "{\"a\": 1, \"a\": 2}"), "stands twice"},
      {write("cut.json", "{\"a\": "), "not valid JSON"},
      {write("overflow.json", "{\"a\": 1e400}"), "not valid JSON"},
      {write("long.json", "{\"a\": " + std::string(1 << 20, '1') + ".5}"), "f"},
      {write("list.json", "[]"), "object"},
      {write("number.json", "3"), "object"},
  };
  for (const auto& [file, why] : files) {
    expect_refused({"inspect", file}, why);
    expect_refused(plan_on(file), why);
    expect_refused(plan_with({"--workload", file}), why);
    expect_refused({"explain", file}, why);
  }
  expect_refused(plan_on((folder / "folder.json").string()), "is a directory");
  expect_refused({"explain", (folder / "folder.json").string()}, "is a directory");
  expect_refused({"inspect", (folder / "folder.json").string()}, "config.json");
}

TEST_F(BadInput, FileNamesWithControlCharactersStayOnOneLine) { expect_refused({"inspect", "a\nb\x1b[31m.json"}, "a\\x0ab\\x1b[31m.json"); }

TEST_F(BadInput, AnIndexThatPointsOutsideItsDirectory) {
  std::filesystem::copy(config("models/tiny/tiny-qwen3-moe.json"), folder / "config.json");
  for (const char* shard : {"../outside.safetensors", "/etc/hostname", "a/../b.safetensors", "", ".", ".."}) {
    write("model.safetensors.index.json", Json{{"metadata", {{"total_size", 1}}}, {"weight_map", {{"model.embed_tokens.weight", shard}}}}.dump());
    expect_refused({"inspect", folder.string()}, "weight_map");
  }
}

TEST_F(BadInput, NamesThatAreNotKnown) {
  expect_refused({"inspect", "kimi-k33"}, "did you mean");
  expect_refused({"inspect", "KIMI-K3"}, "did you mean \"kimi-k3\"?");
  expect_refused({"insepct", "kimi-k3"}, "\"insepct\" is no command; did you mean inspect?");
  expect_refused({"inspect", "kimi-k3", "--jsn"}, "\"--jsn\" is no option of inspect; did you mean --json?");
  expect_refused(plan_with({"--gradient-batch", "8"}), "is no option of plan");
  expect_refused(plan_with({"--tp", "2.5"}), "--tp: 2.5 is no whole number from 1 to 1048576");
  expect_refused(plan_with({"--tp", "nan"}), "--tp: nan is no ");
  expect_refused(plan_with({"--tp", "0"}), "--tp: Value 0 not in range 1 to 1048576");
  expect_refused(plan_on("128xh2000"), "did you mean");
  expect_refused({"plan", kModel, "--device", "h2000", "--gpus", "8"}, "did you mean");
  expect_refused(plan_with({"--workload", "lora-sfd"}), "did you mean");
  expect_refused(plan_with({"--runtime", "megatron"}), "not a known name");
  expect_refused(plan_with({"--load", "zipff"}), "did you mean");
  expect_refused(plan_with({"--profile", "nothing"}), "not a known name");
  expect_refused(plan_on(""), "");
}

TEST_F(BadInput, EveryFieldOfAModelConfig) {
  const Json original = load_json(config("models/tiny/tiny-qwen3-moe.json"));
  for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_key_value_heads", "head_dim"}) {
    if (!original.contains(field)) continue;
    for (const char* wrong : {"-1", "0.5", "1e308", "9223372036854775808", "\"8\"", "true", "[8]", "{}", "NaN", "Infinity"}) {
      Json json = original;
      json[field] = "@";
      std::string text = json.dump();
      text.replace(text.find("\"@\""), 3, wrong);
      expect_refused({"inspect", write("config.json", text)}, field);
    }
  }
  for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    expect_refused({"inspect", changed("models/tiny/tiny-qwen3-moe.json", [&](Json& j) { j.erase(field); })}, field);
    expect_refused({"inspect", changed("models/tiny/tiny-qwen3-moe.json", [&](Json& j) { j[field] = nullptr; })}, field);
    expect_refused({"inspect", changed("models/tiny/tiny-qwen3-moe.json", [&](Json& j) { j[field] = 0; })}, field);
  }
}

TEST_F(BadInput, AnArchitectureThatIsNotKnownIsAnsweredWithTheKnownOnes) {
  expect_refused({"inspect", write("config.json", R"({"architectures": ["FancyForCausalLM"], "model_type": "fancy", "hidden_size": 8})")}, "FancyForCausalLM");
}

TEST_F(BadInput, WordsOfALayerThatNoModelOfItsKindHas) {
  for (const char* model : {"models/tiny/tiny-gpt-oss.json", "models/tiny/tiny-qwen3.5-moe.json"})
    expect_refused({"inspect", changed(model, [](Json& j) { (j.contains("text_config") ? j["text_config"] : j)["layer_types"][0] = "slidng_attention"; })}, "layer_types: unknown word \"slidng_attention\"");
}

TEST_F(BadInput, EveryFieldOfAClusterFile) {
  const auto cluster = [&](const char* field, const Json& value, const char* why) {
    expect_refused(plan_on(changed("clusters/128xh200.json", [&](Json& j) { j[field] = value; })), why);
  };
  for (const Json& wrong : {Json(0), Json(-1), Json(1.5), Json("16"), Json(true), Json(nullptr), Json(std::uint64_t{1} << 63), Json(1e308), Json::array({16})}) cluster("nodes", wrong, "nodes");
  cluster("devices_per_node", 0, "devices_per_node");
  cluster("device", "h2000", "did you mean");
  cluster("device", 5, "device");
  cluster("nodez", 5, "did you mean \"nodes\"?");
  cluster("price", 3.5, "a text with a unit");
  cluster("price", "-3.5 USD/h", "price");
  cluster("price", "3.5 GiB", "price");
  cluster("host_memory", "nan B", "host_memory");
  cluster("host_memory", "1e308 TB", "host_memory");
  expect_refused(plan_on(changed("clusters/128xh200.json", [](Json& j) { j.erase("nodes"); })), "nodes: is missing");
}

TEST_F(BadInput, EveryFieldOfAWorkloadFile) {
  const auto workload = [&](const char* field, const Json& value, const char* why) {
    expect_refused(plan_with({"--workload", changed("workloads/lora-sft.json", [&](Json& j) { j[field] = value; })}), why);
  };
  for (const Json& wrong : {Json(0), Json(-4096), Json(0.5), Json("4096"), Json(nullptr), Json(1e308)}) workload("sequence_length", wrong, "sequence_length");
  workload("global_batch", 0, "global_batch");
  workload("tokens", -1, "tokens");
  workload("tokens", 1e308, "tokens");
  workload("attention", Json{{"training", "lora"}, {"rank", 0}, {"alpha", 1}}, "rank");
  workload("attention", Json{{"training", "lora"}, {"rank", 100000}, {"alpha", 1}}, "rank");
  workload("attention", Json{{"training", "lora"}, {"rank", 8}, {"alpha", -1}}, "alpha");
  workload("attention", Json{{"training", "sometimes"}}, "known: frozen, full, lora");
  workload("optimizer", "sgd", "known: adamw, adamw8bit, muon");
  workload("frozen_storage", "i64", "frozen_storage");
}

TEST_F(BadInput, FlagsOutOfRange) {
  for (const char* flag : {"--seq", "--global-batch", "--rank", "--gpus", "--pp", "--tp", "--cp", "--ep", "--etp", "--dp-replicate", "--dp-shard", "--micro-batch", "--top"})
    for (const char* wrong : {"0", "-1", "abc", "1.5", "99999999999999999999", ""}) expect_refused(plan_with({std::string(flag) + "=" + wrong}), flag);
  for (const char* wrong : {"0", "-1", "nan", "inf", "abc", "1e400"}) expect_refused(plan_with({std::string("--tokens=") + wrong}), "tokens");
  expect_refused(plan_with({"--method", "qlora"}), "--method");
  expect_refused(plan_with({"--method", "frozen"}), "--method");
  expect_refused(plan_with({"--optimizer", "sgd"}), "known: adamw, adamw8bit, muon");
  expect_refused(plan_with({"--recompute", "some"}), "known: none, selective, full");
  expect_refused(plan_with({"--frozen-storage", "bf15"}), "known: ");
  expect_refused(plan_with({"--offload", "everything"}), "--offload");
  expect_refused(plan_with({"--flops", "none"}), "--flops");
  expect_refused(plan_with({"--context-exchange", "gossip"}), "known: ring, all_to_all");
  expect_refused(plan_with({"--state-passing", "pigeon"}), "known: chain, scan");
  expect_refused(plan_with({"--dispatch-route", "scenic"}), "known: two_hop, direct");
  expect_refused(plan_with({"--overflow", "spill"}), "known: drop_probability, drop_position, reroute");
  expect_refused(plan_with({"--expert-placement", "random"}), "known: contiguous, balanced, hierarchical");
  expect_refused(plan_with({"--dispatch", "int4"}), "bf16 or fp8");
  for (const char* flag : {"--expert-chunks", "--capacity-factor", "--stage-layers"})
    for (const char* wrong : {"0", "-1", "abc", ""}) expect_refused(plan_with({std::string(flag) + "=" + wrong}), flag);
  expect_refused(plan_with({"--expert-replicas=-1"}), "--expert-replicas");
  expect_refused(plan_with({"--expert-chunks", "4", "--offload", "activations"}), "4 chunks");
  expect_refused(plan_with({"--pad-to-capacity"}), "capacity factor");
  expect_refused(plan_with({"--targets", "attention,heart"}), "known: attention, dense");
}

TEST_F(BadInput, PartsThatDoNotFitEachOther) {
  expect_refused({"plan", kModel}, "--cluster");
  expect_refused({"plan", kModel, "--device", "h200"}, "--gpus");
  expect_refused({"plan", kModel, "--device", "h200", "--cluster", "8xh200", "--gpus", "8"}, "--device");
  expect_refused({"plan", kModel, "--device", "h200", "--gpus", "12"}, "whole machines");
  expect_refused(plan_with({"--method", "full", "--rank", "8"}), "--rank");
  expect_refused({"plan", "tiny-llama31", "--cluster", "8xh200", "--targets", "experts"}, "no experts");
  expect_refused({"plan", "tiny-llama31", "--cluster", "8xh200", "--workload", "lora-experts"}, "experts");
  expect_refused(plan_with({"--frozen-storage", "nf4", "--runtime", "megatron-core"}), "megatron-core");
  expect_refused(plan_with({"--pp", "3"}), "no layout of 8 devices");
  expect_refused(plan_with({"--ep", "64"}), "no layout of 8 devices");
  expect_refused(plan_with({"--expert-shard", "3"}), "no layout of 8 devices has --expert-shard 3;");
  expect_refused(plan_with({"--pp", "2", "--stage-layers", "1,1,1"}), "3 numbers for 2 pipeline stages");
  expect_refused(plan_with({"--stage-layers", "1000,1"}), "stages_hold_layers");
  expect_refused({"plan", "qwen3-8b", "--device", "h200", "--gpus", "8", "--seq", "4095", "--cp", "2"}, "context x tensor ranks");
  expect_refused({"plan", "qwen2.5-0.5b", "--device", "h200", "--gpus", "8", "--tp", "4"}, "14 attention heads do not divide over 4 tensor ranks");
  expect_refused({"plan", "qwen2.5-0.5b", "--device", "h200", "--gpus", "4", "--seq", "32768", "--cp", "4", "--tp", "1", "--context-exchange", "all_to_all"}, "2 key-value heads cannot be exchanged");
  expect_refused(plan_with({"--micro-batch", "16777216", "--seq", "16777216"}), "--micro-batch");
  expect_refused(plan_with({"--global-batch", "7", "--pp", "1", "--tp", "1"}), "7");
  expect_refused(plan_with({"--global-batch", "64", "--tokens", "1000"}), "less than one step");
  const std::string trace = write("trace.json", R"({"distribution": {"kind": "trace", "counts": [[1, 2, 3]]}})");
  expect_refused(plan_with({"--load", trace}), "3 experts");
}

TEST_F(BadInput, PlanFilesThatWereTamperedWith) {
  const std::string file = (folder / "plan.json").string();
  ASSERT_EQ(moeplan({"plan", kModel, "--device", "h200", "--gpus", "2", "--seq", "256", "-o", file}).exit_code, 0);
  const Json good = load_json(file);
  const auto tampered = [&](const std::function<void(Json&)>& change, const char* why) {
    Json json = good;
    change(json);
    expect_refused({"explain", write("bad.json", json.dump())}, why);
  };
  tampered([](Json& j) { j["format"] = "moeplan.plan.v99"; }, "v99");
  tampered([](Json& j) { j.erase("problem"); }, "problem");
  tampered([](Json& j) { j["plan"]["parallelism"]["pp"] = 3; }, "parallelism");
  tampered([](Json& j) { j["plan"]["parallelism"]["ep"] = 0; }, "ep");
  tampered([](Json& j) { j["plan"]["micro_batch"] = -1; }, "micro_batch");
  tampered([](Json& j) { j["plan"]["stage_layers"] = Json::array({1000}); }, "stage");
  tampered([](Json& j) { j["plan"]["stage_layers"] = Json::array({1, 1}); }, "stage");
  tampered([](Json& j) { j["plan"]["offload"] = "moon"; }, "moon");
  tampered([](Json& j) { j["plan"]["context_exchange"] = "gossip"; }, "known: ring, all_to_all");
  tampered([](Json& j) { j["plan"]["experts"]["chunks"] = 0; }, "chunks");
  tampered([](Json& j) { j["plan"]["experts"]["replicas"] = 3; }, "replicas");
  tampered([](Json& j) { j["plan"]["experts"]["capacity_factor"] = -1; }, "capacity_factor");
  tampered([](Json& j) { j["plan"]["experts"]["dispatch"] = "u8"; }, "bf16 or fp8");
  tampered([](Json& j) { j["plan"]["frozen_storage"] = "i64"; }, "frozen_storage");
  tampered([](Json& j) { j["plan"]["parallelism"]["tp"] = 1 << 20, j["plan"]["parallelism"]["pp"] = 1 << 20, j["plan"]["parallelism"]["cp"] = 1 << 20, j["plan"]["parallelism"]["dp_shard"] = 1 << 20; }, "does not fit 63 bits");
  tampered([](Json& j) { j["plan"]["micro_batch"] = 1 << 24, j["problem"]["workload"]["sequence_length"] = 1 << 24; }, "tokens");
  tampered([](Json& j) { j["problem"]["cluster"]["nodes"] = 0; }, "nodes");
  tampered([](Json& j) { j["problem"]["workload"]["sequence_length"] = "long"; }, "sequence_length");
  tampered([](Json& j) { j["model_config"]["hidden_size"] = -1; }, "hidden_size");
}

}  // namespace
}  // namespace moeplan::cli_test
