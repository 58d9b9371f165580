#include "tests/executor/comm/suite.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "executor/comm/in_process.hpp"

namespace moeplan {
namespace {

using Param = std::tuple<std::string, int, std::size_t>;   // backend, ranks, case

class CommSuite : public ::testing::TestWithParam<Param> {};

TEST_P(CommSuite, behaves) {
  const auto& [backend, ranks, index] = GetParam();
  if (backend == "nccl") GTEST_SKIP() << "nccl needs a GPU: nccl_suite runs " << suite::cases()[index].name << " over processes";
  run_ranks(ranks, [&, i = index](Communicator& c) {
    suite::HostMemory memory;
    suite::cases()[i].run(c, memory);
  }, {.limit = Duration{20000}});
}

std::vector<Param> params() {
  std::vector<Param> all;
  for (std::size_t i = 0; i < suite::cases().size(); ++i) {
    for (const int ranks : {1, 2, 3, 4, 8}) all.emplace_back("in_process", ranks, i);
    all.emplace_back("nccl", 2, i);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CommSuite, ::testing::ValuesIn(params()), [](const auto& p) {
  return std::get<0>(p.param) + "_" + std::to_string(std::get<1>(p.param)) + "_" + suite::cases()[std::get<2>(p.param)].name;
});

}  // namespace
}  // namespace moeplan
