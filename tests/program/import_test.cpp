/// Reading config.json: names, nulls, lists, nesting, refusals.

#include <gtest/gtest.h>

#include <chrono>

#include "core/error.hpp"
#include "core/json.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/architectures/compose.hpp"
#include "sim/program/inspect.hpp"
#include "sim/program/model_tensors.hpp"

namespace moeplan {
namespace {

const std::string source = MOEPLAN_SOURCE;

ModelSpec import_text(const std::string& text) {
  return import_model(parse_json(text, "config.json", {.tolerate_nonfinite_literals = true}), "config.json", "test");
}

Json shipped(const std::string& file) { return load_json(source + "/configs/models/" + file); }

std::string refusal(const Json& config) {
  try {
    (void)inspect(import_model(config, "config.json", "test"));
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

Json with(Json config, const std::string& field, Json value) {
  config[field] = std::move(value);
  return config;
}

std::int64_t total(const Json& config) {
  const ModelSpec m = import_model(config, "config.json", "test");
  return count_parameters(m, compose_model(m)).total();
}

TEST(Import, every_shipped_config_is_listed_imported_and_named) {
  const Json index = shipped("INDEX.json");
  EXPECT_EQ(index.size(), 89u);
  for (const Json& e : index) {
    const ModelSpec m = import_model_file(source + "/configs/models/" + e.at("file").get<std::string>());
    EXPECT_EQ(m.name, e.at("name").get<std::string>());
    EXPECT_FALSE(m.layers.empty());
  }
}

TEST(Import, null_counts_as_absent) {
  Json config = shipped("llama/llama-3.1-8b.json");
  config["head_dim"] = nullptr;
  config["sliding_window"] = nullptr;
  EXPECT_EQ(total(config), 8'030'261'248);
}

TEST(Import, aliases_mean_the_same) {
  Json config = shipped("qwen/qwen3-30b-a3b.json");
  const std::int64_t before = total(config);
  config["n_routed_experts"] = config["num_experts"];
  config.erase("num_experts");
  config["moe_topk"] = config["num_experts_per_tok"];
  config.erase("num_experts_per_tok");
  EXPECT_EQ(total(config), before);
}

TEST(Import, nonfinite_literals_harm_only_who_reads_them) {
  const std::string base = R"("model_type":"llama","hidden_size":64,"num_hidden_layers":1,"num_attention_heads":4,"intermediate_size":128,"vocab_size":100)";
  EXPECT_EQ(import_text("{" + base + R"(,"time_step_limit":[0.0,Infinity],"junk":NaN,"other":1e308})").hidden, 64);
  EXPECT_THROW((void)import_text("{" + base + R"(,"rope_theta":Infinity})"), InputError);
}

TEST(Import, one_indexed_layer_lists_are_read_so) {
  const ModelSpec m = import_model_file(source + "/configs/models/kimi/kimi-k3.json");
  EXPECT_EQ(attention_name(m.layers[2]), "kda");
  EXPECT_EQ(attention_name(m.layers[3]), "mla");
  EXPECT_EQ(attention_name(m.layers[91]), "mla");
  EXPECT_EQ(attention_name(m.layers[92]), "mla");
  EXPECT_EQ(ffn_name(m.layers[0]), "dense");
  EXPECT_EQ(ffn_name(m.layers[1]), "moe");
  EXPECT_TRUE(m.layers[84].stores_block);
  EXPECT_FALSE(m.layers[85].stores_block);
}

TEST(Import, flat_and_nested_indexer_fields_give_the_same_model) {
  EXPECT_EQ(total(shipped("kimi/kimi-k3.1-pro.json")), total(shipped("seed/seed-2p8t.json")));
  EXPECT_EQ(total(shipped("seed/seed-2p8t.json")), 2'779'931'834'976 + 24 * 7'438'592);
}

TEST(Import, layer_kinds_tell_stored_blocks_apart) {
  const ModelSpec m = import_model_file(source + "/configs/models/kimi/kimi-k3.json");
  EXPECT_EQ(layer_kind(m, 4), layer_kind(m, 5));     // KDA + MoE, one stored block
  EXPECT_NE(layer_kind(m, 5), layer_kind(m, 13));    // two stored blocks
  EXPECT_NE(layer_kind(m, 5), layer_kind(m, 7));     // MLA
}

TEST(Import, an_unknown_architecture_names_the_known_ones_and_foreign_fields) {
  Json config = shipped("llama/llama-3.1-8b.json");
  config["architectures"] = {"FancyForCausalLM"};
  config["model_type"] = "fancy";
  config["fancy_width"] = 7;
  const std::string text = refusal(config);
  EXPECT_NE(text.find("unknown architecture \"FancyForCausalLM\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"fancy_width\""), std::string::npos) << text;
  EXPECT_NE(text.find("deepseek"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Import, refusals_name_file_and_field) {
  const Json llama = shipped("llama/llama-3.1-8b.json"), k3 = shipped("kimi/kimi-k3.json");
  const auto refused = [](const Json& config, const std::string& field) {
    const std::string text = refusal(config);
    EXPECT_NE(text, "accepted") << field;
    EXPECT_EQ(text.find("config.json: " + field), 0u) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  };
  for (const Json& bad : {Json("8"), Json(true), Json(8.5), Json(-1), Json(0), Json(9223372036854775808u), Json(1e308), Json::array({1}), Json::object()})
    refused(with(llama, "hidden_size", bad), "hidden_size");
  refused(with(llama, "num_hidden_layers", 10'001), "num_hidden_layers");
  refused(with(llama, "vocab_size", (1 << 24) + 1), "vocab_size");
  refused(with(llama, "num_key_value_heads", 5), "num_key_value_heads");
  refused(with(llama, "hidden_act", "tanhish"), "hidden_act");
  refused(with(llama, "tie_word_embeddings", 1), "tie_word_embeddings");
  refused(with(shipped("qwen/qwen3-30b-a3b.json"), "num_experts", 65'537), "num_experts");
  refused(with(shipped("qwen/qwen3-30b-a3b.json"), "num_experts_per_tok", 129), "num_experts_per_tok");
  refused(with(shipped("deepseek/deepseek-v3.json"), "n_group", 7), "n_group");
  refused(with(shipped("qwen/qwen3-next-80b-a3b.json"), "num_nextn_predict_layers", 1 << 24), "num_nextn_predict_layers");
  refused(with(shipped("glm/glm-5.2.json"), "indexer_types", Json::array({"full"})), "indexer_types");
  refused(with(shipped("step/step-3.5-flash.json"), "moe_layers_enum", "3,4,x"), "moe_layers_enum");
  Json nested = k3;
  nested["text_config"]["linear_attn_config"]["kda_layers"].push_back(4);
  refused(nested, "text_config.linear_attn_config.kda_layers");
  nested = k3;
  nested["text_config"].erase("kv_lora_rank");
  refused(nested, "text_config.kv_lora_rank");
}

TEST(Import, absurd_products_are_refused_rather_than_wrapped_round) {
  Json config = shipped("qwen/qwen3-30b-a3b.json");
  for (const char* field : {"hidden_size", "moe_intermediate_size", "intermediate_size", "head_dim", "vocab_size"}) config[field] = 1 << 24;
  config["num_experts"] = config["num_experts_per_tok"] = 65'536;
  config["num_hidden_layers"] = 10'000;
  EXPECT_NE(refusal(config), "accepted");
}

TEST(Import, inspect_reports_what_others_rely_on) {
  const Json out = inspect(import_model_file(source + "/configs/models/kimi/kimi-k3.json"));
  EXPECT_EQ(out.at("total_parameters"), 2'779'931'834'976);
  EXPECT_EQ(out.at("activated_parameters"), 105'364'017'760);
  EXPECT_EQ(out.at("elements").at("vision"), 447'358'976);
  EXPECT_EQ(out.at("layers").size(), 93u);
  EXPECT_EQ(out.at("layers").at(92).at("experts"), 896);
  EXPECT_EQ(out.at("layers").at(92).at("top_k"), 16);
  EXPECT_EQ(out.at("uncovered").size(), 1u);
  std::map<std::string, std::int64_t> calls;
  for (const Json& o : out.at("operators")) calls[o.at("name")] = o.at("calls_per_micro_batch");
  EXPECT_EQ(calls.at("kda"), 69);
  EXPECT_EQ(calls.at("attention"), 24);
  EXPECT_EQ(calls.at("router"), 92);
  EXPECT_EQ(calls.at("grouped_linear"), 184);
  EXPECT_EQ(calls.at("attention_residual"), 187);  // two a layer and one before the head
  EXPECT_EQ(calls.at("cross_entropy"), 1);
  EXPECT_TRUE(inspect(import_model_file(source + "/configs/models/tiny/tiny-kimi-k3.json"), true).contains("tensors"));
}

}  // namespace
}  // namespace moeplan
