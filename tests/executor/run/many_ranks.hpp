#pragma once
/// A step of a tiny model on one rank and on many in-process ranks, with everything in it that must agree.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "executor/comm/in_process.hpp"
#include "executor/ranks/volume.hpp"
#include "executor/ranks/whole.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan::test {

using Tensors = std::map<std::string, std::vector<float>>;

/// What a run left: of the whole model, whoever held it.
struct Outcome {
  std::vector<StepReport> steps;
  Tensors gradients, values;          ///< after the last step, trained weights only
  std::vector<std::uint64_t> hashes;  ///< per rank: what it issued
  std::vector<CommCounters> counted, predicted;
};

/// Seeded pairs that let gradients reach everything; the same on any number of ranks.
inline void stir(Parameters& parameters, Backend& backend, float most = 0.3f) {
  for (Parameter& p : parameters.all()) {
    if (!p.adapter) continue;
    std::mt19937_64 random(std::hash<std::string>{}(p.name));
    std::vector<float> v(static_cast<std::size_t>(p.whole.elements()));
    for (float& x : v) x = std::uniform_real_distribution<float>(-most, most)(random);
    set_from_whole(p, v, parameters.place(), backend);
  }
}

/// A plan of one sequence a micro-batch, its layers spread evenly over the stages.
inline Plan on_ranks(const Problem& p, const Parallelism& parallelism, std::int64_t micro_batches,
                     Recompute recompute = Recompute::none) {
  Plan out = plan(p, 1, micro_batches, recompute);
  out.parallelism = parallelism;
  out.stage_layers.clear();
  const auto layers = static_cast<std::int64_t>(p.model.layers.size());
  for (std::int64_t s = 0; s < parallelism.pp; ++s)
    out.stage_layers.push_back(layers * (s + 1) / parallelism.pp - layers * s / parallelism.pp);
  return out;
}

/// Experts placed by a skewed load, with so many copies.
inline void place_by_load(Problem& p, Plan& q, std::int64_t replicas, ExpertPlacement placement = ExpertPlacement::balanced) {
  p.load.distribution = ZipfLoad{.exponent = 1.0};
  q.experts.placement = placement;
  q.experts.replicas = replicas;
}

/// Micro-batches of `steps` steps, with labels that fall unevenly on them.
inline std::vector<std::vector<Batch>> data(const Problem& p, std::int64_t steps, std::int64_t of_step) {
  std::vector<std::vector<Batch>> out;
  for (std::int64_t s = 0; s < steps; ++s) {
    out.emplace_back();
    for (std::int64_t i = 0; i < of_step; ++i) {
      out.back().push_back(batch(p, plan(p, 1), static_cast<std::uint64_t>(100 * s + i)));
      for (std::int64_t t = 0; t < i % 4; ++t) out.back().back().labels[static_cast<std::size_t>(t)] = -100;
    }
  }
  return out;
}

/// Counters of what carries tensors: without words, barriers and splits.
inline CommCounters data_only(CommCounters c) {
  for (const CommKind k : {CommKind::words, CommKind::barrier, CommKind::split, CommKind::wait})
    c[static_cast<std::size_t>(k)] = {};
  return c;
}

using Prepare = std::function<void(Trainer&)>;

/// Steps of a plan; `batches[step][i]` are all micro-batches of a step: number j of data rank d is i = j dp + d.
inline Outcome run_plan(const Problem& problem, const Plan& plan, const std::vector<std::vector<Batch>>& batches,
                        const TrainOptions& options = {}, const Prepare& prepare = {},
                        CpuStorage storage = CpuStorage::wide) {
  Outcome out;
  std::mutex mutex;
  const int world = plan.parallelism.world();
  out.hashes.resize(static_cast<std::size_t>(world)), out.counted.resize(out.hashes.size()),
      out.predicted.resize(out.hashes.size());
  const auto body = [&](Communicator* communicator) {
    const auto backend = cpu_backend(storage);
    Trainer trainer(problem, plan, *backend, options, communicator);
    randomise(trainer.parameters(), options.seed, problem.model, *backend);
    stir(trainer.parameters(), *backend);
    if (prepare) prepare(trainer);
    const RankPlace place = trainer.parameters().place();
    std::vector<StepReport> reports;
    for (const auto& all : batches) {
      if (communicator) trainer.ranks()->reset_counters();
      std::vector<Batch> mine;
      for (std::int64_t j = 0; j < plan.micro_batches; ++j)
        mine.push_back(all[static_cast<std::size_t>(j * plan.parallelism.dp() + place.data_index())]);
      reports.push_back(trainer.step(mine));
    }
    const auto rank = static_cast<std::size_t>(place.rank);
    if (communicator) {
      const auto held = [&](DType t) { return backend->held(t); };
      const std::lock_guard lock(mutex);
      out.hashes[rank] = trainer.ranks()->order_hash();
      out.counted[rank] = data_only(trainer.ranks()->counters());
      out.predicted[rank] =
          predicted_volume(trainer.program(), problem, plan.parallelism, held, trainer.walk().routes_of_last_step());
      const CommCounter replicas = replica_volume(trainer.parameters(), place);
      CommCounter& messages = out.predicted[rank][static_cast<std::size_t>(CommKind::send_receive)];
      messages.calls += replicas.calls, messages.payload += replicas.payload, messages.sent += replicas.sent;
    }
    for (const Parameter& p : trainer.parameters().all()) {
      if (!p.trained) continue;
      const auto gradient = whole_values(p, p.gradient, DType::f32, trainer.ranks(), *backend),
                 value = whole_values(p, p.value, p.held, trainer.ranks(), *backend);
      const std::lock_guard lock(mutex);
      out.gradients[p.name] = gradient;
      out.values[p.name] = value;
    }
    const std::lock_guard lock(mutex);
    if (rank == 0) out.steps = std::move(reports);
  };
  if (world == 1)
    body(nullptr);
  else
    run_ranks(world, [&](Communicator& c) { body(&c); });
  return out;
}

/// The one-rank run of the same data.
inline Outcome alone(const Problem& p, const std::vector<std::vector<Batch>>& batches, const TrainOptions& options = {},
                     const Prepare& prepare = {}) {
  return run_plan(p, plan(p, 1, static_cast<std::int64_t>(batches.front().size())), batches, options, prepare);
}

inline double largest(const std::vector<float>& v) {
  double most = 0;
  for (const float x : v) most = std::max(most, std::abs(static_cast<double>(x)));
  return most;
}

/// Tensor by tensor, to a share of the tensor's largest element (of one ten-thousandth where all cancel to less):
/// additions come in another order.
inline void expect_same(const Tensors& a, const Tensors& b, double share, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, values] : a) {
    const auto it = b.find(name);
    ASSERT_TRUE(it != b.end()) << name;
    ASSERT_EQ(values.size(), it->second.size()) << name;
    const double most = std::max(largest(values), 2e-5);  // below it stands the rounding of sums whose terms cancel (DeepSeek-V4's hc_head_base)
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], it->second[i], share * most) << what << " of " << name << " at " << i;
  }
}

/// AdamW divides by the gradient's size: where a gradient is as good as zero its sign decides, and rounding decides the
/// sign.
inline void expect_same_update(const Outcome& a, const Outcome& b, double rate) {
  for (const auto& [name, values] : a.values) {
    const std::vector<float>&other = b.values.at(name), &gradient = a.gradients.at(name);
    const double most = largest(gradient);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::abs(gradient[i]) <= 1e-3 * most) continue;
      ASSERT_NEAR(values[i], other[i], 0.02 * rate + 1e-7) << name << " at " << i;
    }
  }
}

inline void expect_same_outcome(const Outcome& one, const Outcome& many, double rate) {
  ASSERT_EQ(one.steps.size(), many.steps.size());
  for (std::size_t s = 0; s < one.steps.size(); ++s) {
    const StepReport &a = one.steps[s], &b = many.steps[s];
    EXPECT_NEAR(a.loss, b.loss, 1e-5) << "step " << s;
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 2e-4 * a.gradient_norm) << "step " << s;
    EXPECT_EQ(a.labelled, b.labelled);
    EXPECT_EQ(a.tokens, b.tokens);
    ASSERT_EQ(a.routing.size(), b.routing.size());
    for (std::size_t l = 0; l < a.routing.size(); ++l) {
      EXPECT_EQ(a.routing[l].layer, b.routing[l].layer);
      EXPECT_EQ(a.routing[l].counts, b.routing[l].counts) << "layer " << a.routing[l].layer;
      EXPECT_NEAR(a.routing[l].balance, b.routing[l].balance, 1e-5);
    }
  }
  expect_same(one.gradients, many.gradients, 2e-4, "gradient");
  expect_same_update(one, many, rate);
}

/// A plan that must do what one rank does.
struct ParityCase {
  const char* name;
  const char* file;
  bool full;
  Parallelism parallelism;
  Recompute recompute = Recompute::none;
  std::int64_t micro_batches = 1;
  Schedule schedule = Schedule::one_forward_one_backward;
  std::int64_t length = 6;
  std::size_t layers = 4;
  int virtual_stages = 1;
};

/// Loss, norm, gradients, routing and weights of a step equal those of one rank, and the counters what is predicted.
inline void expect_parity(const ParityCase& c, const std::function<void(Problem&, Plan&)>& adjust = {}) {
  Problem p = problem(shrunk(shipped(c.file), c.layers), c.full ? full(c.length) : lora(c.length));
  Plan q = on_ranks(p, c.parallelism, c.micro_batches, c.recompute);
  q.schedule = c.schedule;
  if (adjust) adjust(p, q);
  TrainOptions options;
  options.learning_rate = 1e-3;
  options.clip = 1e-3;  // the norm enters every update
  options.walk.routed_bound = 8;
  options.walk.auxiliary = c.full ? 0.1 : 0;
  const auto batches = data(p, 1, c.micro_batches * c.parallelism.dp());
  const Outcome one = alone(p, batches, options), many = run_plan(p, q, batches, options);
  expect_same_outcome(one, many, options.learning_rate);
  for (std::size_t r = 0; r < many.counted.size(); ++r) EXPECT_EQ(many.counted[r], many.predicted[r]) << "rank " << r;
}

}  // namespace moeplan::test
