/// The arena is what the planner said: same peak, nothing overlaps.

#include <gtest/gtest.h>

#include "sim/memory/memory.hpp"
#include "sim/program/call_scratch.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;

struct Case {
  const char* file;
  bool full;
  Recompute recompute;
};

class Arena : public testing::TestWithParam<Case> {};

TEST_P(Arena, PeaksAtThePlannedBytes) {
  const auto& [file, is_full, recompute] = GetParam();
  const Problem p = problem(shrunk(shipped(file)), is_full ? full(32) : lora(32));
  const Plan q = plan(p, 2, 3, recompute);
  const auto backend = cpu_backend(CpuStorage::as_planned);
  const Trainer trainer(p, q, *backend, {});
  const MemoryBreakdown planned = memory(trainer.program(), p, q);
  MemoryBreakdown measured = const_cast<Trainer&>(trainer).memory();
  measured[MemoryCategory::allocator_reserve] = {};   // gaps of the layout
  EXPECT_EQ(measured.peak().value, planned.peak().value) << planned.peak_at << " | " << measured.peak_at;
  EXPECT_EQ(measured.at_peak, planned.at_peak);
}

TEST_P(Arena, PeaksAtThePlannedBytesWithTheKernelsScratchToo) {
  const auto& [file, is_full, recompute] = GetParam();
  Problem p = problem(shrunk(shipped(file)), is_full ? full(32) : lora(32));
  p.runtime.own_kernels = true;
  const Plan q = plan(p, 2, 3, recompute);
  const Program program = lower(p, q, 0);
  const ArenaPlan arena = plan_arena(program, p, [](DType t) { return t; }, {}, [&](const Block& b, const BlockNode& n) { return call_scratch(b, p.runtime)(n); });
  StateBytes states = program.resident;
  for (const Slot& s : program.slots) states += s.state;
  EXPECT_EQ(arena.peak + standing_memory(states, p, q).peak(), memory(program, p, q).peak()) << arena.peak_at;
}

TEST_P(Arena, GivesNoByteToTwoBuffersAtOnce) {
  const auto& [file, is_full, recompute] = GetParam();
  const Problem p = problem(shrunk(shipped(file)), is_full ? full(32) : lora(32));
  const Plan q = plan(p, 2, 3, recompute);
  const ArenaPlan arena = plan_arena(lower(p, q, 0), p, [](DType t) { return t; });
  for (const ArenaBuffer& a : arena.buffers)
    for (const ArenaBuffer& b : arena.buffers) {
      if (&a == &b || a.last < b.first || b.last < a.first || a.bytes.value == 0 || b.bytes.value == 0) continue;
      EXPECT_TRUE(a.offset + a.bytes.value <= b.offset || b.offset + b.bytes.value <= a.offset) << a.name << " and " << b.name;
    }
  EXPECT_LE(static_cast<double>(arena.size.value) / static_cast<double>(arena.peak.value), 1.025) << "gaps";
}

INSTANTIATE_TEST_SUITE_P(Plans, Arena,
                         testing::Values(Case{"qwen/qwen3-30b-a3b.json", false, Recompute::none}, Case{"qwen/qwen3-30b-a3b.json", false, Recompute::selective},
                                         Case{"qwen/qwen3-30b-a3b.json", false, Recompute::full}, Case{"qwen/qwen3-30b-a3b.json", true, Recompute::full},
                                         Case{"deepseek/deepseek-v3.json", false, Recompute::full}, Case{"kimi/kimi-linear-48b-a3b.json", true, Recompute::selective},
                                         Case{"gpt-oss/gpt-oss-20b.json", false, Recompute::selective}),
                         [](const auto& each) { return "case_" + std::to_string(each.index); });

TEST(ArenaLayout, ReusesThePlaceOfWhatHasEnded) {
  std::vector<ArenaBuffer> buffers{{.name = "a", .bytes = {256}, .first = 0, .last = 1}, {.name = "b", .bytes = {256}, .first = 1, .last = 2}, {.name = "c", .bytes = {256}, .first = 2, .last = 3}};
  EXPECT_EQ(place_buffers(buffers).value, 512);
  EXPECT_EQ(buffers[0].offset, buffers[2].offset);
}

}  // namespace
}  // namespace moeplan
