/// Counts and tensor lists of the shipped configs against totals of public checkpoints (tests/data/models, see docs/models.md).

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/json.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/model_tensors.hpp"

namespace moeplan {
namespace {

const std::string source = MOEPLAN_SOURCE;

Json data(const char* name) { return load_json(source + "/tests/data/models/" + name); }

ModelSpec model(const std::string& file) { return import_model_file(source + "/configs/models/" + file); }

ParameterCounts counts(const ModelSpec& m) { return count_parameters(m, compose_model(m)); }

std::int64_t number(const Json& entry, const char* key) { return entry.at(key).is_null() ? 0 : entry.at(key).get<std::int64_t>(); }

TEST(Tensors, totals_of_models_with_a_public_element_count_are_exact) {
  int exact = 0;
  for (const Json& e : data("expected.json")) {
    if (!e.at("exact").get<bool>()) continue;
    ++exact;
    const std::string name = e.at("name");
    const ParameterCounts c = counts(model(e.at("file")));
    EXPECT_EQ(c.total(), number(e, "total")) << name;
    EXPECT_EQ(c.mtp, number(e, "mtp")) << name;
    EXPECT_EQ(c.mtp_copies, number(e, "mtp_copies")) << name;
    EXPECT_EQ(c.vision, number(e, "vision")) << name;
    EXPECT_EQ(c.tables, number(e, "tables")) << name;
    EXPECT_EQ(c.routed_experts, number(e, "routed_experts")) << name;
  }
  EXPECT_EQ(exact, 49);
}

TEST(Tensors, totals_of_the_other_models_are_within_a_percent_of_the_second_opinion) {
  for (const Json& e : data("expected.json")) {
    const std::int64_t expected = number(e, "total");
    const ParameterCounts c = counts(model(e.at("file")));
    if (expected == 0) continue;
    EXPECT_LT(std::abs(static_cast<double>(c.total() - expected)) / static_cast<double>(expected), 0.01) << e.at("name") << ": " << c.total() << " against " << expected;
  }
}

TEST(Tensors, activated_parameters_follow_top_k_over_experts) {
  // The second opinion leaves out the pooling tensors of GLM-5.3-Flash's 11 indexers: a gate [128, 4096] and a table [4, 128] each.
  const std::int64_t pooling = 11 * (128 * 4096 + 4 * 128);
  for (const Json& e : data("expected.json")) {
    const std::int64_t expected = number(e, "activated");
    if (expected == 0 || e.at("name") == "hy4-preview") continue;
    EXPECT_EQ(counts(model(e.at("file"))).activated, expected + (e.at("name") == "glm-5.3-flash" ? pooling : 0)) << e.at("name");
  }
}

TEST(Tensors, towers_without_a_public_element_count_follow_the_public_modelling_code) {
  const auto tensors = [](const ModelSpec& m) {
    std::int64_t n = 0;
    for (const IdleTensor& t : m.vision) n += t.count;
    return n;
  };
  // The public conversion of GLM-5.3-Flash's tower has 348 tensors, its patch convolution cut in two; with the MTP layer the whole is the published 321.3 B.
  const ModelSpec glm = model("glm/glm-5.3-flash.json");
  EXPECT_EQ(tensors(glm), 347);
  EXPECT_EQ(counts(glm).vision, 563'627'008);
  EXPECT_EQ((counts(glm).total() + counts(glm).mtp) / 100'000'000, 3213);
  // 27 layers of 13 tensors; the table of positions, two standardisation vectors, two projections.
  const ModelSpec gemma = model("gemma/gemma-4-26b-a4b.json");
  EXPECT_EQ(tensors(gemma), 27 * 13 + 5);
  EXPECT_EQ(counts(gemma).vision, 27 * (4 * 1152 * 1152 + 3 * 1152 * 4304 + 4 * 1152 + 2 * 72) + 768 * 1152 + 2 * 10240 * 1152 + 2 * 1152 + 2816 * 1152);
  // 63 layers of 12 tensors; the file says 3072 for the MLP, and the count follows it.
  const ModelSpec step = model("step/step-3.json");
  EXPECT_EQ(tensors(step), 63 * 12 + 9);
  EXPECT_EQ(counts(step).vision, 63 * (4 * 1792 * 1792 + 4 * 1792 + 4 * 1792 + 2 * 1792 * 3072 + 3072 + 1792) + 588 * 1792 + 1792 + 2705 * 1792 + 1792 +
                                     (4096 * 1792 * 4 + 4096) + (8192 * 4096 * 9 + 8192) + 7168 * 8192);
}

TEST(Tensors, categories_sum_to_the_total) {
  for (const Json& e : data("expected.json")) {
    const ParameterCounts c = counts(model(e.at("file")));
    EXPECT_EQ(c.embedding + c.attention + c.router + c.routed_experts + c.shared_experts + c.dense_ffn + c.norms + c.lm_head + c.other, c.main) << e.at("name");
  }
}

/// Name with every layer index of the main layers as `*`, shape -> how many.
using Patterns = std::map<std::pair<std::string, std::string>, std::int64_t>;

TEST(Tensors, names_shapes_and_numbers_of_tensors_are_those_of_the_checkpoints) {
  const Json all = data("tensors.json");
  for (const Json& e : data("expected.json")) {
    const std::string name = e.at("name");
    if (!all.contains(name)) continue;
    Patterns expected, ours;
    for (const Json& row : all.at(name)) expected[{row.at(0), row.at(1).dump()}] += row.at(2).get<std::int64_t>();
    const ModelSpec m = model(e.at("file"));
    for (const ModelTensor& t : model_tensors(m, compose_model(m))) {
      std::string pattern = t.name;
      const std::string index = m.layer_prefix + std::to_string(t.layer) + ".";
      if (t.layer >= 0 && pattern.starts_with(index)) pattern = m.layer_prefix + "*." + pattern.substr(index.size());
      auto shape = t.shape;
      if (t.padding > 0) shape.front() -= t.padding;
      ours[{pattern, Json(shape).dump()}] += t.count;
    }
    for (const auto& [key, count] : expected) {
      const auto it = ours.find(key);
      EXPECT_TRUE(it != ours.end()) << name << " lacks " << key.first << " " << key.second;
      if (it != ours.end()) { EXPECT_EQ(it->second, count) << name << " " << key.first; }
    }
    for (const auto& [key, count] : ours) EXPECT_TRUE(expected.contains(key)) << name << " has " << count << " x " << key.first << " " << key.second;
  }
}

TEST(Tensors, kimi_k3_reproduces_its_checkpoint) {
  const ModelSpec m = model("kimi/kimi-k3.json");
  const ParameterCounts c = counts(m);
  EXPECT_EQ(c.total(), 2'779'931'834'976);
  EXPECT_EQ(c.activated, 105'364'017'760);
  EXPECT_EQ(c.activated - c.input_embedding, 104'189'612'640);
  EXPECT_EQ(c.stored_bytes, 1'560'860'324'864);
  EXPECT_EQ(c.stored_tensors, 497'220);
}

TEST(Tensors, quantised_checkpoints_have_their_published_sizes) {
  const ParameterCounts k2 = counts(model("kimi/kimi-k2-instruct.json"));
  EXPECT_EQ(k2.stored_bytes, 1'029'173'249'888);  // published payload less 6,832 bytes of rotary buffers
  const ParameterCounts k25 = counts(model("kimi/kimi-k2.5.json"));
  EXPECT_EQ(k25.stored_bytes, 595'148'192'736);
  EXPECT_EQ(k25.stored_tensors, 208'550);
  const ParameterCounts qwen = counts(model("qwen/qwen3-235b-a22b.json"));
  EXPECT_EQ(qwen.stored_bytes, 470'187'269'120);
  EXPECT_EQ(qwen.stored_tensors, 36'945);
  EXPECT_EQ(counts(model("olmoe/olmoe-1b-7b.json")).stored_tensors, 3'219);
}

}  // namespace
}  // namespace moeplan
