/// What a rank of many holds is what the planner said: the buffer that its calls to other ranks pass through, and its arena.

#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "executor/ranks/runnable.hpp"
#include "sim/memory/memory.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json", *deepseek = "deepseek/deepseek-v3.json";

struct Held {
  ParityCase parity;
  std::int64_t chunks = 1;
  std::int64_t replicas = 0;
  std::int64_t buffer = 0;   ///< bytes of it where they can be counted by head
  double near = 0;   ///< share by which the peak may be off where one walk counts what the other has not: padding, pieces in the memory of the whole, messages, states; 0: to the byte
  std::optional<int> once = {};   ///< tokens go once: over nodes of so many devices, 0: to the ranks at once
};

class ArenaOfRanks : public testing::TestWithParam<Held> {};

TEST_P(ArenaOfRanks, HoldsThePlannedBytes) {
  const auto& [c, chunks, replicas, buffer, near, once] = GetParam();
  Problem p = problem(shrunk(shipped(c.file), c.layers), c.full ? full(c.length) : lora(c.length));
  p.runtime.staged = true;
  p.runtime.deduplicated_dispatch = once.has_value();
  p.cluster.devices_per_node = once.value_or(0) > 0 ? *once : 8;
  Plan q = on_ranks(p, c.parallelism, c.micro_batches, c.recompute);
  q.schedule = c.schedule;
  if (once == 0) q.experts.route = DispatchRoute::direct;
  q.experts.chunks = chunks;
  if (replicas > 0) place_by_load(p, q, replicas);
  run_ranks(q.parallelism.world(), [&](Communicator& world) {
    const auto backend = cpu_backend(CpuStorage::as_planned);
    Trainer trainer(p, q, *backend, {.walk = {.routed_bound = 2}}, &world);
    const MemoryBreakdown planned = memory(trainer.program(), p, q);
    EXPECT_EQ(memory(lower_for_run(p, q, {.routed_bound = 2}, world.rank()), p, q)[MemoryCategory::communication], planned[MemoryCategory::communication])
        << "as planner and simulator lower it";
    MemoryBreakdown held = trainer.memory();
    EXPECT_EQ(held[MemoryCategory::communication].value, planned[MemoryCategory::communication].value);
    EXPECT_EQ(trainer.walk().staged().value, planned[MemoryCategory::communication].value);
    if (buffer > 0) {
      EXPECT_EQ(planned[MemoryCategory::communication].value, buffer);
    }
    held[MemoryCategory::allocator_reserve] = {};   // gaps of the layout
    const auto all = static_cast<double>(planned.peak().value);
    EXPECT_NEAR(static_cast<double>(held.peak().value), all, near * all) << planned.peak_at << " | " << held.peak_at;
    if (near == 0) {
      EXPECT_EQ(held.at_peak, planned.at_peak) << planned.peak_at << " | " << held.peak_at;
    }
  });
}

// By head: six tokens of three experts each are 18 rows of 32 bf16 on their way; twice the balanced share is 36 of them at the experts. Where
// they go once: 18 rows of 64 bytes that leave, 24 that may come of four ranks' six tokens, six words of each; of the ways of each of two layers the ranks and
// places of 18 and slots, weights and places of 24 tokens' two copies here; each on 256 bytes.
INSTANTIATE_TEST_SUITE_P(
    Plans, ArenaOfRanks,
    testing::Values(Held{{"experts", qwen, false, {.ep = 4, .dp_replicate = 4}}, 1, 0, 36 * 32 * 2},
                    Held{{"placed_experts", qwen, false, {.ep = 4, .dp_replicate = 4}}, 1, 4, 2 * 36 * 32 * 2},
                    Held{{"pieces", qwen, false, {.ep = 4, .dp_replicate = 4}}, 2, 0, 4 * 36 * 32 * 2, 0.07},
                    Held{{"once", qwen, false, {.ep = 4, .dp_replicate = 4}}, 1, 0, 1280 + 1536 + 1024 + 2 * (2 * 256 + 3 * 256), 0, 0},
                    Held{{"once_to_nodes", qwen, true, {.ep = 4, .dp_replicate = 4}}, 1, 0, 0, 0.07, 2},
                    Held{{"once_placed", qwen, false, {.ep = 4, .dp_replicate = 4}}, 1, 4, 0, 0.07, 0},
                    Held{{"once_on_stages", k3, false, {.pp = 2, .ep = 4, .dp_shard = 4}, Recompute::none, 2}, 1, 0, 0, 0.07, 2},
                    Held{{"cut_experts", qwen, false, {.ep = 2, .etp = 2, .dp_replicate = 4}}},
                    Held{{"whole_gradients", qwen, true, {.dp_replicate = 2}}, 1, 0, 4 * 8 * 20 * 32},
                    Held{{"cut_gradients", qwen, true, {.ep = 2, .dp_shard = 4, .expert_shard = 2}, Recompute::full}},
                    Held{{"adapters", k3, false, {.ep = 4, .dp_shard = 4}, Recompute::full, 2}, 1, 0, 0, 1e-4},
                    Held{{"stages", k3, false, {.pp = 2, .ep = 2, .dp_replicate = 2}, Recompute::none, 3}, 1, 0, 0, 0.04},
                    Held{{"put_off", qwen, true, {.pp = 2, .ep = 2, .dp_replicate = 2}, Recompute::selective, 3, Schedule::zero_bubble}, 1, 0, 0, 0.07},
                    Held{{"stages_alone", deepseek, false, {.pp = 2}, Recompute::none, 2}},
                    Held{{"tensor_ranks", qwen, true, {.tp = 2, .ep = 2, .dp_shard = 1}}},
                    Held{{"a_ring", qwen, false, {.cp = 2, .ep = 2}, Recompute::none, 1, Schedule::one_forward_one_backward, 8}},
                    Held{{"states", k3, false, {.cp = 2, .ep = 2}, Recompute::none, 1, Schedule::one_forward_one_backward, 8}, 1, 0, 0, 2e-3}),
    [](const auto& each) { return std::string(each.param.parity.name); });

/// Of each rank after steps: what it holds for moves beside its arena, and what the check before a run counts of it.
void expect_no_more_than_checked(Problem p, const Plan& q, const TrainOptions& options, bool moves) {
  const auto batches = data(p, 3, q.parallelism.dp());
  std::atomic<bool> used = false;
  run_ranks(q.parallelism.world(), [&](Communicator& world) {
    const auto backend = cpu_backend(CpuStorage::as_planned);
    Trainer trainer(p, q, *backend, options, &world);
    randomise(trainer.parameters(), options.seed, p.model, *backend);
    stir(trainer.parameters(), *backend);
    for (const auto& all : batches) (void)trainer.step({all[static_cast<std::size_t>(trainer.parameters().place().data_index())]});
    const auto held = [&](DType t) { return backend->held(t); };
    const Bytes buffer = staging(trainer.program(), p, q, held).buffer, moving = moving_room(trainer.program(), p, q, *backend, moves),
                all = trainer.memory()[MemoryCategory::communication];
    EXPECT_GT(moving, Bytes{});
    EXPECT_LE(all, buffer + moving);
    if (all > buffer) used = true;
  });
  EXPECT_TRUE(used) << "something went its way";
}

TEST(RoomsBesideTheArena, OfExpertsOnTheirWayAreNoMoreThanTheCheckCounts) {
  for (const auto& [every, offload] : {std::pair{0, Offload::none}, {2, Offload::none}, {2, Offload::all}}) {
    Problem p = problem(shrunk(shipped(qwen), 3), full(6));
    p.cluster.devices_per_node = 8;
    Plan q = on_ranks(p, {.ep = 4, .dp_shard = 8, .expert_shard = 2}, 1);
    place_by_load(p, q, 4);
    q.offload = offload;
    expect_no_more_than_checked(p, q, {.walk = {.routed_bound = 4, .rebalance_every = every}}, every > 0);
  }
}

}  // namespace
}  // namespace moeplan
