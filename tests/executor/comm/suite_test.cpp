#include "tests/executor/comm/suite.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "executor/comm/in_process.hpp"
#include "executor/comm/shared_memory.hpp"

namespace moeplan {
namespace {

using Param = std::tuple<std::string, int, std::size_t>;   // backend, ranks, case

/// Each rank a thread with its own view of the memory, as processes have.
void run_shared(int ranks, const std::function<void(Communicator&)>& run) {
  const std::string offer = offer_shared_memory();
  std::vector<std::string> failed(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        const auto world = shared_memory_communicator(r, ranks, offer, Duration{20000});
        world->connect();
        run(*world);
      } catch (const std::exception& e) {
        failed[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  for (const std::string& why : failed) EXPECT_EQ(why, "");
}

class CommSuite : public ::testing::TestWithParam<Param> {};

TEST_P(CommSuite, behaves) {
  const auto& [backend, ranks, index] = GetParam();
  if (backend == "nccl") GTEST_SKIP() << "nccl needs a GPU: nccl_suite runs " << suite::cases()[index].name << " over processes";
  const auto run = [&, i = index](Communicator& c) {
    suite::HostMemory memory;
    suite::cases()[i].run(c, memory);
  };
  if (backend == "in_process") run_ranks(ranks, run, {.limit = Duration{20000}});
  else run_shared(ranks, run);
}

std::vector<Param> params() {
  std::vector<Param> all;
  for (std::size_t i = 0; i < suite::cases().size(); ++i) {
    for (const int ranks : {1, 2, 3, 4, 8}) all.emplace_back("in_process", ranks, i);
    for (const int ranks : {1, 2, 3, 8}) all.emplace_back("shared_memory", ranks, i);
    all.emplace_back("nccl", 2, i);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CommSuite, ::testing::ValuesIn(params()), [](const auto& p) {
  return std::get<0>(p.param) + "_" + std::to_string(std::get<1>(p.param)) + "_" + suite::cases()[std::get<2>(p.param)].name;
});

}  // namespace
}  // namespace moeplan
