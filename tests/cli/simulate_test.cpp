/// `moeplan simulate`: a plan in, its step through time out.

#include "tests/cli/program.hpp"

namespace moeplan::cli_test {
namespace {

class Simulate : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("moeplan-simulate-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    ASSERT_EQ(moeplan({"plan", "qwen3-30b-a3b", "--device", "h200", "--gpus", "16", "--pp", "2", "-o", file("plan.json"), "-q"}).exit_code, 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string file(const char* name) const { return (folder_ / name).string(); }
  std::filesystem::path folder_;
};

TEST_F(Simulate, WithoutContentionTheStepIsThePlannedOne) {
  const Finished run = moeplan({"simulate", file("plan.json"), "--no-contention", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json answer = parse_json(run.out, "stdout");
  EXPECT_NEAR(answer.at("step_seconds").get<double>(), answer.at("planned_step_seconds").get<double>(), 1e-6);
  EXPECT_EQ(answer.at("ranks").size(), 2u);
  double path = 0;
  for (const auto& [name, seconds] : answer.at("critical_path").items()) path += seconds.get<double>();
  EXPECT_NEAR(path, answer.at("step_seconds").get<double>(), 1e-9);
}

TEST_F(Simulate, WritesTraceMemoryAndTimeline) {
  const Finished run = moeplan({"simulate", file("plan.json"), "--trace", file("t.json"), "--memory-timeline", file("m.json"), "--timeline", file("s.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("stage   1 "), std::string::npos);
  const JsonLimits large{.max_bytes = std::size_t{256} << 20, .max_values = 10'000'000};
  EXPECT_GT(load_json(file("t.json"), large).at("traceEvents").size(), 100u);
  EXPECT_EQ(load_json(file("m.json"), large).at("device_traces").size(), 2u);
  EXPECT_EQ(load_json(file("s.json"), large).at("format"), "moeplan.timeline.v1");
}

TEST_F(Simulate, RefusesWhatItCannotReadOrWrite) {
  EXPECT_EQ(moeplan({"simulate", file("absent.json")}).exit_code, 2);
  const Finished run = moeplan({"simulate", file("plan.json"), "--trace", file("no/such/folder/t.json")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(run.out.empty());
}

// Nothing is written if one of the files cannot be.
TEST_F(Simulate, WritesAllOfItsFilesOrNone) {
  const Finished run = moeplan({"simulate", file("plan.json"), "--trace", file("t.json"), "--memory-timeline", file("no/such/folder/m.pickle")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("m.pickle"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(file("t.json")));
  EXPECT_EQ(moeplan({"simulate", file("plan.json"), "--trace", file("same.json"), "--timeline", file("same.json")}).exit_code, 2);
}

TEST_F(Simulate, DrawsLoadsWithASeedAndSaysSo) {
  ASSERT_EQ(moeplan({"plan", "qwen3-30b-a3b", "--device", "h200", "--gpus", "16", "--pp", "2", "--ep", "8", "-o", file("spread.json"), "-q"}).exit_code, 0);
  const auto load = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"simulate", file("spread.json"), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = moeplan(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return parse_json(run.out, "stdout").at("load");
  };
  const Json plain = load({"--draws", "4", "--seed", "5"});
  EXPECT_EQ(plain.at("draws"), 4);
  EXPECT_EQ(plain.at("seed"), 5);
  EXPECT_LE(plain.at("step_seconds_p50").get<double>(), plain.at("step_seconds_p95").get<double>());
  EXPECT_EQ(plain, load({"--draws", "4", "--seed", "5"}));
  EXPECT_NE(plain, load({"--draws", "4", "--seed", "6"}));
  EXPECT_LT(load({"--draws", "4", "--seed", "5", "--placement", "balanced", "--replicas", "32"}).at("busiest_rank").get<double>(), plain.at("busiest_rank").get<double>());
  EXPECT_GT(load({"--draws", "4", "--seed", "5", "--capacity-factor", "1"}).at("dropped").get<double>(), 0.01);
  const Finished text = moeplan({"simulate", file("plan.json")});
  EXPECT_NE(text.out.find("P95"), std::string::npos);
  EXPECT_NE(text.out.find("out of memory in"), std::string::npos);
}

TEST_F(Simulate, WhatSlowsStepsMakesThemLonger) {
  const auto step = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"simulate", file("plan.json"), "--json", "--draws", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse_json(moeplan(arguments).out, "stdout").at("step_seconds").get<double>();
  };
  const double plain = step({});
  EXPECT_GT(step({"--straggler", "3", "--straggler-slowdown", "1.5"}), plain);
  EXPECT_GT(step({"--host-launch", "2 ms"}), plain);
  EXPECT_GE(step({"--interference"}), plain);
  EXPECT_EQ(moeplan({"simulate", file("plan.json"), "--straggler", "999"}).exit_code, 2);
  EXPECT_EQ(moeplan({"simulate", file("plan.json"), "--host-launch", "5"}).exit_code, 2);
}

TEST_F(Simulate, PlaysEverySchedule) {
  for (const std::vector<std::string>& schedule : {std::vector<std::string>{"--schedule", "interleaved", "--virtual-stages", "2"}, {"--schedule", "zero_bubble"}, {"--schedule", "expert_overlap"}, {"--expert-chunks", "2"}}) {
    std::vector<std::string> arguments{"plan", "qwen3-30b-a3b", "--device", "h200", "--gpus", "16", "--pp", "2", "--ep", "8", "-o", file("scheduled.json"), "-q"};
    arguments.insert(arguments.end(), schedule.begin(), schedule.end());
    const Finished planned = moeplan(arguments);
    ASSERT_EQ(planned.exit_code, 0) << planned.err;
    const Finished run = moeplan({"simulate", file("scheduled.json"), "--no-contention", "--json"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const Json answer = parse_json(run.out, "stdout");
    EXPECT_NEAR(answer.at("step_seconds").get<double>(), answer.at("planned_step_seconds").get<double>(), 1e-6) << schedule.back();
  }
  EXPECT_EQ(moeplan({"plan", "qwen3-30b-a3b", "--device", "h200", "--gpus", "16", "--schedule", "dualpipe"}).exit_code, 2);
}

TEST_F(Simulate, RefusesTracesThatDoNotFitTheModel) {
  for (const char* counts : {"[]", "[[1, 2, 3]]", "[[-1]]", "[[\"x\"]]"}) {
    std::ofstream(file("trace.json")) << R"({"name": "t", "distribution": {"kind": "trace", "counts": )" << counts << "}}";
    const Finished run = moeplan({"plan", "qwen3-30b-a3b", "--device", "h200", "--gpus", "16", "--load", file("trace.json")});
    EXPECT_EQ(run.exit_code, 2) << counts;
    EXPECT_TRUE(run.out.empty()) << counts;
    EXPECT_EQ(moeplan({"simulate", file("plan.json"), "--placement", "balanced", "--placed-on", file("trace.json")}).exit_code, 2) << counts;
  }
  std::string zeros = "[[0";
  for (int i = 1; i < 128; ++i) zeros += ", 0";
  std::ofstream(file("trace.json")) << R"({"name": "t", "distribution": {"kind": "trace", "counts": )" << zeros << "]]}}";
  const Finished run = moeplan({"plan", "qwen3-30b-a3b", "--device", "h200", "--gpus", "16", "--load", file("trace.json")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1);
}

// Planned on one trace, run on another: the placement made for the first is worse on the second than one made for it.
TEST_F(Simulate, DriftServesAnotherLoadThanTheOnePlacedFor) {
  const std::string plan = file("placed.json");
  ASSERT_EQ(moeplan({"plan", "deepseek-v3", "--cluster", "64xh200", "--ep", "32", "--pp", "1", "--load", "deepseek-v3-prefill-in1024", "--expert-placement", "balanced", "--expert-replicas", "32", "-o", plan}).exit_code, 0);
  const auto busiest = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"simulate", plan, "--json", "--draws", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = moeplan(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return parse_json(run.out, "stdout").at("load").at("busiest_rank").get<double>();
  };
  const double fresh = busiest({}), drifted = busiest({"--served", "deepseek-v3-prefill-in4096"});
  EXPECT_LT(fresh, 1.15);
  EXPECT_GT(drifted, fresh + 0.05);
  const Finished text = moeplan({"simulate", plan, "--draws", "2", "--served", "deepseek-v3-prefill-in4096"});
  EXPECT_NE(text.out.find("expert load deepseek-v3-prefill-in4096"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("placed for deepseek-v3-prefill-in1024"), std::string::npos) << text.out;
  // In their order experts lie where they lie: there is nothing to drift from.
  const Finished none = moeplan({"simulate", file("plan.json"), "--served", "uniform"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("experts lie in their order"), std::string::npos) << none.err;
}

TEST_F(Simulate, TheAnswerDoesNotDependOnThreads) {
  EXPECT_EQ(moeplan({"simulate", file("plan.json"), "--json", "--threads", "1"}).out, moeplan({"simulate", file("plan.json"), "--json", "--threads", "8"}).out);
}

}  // namespace
}  // namespace moeplan::cli_test
