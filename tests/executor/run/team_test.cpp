/// What goes wrong among ranks is refused before they start, or ends all of them with the culprit's name.

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "core/error.hpp"
#include "executor/ranks/runnable.hpp"
#include "executor/ranks/state.hpp"
#include "executor/ranks/team.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

constexpr const char* qwen = "qwen/qwen3-30b-a3b.json";

std::string refusal(const Problem& p, const Plan& q, int ranks, const WalkOptions& options = {}) {
  try {
    refuse_what_cannot_run(p, q, *cpu_backend(CpuStorage::wide), options, ranks);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(Runnable, RefusesWithTheReasonBeforeAnyRankStarts) {
  Problem p = problem(shrunk(shipped(qwen), 2), lora(4));
  const Plan good = on_ranks(p, {.ep = 2, .dp_shard = 4}, 1);
  EXPECT_EQ(refusal(p, good, 4), "");
  const auto says = [&](Plan q, int ranks, const char* field, const char* reason) {
    const std::string text = refusal(p, q, ranks);
    EXPECT_NE(text.find(field), std::string::npos) << text;
    EXPECT_NE(text.find(reason), std::string::npos) << text;
  };
  says(good, 1, "plan.parallelism", "is for 4 ranks; there is 1");
  says(good, 1, "plan.parallelism", "--ranks 4");
  Plan q = good;
  q.parallelism = {.cp = 2, .dp_shard = 2};
  q.context_exchange = ContextExchange::all_to_all, q.parallelism = {.cp = 4};
  says(q, 4, "plan.parallelism.cp", "2 heads cannot be exchanged");
  q.parallelism = {.tp = 2, .dp_shard = 2}, p.model.vocabulary = 63;
  says(q, 4, "plan.parallelism.tp", "does not divide the 63 entries");
  p.model.vocabulary = 64, p.workload.experts.shared_adapter = true;
  q.parallelism = {.etp = 2, .dp_shard = 2};
  says(q, 2, "plan.parallelism.etp", "common to cut experts");
  p.workload.experts.shared_adapter = false;
  q.parallelism = {.ep = 3, .dp_shard = 3};
  says(q, 3, "plan.parallelism.ep", "3 does not divide the 8 expert slots");
  q = good, q.experts.chunks = 2, q.parallelism.etp = 2;
  says(q, 4, "plan.experts.chunks", "in pieces beside");
  q = good, q.experts.replicas = 2;
  says(q, 4, "plan.experts.replicas", "2");
  q = on_ranks(p, {.dp_shard = 2}, 2), q.schedule = Schedule::expert_overlap;
  says(q, 2, "plan.schedule", "expert_overlap");
  const SliceRows rows;
  q = on_ranks(p, {.pp = 2}, 2), q.schedule = Schedule::interleaved, q.virtual_stages = 2;
  EXPECT_NE(refusal(p, q, 2, {.slice = &rows}).find("one rank alone of it"), std::string::npos);
  q = on_ranks(p, {.pp = 2}, 2), q.virtual_stages = 2;
  says(q, 2, "plan.schedule", "has one virtual stage a stage, not 2");
  p.model.tied_head = true;
  says(on_ranks(p, {.pp = 2}, 2), 2, "plan.parallelism.pp", "another stage");
  p.model.tied_head = false;
  p.runtime.distributed_optimizer = true;
  says(good, 4, "runtime", "ZeRO-1");
}

TEST(Team, NamesTheRankThatThrowsAndItsPhase) {
  try {
    run_team(4,
             [](Communicator& world, Progress& progress) {
               progress.set_phase("forward");
               world.barrier();
               if (world.rank() == 2) throw std::runtime_error("memory of the arena is gone");
               for (;;) world.barrier();
             },
             {.host = "gpu07"});
    FAIL() << "nobody failed";
  } catch (const RankFailed& e) {
    EXPECT_EQ(e.verdict().rank, 2);
    EXPECT_EQ(std::string(e.what()), "rank 2 on gpu07: forward, outside communication: memory of the arena is gone");
  }
}

TEST(Team, NamesTheRankThatDoesNotCome) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_team(3,
             [](Communicator& world, Progress& progress) {
               progress.set_phase("backward reduce");
               if (world.rank() == 1) {
                 progress.set_phase("optimizer");
                 std::this_thread::sleep_for(std::chrono::milliseconds(400));
               }
               world.barrier();
             },
             {.host = "gpu07", .limit = Duration{100}});
    FAIL() << "nobody was missed";
  } catch (const RankFailed& e) {
    EXPECT_EQ(e.verdict().rank, 1) << e.what();
    EXPECT_NE(std::string(e.what()).find("optimizer, outside communication"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("barrier"), std::string::npos) << e.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Team, WaitsForARankThatGoesOnWithItsWork) {
  run_team(3,
           [](Communicator& world, Progress& progress) {
             progress.set_stall(Duration{400});
             for (int piece = 0; world.rank() == 1 && piece < 30; ++piece) {
               std::this_thread::sleep_for(std::chrono::milliseconds(40));
               progress.advance();
             }
             world.barrier();
           },
           {.host = "gpu07", .limit = Duration{100}});
}

TEST(Team, NamesTheRankWhoseWorkStands) {
  try {
    run_team(3,
             [](Communicator& world, Progress& progress) {
               progress.set_stall(Duration{200});
               progress.set_phase("save");
               if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
               world.barrier();
             },
             {.host = "gpu07", .limit = Duration{300000}});
    FAIL() << "nobody was missed";
  } catch (const RankFailed& e) {
    EXPECT_EQ(e.verdict().rank, 1) << e.what();
    EXPECT_NE(std::string(e.what()).find("rank 1 on gpu07: save, outside communication: no work done for"), std::string::npos) << e.what();
  }
}

TEST(Team, NamesTheRankThatLeavesEarly) {
  try {
    run_team(2, [](Communicator& world, Progress&) {
      if (world.rank() == 0) world.barrier();
    });
    FAIL() << "nobody was missed";
  } catch (const RankFailed& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1 ended without it"), std::string::npos) << e.what();
  }
}

TEST(Team, PassesOnWhatIsWrongWithTheInput) {
  EXPECT_THROW(run_team(2,
                        [](Communicator& world, Progress&) {
                          if (world.rank() == 1) throw InputError("data.jsonl", "ends in the middle of a document");
                          world.barrier();
                        }),
               InputError);
}

TEST(Team, StopsAtTheBoundOfARaggedBufferAndSaysWhose) {
  for (const bool once : {false, true}) {
    Problem p = problem(shrunk(shipped(qwen), 1), lora(8));
    p.runtime.deduplicated_dispatch = once;
    Plan q = on_ranks(p, {.ep = 4, .dp_replicate = 4}, 1);
    q.experts.route = DispatchRoute::direct;
    const TrainOptions options{.walk = {.routed_bound = 1}};
    try {
      run_team(4, [&](Communicator& world, Progress& progress) {
        const auto backend = cpu_backend(CpuStorage::wide);
        Trainer trainer(p, q, *backend, options, &world,
                        &progress);  // weights are zero: every token goes to the lowest experts
        (void)trainer.step({batch(p, q, static_cast<std::uint64_t>(world.rank()))});
      });
      FAIL() << "it fits";
    } catch (const RankFailed& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("forward dispatch"), std::string::npos) << text;
      // Three experts get every token: two of rank 0, one of rank 1. Either may be first to say so.
      const bool first = text.find("layer 0, micro-batch 0: 64 rows reach the experts of rank 0, its buffer holds 24") !=
                         std::string::npos;
      const bool second = text.find("layer 0, micro-batch 0: 32 rows reach the experts of rank 1, its buffer holds 24") !=
                          std::string::npos;
      EXPECT_TRUE(first || second) << text;
    }
  }
}

TEST(Team, AgreesToSkipAStepThatIsNotFinite) {
  const Problem p = problem(shrunk(shipped(qwen), 2), lora(4));
  const Plan q = on_ranks(p, {.ep = 2, .dp_shard = 2}, 1);
  std::array<bool, 2> applied{true, true};
  std::array<double, 2> norms{};
  run_team(2, [&](Communicator& world, Progress& progress) {
    const auto backend = cpu_backend(CpuStorage::wide);
    Trainer trainer(p, q, *backend, {}, &world, &progress);
    randomise(trainer.parameters(), 1, p.model, *backend);
    if (world.rank() == 1)  // finite weights of one rank's experts whose products are not
      for (Parameter& each : trainer.parameters().all())
        if (each.cls == WeightClass::experts && !each.adapter)
          set_values(each, std::vector<float>(static_cast<std::size_t>(each.held_shape().elements()), 1e16f), *backend);
    const StepReport r = trainer.step({batch(p, q, static_cast<std::uint64_t>(world.rank()))});
    applied[static_cast<std::size_t>(world.rank())] = r.applied;
    norms[static_cast<std::size_t>(world.rank())] = r.gradient_norm;
  });
  EXPECT_FALSE(applied[0]);
  EXPECT_FALSE(applied[1]);
  EXPECT_TRUE(std::isnan(norms[0]) && std::isnan(norms[1]));
}

TEST(WholeState, IsTheSameHoweverManyRanksHeldIt) {
  const Problem p = problem(shrunk(shipped("kimi/kimi-k3.json"), 4), full(6));
  for (const Parallelism& parallelism :
       {Parallelism{.pp = 2, .ep = 2, .dp_shard = 2}, Parallelism{.pp = 2, .tp = 2, .ep = 2}}) {
    const Plan q = on_ranks(p, parallelism, 2);
    WholeState before(p, q, CpuStorage::as_planned), after(p, q, CpuStorage::as_planned);
    randomise(before.parameters(), 5, p.model, before.backend());
    run_team(4, [&](Communicator& world, Progress& progress) {
      const auto mine = cpu_backend(CpuStorage::as_planned);
      Trainer trainer(p, q, *mine, {}, &world, &progress);
      distribute(world.rank() == 0 ? &before : nullptr, trainer, p);
      collect(trainer, p, world.rank() == 0 ? &after : nullptr);
    });
    std::size_t compared = 0;
    for (const Parameter& each : before.parameters().all())
      if (each.trained) {
        EXPECT_EQ(values_of(each, before.backend()), values_of(*after.parameters().find(each.name), after.backend()))
            << each.name;
        ++compared;
      }
    EXPECT_GT(compared, 20u);
  }
}

}  // namespace
}  // namespace moeplan
