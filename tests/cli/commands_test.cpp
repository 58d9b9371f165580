/// The commands that answer: exit codes, JSON fields, tables that fit, the same bytes whatever the thread count.

#include "tests/cli/program.hpp"

namespace moeplan::cli_test {
namespace {

Json answer(const Finished& run) { return parse_json(run.out, "stdout", {.max_bytes = std::size_t{256} << 20, .max_values = 10'000'000}); }

/// No line wider than 100 columns.
void expect_narrow(const std::string& text) {
  std::size_t width = 0, number = 1;
  for (const char c : text) {
    if (c == '\n') {
      EXPECT_LE(width, 100u) << "line " << number;
      width = 0, ++number;
    } else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) {
      ++width;
    }
  }
}

TEST(Program, HelpAndVersionAreAnswersNotErrors) {
  EXPECT_EQ(moeplan({"--help"}).exit_code, 0);
  EXPECT_EQ(moeplan({"--version"}).out.rfind("moeplan ", 0), 0u);
  for (const char* command : {"inspect", "plan", "explain", "ops"}) {
    const Finished run = moeplan({command, "--help"});
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_NE(run.out.find("Example: moeplan "), std::string::npos) << command;
  }
}

TEST(Program, BadCommandLinesAreRefusedInOneLine) {
  expect_refused({}, "subcommand");
  expect_refused({"frobnicate"}, "");
  expect_refused({"inspect"}, "MODEL");
  expect_refused({"ops", "--threads", "0"}, "--threads");
  expect_refused({"ops", "--threads", "many"}, "--threads");
  expect_refused({"ops", "--no-such-flag"}, "--no-such-flag");
}

TEST(Ops, ListsTheCatalogueAndOneOperator) {
  const Finished run = moeplan({"ops"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_NE(run.out.find("grouped_linear"), std::string::npos);
  expect_narrow(run.out);
  const Finished one = moeplan({"ops", "kda"});
  EXPECT_EQ(one.exit_code, 0);
  expect_narrow(one.out);
  EXPECT_GT(answer(moeplan({"ops", "--json"})).size(), 20u);
  expect_refused({"ops", "grouped_liner"}, "did you mean \"grouped_linear\"?");
}

TEST(Inspect, CountsKimiK3ToTheInteger) {
  const Finished run = moeplan({"inspect", "kimi-k3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json d = answer(run);
  EXPECT_EQ(d["total_parameters"], 2779931834976);
  EXPECT_EQ(d["activated_parameters"], 105364017760);
  std::int64_t sum = 0;
  for (const auto& [name, n] : d["parameters"].items())
    if (name != "mtp") sum += n.get<std::int64_t>();
  EXPECT_EQ(sum, d["total_parameters"]);
  for (const char* field : {"name", "architecture", "elements", "stored_bytes", "layers", "operators", "uncovered"}) EXPECT_TRUE(d.contains(field)) << field;
  for (const char* scope : {"main", "mtp", "mtp_copies", "vision", "tables"}) EXPECT_TRUE(d["elements"].contains(scope)) << scope;
}

TEST(Inspect, FitsATerminal) {
  for (const char* model : {"kimi-k3", "tiny-deepseek-v4"}) {
    const Finished run = moeplan({"inspect", model});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    expect_narrow(run.out);
  }
}

TEST(Inspect, ListsTensors) {
  const Json d = answer(moeplan({"inspect", "tiny-qwen3-moe", "--tensors", "--json"}));
  ASSERT_TRUE(d.contains("tensors"));
  EXPECT_GT(d["tensors"].size(), 10u);
  EXPECT_TRUE(d["tensors"][0].contains("shape"));
}

const std::vector<std::string> kSmall{"plan", "tiny-qwen3-moe", "--device", "h200", "--gpus", "2", "--seq", "256"};

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

TEST(Plan, AnswersWithTheDocumentedFields) {
  const Finished run = moeplan(with(kSmall, {"--json", "--tokens", "1e9"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json d = answer(run);
  for (const char* field : {"problem", "searched", "feasible", "seconds", "rejected", "plans", "pareto"}) EXPECT_TRUE(d.contains(field)) << field;
  ASSERT_GT(d["plans"].size(), 0u);
  const Json& best = d["plans"][0];
  for (const char* field : {"parallelism", "micro_batch", "recompute", "offload", "frozen_storage", "step_seconds", "step_seconds_p95", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu",
                            "peak_memory_bytes", "peak_memory_bytes_p95", "host_memory_bytes", "memory", "time", "gpu_hours", "cost_usd", "basis"})
    EXPECT_TRUE(best.contains(field)) << field;
  for (const char* degree : {"pp", "tp", "cp", "ep", "etp", "dp_replicate", "dp_shard"}) EXPECT_TRUE(best["parallelism"].contains(degree)) << degree;
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : best["memory"].items()) sum += bytes.get<std::int64_t>();
  EXPECT_EQ(sum, best["peak_memory_bytes"]) << "the categories sum to the peak";
  EXPECT_GE(best["step_seconds_p95"].get<double>(), best["step_seconds"].get<double>());
  double basis = 0;
  for (const auto& [name, share] : best["basis"].items()) basis += share.get<double>();
  EXPECT_NEAR(basis, 1, 1e-6);
  std::int64_t rejected = 0;
  for (const auto& [rule, n] : d["rejected"].items()) rejected += n.get<std::int64_t>();
  EXPECT_EQ(d["searched"].get<std::int64_t>(), d["feasible"].get<std::int64_t>() + rejected) << "every candidate is accounted for";
}

TEST(Plan, IsTheSameOnOneAndOnManyThreads) {
  const auto stable = [](const std::vector<std::string>& arguments) {
    Json d = answer(moeplan(arguments));
    d.erase("seconds");
    return d.dump();
  };
  const std::string one = stable(with(kSmall, {"--json", "--threads", "1"}));
  EXPECT_EQ(one, stable(with(kSmall, {"--json", "--threads", "4"})));
  EXPECT_EQ(one, stable(with(kSmall, {"--json"})));
}

TEST(Plan, FitsATerminalAndCarriesNoColourIntoAPipe) {
  const Finished run = moeplan(kSmall);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_narrow(run.out);
  EXPECT_EQ(run.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(run.err.find('\r'), std::string::npos) << "no progress bar off a terminal";
  EXPECT_EQ(moeplan(with(kSmall, {"-q"})).err, "");
}

TEST(Plan, PinnedDegreesArePricedAsGiven) {
  const Json d = answer(moeplan(with(kSmall, {"--json", "--pp", "1", "--ep", "2", "--dp-shard", "2", "--micro-batch", "1", "--recompute", "full", "--frozen-storage", "bf16"})));
  ASSERT_TRUE(d.contains("plans")) << d.dump();
  for (const Json& plan : d["plans"]) {
    EXPECT_EQ(plan["parallelism"]["ep"], 2);
    EXPECT_EQ(plan["parallelism"]["dp_shard"], 2);
    EXPECT_EQ(plan["micro_batch"], 1);
    EXPECT_EQ(plan["recompute"], "full");
  }
}

TEST(Plan, WhatCannotFitExitsWithACertificate) {
  const Finished run = moeplan({"plan", "kimi-k3", "--cluster", "8xh200", "--method", "full", "--offload", "none", "--json"});
  ASSERT_EQ(run.exit_code, 3) << run.err;
  const Json no = answer(run)["infeasible"];
  EXPECT_GT(no["need_bytes"].get<std::int64_t>(), no["have_bytes"].get<std::int64_t>());
  EXPECT_EQ(no["largest"].size(), 3u);
  EXPECT_FALSE(no["binding"].get<std::string>().empty());
  EXPECT_FALSE(no["nearest_fix"].get<std::string>().empty());
}

class PlanFile : public Folder {};

TEST_F(PlanFile, IsWrittenReadBackAndExplained) {
  const std::string file = (folder / "plan.json").string();
  ASSERT_EQ(moeplan(with(kSmall, {"-o", file})).exit_code, 0);
  const Finished text = moeplan({"explain", file});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  expect_narrow(text.out);
  EXPECT_NE(text.out.find("What binds"), std::string::npos);
  const Json d = answer(moeplan({"explain", file, "--json"}));
  EXPECT_TRUE(d.contains("plan"));
  EXPECT_TRUE(d.contains("changes"));
  std::filesystem::copy(folder / "plan.json", folder / "first.json");
  ASSERT_EQ(moeplan(with(kSmall, {"-o", file})).exit_code, 0);
  EXPECT_EQ(read_text_file(file, 1 << 26), read_text_file(folder / "first.json", 1 << 26)) << "the same problem writes the same bytes";
}

TEST_F(PlanFile, IsNotWrittenWhereItCannotBe) {
  expect_refused(with(kSmall, {"-o", folder.string(), "-q"}), "cannot be written");
  expect_refused(with(kSmall, {"-o", (folder / "absent" / "plan.json").string(), "-q"}), "cannot be written");
}

}  // namespace
}  // namespace moeplan::cli_test
