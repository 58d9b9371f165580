/// \file
/// What the planner counts as scratch is what the kernels ask for: every case of the catalogue and every call of shipped models. Needs the kernels' host
/// side, no device.

#include <gtest/gtest.h>

#include "kernels/cuda.hpp"
#include "kernels/device_scratch.hpp"
#include "tests/executor/cuda/sized.hpp"

namespace moeplan {
namespace {

using namespace test;

void expect_equal(const Op& op, Pass pass, Wants wants) {
  if (!cuda::refusal(op).empty()) return;
  EXPECT_EQ(device_workspace(op, pass, wants).value, cuda::workspace(op, pass, wants).value) << key(op, pass, wants);
}

TEST(DeviceScratch, IsWhatTheKernelsAskForInEveryCaseOfTheCatalogue) {
  for (const Op& op : all_cases()) {
    expect_equal(op, Pass::forward, {});
    for (const Wants wants : {Wants{true, true}, Wants{true, false}, Wants{false, true}}) expect_equal(op, Pass::backward, wants);
  }
}

TEST(DeviceScratch, IsWhatTheKernelsAskForInShippedModels) {
  int calls = 0;
  for (const char* file : {"kimi/kimi-linear-48b-a3b.json", "kimi/kimi-k3.json", "gpt-oss/gpt-oss-20b.json", "deepseek/deepseek-v3.2.json", "deepseek/deepseek-v4-flash.json", "qwen/qwen3-next-80b-a3b.json"})
    for (const std::int64_t length : {4096, 65536})
      for (const bool everything : {false, true}) {
        const Problem p = problem(shipped(file), everything ? full(length) : lora(length, 64));
        Plan q = plan(p, 1, 1, Recompute::full);
        q.frozen_storage = p.model.stored.experts;
        for (const Block& b : lower(p, q, 0).blocks)
          for (const auto* pass : {&b.forward, &b.backward})
            for (const BlockNode& n : *pass)
              if (const OpCall* call = std::get_if<OpCall>(&n.call)) expect_equal(call->op, call->pass, call->wants), ++calls;
      }
  EXPECT_GT(calls, 1000);
}

}  // namespace
}  // namespace moeplan
