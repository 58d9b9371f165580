/// Numbers that are not finite are found where they lie, and the rank that has them is named.
#include "executor/train/finite.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "executor/comm/in_process.hpp"
#include "executor/rendezvous/rank_process.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TinyRun tiny_run() {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 2), lora(8));
  return {p, plan(p), cpu_backend(CpuStorage::wide)};
}

Parameter& first_of(TinyRun& run, bool trained) {
  for (Parameter& p : run.trainer->parameters().all())
    if (p.trained == trained) return p;
  throw std::logic_error("none");
}

void spoil(TinyRun& run, const Backend::Memory& memory, std::int64_t element) {
  const float bad[] = {kNan};
  run.backend->write({memory.get() + 4 * element, DType::f32, {1}}, bad);
}

TEST(Finite, a_sound_state_has_nothing_to_name) {
  TinyRun run = tiny_run();
  EXPECT_FALSE(first_not_finite(run.trainer->parameters(), *run.backend, true));
}

TEST(Finite, a_trained_weight_and_a_moment_are_named) {
  TinyRun run = tiny_run();
  Parameter& p = first_of(run, true);
  spoil(run, p.second_moment, p.shape.elements() - 1);
  EXPECT_EQ(first_not_finite(run.trainer->parameters(), *run.backend, false), "second moment of " + p.name);
  spoil(run, p.value, 0);
  EXPECT_EQ(first_not_finite(run.trainer->parameters(), *run.backend, false), p.name);
}

TEST(Finite, frozen_weights_are_looked_through_only_where_asked) {
  TinyRun run = tiny_run();
  const Parameter& p = first_of(run, false);
  spoil(run, p.value, 3);
  EXPECT_FALSE(first_not_finite(run.trainer->parameters(), *run.backend, false));
  EXPECT_EQ(first_not_finite(run.trainer->parameters(), *run.backend, true), p.name);
}

TEST(Finite, a_step_after_which_a_weight_cannot_recover_stops_the_run) {
  TinyRun run = tiny_run();
  spoil(run, run.trainer->parameters().find("model.norm.weight")->value, 0);
  EXPECT_THROW(run.trainer->step({batch(run.problem, run.plan, 1)}), RankBlamed);
}

TEST(Finite, the_loss_of_a_rank_explains_more_than_the_gradients_of_others) {
  run_ranks(3, [](Communicator& c) {
    const std::string text = agree_on_fault(c, {.state = {}, .loss = c.rank() == 2, .gradient = c.rank() != 1});
    EXPECT_EQ(text.rfind("rank 2 on ", 0), 0u) << text;
    EXPECT_NE(text.find("forward, the loss of its tokens"), std::string::npos) << text;
    EXPECT_EQ(agree_on_fault(c, {}), "");
  });
}

TEST(Finite, the_first_rank_that_holds_what_is_not_finite_is_blamed) {
  run_ranks(3, [](Communicator& c) {
    const auto ask = [&] { return agree_on_fault(c, {.state = c.rank() > 0 ? std::optional<std::string>("w") : std::nullopt, .loss = true}); };
    if (c.rank() != 1) {
      EXPECT_EQ(ask().rfind("rank 1 on ", 0), 0u);
      return;
    }
    try {
      (void)ask();
      ADD_FAILURE();
    } catch (const RankBlamed& e) {
      EXPECT_EQ(e.culprit(), 1);
      EXPECT_EQ(std::string(e.what()).rfind("w is not finite after the step", 0), 0u) << e.what();
    }
  });
}

}  // namespace
}  // namespace moeplan::test
