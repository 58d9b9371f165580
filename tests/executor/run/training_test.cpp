/// Steps of tiny models: recompute, accumulation, packing and drops mean what they say, and losses go down.

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;

/// Gradients of everything trained, in order.
std::vector<float> gradients(TinyRun& run) {
  std::vector<float> out;
  for (const Parameter& p : run.trainer->parameters().all()) {
    if (!p.trained) continue;
    std::vector<float> g(static_cast<std::size_t>(p.shape.elements()));
    run.backend->read(p.gradient_view(), g);
    out.insert(out.end(), g.begin(), g.end());
  }
  return out;
}

/// B of the pairs start at zero; random ones let gradients reach everything.
void stir(TinyRun& run) {
  std::mt19937_64 random(3);
  for (Parameter& p : run.trainer->parameters().all()) {
    if (!p.adapter) continue;
    std::vector<float> v(static_cast<std::size_t>(p.shape.elements()));
    for (float& x : v) x = std::uniform_real_distribution<float>(-0.3f, 0.3f)(random);
    set_values(p, v, *run.backend);
  }
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double tolerance, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(a[i]))) << what << " at " << i;
}

TEST(Training, RecomputingChangesNoBit) {
  for (const char* file : {"kimi/kimi-k3.json", "qwen/qwen3-next-80b-a3b.json"}) {
    const Problem p = problem(shrunk(shipped(file)), lora(8));
    std::vector<std::vector<float>> seen;
    for (const Recompute r : {Recompute::none, Recompute::selective, Recompute::full}) {
      const Plan q = plan(p, 2, 1, r);
      TinyRun run(p, q, cpu_backend(CpuStorage::as_planned));
      stir(run);
      (void)run.trainer->differentiate(batch(p, q, 9));
      seen.push_back(gradients(run));
    }
    EXPECT_EQ(seen[0], seen[1]) << file;
    EXPECT_EQ(seen[0], seen[2]) << file;
  }
}

/// Adds `scale` times `direction` to everything trained.
void shift(TinyRun& run, const std::vector<float>& direction, double scale) {
  std::size_t at = 0;
  for (Parameter& each : run.trainer->parameters().all()) {
    if (!each.trained) continue;
    std::vector<float> v = values_of(each, *run.backend);
    for (float& x : v) x += static_cast<float>(scale * static_cast<double>(direction[at++]));
    set_values(each, v, *run.backend);
  }
}

double squared(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

class Derivative : public testing::TestWithParam<const char*> {};

TEST_P(Derivative, OfTheLossIsTheGradient) {
  const Problem p = problem(shrunk(shipped(GetParam()), 4), lora(6));
  const Plan q = plan(p, 1);
  TinyRun run(p, q, cpu_backend(CpuStorage::wide));
  stir(run);
  // Fresh projections leave q and k so small that the epsilon of their norm bends the loss within a float's step. Decays and steps of the linear
  // mixers, and Mamba's own projections, are not: fifteen times their logarithm is another model.
  for (Parameter& each : run.trainer->parameters().all()) {
    if (each.cls != WeightClass::attention || each.adapter || each.name.find("attn") == std::string::npos || each.shape.rank < 2) continue;
    std::vector<float> v = values_of(each, *run.backend);
    for (float& x : v) x *= 15;
    set_values(each, v, *run.backend);
  }
  const Batch b = batch(p, q, 2);
  (void)run.trainer->differentiate(b);
  const std::vector<float> gradient = gradients(run);
  // Along the gradient itself the loss changes by its squared length. A step may move a token to another expert; of several most do not.
  const double squares = squared(gradient);
  double best = 1;
  for (const double length : {1e-2, 3e-3, 1e-3, 3e-4}) {
    const double step = length / std::sqrt(squares);
    shift(run, gradient, step);
    const auto above = static_cast<double>(run.trainer->evaluate(b));
    shift(run, gradient, -2 * step);
    const auto below = static_cast<double>(run.trainer->evaluate(b));
    shift(run, gradient, step);
    best = std::min(best, std::abs((above - below) / (2 * step * squares) - 1));
  }
  EXPECT_LT(best, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Models, Derivative,
                         testing::Values("qwen/qwen3-30b-a3b.json", "kimi/kimi-k3.json", "kimi/kimi-linear-48b-a3b.json", "deepseek/deepseek-v4-pro.json", "hunyuan/hy4-preview.json", "jamba/jamba-v0.1.json", "longcat/longcat-flash.json"),
                         [](const auto& each) { return "model_" + std::to_string(each.index); });

TEST(Training, MicroBatchesAddUpToTheWholeBatch) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json")), lora(8));
  const Plan whole = plan(p, 4, 1), parts = plan(p, 1, 4);
  TinyRun a(p, whole, cpu_backend(CpuStorage::wide)), b(p, parts, cpu_backend(CpuStorage::wide));
  stir(a), stir(b);
  Batch all = batch(p, whole, 4);
  for (int i = 0; i < 11; ++i) all.labels[static_cast<std::size_t>(i)] = -100;   // uneven labels: the step's loss is a mean over labels, not over micro-batches
  std::vector<Batch> pieces;
  for (std::size_t r = 0; r < 4; ++r) pieces.push_back({{all.tokens.begin() + static_cast<std::ptrdiff_t>(8 * r), all.tokens.begin() + static_cast<std::ptrdiff_t>(8 * r + 8)},
                                                        {all.labels.begin() + static_cast<std::ptrdiff_t>(8 * r), all.labels.begin() + static_cast<std::ptrdiff_t>(8 * r + 8)}, {}});
  const StepReport x = a.trainer->step({all}), y = b.trainer->step(pieces);
  EXPECT_NEAR(x.loss, y.loss, 1e-5);
  EXPECT_NEAR(x.gradient_norm, y.gradient_norm, 1e-4 * x.gradient_norm);
  expect_near(gradients(a), gradients(b), 2e-5, "gradient");
}

TEST(Training, PackedSequencesDoNotSeeEachOther) {
  for (const char* file : {"qwen/qwen3-next-80b-a3b.json", "kimi/kimi-k3.json", "nemotron/nemotron-3-nano-30b-a3b.json", "deepseek/deepseek-v3.2.json", "jamba/jamba-v0.1.json", "minimax/minimax-m1-80k.json"}) {
    const Problem p = problem(shrunk(shipped(file)), lora(12));
    const Plan q = plan(p, 1);
    TinyRun run(p, q, cpu_backend(CpuStorage::wide));
    stir(run);
    Batch b = batch(p, q, 6);
    b.starts = {0, 5, 12};
    b.labels.assign(12, -100);
    b.labels[8] = 3;   // in the second sequence
    const float before = run.trainer->evaluate(b);
    for (std::size_t t = 0; t < 5; ++t) b.tokens[t] = (b.tokens[t] + 17) % 64;
    EXPECT_NEAR(run.trainer->evaluate(b), before, 1e-5) << file << ": the first sequence does not matter";
    b.tokens[6] = (b.tokens[6] + 17) % 64;
    EXPECT_GT(std::abs(run.trainer->evaluate(b) - before), 1e-4) << file << ": its own sequence does";
    // The same tokens alone in a batch, from position 0: the same loss.
    b.tokens[6] = (b.tokens[6] + 47) % 64;
    Batch moved = b;
    std::rotate(moved.tokens.begin(), moved.tokens.begin() + 5, moved.tokens.end());
    std::rotate(moved.labels.begin(), moved.labels.begin() + 5, moved.labels.end());
    moved.starts = {0, 7, 12};
    EXPECT_NEAR(run.trainer->evaluate(moved), before, 1e-5) << file;
  }
}

TEST(Training, RefusesDocumentsThatDoNotFillTheBatch) {
  const Problem p = problem(shrunk(shipped("kimi/kimi-k3.json")), lora(24));
  const Plan q = plan(p, 1);
  TinyRun run(p, q, cpu_backend(CpuStorage::wide));
  for (const std::vector<std::int64_t>& starts : {std::vector<std::int64_t>{0, 9, 23}, {1, 24}, {0, 12, 9, 24}}) {
    Batch b = batch(p, q, 3);
    b.starts = starts;
    try {
      (void)run.trainer->evaluate(b);
      ADD_FAILURE() << "documents that end at " << starts.back() << " were taken";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find("in a batch of 24 tokens"), std::string::npos) << e.what();
    }
  }
}

TEST(Training, DropsWhatIsBeyondTheCapacityAndSaysSo) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json")), lora(16));
  const Plan q = plan(p, 2);
  TrainOptions options;
  options.walk.capacity_factor = 1;
  TinyRun run(p, q, cpu_backend(CpuStorage::wide), options), free(p, q, cpu_backend(CpuStorage::wide));
  const StepReport r = run.trainer->step({batch(p, q, 8)}), all = free.trainer->step({batch(p, q, 8)});
  EXPECT_EQ(all.drop_rate, 0);
  EXPECT_GT(r.drop_rate, 0);
  EXPECT_LT(r.drop_rate, 1);
  EXPECT_TRUE(std::isfinite(r.loss));
  EXPECT_NE(r.loss, all.loss);
  std::int64_t choices = 0;
  for (const auto c : all.routing.front().counts) choices += c;
  EXPECT_EQ(choices, 32 * 3) << "tokens x top-k";
}

TEST(Training, TheBalancingLossHasTheGradientOfItsValue) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), full(8));
  const Plan q = plan(p, 2);
  const Batch b = batch(p, q, 3);
  TrainOptions with;
  with.walk.auxiliary = 5;
  TinyRun plain(p, q, cpu_backend(CpuStorage::wide)), balanced(p, q, cpu_backend(CpuStorage::wide), with);
  (void)plain.trainer->differentiate(b);
  (void)balanced.trainer->differentiate(b);
  std::vector<float> difference = gradients(balanced);
  const std::vector<float> without = gradients(plain);
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] = (difference[i] - without[i]) / 5;
  const double squares = squared(difference), step = 1e-4 / std::sqrt(squares);
  const auto balance = [&](double by) {
    shift(plain, difference, by);
    (void)plain.trainer->evaluate(b);
    shift(plain, difference, -by);
    return plain.trainer->walk().routing().front().balance;
  };
  EXPECT_GT(squares, 0);
  EXPECT_NEAR((balance(step) - balance(-step)) / (2 * step), squares, 0.05 * squares);
}

TEST(Training, LearnsABatchByHeart) {
  for (const bool everything : {false, true}) {
    const Problem p = problem(shrunk(shipped("kimi/kimi-k3.json"), 3), everything ? full(8) : lora(8, 4));
    const Plan q = plan(p, 2, 1, Recompute::full);
    TrainOptions options;
    options.learning_rate = 1e-2;
    options.steps = 1000;
    TinyRun run(p, q, cpu_backend(CpuStorage::as_planned), options);
    const Batch b = batch(p, q, 1);
    const double first = run.trainer->step({b}).loss;
    double last = first;
    for (int s = 0; s < 25; ++s) last = run.trainer->step({b}).loss;
    EXPECT_LT(last, first - (everything ? 1.0 : 0.1));
  }
}

TEST(Training, SkipsAStepThatIsNotFinite) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), lora(4));
  const Plan q = plan(p, 1);
  TinyRun run(p, q, cpu_backend(CpuStorage::wide));
  // Finite weights, numbers beyond float in the pass: what a step later may be gone.
  for (const char* name : {"model.norm.weight", "lm_head.weight"}) {
    Parameter& weight = *run.trainer->parameters().find(name);
    set_values(weight, std::vector<float>(static_cast<std::size_t>(weight.shape.elements()), 1e17f), *run.backend);
  }
  const StepReport r = run.trainer->step({batch(p, q, 1)});
  EXPECT_FALSE(r.applied);
  EXPECT_EQ(run.trainer->steps_done(), 1);
}

TEST(Schedule, RisesLinearlyAndFallsAsACosine) {
  TrainOptions o;
  o.learning_rate = 1, o.final_share = 0.1, o.warmup = 4, o.steps = 14;
  EXPECT_DOUBLE_EQ(learning_rate(o, 1), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(o, 4), 1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 5), 1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 10), 0.55) << "half way";
  EXPECT_NEAR(learning_rate(o, 100), 0.1, 1e-12);
}

TEST(Walk, RefusesSeveralRanksAndOtherOptimizers) {
  Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), lora(4));
  Plan q = plan(p, 1);
  const auto backend = cpu_backend(CpuStorage::wide);
  p.workload.optimizer = OptimizerKind::muon;
  EXPECT_THROW(Trainer(p, q, *backend, {}), InputError);
  p.workload.optimizer = OptimizerKind::adamw;
  q.parallelism.dp_shard = 2;
  EXPECT_THROW(Trainer(p, q, *backend, {}), InputError);
}

}  // namespace
}  // namespace moeplan
