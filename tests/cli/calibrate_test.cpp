/// `moeplan calibrate` and `moeplan compare`: this machine measured, and a run laid beside its prediction.

#include <map>
#include <set>

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
  EXPECT_GT(said.at("left_out").at("samples").get<std::size_t>(), 30u);
  EXPECT_GT(said.at("left_out").at("p90_error").get<double>(), said.at("left_out").at("median_error").get<double>());
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
  EXPECT_GT(gap.at("step_seconds_as_planned").get<double>(), 0);
  // Lanes are the sum of their calls, memory over the step ends at the peak, and the load's busiest expert has more than the mean.
  double compute = 0;
  for (const auto& [name, pair] : gap.at("operators").items()) compute += pair.at("measured").get<double>();
  EXPECT_NEAR(gap.at("lanes").at("compute").at("measured").get<double>(), compute, 1e-9);
  ASSERT_EQ(gap.at("memory_over_step").size(), 10u);
  std::map<std::string, double> most;
  for (const Json& tenth : gap.at("memory_over_step"))
    for (const char* side : {"predicted", "measured"}) most[side] = std::max(most[side], tenth.at(side).get<double>());
  EXPECT_NEAR(most["predicted"], gap.at("peak_bytes").at("predicted").get<double>(), 1e-3 * most["predicted"]);
  EXPECT_NEAR(most["measured"], gap.at("peak_bytes").at("measured").get<double>(), 1e-3 * most["measured"]);
  for (const char* side : {"predicted", "measured"}) EXPECT_GT(gap.at("expert_load").at("busiest expert, median layer").at(side).get<double>(), 1);
  Json backwards = load_json(file("measured.json"));
  backwards["memory_over_step"][0]["start_ps"] = std::int64_t{1} << 60;
  write_text_file(file("backwards.json"), backwards.dump());
  expect_refused({"compare", file("measured_plan.json"), file("backwards.json")}, "memory_over_step");
  // A pass far behind the step's end counts for its last tenth.
  Json late = load_json(file("measured.json"));
  late["memory_over_step"].push_back({{"start_ps", std::int64_t{1} << 60}, {"bytes", 1e15}});
  write_text_file(file("late.json"), late.dump());
  const Finished odd = moeplan({"compare", file("measured_plan.json"), file("late.json"), "--json"});
  ASSERT_EQ(odd.exit_code, 0) << odd.err;
  const Json tenths = Json::parse(odd.out).at("memory_over_step");
  EXPECT_EQ(tenths.at(9).at("measured"), 1e15);
  EXPECT_LT(tenths.at(8).at("measured").get<double>(), 1e15);
  // What comes behind the passes, the update, is none of them.
  Json longer = load_json(file("measured.json"));
  longer["timeline"]["step"] = 10 * longer["timeline"]["step"].get<std::int64_t>();
  write_text_file(file("longer.json"), longer.dump());
  const Finished same = moeplan({"compare", file("measured_plan.json"), file("longer.json"), "--json"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(Json::parse(same.out).at("memory_over_step"), gap.at("memory_over_step"));
  // Counts that are no numbers come from no run.
  Json counted = load_json(file("measured.json"));
  counted["steps"][1]["expert_tokens"].begin().value()[0] = "many";
  write_text_file(file("counted.json"), counted.dump());
  expect_refused({"compare", file("measured_plan.json"), file("counted.json")}, "expert_tokens");
  EXPECT_EQ(gap.at("largest_gaps").size(), 3u);
  EXPECT_GT(gap.at("operators").at("kda backward").at("measured").get<double>(), 0);
  EXPECT_GT(load_json(file("trace.json")).at("traceEvents").size(), 100u);
  // The same times as if another machine had taken them: used, with a wider interval, and said.
  Json elsewhere = load_json(file("measured_plan.json"));
  elsewhere["problem"]["profile"]["driver"] = "another processor; moeplan 0.0.1, cpu backend";
  write_text_file(file("elsewhere.json"), elsewhere.dump());
  const Finished wide = moeplan({"compare", file("elsewhere.json"), file("measured.json"), "--json"});
  ASSERT_EQ(wide.exit_code, 0) << wide.err;
  EXPECT_NE(wide.err.find("measured on another processor"), std::string::npos) << wide.err;
  EXPECT_EQ(compared.err.find("interval is widened"), std::string::npos) << compared.err;
  EXPECT_NEAR(parse_json(wide.out, "stdout").at("interval")[1].get<double>(), 1.35 * gap.at("interval")[1].get<double>(), 1e-9);
  const Finished text = moeplan({"compare", file("measured_plan.json"), file("measured.json")});
  EXPECT_NE(text.out.find("most of the gap"), std::string::npos) << text.out;
}

TEST_F(Calibrate, MeasuresAModelWithoutAPlan) {
  const Finished done = moeplan({"calibrate", "--model", "kimi-k3-tiny", "--seq", "16,32", "--ep", "2", "-o", file("here.json"), "--samples", "5", "--json"});
  ASSERT_TRUE(done.exit_code == 0 || done.exit_code == 4) << done.err;
  EXPECT_TRUE(parse_json(done.out, "stdout").at("refused").empty());
  const Json profile = load_json(file("here.json"));
  std::set<std::int64_t> rows;
  std::size_t short_ones = 0;
  std::size_t updates = 0;
  for (const Json& s : profile.at("samples")) {
    const std::string key = s.at("key");
    updates += key.starts_with("adamw ");
    if (key.starts_with("grouped_linear ")) rows.insert(std::stoll(key.substr(key.find("rows=") + 5)));
    short_ones += key.starts_with("rms_norm tokens=16 ");
  }
  EXPECT_GE(rows.size(), 4u) << "half, once and twice the rows of two lengths";
  EXPECT_GT(short_ones, 0u);
  EXPECT_EQ(updates, 1u) << "both lengths train as much";
  const std::vector<std::string> only{"calibrate", "--model", "kimi-k3-tiny", "--seq", "16", "-o", file("only.json"), "--samples", "5", "--only"};
  const auto with = [&](const std::string& names) {
    std::vector<std::string> words = only;
    words.push_back(names);
    return words;
  };
  const Finished some = moeplan(with("router,rms_norm"));
  ASSERT_TRUE(some.exit_code == 0 || some.exit_code == 4) << some.err;
  std::set<std::string> kinds;
  const Json routers = load_json(file("only.json"));
  for (const Json& s : routers.at("samples")) {
    const std::string key = s.at("key");
    kinds.insert(key.substr(0, key.find(' ')));
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"rms_norm", "router"}));
  expect_refused(with("ruoter"), "\"ruoter\" is no operator that is called");
  expect_refused({"calibrate", "-o", file("x.json")}, "nothing to measure");
  expect_refused({"calibrate", "--model", "no-such-model", "-o", file("x.json")}, "no-such-model");
}

TEST_F(Calibrate, GoesOnAfterItIsKilled) {
  const std::vector<std::string> words{"calibrate", "--model", "kimi-k3-tiny", "--seq", "256", "-o", file("here.json"), "--samples", "5"};
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(0), ::close(1), ::close(2);
    std::vector<std::string> all{MOEPLAN_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& w : all) argv.push_back(w.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(126);
  }
  for (int i = 0; i < 6000 && !std::filesystem::exists(folder / "here.json"); ++i) ::usleep(10000);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(std::filesystem::exists(folder / "here.json"));
  const Json before = load_json(file("here.json")).at("samples");   // whole, whenever it was killed
  ASSERT_GE(before.size(), 1u);
  const Finished done = moeplan(words);
  ASSERT_TRUE(done.exit_code == 0 || done.exit_code == 4) << done.err;
  EXPECT_NE(done.err.find(std::to_string(before.size()) + " samples kept"), std::string::npos) << done.err;
  const Json after = load_json(file("here.json")).at("samples");
  EXPECT_GE(after.size(), before.size());
  std::map<std::string, Json> by_key;
  for (const Json& s : after) by_key[s.at("key")] = s;
  for (const Json& s : before) EXPECT_EQ(by_key.at(s.at("key")), s) << "not measured again";
}

TEST_F(Calibrate, RefusesToMixSamplesTakenBehindProductsWithOthers) {
  ASSERT_EQ(plan("plan.json").exit_code, 0);
  const Finished done = moeplan({"calibrate", file("plan.json"), "-o", file("here.json"), "--samples", "5"});
  ASSERT_TRUE(done.exit_code == 0 || done.exit_code == 4) << done.err;
  expect_refused({"calibrate", file("plan.json"), "-o", file("here.json"), "--busy", "2"}, "without products before, and these would be behind 2");
  Json busy = load_json(file("here.json"));
  busy["samples"].push_back({{"key", "busy"}, {"median", "3 ms"}, {"count", 1}});
  write_text_file(file("busy.json"), busy.dump());
  expect_refused({"calibrate", file("plan.json"), "-o", file("busy.json")}, "behind 3");
  expect_refused({"calibrate", file("plan.json"), "-o", file("busy.json"), "--busy", "2"}, "behind 3");
  EXPECT_EQ(plan("planned.json", {"--profile", file("busy.json")}).exit_code, 0) << "a profile that says so can be planned with";
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
  // It may be planned with, and that is said.
  const Finished other = moeplan({"plan", "kimi-k3-tiny", "--device", "cpu", "--gpus", "1", "--runtime", "cpu", "--seq", "32", "--global-batch", "1", "--profile", file("profile.json"), "-q"});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_NE(other.out.find("measured on h200"), std::string::npos) << other.out;
  // A sample of no call is found before anything is measured, and the file stays as it is.
  const Finished done = moeplan({"calibrate", file("plan.json"), "-o", file("here.json"), "--samples", "5", "-q"});
  ASSERT_TRUE(done.exit_code == 0 || done.exit_code == 4) << done.err;
  Json here = load_json(file("here.json"));
  here["samples"] = Json::array({{{"key", "no_such_call x=1"}, {"median", "1 ms"}, {"count", 5}}});
  write_text_file(file("here.json"), here.dump());
  expect_refused({"calibrate", file("plan.json"), "-o", file("here.json")}, "no_such_call");
  EXPECT_EQ(load_json(file("here.json")), here);
}

TEST_F(Calibrate, OfLinksSaysWhatComputingLosesBesideThemAndPlansSayThatItWasMeasured) {
  const Finished done = moeplan({"calibrate", "--links", "4", "--links-most", "64 KiB", "-o", file("links.json"), "--json"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const Json said = parse_json(done.out, "stdout");
  const Json profile = load_json(file("links.json"));
  std::size_t delays = 0, clear = 0;
  for (const Json& s : profile.at("samples")) {
    if (!s.at("key").get<std::string>().starts_with("delay ") || s.at("key").get<std::string>().find(" payload=65536 ranks=") == std::string::npos) continue;
    ++delays, clear += s.at("spread").get<double>() <= 1;
  }
  EXPECT_EQ(delays, 10u) << "of two ranks and of four";
  EXPECT_EQ(said.at("beside").size(), clear) << "those that are not lost in noise";
  EXPECT_NE(profile.at("source").get<std::string>().find("delays of linear tokens=64"), std::string::npos);
  const Finished with = plan("with.json", {"--profile", file("links.json")}), without = plan("without.json");
  ASSERT_EQ(with.exit_code, 0) << with.err;
  EXPECT_FALSE(parse_json(with.out, "stdout").at("problem").at("profile").contains("measured_beside")) << "one device makes no call";
  EXPECT_FALSE(parse_json(without.out, "stdout").at("problem").at("profile").contains("measured_beside"));
  expect_refused({"calibrate", "--links", "2", "--links-most", "64", "-o", file("no.json")}, "--links-most");
  expect_refused({"calibrate", "--model", "kimi-k3-tiny", "--links-most", "1 MiB", "-o", file("no.json")}, "--links-most");
}

}  // namespace
}  // namespace moeplan::cli_test
