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

TEST_F(Simulate, TheAnswerDoesNotDependOnThreads) {
  EXPECT_EQ(moeplan({"simulate", file("plan.json"), "--json", "--threads", "1"}).out, moeplan({"simulate", file("plan.json"), "--json", "--threads", "8"}).out);
}

}  // namespace
}  // namespace moeplan::cli_test
