/// `moeplan run --rank-slice`: one rank of a plan for many, alone on this machine, beside what is predicted of it.

#include "tests/cli/program.hpp"

namespace moeplan::cli_test {
namespace {

class RankSlice : public Folder {
 protected:
  [[nodiscard]] std::string file(const char* name) const { return (folder / name).string(); }
  /// Eight ranks, experts over four of them, everything else sharded over all.
  void SetUp() override {
    Folder::SetUp();
    const Finished made = moeplan({"plan", "kimi-k3-tiny", "--device", "cpu", "--gpus", "8", "--runtime", "cpu", "--seq", "32", "--global-batch", "8", "--micro-batch", "1",
                                   "--pp", "1", "--tp", "1", "--cp", "1", "--etp", "1", "--ep", "4", "--dp-shard", "8", "--recompute", "none", "--rank", "4", "-o", file("plan.json"), "-q"});
    ASSERT_EQ(made.exit_code, 0) << made.err << made.out;
  }
};

TEST_F(RankSlice, RunsOneRankOfEightAndLaysItBesideThePrediction) {
  const Finished run = moeplan({"run", file("plan.json"), "--rank-slice", "5", "--steps", "3", "--json", "-o", file("measured.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json measured = load_json(file("measured.json"));
  EXPECT_EQ(measured.at("rank_slice").at("rank"), 5);
  EXPECT_GT(measured.at("rank_slice").at("rows_over_share").at("most").get<double>(), 0);
  EXPECT_GT(measured.at("rank_slice").at("predicted").at("charged_communication_s").get<double>(), 0);
  for (const Json& step : measured.at("steps")) EXPECT_LT(step.at("communication_s").get<double>(), step.at("step_s").get<double>());
  for (const char* category : {"adapters", "gradients", "optimizer", "communication"})
    EXPECT_EQ(measured.at("memory").at(category), measured.at("predicted_memory").at(category)) << category;
  const double predicted = measured.at("predicted_memory").at("peak_bytes").get<double>(), found = measured.at("memory").at("peak_bytes").get<double>();
  // A shard is padded to a whole element.
  EXPECT_NEAR(measured.at("memory").at("weights").get<double>(), measured.at("predicted_memory").at("weights").get<double>(), 64);
  EXPECT_NEAR(found / predicted, 1, 0.02);
  const Finished compared = moeplan({"compare", file("plan.json"), file("measured.json"), "--json"});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  const Json gap = parse_json(compared.out, "stdout");
  EXPECT_EQ(gap.at("step_seconds").at("predicted"), measured.at("rank_slice").at("predicted").at("compute_s"));
  EXPECT_FALSE(gap.at("operators").contains("communication"));
  EXPECT_GT(gap.at("operators").at("grouped_linear forward").at("measured").get<double>(), 0);
  const Finished text = moeplan({"compare", file("plan.json"), file("measured.json")});
  EXPECT_NE(text.out.find("rank 5 alone"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("left out of both"), std::string::npos) << text.out;
}

TEST_F(RankSlice, HoldsWhatTheSameRankHoldsAmongAllEight) {
  // A rank alone is given a row for each copy, whatever the runtime sends.
  Json plan = load_json(file("plan.json"));
  plan["problem"]["runtime"]["deduplicated_dispatch"] = false;
  write_text_file(file("copies.json"), plan.dump());
  ASSERT_EQ(moeplan({"run", file("copies.json"), "--ranks", "8", "--steps", "1", "--routed-bound", "4", "-o", file("all.json"), "-q"}).exit_code, 0);
  ASSERT_EQ(moeplan({"run", file("copies.json"), "--rank-slice", "0", "--steps", "1", "--routed-bound", "4", "-o", file("one.json"), "-q"}).exit_code, 0);
  EXPECT_EQ(load_json(file("one.json")).at("memory"), load_json(file("all.json")).at("memory"));
}

TEST_F(RankSlice, SaysWhatARankAloneCannotDo) {
  expect_refused({"run", file("plan.json"), "--rank-slice", "8"}, "rank 8 is outside the plan's 8 ranks");
  expect_refused({"run", file("plan.json"), "--rank-slice", "1", "--ranks", "8"}, "does not go with --ranks");
  expect_refused({"run", file("plan.json"), "--rank-slice", "1", "--adapter", file("a")}, "does not go with --adapter");
  expect_refused({"run", file("plan.json"), "--rank-slice", "1", "--checkpoint", file("c")}, "does not go with --checkpoint");
  ASSERT_EQ(moeplan({"run", file("plan.json"), "--rank-slice", "1", "--steps", "1", "-o", file("measured.json"), "-q"}).exit_code, 0);
  Json broken = load_json(file("measured.json"));
  broken["rank_slice"]["rank"] = 9;
  write_text_file(file("broken.json"), broken.dump());
  expect_refused({"compare", file("plan.json"), file("broken.json")}, "outside the plan's 8 ranks");
  broken["rank_slice"] = "five";
  write_text_file(file("broken.json"), broken.dump());
  expect_refused({"compare", file("plan.json"), file("broken.json")}, "rank_slice");
}

TEST_F(RankSlice, StopsWhereMoreRowsArriveThanAnOwnBoundHolds) {
  Json plan = load_json(file("plan.json"));
  plan["problem"]["load"]["distribution"] = {{"kind", "zipf"}, {"exponent", 3.0}};
  write_text_file(file("hot.json"), plan.dump());
  int stopped = 0;
  for (const char* rank : {"0", "1", "2", "3"}) {
    const Finished run = moeplan({"run", file("hot.json"), "--rank-slice", rank, "--steps", "1", "--routed-bound", "1", "-q"});
    stopped += run.exit_code != 0 && (run.err + run.out).find("its buffer holds") != std::string::npos;
    EXPECT_EQ(moeplan({"run", file("hot.json"), "--rank-slice", rank, "--steps", "1", "-q"}).exit_code, 0) << "buffers sized by what was drawn";
  }
  EXPECT_GT(stopped, 0);
}

}  // namespace
}  // namespace moeplan::cli_test
