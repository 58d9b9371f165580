/// Measured rows: what is read, what is skipped and why, and what a row is converted to.

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "planner/validate/score.hpp"
#include "tests/planner/validate_library.hpp"

namespace moeplan::validation {
namespace {

Json row_json() {
  return Json::parse(R"row({"id": "r", "source_title": "s", "framework": "Megatron-Bridge (Megatron-Core)", "hardware": "h100-sxm-80gb", "num_gpus": 64, "gpus_per_node": 8, "model": "llama3-70b",
    "method": "pretrain", "precision": "bf16", "seq_len": 8192, "global_batch_size": 128, "micro_batch_size": 1, "tp": 4, "pp": 4, "vpp": 5, "cp": 2, "ep": null, "dp_or_fsdp": "dist-optimizer dp=2",
    "recompute": "none", "measured": {"step_time_s": 13.5, "peak_memory_gib_per_gpu": null, "other": {"anything": [1, 2]}}, "confidence": "high"})row");
}

Row row_of(const Json& json) {
  Rows rows;
  read_rows(Json::array({json}), "rows.json", rows);
  EXPECT_TRUE(rows.skipped.empty()) << rows.skipped.front().reason;
  return rows.rows.at(0);
}

TEST(MeasuredRows, ReadNullAsAbsentAndUnknownKeysAsRemarks) {
  Json json = row_json();
  json["remark"] = "kept by the source";
  const Row row = row_of(json);
  EXPECT_EQ(row.tp, 4);
  EXPECT_FALSE(row.ep.has_value());
  EXPECT_EQ(row.measured.step_time_s, 13.5);
}

TEST(MeasuredRows, AddToWhatIsCommon) {
  Json json = row_json();
  const Json document = {{"common", {{"framework", "torchtitan"}, {"seq_len", 4096}}}, {"rows", Json::array({json})}};
  Rows rows;
  read_rows(document, "rows.json", rows);
  EXPECT_EQ(rows.rows.at(0).framework, "Megatron-Bridge (Megatron-Core)");
  EXPECT_EQ(rows.rows.at(0).sequence, 8192);
}

TEST(MeasuredRows, SkipOneBadRowWithItsReasonAndKeepTheOthers) {
  Json bad = row_json();
  bad["id"] = "bad";
  bad["num_gpus"] = "eight";
  Rows rows;
  read_rows(Json::array({bad, row_json(), 7}), "rows.json", rows);
  EXPECT_EQ(rows.rows.size(), 1u);
  ASSERT_EQ(rows.skipped.size(), 2u);
  EXPECT_EQ(rows.skipped[0].id, "bad");
  EXPECT_NE(rows.skipped[0].reason.find("num_gpus"), std::string::npos) << rows.skipped[0].reason;
}

TEST(MeasuredRows, RefuseAFileThatHoldsNone) {
  Rows rows;
  EXPECT_THROW(read_rows(Json::object({{"plans", 1}}), "x.json", rows), InputError);
  EXPECT_THROW(read_rows(std::filesystem::path("/nonexistent/rows.json")), InputError);
}

TEST(MeasuredRows, NameTheFieldThatScoringMisses) {
  for (const char* key : {"num_gpus", "seq_len", "micro_batch_size", "hardware"}) {
    Json json = row_json();
    json[key] = nullptr;
    const auto missing = missing_field(row_of(json), library());
    ASSERT_TRUE(missing.has_value()) << key;
    EXPECT_NE(missing->find(key), std::string::npos) << *missing;
  }
  EXPECT_FALSE(missing_field(row_of(row_json()), library()).has_value());
}

TEST(Conversion, FollowsTheRowsDegrees) {
  const Case c = convert(row_of(row_json()), library());
  const Parallelism& p = c.plan.parallelism;
  EXPECT_EQ(p.world(), 64);
  EXPECT_EQ(p.dp(), 2);
  EXPECT_EQ(c.plan.micro_batches, 64);
  EXPECT_EQ(c.virtual_stages, 5);
  EXPECT_EQ(c.plan.stage_layers, (std::vector<std::int64_t>{20, 20, 20, 20}));
  EXPECT_TRUE(c.problem.runtime.distributed_optimizer);
  EXPECT_EQ(c.plan.recompute, Recompute::none);
  EXPECT_EQ(c.problem.cluster.devices(), 64);
}

TEST(Conversion, KnowsFullShardingFromTheOptimizersAlone) {
  Json json = row_json();
  json["framework"] = "torchtitan (FSDP2)";
  json["dp_or_fsdp"] = "fsdp2 64";
  json["tp"] = json["pp"] = json["cp"] = 1;
  json["recompute"] = "full AC";
  const Case c = convert(row_of(json), library());
  EXPECT_EQ(c.plan.parallelism.dp_shard, 64);
  EXPECT_FALSE(c.problem.runtime.distributed_optimizer);
  EXPECT_EQ(c.plan.recompute, Recompute::full);
}

TEST(Conversion, RefusesDegreesThatDoNotFold) {
  Json json = row_json();
  json["pp"] = 5;
  try {
    (void)convert(row_of(json), library());
    FAIL() << "64 devices in 5 x 4 x 2";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("64 devices"), std::string::npos) << e.what();
  }
}

TEST(Summary, IsWhatOneComputesByHand) {
  std::vector<Score> scores(3);
  const double measured[] = {10, 20, 40}, predicted[] = {11, 18, 40};  // +10 %, -10 %, 0
  for (std::size_t i = 0; i < 3; ++i) {
    scores[i].measured = measured[i], scores[i].predicted = predicted[i];
    scores[i].low = predicted[i] * 0.95, scores[i].high = predicted[i] * 1.05;
  }
  const Summary s = summarise({&scores[0], &scores[1], &scores[2]});
  EXPECT_NEAR(s.mape, 0.2 / 3, 1e-12);
  EXPECT_NEAR(s.median_ape, 0.1, 1e-12);
  EXPECT_NEAR(s.bias, 0, 1e-12);
  EXPECT_NEAR(s.coverage, 1.0 / 3, 1e-12);
  EXPECT_NEAR(s.median_width, 0.1, 1e-12);
  EXPECT_DOUBLE_EQ(s.rank_correlation.value(), 1.0);
}

// Layouts a and b were 2 and 1.5 times as slow as predicted, c as predicted: from a and b comes 1.75 for c (75 % off), from b and c
// 1.25 for a (0.625 of 2: 37.5 %), from a and c 1.5 for b (exact).
TEST(Summary, ScalesALayoutByWhatTheOthersTook) {
  std::vector<Score> scores(3);
  scores[0].layout = "a", scores[0].measured = 2, scores[0].predicted = 1;
  scores[1].layout = "b", scores[1].measured = 3, scores[1].predicted = 2;
  scores[2].layout = "c", scores[2].measured = 4, scores[2].predicted = 4;
  const auto mape = mape_with_one_scalar({&scores[0], &scores[1], &scores[2]});
  ASSERT_TRUE(mape.has_value());
  EXPECT_NEAR(*mape, (0.375 + 0 + 0.75) / 3, 1e-12);
  EXPECT_FALSE(mape_with_one_scalar({&scores[0], &scores[1]}).has_value());
}

TEST(ShippedRows, ScoreAtLeastNineteenOfTwentyCompleteOnes) {
  Rows rows = read_rows(kConfigs / "measured");
  EXPECT_TRUE(rows.skipped.empty());
  EXPECT_GT(rows.rows.size(), 1400u);
  std::size_t complete = 0, converted = 0;
  const Library l = library();
  for (const Row& row : rows.rows) {
    if (row.confidence.value_or("high") != "high" || missing_field(row, l)) continue;
    ++complete;
    try {
      (void)convert(row, l);
      ++converted;
    } catch (const InputError&) {
    }
  }
  EXPECT_GT(complete, 900u);
  EXPECT_GE(static_cast<double>(converted), 0.95 * static_cast<double>(complete));
}

}  // namespace
}  // namespace moeplan::validation
