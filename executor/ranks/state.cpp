#include "executor/ranks/state.hpp"

#include <algorithm>
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
  if (p.is_state()) return {{&Parameter::value, true}};
  return {};
}
DType type_of(const Parameter& p, const Part& part) { return part.value ? p.held : DType::f32; }

/// What one rank has (`values`, empty on the others), on all. By way of the backend's memory, which is what
/// communicators reach; added as integers, so that the bits are its own.
std::vector<float> from_one(Communicator& world, Backend& backend, std::span<const float> values,
                            std::int64_t elements) {
  const Backend::Memory buffer = backend.allocate({4 * elements}, "a tensor on its way between ranks");
  const TensorView view{buffer.get(), DType::f32, {elements}};
  if (!values.empty()) backend.write(view, values);
  backend.wait();
  world.all_reduce(buffer.get(), elements, DType::i32);
  world.wait();
  std::vector<float> out(static_cast<std::size_t>(elements));
  backend.read(view, out);
  return out;
}

/// Names and shapes of the whole model's state, in one order on all ranks.
Parameters declared_state(const Problem& problem, const Plan& plan, Backend& nothing) {
  return {lower(problem, one_rank_plan(problem, plan), 0), problem, nothing, {}, Keep::state};
}

}  // namespace

Plan one_rank_plan(const Problem&, const Plan& plan) {
  Plan out = plan;
  out.parallelism = {};
  out.virtual_stages = 1;
  if (out.schedule == Schedule::interleaved) out.schedule = Schedule::one_forward_one_backward;
  out.experts.chunks = 1;
  out.experts.replicas = 0;
  out.experts.placement = ExpertPlacement::contiguous;
  out.micro_batches = plan.micro_batches * plan.parallelism.dp();
  out.stage_layers = {std::accumulate(plan.stage_layers.begin(), plan.stage_layers.end(), std::int64_t{0})};
  return out;
}

WholeState::WholeState(const Problem& problem, const Plan& plan, CpuStorage storage)
    : host_(cpu_backend(storage)),
      parameters_(lower(problem, one_rank_plan(problem, plan), 0), problem, *host_, {}, Keep::state) {}

void collect(Trainer& trainer, const Problem& problem, WholeState* whole) {
  RankGroups& ranks = *trainer.ranks();
  Backend& backend = trainer.backend();
  const auto nothing = null_backend();
  const Parameters all = declared_state(problem, trainer.plan(), *nothing);
  for (const Parameter& each : all.all())
    for (const Part& part : parts_of(each)) {
      const Parameter* mine = trainer.parameters().find(each.name);  // of this rank's stage
      std::vector<float> values;
      if (mine) values = whole_values(*mine, mine->*part.memory, type_of(*mine, part), &ranks, backend);
      if (ranks.place().parallelism.pp > 1) {
        const bool sends = mine && ranks.place().in_stage() == 0;
        values = from_one(ranks.world(), backend, sends ? std::span<const float>(values) : std::span<const float>{},
                          each.shape.elements());
      }
      if (!whole) continue;
      const Parameter* to = whole->parameters().find(each.name);
      whole->backend().write({(to->*part.memory).get(), type_of(*to, part), to->shape}, values);
    }
}

void distribute(WholeState* whole, Trainer& trainer, const Problem& problem) {
  Backend& backend = trainer.backend();
  const auto nothing = null_backend();
  const Parameters all = declared_state(problem, trainer.plan(), *nothing);
  for (const Parameter& each : all.all())
    for (const Part& part : parts_of(each)) {
      std::vector<float> values;
      if (whole) {
        const Parameter* from = whole->parameters().find(each.name);
        values.resize(static_cast<std::size_t>(from->shape.elements()));
        whole->backend().read({(from->*part.memory).get(), type_of(*from, part), from->shape}, values);
      }
      values = from_one(trainer.ranks()->world(), backend, values, each.shape.elements());
      Parameter* mine = trainer.parameters().find(each.name);
      if (!mine) continue;
      std::vector<float> held(static_cast<std::size_t>(mine->held_shape().elements()), 0.0f);
      for (const ElementRun& run : held_runs(mine->cut(), trainer.parameters().place()))
        std::copy_n(values.begin() + run.at, run.count, held.begin() + run.here);
      backend.write({(mine->*part.memory).get(), type_of(*mine, part), mine->held_shape()}, held);
    }
}

}  // namespace moeplan
