/// `moeplan bench`: operators at the shapes of real models, beside the floor.

#include "tests/cli/program.hpp"

namespace moeplan::cli_test {
namespace {

class Bench : public Folder {};

TEST_F(Bench, TimesEachCallOfAnOperatorAndWritesAProfile) {
  const std::string profile = (folder / "bench.json").string();
  const Finished done = moeplan({"bench", "rms_norm", "--backend", "cpu", "--models", "qwen3-30b-a3b", "--seq", "16",
                                 "--samples", "5", "-o", profile, "--json"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const Json said = parse_json(done.out, "stdout");
  EXPECT_TRUE(said.at("refused").empty());
  EXPECT_EQ(said.at("floor_of"), "h200");
  bool forward = false, backward = false;
  for (const Json& call : said.at("calls")) {
    const std::string key = call.at("key");
    EXPECT_EQ(key.rfind("rms_norm tokens=", 0), 0u) << key;
    forward = forward || key.ends_with("forward"), backward = backward || key.find(" backward") != std::string::npos;
    EXPECT_GT(call.at("seconds").get<double>(), 0);
    EXPECT_NEAR(call.at("of_floor").get<double>(),
                call.at("floor_seconds").get<double>() / call.at("seconds").get<double>(), 1e-12);
  }
  EXPECT_TRUE(forward && backward) << done.out;
  EXPECT_EQ(load_json(profile).at("samples").size(), said.at("calls").size());
  EXPECT_EQ(moeplan({"plan", "qwen3-30b-a3b", "--device", "h200", "--gpus", "8", "--profile", profile, "-q"}).exit_code,
            0);
}

TEST_F(Bench, TimesTheNormOfTheUpdateAndWeightsCastAndQuantisedToo) {
  for (const std::string name : {"grad_norm", "cast", "quantise", "dequantise"}) {
    const Finished done = moeplan({"bench", name, "--backend", "cpu", "--models", "tiny-qwen3-moe", "--seq", "16", "--samples", "5", "--json"});
    ASSERT_EQ(done.exit_code, 0) << done.err;
    const Json calls = parse_json(done.out, "stdout").at("calls");
    ASSERT_FALSE(calls.empty()) << name;
    for (const Json& call : calls) {
      EXPECT_EQ(call.at("key").get<std::string>().rfind(name + " ", 0), 0u);
      EXPECT_GT(call.at("floor_seconds").get<double>(), 0);
      EXPECT_GT(call.at("of_copy").get<double>(), 0) << "of what this machine copies";
    }
  }
}

TEST_F(Bench, RefusesWhatItCannotTime) {
  expect_refused({"bench", "rms_nrom"}, "did you mean \"rms_norm\"?");
  expect_refused({"bench", "kda", "--models", "qwen3-30b-a3b", "--seq", "16", "--backend", "cpu"}, "calls kda");
  expect_refused({"bench", "--models", "no-such-model"}, "no-such-model");
  expect_refused({"bench", "--backend", "abacus"}, "--backend");
}

}  // namespace
}  // namespace moeplan::cli_test
