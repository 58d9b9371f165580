/// Every architecture of the catalogue runs: shrunk on the CPU, and as shipped on the backend that computes nothing.

#include <gtest/gtest.h>

#include <cmath>

#include "core/configs.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;

std::vector<std::string> files() {
  std::vector<std::string> out;
  for (const Json& e : load_json(source + "/configs/models/INDEX.json")) out.push_back(e.at("file").get<std::string>());
  return out;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(info.param.find('/') + 1);
  name.resize(name.size() - 5);
  for (char& c : name) if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class Architecture : public testing::TestWithParam<std::string> {};

TEST_P(Architecture, TrainsShrunkOnTheCpu) {
  const Problem p = problem(shrunk(shipped(GetParam())), lora(8));
  const Plan q = plan(p, 2, 1, Recompute::selective);
  TinyRun run(p, q, cpu_backend(CpuStorage::wide));
  const Batch b = batch(p, q, 5);
  const float loss = run.trainer->differentiate(b);
  EXPECT_NEAR(loss, std::log(64.0), 1.0) << "random weights know nothing";
  double b_norm = 0;
  for (const Parameter& each : run.trainer->parameters().all()) {
    if (!each.trained) continue;
    std::vector<float> g(static_cast<std::size_t>(each.shape.elements()));
    run.backend->read(each.gradient_view(), g);
    double norm = 0;
    for (const float x : g) {
      ASSERT_TRUE(std::isfinite(x)) << each.name;
      norm += static_cast<double>(x) * static_cast<double>(x);
    }
    if (each.name.find("lora_B") != std::string::npos) b_norm += norm;
    else EXPECT_EQ(norm, 0) << each.name << ": B is zero, so A has no gradient";
  }
  EXPECT_GT(b_norm, 0);
}

TEST_P(Architecture, IsWalkedAsShippedByTheNullBackend) {
  const ModelSpec model = shipped(GetParam());
  const Problem p = problem(model, lora(4096));
  const Plan q = plan(p, 1, 1, Recompute::full);
  const auto backend = null_backend();
  Trainer trainer(p, q, *backend, {});
  std::int64_t calls = 0;
  trainer.walk().observe([&](const CallRecord&) { ++calls; });
  const Batch b = batch(p, q, 1);
  (void)trainer.walk().run(0, b, 1);
  EXPECT_GT(calls, static_cast<std::int64_t>(model.layers.size()));
  EXPECT_GE(trainer.walk().arena().size.value, trainer.walk().arena().peak.value);
}

INSTANTIATE_TEST_SUITE_P(Catalogue, Architecture, testing::ValuesIn(files()), test_name);

}  // namespace
}  // namespace moeplan
