/// Virtual stages and passes side by side: the stages of a ring do what one rank does, and no two of them wait for each
/// other.

#include <gtest/gtest.h>

#include <deque>

#include "executor/arena/arena.hpp"
#include "executor/ranks/messages.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json";

/// As many layers as there are virtual stages, the first of them all over again.
void cut(Problem& p, Plan& q, int virtual_stages, std::size_t each = 1) {
  q.virtual_stages = virtual_stages;
  const auto all = static_cast<std::size_t>(virtual_stages * q.parallelism.pp);
  const std::size_t kinds = p.model.layers.size();
  while (p.model.layers.size() < all * each) p.model.layers.push_back(p.model.layers[p.model.layers.size() - kinds]);
  const std::size_t layers = p.model.layers.size();
  q.stage_layers.clear();
  for (std::size_t s = 0; s < all; ++s)
    q.stage_layers.push_back(static_cast<std::int64_t>(layers * (s + 1) / all - layers * s / all));
}

class VirtualStages : public testing::TestWithParam<ParityCase> {};

TEST_P(VirtualStages, DoWhatOneRankDoes) {
  expect_parity(GetParam(), [](Problem& p, Plan& q) { cut(p, q, GetParam().virtual_stages); });
}

constexpr auto interleaved = Schedule::interleaved, side_by_side = Schedule::expert_overlap;
INSTANTIATE_TEST_SUITE_P(
    Rings, VirtualStages,
    testing::Values(
        ParityCase{"two_stages", k3, false, {.pp = 2}, Recompute::none, 2, interleaved, 6, 4, 2},
        ParityCase{"two_stages_twice_the_batches", k3, true, {.pp = 2}, Recompute::full, 4, interleaved, 6, 4, 2},
        ParityCase{"two_stages_four_times", qwen, true, {.pp = 2}, Recompute::none, 4, interleaved, 6, 4, 4},
        ParityCase{"three_stages", qwen, false, {.pp = 3}, Recompute::selective, 6, interleaved, 6, 4, 2},
        ParityCase{"four_stages", k3, false, {.pp = 4}, Recompute::none, 8, interleaved, 6, 4, 2},
        ParityCase{"experts_and_pieces",
                   k3,
                   false,
                   {.pp = 2, .ep = 2, .dp_shard = 2},
                   Recompute::full,
                   4,
                   interleaved,
                   6,
                   4,
                   2},
        ParityCase{"tensor_ranks", qwen, true, {.pp = 2, .tp = 2}, Recompute::none, 4, interleaved, 6, 4, 2},
        ParityCase{"side_by_side", qwen, true, {.pp = 2}, Recompute::none, 4, side_by_side, 6, 4, 1},
        ParityCase{"side_by_side_experts",
                   k3,
                   false,
                   {.pp = 2, .ep = 2, .dp_replicate = 2},
                   Recompute::selective,
                   6,
                   side_by_side,
                   6,
                   4,
                   1},
        ParityCase{"side_by_side_in_a_ring",
                   k3,
                   false,
                   {.pp = 2, .ep = 2, .dp_shard = 2},
                   Recompute::full,
                   4,
                   side_by_side,
                   6,
                   4,
                   2},
        ParityCase{"side_by_side_four_stages", qwen, true, {.pp = 4}, Recompute::none, 8, side_by_side, 6, 4, 2}),
    [](const auto& each) { return std::string(each.param.name); });

/// A call of a stage: what it sends and takes, by peer.
struct Call {
  std::vector<int> to, from;
};

/// The calls of a stage's program, as the walk makes them.
std::vector<Call> calls_of(const Program& p, int stages) {
  std::vector<Call> out;
  Call next;
  const auto flush = [&] {
    if (!next.to.empty() || !next.from.empty()) out.push_back(std::exchange(next, {}));
  };
  for (std::size_t at = 0; at < p.instances.size(); ++at) {
    const Instance& i = p.instances[at];
    const int peer = (p.stage + (i.with_next ? 1 : stages - 1)) % stages;
    if (i.phase == Phase::send_receive && i.sent.value > 0) {
      next.to.push_back(peer);
    } else if (i.phase == Phase::send_receive) {
      next.from.push_back(peer);
      if (!goes_with_next(p, at)) flush();
    } else if (i.phase != Phase::gather && i.phase != Phase::release && i.phase != Phase::reduce) {
      flush();
    }
  }
  flush();
  return out;
}

/// Whether all calls end where a send ends when it is received: letters of a pair are taken in order, a call is over
/// when all of it is.
bool all_end(const std::vector<std::vector<Call>>& calls) {
  struct At {
    std::size_t call = 0, taken = 0;
    std::int64_t unsent = 0;
    bool posted = false;
  };
  std::vector<At> at(calls.size());
  std::map<std::pair<int, int>, std::int64_t> letters;
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < static_cast<int>(calls.size()); ++s) {
      At& me = at[static_cast<std::size_t>(s)];
      const auto& mine = calls[static_cast<std::size_t>(s)];
      if (me.call == mine.size()) continue;
      const Call& c = mine[me.call];
      if (!me.posted) {
        for (const int to : c.to) ++letters[{s, to}];
        me.unsent = static_cast<std::int64_t>(c.to.size()), me.taken = 0, me.posted = moved = true;
      }
      while (me.taken < c.from.size() && letters[{c.from[me.taken], s}] > 0) {
        --letters[{c.from[me.taken], s}];
        --at[static_cast<std::size_t>(c.from[me.taken++])].unsent;
        moved = true;
      }
      if (me.taken == c.from.size() && me.unsent == 0) ++me.call, me.posted = false, moved = true;
    }
  }
  for (std::size_t s = 0; s < calls.size(); ++s)
    if (at[s].call < calls[s].size()) return false;
  return true;
}

TEST(Messages, NeverWaitInARing) {
  std::int64_t rings = 0, stuck = 0;
  for (const int stages : {2, 3, 4, 6})
    for (const int chunks : {1, 2, 3})
      for (const std::int64_t groups : {1, 2, 3, 5})
        for (const Schedule schedule : {Schedule::interleaved, Schedule::expert_overlap}) {
          Problem p = problem(shrunk(shipped(qwen), 1), lora(4));
          Plan q = on_ranks(p, {.pp = stages}, groups * stages);
          q.schedule = schedule;
          cut(p, q, chunks);
          if (!schedule_fault(q).empty()) continue;
          std::vector<std::vector<Call>> ordered, as_lowered;
          for (int s = 0; s < stages; ++s) {
            Program program = lower(p, q, s);
            const auto passes = [](const Program& of) {
              std::vector<std::tuple<Phase, std::int32_t, std::int32_t>> out;
              for (const Instance& i : of.instances)
                if (i.phase == Phase::forward_backward) {
                  out.emplace_back(Phase::forward, i.forward_slot, i.forward_micro_batch);
                  out.emplace_back(Phase::backward, i.slot, i.micro_batch);
                } else if (i.phase != Phase::send_receive || i.sent.value > 0) {
                  out.emplace_back(i.phase, i.slot, i.micro_batch);
                }
              return out;
            };
            const auto planned = passes(program);
            as_lowered.push_back(calls_of(program, stages));
            order_messages(program, q);
            EXPECT_EQ(passes(program), planned) << "only what arrives moves";
            EXPECT_TRUE(verify(program).empty());
            ordered.push_back(calls_of(program, stages));
          }
          ++rings;
          stuck += all_end(as_lowered) ? 0 : 1;
          EXPECT_TRUE(all_end(ordered)) << stages << " stages, " << chunks << " chunks, " << groups << " groups, "
                                        << name_of(schedule);
        }
  EXPECT_GT(rings, 50);
  EXPECT_GT(stuck, rings / 4) << "as lowered, stages would wait for each other";
}

}  // namespace
}  // namespace moeplan
