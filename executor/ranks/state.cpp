#include "executor/ranks/state.hpp"

#include <numeric>
#include <stdexcept>

#include "executor/ranks/whole.hpp"

namespace moeplan {
namespace {

struct Part {
  Backend::Memory Parameter::*memory;
  bool value;
};
/// What of a parameter a step reads and changes; router biases are read.
std::vector<Part> parts_of(const Parameter& p) {
  if (p.trained)
    return {{&Parameter::value, true}, {&Parameter::first_moment, false}, {&Parameter::second_moment, false}};
  if (p.buffer && p.held == DType::f32) return {{&Parameter::value, true}};
  return {};
}
DType type_of(const Parameter& p, const Part& part) { return part.value ? p.held : DType::f32; }

}  // namespace

Plan one_rank_plan(const Problem&, const Plan& plan) {
  Plan out = plan;
  out.parallelism = {};
  out.micro_batches = plan.micro_batches * plan.parallelism.dp();
  out.stage_layers = {std::accumulate(plan.stage_layers.begin(), plan.stage_layers.end(), std::int64_t{0})};
  return out;
}

WholeState::WholeState(const Problem& problem, const Plan& plan, Backend& backend)
    : program_(lower(problem, one_rank_plan(problem, plan), 0)), parameters_(program_, problem, backend) {}

void collect(Trainer& trainer, const Problem& problem, WholeState* whole) {
  RankGroups& ranks = *trainer.ranks();
  const RankPlace& place = ranks.place();
  Backend& backend = trainer.backend();
  const auto keep = [&](const std::string& name, const Part& part, std::span<const float> values) {
    Parameter* p = whole->parameters().find(name);
    if (!p) throw std::logic_error("no place for " + name + " in the whole state");
    backend.write({(p->*part.memory).get(), type_of(*p, part), p->shape}, values);
  };
  // The first rank of each stage sends what rank 0 does not hold.
  for (const Parameter& p : trainer.parameters().all())
    for (const Part& part : parts_of(p)) {
      const std::vector<float> values = whole_values(p, p.*part.memory, type_of(p, part), &ranks, backend);
      if (whole)
        keep(p.name, part, values);
      else if (place.in_stage() == 0)
        ranks.need(Group::pipeline).send(values.data(), static_cast<std::int64_t>(values.size()), DType::f32, 0);
    }
  if (!whole) return;
  for (int stage = 1; stage < place.parallelism.pp; ++stage) {
    const Program theirs = lower(problem, trainer.plan(), stage * place.parallelism.stage_ranks());
    const auto declared = null_backend();  // names and shapes only
    const Parameters parameters(theirs, problem, *declared,
                                RankPlace{stage * place.parallelism.stage_ranks(), place.parallelism});
    for (const Parameter& p : parameters.all())
      for (const Part& part : parts_of(p)) {
        std::vector<float> values(static_cast<std::size_t>(p.whole.elements()));
        ranks.need(Group::pipeline).receive(values.data(), static_cast<std::int64_t>(values.size()), DType::f32, stage);
        keep(p.name, part, values);
      }
  }
}

void distribute(WholeState& whole, Trainer& trainer) {
  Backend& backend = trainer.backend();
  backend.wait();
  for (Parameter& p : trainer.parameters().all())
    for (const Part& part : parts_of(p)) {
      const Parameter* from = whole.parameters().find(p.name);
      if (!from) throw std::logic_error("the whole state has no " + p.name);
      std::vector<float> all(static_cast<std::size_t>(from->shape.elements())), mine;
      backend.read({(from->*part.memory).get(), type_of(*from, part), from->shape}, all);
      for (const ElementRun& run : held_runs(p.whole, p.shape, p.split, trainer.parameters().place()))
        mine.insert(mine.end(), all.begin() + run.at, all.begin() + run.at + run.count);
      mine.resize(static_cast<std::size_t>(p.held_shape().elements()), 0.0f);
      backend.write({(p.*part.memory).get(), type_of(p, part), p.held_shape()}, mine);
    }
}

}  // namespace moeplan
