// moeplan recommend, as a user calls it.

#include "tests/cli/program.hpp"

#include <set>

namespace moeplan::cli_test {
namespace {

const std::vector<std::string> kSmall{"recommend", "qwen3-30b-a3b", "--device", "h200", "--max-gpus", "16", "--tokens", "1e9"};

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void expect_refused(const std::vector<std::string>& arguments, const std::string& word) {
  const Finished run = moeplan(arguments);
  EXPECT_EQ(run.exit_code, 2) << run.out;
  EXPECT_TRUE(run.out.empty());
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_NE(run.err.find(word), std::string::npos) << run.err;
}

TEST(Recommend, NamesTheSmallestTheCheapestAndTheFastest) {
  const Finished run = moeplan(with(kSmall, {"--json", "--deadline", "30d", "--budget", "1000000", "--price", "3"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json d = parse_json(run.out, "answer", {.max_depth = 64});
  ASSERT_GT(d["options"].size(), 1u);
  for (const char* which : {"smallest", "cheapest", "fastest"}) {
    ASSERT_TRUE(d[which].is_number()) << which;
    EXPECT_TRUE(d["options"][d[which].get<std::size_t>()]["meets"].get<bool>());
  }
  EXPECT_GE(d["least"][0]["gpus"].get<int>(), 1);
  EXPECT_TRUE(d["options"][0].contains("intervals"));
}

TEST(Recommend, AnswersSeveralDeviceTypes) {
  const Finished run = moeplan({"recommend", "qwen3-30b-a3b", "--device", "h200", "--device", "h100", "--max-gpus", "8", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json d = parse_json(run.out, "answer", {.max_depth = 64});
  std::set<std::string> devices;
  for (const Json& o : d["options"]) devices.insert(o["device"].get<std::string>());
  EXPECT_EQ(devices, (std::set<std::string>{"h100", "h200"}));
}

TEST(Recommend, RefusesWhatIsNoDeadlineBudgetOrPrice) {
  expect_refused(with(kSmall, {"--deadline", "0d"}), "--deadline");
  expect_refused(with(kSmall, {"--deadline", "soon"}), "--deadline");
  expect_refused(with(kSmall, {"--deadline=-3h"}), "--deadline");
  expect_refused(with(kSmall, {"--budget=-5", "--price", "3"}), "--budget");
  expect_refused(with(kSmall, {"--budget", "0", "--price", "3"}), "--budget");
  expect_refused(with(kSmall, {"--budget", "nan", "--price", "3"}), "--budget");
  expect_refused(with(kSmall, {"--price", "0"}), "--price");
  expect_refused({"recommend", "qwen3-30b-a3b"}, "--device");
}

TEST(Recommend, AnImpossibleDeadlineIsProvedSoAndSaysWhatComesClosest) {
  const Finished run = moeplan(with(kSmall, {"--deadline", "1s"}));
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_NE(run.out.find("deadline"), std::string::npos) << run.out;
}

TEST(Recommend, NothingThatFitsIsTheCertificate) {
  const Finished run = moeplan({"recommend", "kimi-k3", "--device", "h200", "--max-gpus", "8", "--method", "full", "--json"});
  EXPECT_EQ(run.exit_code, 3) << run.err;
  const Json d = parse_json(run.out, "answer", {.max_depth = 64});
  EXPECT_GT(d["infeasible"]["need_bytes"].get<double>(), d["infeasible"]["have_bytes"].get<double>());
}

}  // namespace
}  // namespace moeplan::cli_test
