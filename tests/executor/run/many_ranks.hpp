#pragma once
/// A step of a tiny model on one rank and on many in-process ranks, with everything in it that must agree.

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

}  // namespace moeplan::test
