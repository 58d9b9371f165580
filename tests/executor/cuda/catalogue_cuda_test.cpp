/// \file
/// Every architecture of the catalogue on a device: as shipped no call of its program is without a kernel, and shrunk
/// it gives the CPU's loss and moves. The first needs the kernels' host side alone.

#include <gtest/gtest.h>

#include <cmath>

#include "core/configs.hpp"
#include "executor/cuda/backend.hpp"
#include "kernels/cuda.hpp"
#include "tests/executor/cuda/sized.hpp"

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
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class CudaCatalogue : public testing::TestWithParam<std::string> {};

TEST_P(CudaCatalogue, EveryCallOfTheShippedModelHasAKernel) {
  if (GetParam() == "tiny/kimi-k3-tiny.json") GTEST_SKIP() << "the CPU's default: KDA heads of 16 columns, where the device's take 64 and 128";
  for (const bool everything : {false, true}) {
    const Problem p = problem(shipped(GetParam()), everything ? full(4096) : lora(4096, 16));
    for (const Block& b : lower(p, plan(p, 1, 1, Recompute::full), 0).blocks)
      for (const auto* pass : {&b.forward, &b.backward})
        for (const BlockNode& n : *pass)
          if (const OpCall* call = std::get_if<OpCall>(&n.call)) {
            ASSERT_EQ(cuda::refusal(call->op), "") << key(call->op, call->pass, call->wants);
          }
  }
}

TEST_P(CudaCatalogue, ShrunkItHasTheCpusLossAndLowersIt) {
  if (cuda_devices() == 0) GTEST_SKIP() << GetParam() << ": no CUDA device on this machine";
  TrainOptions options;
  options.steps = 4, options.learning_rate = 2e-3;
  const Problem p = problem(device_sized(GetParam()), full(48));
  const Plan q = plan(p, 1, 1, Recompute::selective);
  TinyRun cpu(p, q, cpu_backend(CpuStorage::as_planned), options), device(p, q, cuda_backend(0), options);
  const std::vector<Batch> batches{batch(p, q, 5)};
  const double want = cpu.trainer->step(batches).loss;
  double loss = device.trainer->step(batches).loss;
  EXPECT_NEAR(loss, want, 5e-3 * want);
  for (int s = 1; s < options.steps; ++s) loss = device.trainer->step(batches).loss;
  EXPECT_LT(loss, want);
}

INSTANTIATE_TEST_SUITE_P(Catalogue, CudaCatalogue, testing::ValuesIn(files()), test_name);

}  // namespace
}  // namespace moeplan
