#include "executor/state/parameters.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "sim/program/architectures/compose.hpp"

namespace moeplan {
namespace {

Bytes held_bytes(DType type, const Shape& shape) { return {plain_bytes(type) * shape.elements()}; }

Parameter declared(const Weight& w, const ModelSpec& model, std::int32_t layer) {
  const bool inner = layer >= 0 && layer < static_cast<std::int32_t>(model.layers.size());
  const auto full = [&](const std::string& ours) {
    return inner ? checkpoint_name(model, model.layer_prefix, layer, ours) : ours;
  };
  Parameter p{.name = full(w.name),
              .cls = w.cls,
              .shape = w.shape,
              .whole = w.full_shape,
              .split = w.split,
              .trained = w.trained,
              .adapter = w.adapter,
              .buffer = w.buffer,
              .sources = w.sources,
              .layer = inner ? layer : -1,
              .value = {},
              .gradient = {},
              .first_moment = {},
              .second_moment = {}};
  for (TensorSource& s : p.sources) s.name = full(s.name);
  return p;
}

}  // namespace

Parameters::Parameters(const Program& program, const Problem& problem, Backend& backend, const RankPlace& place, Keep keep)
    : place_(place) {
  if (problem.workload.optimizer != OptimizerKind::adamw)
    throw InputError("workload.optimizer", fmt::format("{} is priced, not run", name_of(problem.workload.optimizer)),
                     "adamw");
  for (const Slot& slot : program.slots) {
    const Block& block = program.blocks[static_cast<std::size_t>(slot.block)];
    index_.emplace_back();
    for (const Weight& w : block.weights) {
      Parameter p = declared(w, problem.model, slot.layer);
      // A tied head has the embedding's name and no source of its own; a pair used twice in a block is one weight there
      // already.
      if (const auto it = by_name_.find(p.name); it != by_name_.end() && (w.sources.empty() && !w.adapter)) {
        index_.back().push_back(it->second);
        continue;
      }
      const DType master = w.adapter                        ? problem.runtime.adapter
                           : problem.runtime.master_weights ? DType::f32
                                                            : DType::bf16;
      p.held = backend.held(w.trained ? master : w.dtype);
      p.shards = place.size(shard_group(p.split));
      p.counts = place.index(replicate_group(p.split)) == 0;
      if (!is_expert(p.split) && p.split == WeightSplit::none) p.counts = p.counts && place.index(Group::tensor) == 0;
      const Bytes value = held_bytes(p.held, p.held_shape()), full = held_bytes(DType::f32, p.held_shape());
      if (keep == Keep::all || p.is_state()) {
        p.value = backend.allocate(value, p.name);
        (w.adapter ? bytes_.adapters : bytes_.weights) += value;
      }
      if (w.trained) {
        p.gradient = backend.allocate(full, p.name + " gradient");
        p.first_moment = backend.allocate(full, p.name + " first moment");
        p.second_moment = backend.allocate(full, p.name + " second moment");
        bytes_.gradients += full;
        bytes_.optimizer += full * 2;
        bytes_.trained_elements += p.held_shape().elements();
      }
      by_name_.emplace(p.name, all_.size());
      index_.back().push_back(all_.size());
      all_.push_back(std::move(p));
    }
  }
}

Parameter* Parameters::find(const std::string& name) {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &all_[it->second];
}

std::vector<float> values_of(const Parameter& p, Backend& backend) {
  std::vector<float> out(static_cast<std::size_t>(p.held_shape().elements()));
  backend.wait();
  backend.read(p.view(), out);
  return out;
}

void set_values(Parameter& p, std::span<const float> values, Backend& backend) { backend.write(p.view(), values); }

void set_from_whole(Parameter& p, std::span<const float> whole, const RankPlace& place, Backend& backend) {
  std::vector<float> mine;
  mine.reserve(static_cast<std::size_t>(p.held_shape().elements()));
  for (const ElementRun& run : held_runs(p.whole, p.shape, p.split, place))
    mine.insert(mine.end(), whole.begin() + run.at, whole.begin() + run.at + run.count);
  mine.resize(static_cast<std::size_t>(p.held_shape().elements()), 0.0f);
  set_values(p, mine, backend);
}

}  // namespace moeplan
