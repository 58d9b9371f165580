/// Faults reported against other tools (BL-...), as values ours must give.

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "core/json.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/architectures/compose.hpp"
#include "sim/program/model_tensors.hpp"

namespace moeplan {
namespace {

ModelSpec import_text(const std::string& text) { return import_model(parse_json(text, "config.json"), "config.json", "test"); }

ParameterCounts counts(const std::string& text) {
  const ModelSpec m = import_text(text);
  return count_parameters(m, compose_model(m));
}

const std::string small_llama = R"("hidden_size":256,"num_hidden_layers":2,"num_attention_heads":8,"intermediate_size":512,"vocab_size":1000,"tie_word_embeddings":false)";

TEST(BugReports, BL001_a_missing_head_dim_is_hidden_over_heads) {
  EXPECT_EQ(counts(R"({"model_type":"llama","num_key_value_heads":2,)" + small_llama + "}").total(), 1'627'392);
}

TEST(BugReports, BL003_missing_kv_heads_mean_multi_head_attention) {
  EXPECT_EQ(counts(R"({"model_type":"llama",)" + small_llama + "}").total(), 1'824'000);
}

TEST(Import, LongRopeHasADivisorForEachPair) {
  const auto text = [](const std::string& long_factor) {
    return R"({"model_type":"llama",)" + small_llama + R"(,"head_dim":8,"max_position_embeddings":4096,"rope_scaling":{"type":"longrope","original_max_position_embeddings":1024,"short_factor":[1,1,1,1],"long_factor":)" +
           long_factor + "}}";
  };
  try {
    (void)import_text(text("[1,2,3]"));
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("3 entries for 4 pairs"), std::string::npos) << e.what();
  }
  const Rope r = std::get<GqaAttention>(import_text(text("[1,2,3,4]")).layers[0].sublayers[0].mixer).rope;
  EXPECT_EQ(r.long_divisors, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_NEAR(r.magnitude, std::sqrt(1.2), 1e-12) << "ln 4 / ln 1024 = 0.2";
  EXPECT_THROW((void)import_text(text("[1,2,0,4]")), InputError);
}

TEST(BugReports, BL004_rope_scaling_by_either_name_but_not_by_two_that_disagree) {
  const std::string head = R"({"model_type":"llama",)" + small_llama + R"(,"rope_scaling":)";
  const ModelSpec a = import_text(head + R"({"type":"linear","factor":8.0}})"), b = import_text(head + R"({"rope_type":"linear","factor":8.0}})");
  EXPECT_EQ(a, b);
  try {
    (void)import_text(head + R"({"type":"linear","rope_type":"yarn","factor":8.0}})");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("rope_type"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("rope_scaling.type"), std::string::npos);
  }
}

TEST(Import, ReadsLlama3sRopeScalingAndRefusesFactorsThatCross) {
  const auto text = [&](const std::string& low, const std::string& high) {
    return R"({"model_type":"llama",)" + small_llama + R"(,"rope_scaling":{"rope_type":"llama3","factor":8,"original_max_position_embeddings":8192,"low_freq_factor":)" + low +
           R"(,"high_freq_factor":)" + high + "}}";
  };
  const Rope r = std::get<GqaAttention>(import_text(text("1", "4")).layers[0].sublayers[0].mixer).rope;
  EXPECT_EQ(r.scaling, "llama3");
  EXPECT_EQ(r.beta_slow, 1);
  EXPECT_EQ(r.beta_fast, 4);
  EXPECT_THROW((void)import_text(text("4", "4")), InputError);
}

TEST(BugReports, BL005_yarn_without_the_original_length_takes_max_positions) {
  const ModelSpec m = import_text(R"({"model_type":"llama",)" + small_llama + R"(,"max_position_embeddings":4096,"rope_scaling":{"rope_type":"yarn","factor":2.0}})");
  EXPECT_EQ(std::get<GqaAttention>(m.layers[0].sublayers[0].mixer).rope.original_positions, 4096);
  ASSERT_EQ(m.notes.size(), 1u);
}

TEST(BugReports, BL006_nested_text_config_wins_and_vision_is_said_not_to_be_covered) {
  const ModelSpec m = import_text(R"({"model_type":"qwen3_vl_moe","text_config":{"hidden_size":256,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":64,
    "num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100},"vision_config":{"hidden_size":128}})");
  EXPECT_EQ(m.hidden, 256);
  EXPECT_EQ(std::get<MoeFfn>(m.layers[0].sublayers[1].mixer).experts, 8);
  ASSERT_EQ(m.uncovered.size(), 1u);
  EXPECT_NE(m.uncovered[0].find("vision"), std::string::npos);
}

TEST(BugReports, BL009_any_expert_count_makes_a_moe_however_it_is_called) {
  for (const char* type : {"qwen3", "llama", "qwen3_moe"}) {
    const ModelSpec m = import_text(R"({"model_type":")" + std::string(type) + R"(","num_experts":256,"num_experts_per_tok":4,"moe_intermediate_size":512,"hidden_size":256,
      "num_hidden_layers":2,"num_attention_heads":8,"intermediate_size":8192,"vocab_size":1000})");
    EXPECT_EQ(ffn_name(m.layers[0]), "moe") << type;
    EXPECT_EQ(std::get<MoeFfn>(m.layers[0].sublayers[1].mixer).intermediate, 512);
  }
}

TEST(BugReports, BL011_the_mtp_layer_is_counted_apart) {
  const ModelSpec m = import_model_file(std::string(MOEPLAN_SOURCE) + "/configs/models/deepseek/deepseek-v3.json");
  const ParameterCounts c = count_parameters(m, compose_model(m));
  EXPECT_EQ(m.layers.size(), 61u);
  EXPECT_EQ(c.total(), 671'026'419'200);
  EXPECT_EQ(c.mtp, 11'610'068'224);
  EXPECT_EQ(c.total() + c.mtp + c.mtp_copies, 684'489'845'504);
}

TEST(BugReports, BL012_block_scales_round_up) {
  const auto scale = [](std::int64_t out, std::int64_t in) {
    return file_tensors({.name = "w.weight", .shape = {out, in}, .dtype = DType::fp8}, PackedLayout::scale_inv);
  };
  EXPECT_EQ(scale(576, 7168)[1].shape, (std::vector<std::int64_t>{5, 56}));
  EXPECT_EQ(scale(10944, 2048)[1].shape, (std::vector<std::int64_t>{86, 16}));
  EXPECT_EQ(scale(576, 7168)[0].bytes.value + scale(576, 7168)[1].bytes.value, 576 * 7168 + 5 * 56 * 4);
}

TEST(BugReports, BL017_mixtral_counts_all_experts_and_an_untied_head) {
  const ParameterCounts c = counts(R"({"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"intermediate_size":14336,"num_attention_heads":32,"num_key_value_heads":8,
    "vocab_size":32000,"num_local_experts":8,"num_experts_per_tok":2,"tie_word_embeddings":false})");
  EXPECT_EQ(c.total(), 46'702'792'704);
  EXPECT_EQ(c.activated, 12'879'925'248);
}

TEST(BugReports, BL018_gated_has_three_matrices_and_ungated_two) {
  const ModelSpec gated = import_text(R"({"model_type":"llama","num_key_value_heads":2,)" + small_llama + "}");
  const ModelSpec plain = import_text(R"({"model_type":"megatron_gpt","hidden_act":"gelu","position_embedding_type":"rope","attention_bias":false,"mlp_bias":false,"num_key_value_heads":2,)" + small_llama + "}");
  EXPECT_EQ(count_parameters(gated, compose_model(gated)).dense_ffn, 2 * 3 * 512 * 256);
  EXPECT_EQ(count_parameters(plain, compose_model(plain)).dense_ffn, 2 * 2 * 512 * 256);
}

TEST(BugReports, BL019_expert_width_is_the_moe_width) {
  const ParameterCounts c = counts(R"({"model_type":"qwen3_moe","intermediate_size":6144,"moe_intermediate_size":768,"num_experts":128,"num_experts_per_tok":8,"hidden_size":2048,
    "num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"vocab_size":151936,"tie_word_embeddings":false})");
  EXPECT_EQ(c.total(), 30'532'122'624);
}

TEST(BugReports, BL023_lora_trains_only_its_pairs) {
  const ModelSpec m = import_model_file(std::string(MOEPLAN_SOURCE) + "/configs/models/qwen/qwen3-30b-a3b.json");
  BlockContext context;
  context.workload.attention = {Training::lora, 16, 16};
  context.workload.dense = {};
  Builder b("layer", context);
  Stream stream = stream_inputs(b, m, 0);
  compose_layer(b, m, m.layers[0], stream);
  std::int64_t trained = 0;
  for (const Weight& w : b.take().weights)
    if (w.trained) trained += w.full_shape.elements();
  EXPECT_EQ(48 * trained, 13'369'344);
}

TEST(BugReports, BL096_only_owning_layers_hold_an_indexer) {
  std::string text = R"({"model_type":"glm_moe_dsa","vocab_size":1000,"hidden_size":256,"intermediate_size":512,"moe_intermediate_size":128,"num_hidden_layers":78,"num_attention_heads":8,
    "n_routed_experts":8,"n_shared_experts":1,"num_experts_per_tok":2,"kv_lora_rank":64,"q_lora_rank":128,"qk_rope_head_dim":32,"qk_nope_head_dim":64,"v_head_dim":64,
    "index_topk":16,"index_head_dim":64,"index_n_heads":4,"index_skip_topk_offset":3,"index_topk_freq":4})";
  const ModelSpec m = import_text(text);
  int owners = 0;
  for (const LayerSpec& layer : m.layers) owners += std::get<MlaAttention>(layer.sublayers[0].mixer).indexer->shared ? 0 : 1;
  EXPECT_EQ(owners, 21);  // three at the start, then every fourth
  int tensors = 0;
  for (const ModelTensor& t : model_tensors(m, compose_model(m))) tensors += t.name.ends_with("indexer.wk.weight") ? 1 : 0;
  EXPECT_EQ(tensors, 21);
}

}  // namespace
}  // namespace moeplan
