/// What becomes of copies that an expert has no room for: examples counted by hand, and the same in whole runs.

#include <gtest/gtest.h>

#include <cmath>

#include "executor/walk/capacity.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;

/// Four tokens, three experts, one choice each: three want expert 0, which has room for one.
struct Four {
  op::Router router{.tokens = 4, .hidden = 8, .experts = 3, .top_k = 1, .normalise = false, .route_scale = 2};
  std::vector<float> scores{0.6f, 0.3f, 0.1f, 0.7f, 0.2f, 0.1f, 0.5f, 0.1f, 0.4f, 0.2f, 0.8f, 0.0f};
  Choices choices{.scores = scores, .selection = scores, .indices = {0, 0, 0, 1}, .weights = {1.2f, 1.4f, 1.0f, 1.6f}, .zero_weight = {}};
};

TEST(Capacity, IsTheFactorTimesTheMeanRoundedUp) {
  EXPECT_EQ(expert_capacity(1.0, 4, 3), 2);
  EXPECT_EQ(expert_capacity(0.75, 4, 3), 1);
  EXPECT_EQ(expert_capacity(0.01, 4, 3), 1);
}

TEST(Capacity, ByPositionTheFirstTokensStay) {
  Four f;
  const Overflowed o = apply_capacity(f.router, Overflow::drop_position, 1, f.choices);
  EXPECT_EQ(o.kept, (std::vector<std::int32_t>{0, -1, -1, 1}));
  EXPECT_EQ(o.rows, (std::vector<std::int64_t>{1, 1, 0}));
  EXPECT_EQ(o.dropped, 2);
}

TEST(Capacity, ByProbabilityTheSurestTokensStay) {
  Four f;
  const Overflowed o = apply_capacity(f.router, Overflow::drop_probability, 1, f.choices);
  EXPECT_EQ(o.kept, (std::vector<std::int32_t>{-1, 0, -1, 1}));
  EXPECT_EQ(o.dropped, 2);
  EXPECT_EQ(f.choices.indices, (std::vector<std::int32_t>{0, 0, 0, 1})) << "the router's choice stands";
}

TEST(Capacity, ReroutedTokensGoToTheNextExpertWithRoomAndTakeItsWeight) {
  Four f;
  const Overflowed o = apply_capacity(f.router, Overflow::reroute, 1, f.choices);
  // Token 1's second is expert 1, which token 3 has filled in its own right: expert 2. Token 2 finds all three full.
  EXPECT_EQ(o.kept, (std::vector<std::int32_t>{0, 2, -1, 1}));
  EXPECT_EQ(o.rows, (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(o.moved, 1);
  EXPECT_EQ(o.dropped, 1);
  EXPECT_EQ(f.choices.indices, (std::vector<std::int32_t>{0, 2, 0, 1}));
  EXPECT_FLOAT_EQ(f.choices.weights[1], 2 * 0.1f);
  EXPECT_FLOAT_EQ(f.choices.weights[0], 1.2f);
}

TEST(Capacity, ReroutedWeightsSumToOneWhereTheRouterNormalises) {
  const op::Router router{.tokens = 2, .hidden = 8, .experts = 4, .top_k = 2};
  const std::vector<float> scores{0.4f, 0.3f, 0.2f, 0.1f, 0.5f, 0.2f, 0.1f, 0.2f};
  Choices c{.scores = scores, .selection = scores, .indices = {0, 1, 0, 1}, .weights = {4.0f / 7, 3.0f / 7, 5.0f / 7, 2.0f / 7}, .zero_weight = {}};
  const Overflowed o = apply_capacity(router, Overflow::reroute, 1, c);
  // Token 1 loses both: its copy of expert 0 goes to expert 3 (0.2 against 0.1), that of expert 1 to expert 2.
  EXPECT_EQ(c.indices, (std::vector<std::int32_t>{0, 1, 3, 2}));
  EXPECT_FLOAT_EQ(c.weights[2], 0.2f / 0.3f);
  EXPECT_FLOAT_EQ(c.weights[3], 0.1f / 0.3f);
  EXPECT_EQ(o.dropped, 0);
}

TEST(Capacity, ExpertsWithoutWeightsTakeEverything) {
  const op::Router router{.tokens = 3, .hidden = 8, .experts = 1, .top_k = 1, .normalise = false, .zero_experts = 1};
  const std::vector<float> scores{0.1f, 0.9f, 0.2f, 0.8f, 0.3f, 0.7f};
  Choices c{.scores = scores, .selection = scores, .indices = {1, 1, 1}, .weights = {0, 0, 0}, .zero_weight = {0.9f, 0.8f, 0.7f}};
  EXPECT_EQ(apply_capacity(router, Overflow::reroute, 1, c).dropped, 0);
}

StepReport step_with(const Problem& p, Plan q, Overflow action, double factor, Recompute recompute = Recompute::none) {
  q.experts.capacity_factor = factor, q.experts.overflow = action, q.recompute = recompute;
  TinyRun run(p, q, cpu_backend(CpuStorage::wide));
  return run.trainer->step({batch(p, q, 8)});
}

TEST(Capacity, ActsInWholeRunsAndStaysTheSameUnderRecompute) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json")), lora(16));
  const Plan q = plan(p, 2);
  const StepReport position = step_with(p, q, Overflow::drop_position, 1), probability = step_with(p, q, Overflow::drop_probability, 1), reroute = step_with(p, q, Overflow::reroute, 1);
  // The first layer's router sees the same tokens whatever the action: as many are dropped by either rule.
  EXPECT_EQ(position.routing.front().dropped, probability.routing.front().dropped);
  EXPECT_GT(position.routing.front().dropped, 0);
  // 32 tokens x 3 copies over 8 experts of 12: what one refuses another has room for, but for copies whose token uses all that have.
  EXPECT_LT(reroute.routing.front().dropped, position.routing.front().dropped / 4 + 1);
  EXPECT_NE(position.loss, probability.loss);
  EXPECT_NE(position.loss, reroute.loss);
  for (const Overflow action : {Overflow::drop_probability, Overflow::reroute}) {
    const StepReport again = step_with(p, q, action, 1, Recompute::full);
    EXPECT_EQ(again.loss, action == Overflow::reroute ? reroute.loss : probability.loss);
    EXPECT_NEAR(again.gradient_norm, action == Overflow::reroute ? reroute.gradient_norm : probability.gradient_norm, 1e-6 * reroute.gradient_norm);
  }
  // Room for all: nothing is dropped or moved.
  EXPECT_EQ(step_with(p, q, Overflow::reroute, 8).loss, step_with(p, q, Overflow::drop_position, 8).loss);
}

TEST(Capacity, TheGradientOfAReroutedRunIsItsDerivative) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), full(16));
  Plan q = plan(p, 1);
  q.experts.capacity_factor = 1, q.experts.overflow = Overflow::reroute;
  TinyRun run(p, q, cpu_backend(CpuStorage::wide));
  for (Parameter& each : run.trainer->parameters().all()) {   // large enough that the loss depends on the choices
    if (each.name.find("mlp.") == std::string::npos) continue;
    std::vector<float> v = values_of(each, *run.backend);
    for (float& x : v) x *= 15;
    set_values(each, v, *run.backend);
  }
  const Batch b = batch(p, q, 4);
  (void)run.trainer->differentiate(b);
  int routers = 0;
  // Along the gradient of each router: it reaches the router through the weights of the choices as they were moved.
  for (Parameter& each : run.trainer->parameters().all()) {
    if (!each.trained || each.name.find("mlp.gate.weight") == std::string::npos) continue;
    ++routers;
    std::vector<float> g(static_cast<std::size_t>(each.held_shape().elements())), v = values_of(each, *run.backend);
    run.backend->read(each.gradient_view(), g);
    double squares = 0;
    for (const float x : g) squares += static_cast<double>(x) * static_cast<double>(x);
    ASSERT_GT(squares, 0) << each.name;
    const auto loss = [&](double by) {
      std::vector<float> moved = v;
      for (std::size_t i = 0; i < g.size(); ++i) moved[i] += static_cast<float>(by) * g[i];
      set_values(each, moved, *run.backend);
      return static_cast<double>(run.trainer->evaluate(b));
    };
    const double step = 1e-3 / std::sqrt(squares);
    EXPECT_NEAR((loss(step) - loss(-step)) / (2 * step), squares, 0.05 * squares) << each.name;
    set_values(each, v, *run.backend);
  }
  EXPECT_EQ(routers, 1);
}

}  // namespace
}  // namespace moeplan
