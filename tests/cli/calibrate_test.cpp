/// `moeplan calibrate` and `moeplan compare`: this machine measured, and a run laid beside its prediction.

#include "tests/cli/program.hpp"

namespace moeplan::cli_test {
namespace {

class Calibrate : public Folder {
 protected:
  [[nodiscard]] std::string file(const char* name) const { return (folder / name).string(); }
  Finished plan(const std::string& to, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"plan", "kimi-k3-tiny", "--device", "cpu", "--gpus", "1", "--runtime", "cpu", "--seq", "32", "--global-batch", "1", "--micro-batch", "1", "--recompute", "none", "--rank", "4", "-o", file(to.c_str()), "-q", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return moeplan(words);
  }
};

TEST_F(Calibrate, MeasuresEveryCallOfAPlanAndPlanningThenSaysMeasured) {
  ASSERT_EQ(plan("plan.json").exit_code, 0);
  const Finished done = moeplan({"calibrate", file("plan.json"), "-o", file("here.json"), "--samples", "5", "--json"});
  ASSERT_TRUE(done.exit_code == 0 || done.exit_code == 4) << done.err;   // 4: this machine is noisy, and it says so
  EXPECT_EQ(done.exit_code == 4, done.err.find("too noisy") != std::string::npos);
  const Json said = parse_json(done.out, "stdout");
  EXPECT_TRUE(said.at("refused").empty());
  const Json profile = load_json(file("here.json"));
  EXPECT_GT(profile.at("samples").size(), 60u);
  EXPECT_EQ(profile.at("samples").size(), said.at("samples"));
  for (const Json& s : profile.at("samples")) EXPECT_GE(s.at("count"), 5);
  const Finished again = plan("measured_plan.json", {"--profile", file("here.json")});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  // Nothing is left to measure, and the file stays as it is.
  const Finished kept = moeplan({"calibrate", file("plan.json"), "-o", file("here.json"), "--json"});
  EXPECT_NE(kept.err.find("samples kept"), std::string::npos) << kept.err;
  EXPECT_EQ(load_json(file("here.json")).at("samples"), profile.at("samples"));
  ASSERT_EQ(moeplan({"run", file("measured_plan.json"), "--steps", "4", "-o", file("measured.json"), "-q"}).exit_code, 0);
  const Finished compared = moeplan({"compare", file("measured_plan.json"), file("measured.json"), "--json", "--trace", file("trace.json")});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  const Json gap = parse_json(compared.out, "stdout");
  EXPECT_GT(gap.at("step_seconds").at("predicted").get<double>(), 0);
  EXPECT_GT(gap.at("step_seconds").at("measured").get<double>(), 0);   // how far apart they are is this machine's business, not the test's
  EXPECT_EQ(gap.at("memory").at("weights").at("error"), 0.0);
  EXPECT_EQ(gap.at("largest_gaps").size(), 3u);
  EXPECT_GT(gap.at("operators").at("kda backward").at("measured").get<double>(), 0);
  EXPECT_GT(load_json(file("trace.json")).at("traceEvents").size(), 100u);
  const Finished text = moeplan({"compare", file("measured_plan.json"), file("measured.json")});
  EXPECT_NE(text.out.find("most of the gap"), std::string::npos) << text.out;
}

TEST_F(Calibrate, RefusesWhatIsNotItsOwn) {
  ASSERT_EQ(plan("plan.json").exit_code, 0);
  write_text_file(file("other.json"), R"({"format": "something"})");
  Finished bad = moeplan({"compare", file("plan.json"), file("other.json")});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("moeplan.measured.v1"), std::string::npos) << bad.err;
  write_text_file(file("other.json"), R"({"format": "moeplan.measured.v1", "steps": [{"step_s": "soon"}]})");
  bad = moeplan({"compare", file("plan.json"), file("other.json")});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("step_s"), std::string::npos) << bad.err;
  bad = moeplan({"calibrate", file("plan.json"), "-o", file("no/such/folder.json")});
  EXPECT_EQ(bad.exit_code, 2);
  // A profile of another device is not mixed in.
  write_text_file(file("profile.json"), R"({"name": "x", "device": "h200", "date": "2026-01-01", "source": "a test", "samples": [{"key": "add tokens=4 hidden=8 forward", "median": "1 us"}]})");
  bad = moeplan({"calibrate", file("plan.json"), "-o", file("profile.json")});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("was measured on"), std::string::npos) << bad.err;
}

}  // namespace
}  // namespace moeplan::cli_test
