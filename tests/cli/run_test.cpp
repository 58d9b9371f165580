/// `moeplan run`: a plan in, training steps, adapter, saves and measurements out.

#include <sstream>

#include "tests/cli/program.hpp"

namespace moeplan::cli_test {
namespace {

class RunCommand : public Folder {
 protected:
  void SetUp() override {
    Folder::SetUp();
    ASSERT_EQ(moeplan({"plan", "kimi-k3-tiny", "--device", "cpu", "--gpus", "1", "--runtime", "cpu", "--seq", "64", "--global-batch", "2", "--targets", "attention,dense,experts", "--rank", "4", "-o", file("plan.json"), "-q"}).exit_code, 0);
  }
  [[nodiscard]] std::string file(const char* name) const { return (folder / name).string(); }
  /// A plan of eight sequences a step for so many data ranks, without groups or sharding.
  [[nodiscard]] Json plan_for(int ranks) const {
    const Finished made = moeplan({"plan", "kimi-k3-tiny", "--device", "cpu", "--gpus", std::to_string(ranks), "--runtime", "cpu", "--seq", "64", "--global-batch", "8", "--targets", "attention,dense,experts", "--rank", "4", "-o", file("base.json"), "-q"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    Json plan = load_json(file("base.json"));
    plan["plan"]["parallelism"] = {{"pp", 1}, {"ep", 1}, {"dp_shard", 1}};
    plan["plan"]["micro_batch"] = 1;
    plan["plan"]["micro_batches"] = 8 / ranks;
    plan["plan"]["recompute"] = "none";
    return plan;
  }
  static std::vector<Json> lines(const std::string& text) {
    std::vector<Json> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out.push_back(parse_json(line, "stdout"));
    return out;
  }
};

TEST_F(RunCommand, ForeseesThatMemoryWillNotDo) {
  Json plan = load_json(file("plan.json"));
  plan["problem"]["workload"]["sequence_length"] = 1 << 23;
  write("long.json", plan.dump());
  const Finished run = moeplan({"run", file("long.json"), "--steps", "1", "-o", file("measured.json")});
  ASSERT_EQ(run.exit_code, 3) << run.err << run.out;
  const Json why = parse_json(run.out, "stdout").at("infeasible");
  EXPECT_GT(why.at("need_bytes").get<double>(), why.at("have_bytes").get<double>());
  EXPECT_EQ(why.at("largest").size(), 3u);
  EXPECT_FALSE(std::filesystem::exists(file("measured.json")));
  EXPECT_LT(run.peak_kib, 500 << 10) << "nothing of it was allocated";
}

TEST_F(RunCommand, PlacesExpertsAnewAndResumesTheSameRun) {
  Json plan = plan_for(4);
  plan["plan"]["parallelism"]["ep"] = plan["plan"]["parallelism"]["dp_shard"] = 4;
  plan["plan"]["experts"]["placement"] = "balanced";
  write("placed.json", plan.dump());
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"run", file("placed.json"), "--ranks", "4", "--steps", "4", "--rebalance-every", "2", "--json", "-q"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished done = moeplan(words);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    return lines(done.out);
  };
  const std::vector<Json> through = run({});
  std::vector<Json> apart = run({"--stop-after", "3", "--checkpoint", file("saves")});
  for (const Json& line : run({"--checkpoint", file("saves"), "--resume"})) apart.push_back(line);
  const auto said = [](const std::vector<Json>& all) {
    std::vector<std::string> out;
    for (const Json& line : all)
      if (line.contains("loss")) out.push_back(line.at("loss").dump() + " " + line.value("moved_bytes", Json(0)).dump());
    return out;
  };
  const std::vector<std::string> a = said(through), b = said(apart);
  ASSERT_EQ(a.size(), 4u);
  EXPECT_EQ(a, b);
  EXPECT_NE(a[1].substr(a[1].find(' ')), " 0") << "experts move after the second step";
  EXPECT_EQ(a[0].substr(a[0].find(' ')), " 0");
  const Finished in_order = moeplan({"run", file("plan.json"), "--rebalance-every", "2"});
  EXPECT_EQ(in_order.exit_code, 2);
  EXPECT_NE(in_order.err.find("do not follow the load"), std::string::npos) << in_order.err;
}

TEST_F(RunCommand, WritesALaunchFileThatStartsTheRanksWithWhatWasSaid) {
  Json plan = plan_for(4);
  plan["plan"]["parallelism"]["dp_replicate"] = 4;
  write_text_file(file("four.json"), plan.dump());
  const Finished run = moeplan({"run", file("four.json"), "--steps", "7", "--lr", "0.001", "--write-launch", "slurm", "--launch-dir", file("jobs"), "--launch-name", "tiny"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(run.out.empty());
  const std::string text = read_text_file(folder / "jobs" / "tiny.sbatch", 1 << 20);
  for (const char* part : {"--ntasks-per-node=4", "'--steps'", "'7'", "'--lr'", "'0.001'", "'--backend'", "'cuda'"}) EXPECT_NE(text.find(part), std::string::npos) << part;
  EXPECT_EQ(text.find("launch"), std::string::npos);
  EXPECT_EQ(moeplan({"run", file("four.json"), "--write-launch", "slurm", "--launch-dir", file("jobs"), "--launch-name", "a;b"}).exit_code, 2);
}

TEST_F(RunCommand, ExplainsWhichRankItWouldBeWithoutAPlan) {
  const Finished run = moeplan({"run", "--explain-env", "--rank", "1", "--world-size", "2", "--local-rank", "1", "--local-world-size", "2", "--rendezvous-host", "127.0.0.1", "--rendezvous-port", "29500"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("rank 1 of 2"), std::string::npos) << run.out;
  const Finished missing = moeplan({"run"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("PLAN"), std::string::npos) << missing.err;
}

TEST_F(RunCommand, SaysWhyItFailedEvenWhereItIsToSayNoNotes) {
  write("token", std::string(64, 'a'));
  std::filesystem::permissions(file("token"), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const Finished run = moeplan({"run", file("plan.json"), "-q", "--rank", "1", "--world-size", "4", "--local-world-size", "1", "--rendezvous-host", "no-such-host.invalid", "--rendezvous-port", "29500", "--rank-timeout", "0.5", "--token-file", file("token")});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_NE(run.err.find("rank 0 at no-such-host.invalid port 29500 did not answer within 0.5 s: host not known"), std::string::npos) << run.err;
}

TEST_F(RunCommand, TrainsTheTinyModelAndMeasuresWhatWasPredicted) {
  const Finished run = moeplan({"run", file("plan.json"), "--steps", "4", "--json", "-o", file("measured.json"), "--prometheus", file("m.prom"), "--adapter", file("adapter")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto steps = lines(run.out);
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[3].at("step"), 4);
  EXPECT_EQ(steps[0].at("tokens"), 128);
  EXPECT_GT(steps[0].at("grad_norm").get<double>(), 0);
  const Json measured = load_json(file("measured.json"));
  EXPECT_EQ(measured.at("format"), "moeplan.measured.v1");
  EXPECT_EQ(measured.at("steps").size(), 4u);
  EXPECT_EQ(measured.at("timeline").at("source"), "measured");
  EXPECT_GT(measured.at("timeline").at("events").size(), 10u);
  for (const char* category : {"weights", "adapters", "optimizer"})
    EXPECT_EQ(measured.at("memory").at(category), measured.at("predicted_memory").at(category)) << category;
  EXPECT_EQ(measured.at("provenance").at("backend"), "cpu");
  EXPECT_TRUE(std::filesystem::exists(folder / "adapter" / "adapter_model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder / "m.prom"));
  const Finished again = moeplan({"run", file("plan.json"), "--steps", "1", "--from-adapter", file("adapter"), "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(lines(again.out)[0].at("loss"), steps[0].at("loss"));
}

TEST_F(RunCommand, ShowsPredictedBesideMeasured) {
  const Finished run = moeplan({"run", file("plan.json"), "--steps", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("predicted"), std::string::npos);
  EXPECT_NE(run.out.find("measured"), std::string::npos);
  EXPECT_NE(run.out.find("step     1  loss"), std::string::npos) << run.out;
}

TEST_F(RunCommand, ContinuesAsIfItHadNotStopped) {
  const Finished whole = moeplan({"run", file("plan.json"), "--steps", "6", "--json"});
  const Finished first = moeplan({"run", file("plan.json"), "--steps", "6", "--stop-after", "3", "--checkpoint", file("saves"), "--json"});
  const Finished second = moeplan({"run", file("plan.json"), "--steps", "6", "--checkpoint", file("saves"), "--resume", "--json"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const auto a = lines(whole.out), b = lines(first.out), c = lines(second.out);
  ASSERT_EQ(b.size(), 3u);
  ASSERT_EQ(c.size(), 3u);
  for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(a[s].at("loss"), b[s].at("loss"));
  for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(a[s + 3].at("loss"), c[s].at("loss")) << "bit for bit";
}

TEST_F(RunCommand, SavesAndEndsWithFiveOnASignal) {
  Json two = plan_for(2);
  two["plan"]["parallelism"]["ep"] = two["plan"]["parallelism"]["dp_shard"] = 2;
  write("two.json", two.dump());
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const std::string plan = file(signal == SIGTERM ? "plan.json" : "two.json"), ranks = signal == SIGTERM ? "1" : "2";
    const std::string saves = (folder / ("saves" + std::to_string(signal))).string();
    int out[2];
    ASSERT_EQ(::pipe(out), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(out[1], 1);
      ::close(out[0]), ::close(out[1]);
      ::alarm(120);
      ::execl(MOEPLAN_PROGRAM, MOEPLAN_PROGRAM, "run", plan.c_str(), "--ranks", ranks.c_str(), "--steps", "1000000", "--json", "-q", "--checkpoint", saves.c_str(), static_cast<char*>(nullptr));
      ::_exit(126);
    }
    ::close(out[1]);
    char one = 0;
    while (::read(out[0], &one, 1) == 1 && one != '\n') {}   // a step is done
    ::kill(child, signal);
    std::string rest(1 << 16, '\0');
    while (::read(out[0], rest.data(), rest.size()) > 0) {}
    ::close(out[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << signal;
    EXPECT_EQ(WEXITSTATUS(status), 5) << signal;
    const Finished resumed = moeplan({"run", plan, "--ranks", ranks, "--steps", "1000000", "--stop-after", "1", "--json", "--checkpoint", saves, "--resume"});
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("resumed at step"), std::string::npos) << resumed.err;
  }
}

TEST_F(RunCommand, RunsThePlansRanksAsThreadsAndResumesOnOne) {
  // The same steps on four ranks and on one: expert parallel 4, weights sharded over 4, two micro-batches a rank.
  write("one.json", plan_for(1).dump());
  Json plan = plan_for(4);
  plan["plan"]["parallelism"]["ep"] = plan["plan"]["parallelism"]["dp_shard"] = 4;
  write("four.json", plan.dump());
  const Finished whole = moeplan({"run", file("one.json"), "--steps", "3", "--float32", "--json"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const Finished four = moeplan({"run", file("four.json"), "--ranks", "4", "--routed-bound", "4", "--steps", "3", "--stop-after", "2", "--float32", "--checkpoint", file("saves"), "--adapter", file("adapter"), "--json", "-o", file("four_measured.json")});
  ASSERT_EQ(four.exit_code, 0) << four.err;
  const auto a = lines(whole.out), b = lines(four.out);
  ASSERT_EQ(b.size(), 2u);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_NEAR(a[s].at("loss").get<double>(), b[s].at("loss").get<double>(), 1e-4);
    EXPECT_NEAR(a[s].at("grad_norm").get<double>(), b[s].at("grad_norm").get<double>(), 1e-3 * a[s].at("grad_norm").get<double>());
    EXPECT_EQ(a[s].at("tokens"), b[s].at("tokens"));
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "adapter" / "adapter_model.safetensors"));
  const Json measured = load_json(file("four_measured.json"));
  EXPECT_EQ(measured.at("ranks"), 4);
  EXPECT_GT(measured.at("communication").at("all_to_all").at("sent_bytes"), 0);
  for (const char* category : {"adapters", "optimizer", "gradients"})
    EXPECT_EQ(measured.at("memory").at(category), measured.at("predicted_memory").at(category)) << category;
  const Finished one = moeplan({"run", file("one.json"), "--steps", "3", "--float32", "--checkpoint", file("saves"), "--resume", "--json"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto c = lines(one.out);
  ASSERT_EQ(c.size(), 1u);
  EXPECT_NEAR(a[2].at("loss").get<double>(), c[0].at("loss").get<double>(), 1e-4);
}

TEST_F(RunCommand, EndsAllRanksWithFourWhenOneCannotGoOn) {
  Json plan = plan_for(4);
  plan["plan"]["parallelism"]["ep"] = plan["plan"]["parallelism"]["dp_replicate"] = 4;
  write("four.json", plan.dump());
  const Finished run = moeplan({"run", file("four.json"), "--ranks", "4", "--routed-bound", "1", "--steps", "2", "--json"});
  EXPECT_EQ(run.exit_code, 4) << run.err << run.out;
  EXPECT_NE(run.err.find("forward dispatch"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("overflow action: stop"), std::string::npos) << run.err;
}

TEST_F(RunCommand, RefusesWhatItCannotRun) {
  ASSERT_EQ(moeplan({"plan", "qwen3-30b-a3b", "--device", "h200", "--gpus", "8", "-o", file("eight.json"), "-q"}).exit_code, 0);
  expect_refused({"run", file("eight.json")}, "8 ranks");
  expect_refused({"run", file("plan.json"), "--ranks", "2"}, "is for 1 rank; there are 2");
  expect_refused({"run", file("plan.json"), "--ranks", "0"}, "--ranks");
  expect_refused({"run", file("plan.json"), "--weights", file("none")}, "cannot open the directory");
  expect_refused({"run", file("plan.json"), "--data", file("none.jsonl")}, "does not exist");
  expect_refused({"run", file("plan.json"), "--data", "text.txt"}, "no data file that is known");
  expect_refused({"run", file("plan.json"), "--resume"}, "--checkpoint");
  write("d.jsonl", "{\"input_ids\":[1,2,512]}\n");
  expect_refused({"run", file("plan.json"), "--data", file("d.jsonl")}, "vocabulary of 512");
}

}  // namespace
}  // namespace moeplan::cli_test
