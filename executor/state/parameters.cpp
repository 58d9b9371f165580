#include "executor/state/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "sim/program/architectures/compose.hpp"

namespace moeplan {
namespace {

/// Whether weights that the file has as several tensors become one without a block of 128 rows that spans two (fp8), and have scales by block.
bool stacks_in_blocks(const Weight& w, const ModelSpec& model) {
  if (w.dtype != DType::fp8) return true;
  if (model.stored.layout == PackedLayout::compressed_tensors) return false;  // a scale a row
  for (const TensorSource& s : w.sources)
    if (w.sources.size() > 1 && s.shape.size() >= 2 && s.shape[s.shape.size() - 2] % 128 != 0) return false;
  return true;
}

/// Whether a rank has whole matrices of a weight: blocks of a stored one may span where it is cut.
bool has_whole_matrices(const Weight& w, std::int64_t shards) {
  if (shards != 1 || w.shape.rank != w.full_shape.rank || w.shape.rank < 2) return false;
  for (int d = w.shape.rank - 2; d < w.shape.rank; ++d)
    if (w.shape[d] != w.full_shape[d]) return false;
  return true;
}

/// How the backend holds a frozen weight: as the calls read it, where this rank holds all of it and they agree. A call
/// may read it as it is though its class is stored quantised (biases).
WeightForm held_frozen(const Block& block, WeightId id, const ModelSpec& model, const Backend& backend, bool whole) {
  const Weight& weight = block.weights[static_cast<std::size_t>(id)];
  const WeightForm plain{backend.held(weight.dtype)};
  if (!whole || plain_bytes(weight.dtype) != 0 || !stacks_in_blocks(weight, model)) return plain;
  std::optional<WeightForm> read;
  for (const auto* pass : {&block.forward, &block.backward})
    for (const BlockNode& n : *pass) {
      const OpCall* call = std::get_if<OpCall>(&n.call);
      if (!call) continue;
      std::size_t next = 0;
      for (const Operand& o : operands(call->op)) {
        if (o.role != Role::weight || n.weights[next++] != id) continue;
        const WeightForm form = backend.held_weight(call->op, o.dtype);
        if (form.dtype != weight.dtype || (read && form != *read)) return plain;
        read = form;
      }
    }
  return read.value_or(plain);
}

/// How the backend holds a weight that so many data ranks share.
WeightForm held_form(const Block& block, WeightId id, const Problem& problem, const Backend& backend, std::int64_t shards) {
  const Weight& w = block.weights[static_cast<std::size_t>(id)];
  if (!w.trained) return held_frozen(block, id, problem.model, backend, has_whole_matrices(w, shards));
  return {backend.held(w.adapter ? problem.runtime.adapter : problem.runtime.master_weights ? DType::f32 : DType::bf16)};
}

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
              .dealt = w.dealt,
              .alike = {},
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

Parameters::Parameters(const Program& program, const Problem& problem, Backend& backend, const RankPlace& place,
                       Keep keep, ExpertSlots slots, Offload offload)
    : place_(place), slots_(std::move(slots)) {
  if (problem.workload.optimizer != OptimizerKind::adamw)
    throw InputError("workload.optimizer", fmt::format("{} is priced, not run", name_of(problem.workload.optimizer)),
                     "adamw");
  for (const Slot& slot : program.slots) {
    const Block& block = program.blocks[static_cast<std::size_t>(slot.block)];
    index_.emplace_back();
    for (WeightId id = 0; id < static_cast<WeightId>(block.weights.size()); ++id) {
      const Weight& w = block.weights[static_cast<std::size_t>(id)];
      Parameter p = declared(w, problem.model, slot.layer);
      // A tied head has the embedding's name and no source of its own; a pair used twice in a block is one weight there
      // already.
      if (const auto it = by_name_.find(p.name); it != by_name_.end() && (w.sources.empty() && !w.adapter)) {
        index_.back().push_back(it->second);
        continue;
      }
      p.shards = place.size(shard_group(p.split));
      const WeightForm form = held_form(block, id, problem, backend, p.shards);
      p.held = form.dtype, p.arranged = form.arranged;
      p.alike = alike_rows(w, place.parallelism);
      p.silent = p.split == WeightSplit::first && place.index(Group::tensor) > 0;
      p.counts = place.index(replicate_group(p.split)) == 0 && !p.silent;
      for (const AlikeRows& a : p.alike) p.counts = p.counts && place.index(alike_group(p.split)) % a.ranks == 0;
      std::int64_t alike = 0;
      for (const AlikeRows& a : p.alike) alike += a.elements;
      if (p.trained && alike > 0 && alike < p.shape.elements())
        throw InputError(
            "plan.parallelism.tp",
            fmt::format("{}: of {} some rows are on one rank and some on several, which is priced, not run",
                        place.parallelism.tp, p.name),
            "no more tensor ranks than key-value heads or state groups, or tune other weights");
      const Bytes value = stored_bytes(p.held, p.held_shape()), full = stored_bytes(DType::f32, p.held_shape());
      p.away = !w.trained && offloads_weights(offload);
      if (keep == Keep::all || p.is_state()) (w.adapter ? bytes_.adapters : p.away ? bytes_.host_weights : bytes_.weights) += value;
      if (w.trained) {
        bytes_.gradients += full;
        (offloads_optimizer(offload) ? bytes_.host_optimizer : bytes_.optimizer) += full * 2;
        bytes_.trained_elements += p.held_shape().elements();
      }
      by_name_.emplace(p.name, all_.size());
      index_.back().push_back(all_.size());
      all_.push_back(std::move(p));
    }
  }
  set_slots(slots_);
  allocate(backend, keep, offload);
}

void Parameters::set_slots(const ExpertSlots& slots) {
  slots_ = slots;
  for (Parameter& p : all_)
    if (is_expert(p.split) && p.layer >= 0) p.slots = this->slots(p.layer);
}

/// One piece of memory for all frozen tensors and one for each kind of trained state: a device rounds every allocation
/// up to 2 MiB, and the optimizer is one call instead of hundreds.
void Parameters::allocate(Backend& backend, Keep keep, Offload offload) {
  const bool null = backend.name() == "null";
  constexpr std::int64_t alignment = 256;
  const auto piece = [&](const Backend::Memory& whole, std::int64_t at) {
    return Backend::Memory(whole, whole.get() + (null ? 0 : at));
  };
  std::int64_t frozen = 0;
  std::vector<std::int64_t> at(all_.size());
  std::vector<std::size_t> run_of(all_.size());
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const Parameter& p = all_[i];
    if (!p.trained) {
      at[i] = frozen;
      if (keep == Keep::all || p.is_state())
        frozen += ceil_div(stored_bytes(p.held, p.held_shape()).value, alignment) * alignment;
      continue;
    }
    std::size_t r = 0;
    while (r < runs_.size() && (runs_[r].held != p.held || runs_[r].counts != p.counts)) ++r;
    if (r == runs_.size())
      runs_.push_back(
          {.held = p.held, .counts = p.counts, .value = {}, .gradient = {}, .first_moment = {}, .second_moment = {}});
    run_of[i] = r, at[i] = runs_[r].elements;
    runs_[r].elements += ceil_div(p.held_shape().elements(), alignment) * alignment;
  }
  const auto take = [&](bool away, std::int64_t bytes, const char* what) {
    return away ? backend.allocate_host({bytes}, what) : backend.allocate({bytes}, what);
  };
  const Backend::Memory weights = take(offloads_weights(offload), frozen, "frozen weights");
  for (TrainedRun& run : runs_) {
    run.value = backend.allocate({plain_bytes(run.held) * run.elements}, "trained weights");
    run.gradient = backend.allocate({4 * run.elements}, "gradients");
    run.first_moment = take(offloads_optimizer(offload), 4 * run.elements, "first moments");
    run.second_moment = take(offloads_optimizer(offload), 4 * run.elements, "second moments");
  }
  for (std::size_t i = 0; i < all_.size(); ++i) {
    Parameter& p = all_[i];
    if (!p.trained) {
      if (keep == Keep::all || p.is_state()) p.value = piece(weights, at[i]);
      continue;
    }
    const TrainedRun& run = runs_[run_of[i]];
    p.value = piece(run.value, plain_bytes(run.held) * at[i]);
    p.gradient = piece(run.gradient, 4 * at[i]);
    p.first_moment = piece(run.first_moment, 4 * at[i]);
    p.second_moment = piece(run.second_moment, 4 * at[i]);
  }
}

Bytes held_bytes(const Block& block, WeightId id, const Problem& problem, const Backend& backend, std::int64_t shards) {
  const Shape& whole = block.weights[static_cast<std::size_t>(id)].shape;
  return stored_bytes(held_form(block, id, problem, backend, shards).dtype, shards == 1 ? whole : Shape{ceil_div(whole.elements(), shards)});
}

namespace {

/// By slot.
std::vector<Bytes> beyond_plan(const Program& program, const Problem& problem, const Parallelism& parallelism, const Backend& backend) {
  const RankPlace place{.rank = 0, .parallelism = parallelism};
  std::vector<Bytes> all;
  for (const Slot& slot : program.slots) {
    Bytes& out = all.emplace_back();
    const Block& block = program.blocks[static_cast<std::size_t>(slot.block)];
    for (WeightId id = 0; id < static_cast<WeightId>(block.weights.size()); ++id) {
      const Weight& w = block.weights[static_cast<std::size_t>(id)];
      if (w.trained || w.sources.empty() || plain_bytes(w.dtype) != 0) continue;
      const std::int64_t shards = place.size(shard_group(w.split));
      out += held_bytes(block, id, problem, backend, shards) - Bytes{ceil_div(stored_bytes(w.dtype, w.shape).value, shards)};
    }
  }
  return all;
}

}  // namespace

Bytes held_beyond_plan(const Program& program, const Problem& problem, const Parallelism& parallelism, const Backend& backend) {
  Bytes out{};
  for (const Bytes b : beyond_plan(program, problem, parallelism, backend)) out += b;
  return out;
}

Bytes fetched_beyond_plan(const Program& program, const Problem& problem, const Plan& plan, const Backend& backend) {
  const std::vector<Bytes> all = beyond_plan(program, problem, plan.parallelism, backend);
  const auto ahead = plan.reshard_after_forward ? static_cast<std::size_t>(plan.prefetch) : all.size();
  Bytes most{};
  for (std::size_t slot = 0; slot < all.size(); ++slot) {
    Bytes there{};
    for (std::size_t s = slot; s < std::min(all.size(), slot + ahead + 1); ++s) there += all[s];
    most = std::max(most, there);
  }
  return most;
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
  std::vector<float> mine(static_cast<std::size_t>(p.held_shape().elements()), 0.0f);
  for (const ElementRun& run : held_runs(p.cut(), place))
    std::copy_n(whole.begin() + run.at, run.count, mine.begin() + run.here);
  set_values(p, mine, backend);
}

}  // namespace moeplan
