#include "executor/ranks/place.hpp"

#include <algorithm>
#include <stdexcept>

#include "core/checked.hpp"
#include "executor/backend/convert.hpp"

namespace moeplan {

int RankPlace::size(Group group) const {
  const Parallelism& p = parallelism;
  switch (group) {
    case Group::tensor:
      return p.tp;
    case Group::context:
      return p.cp;
    case Group::data_shard:
      return p.dp_shard * p.cp;
    case Group::data_replicate:
      return p.dp_replicate;
    case Group::expert_tensor:
      return p.etp;
    case Group::expert:
      return p.ep;
    case Group::expert_data_shard:
      return p.expert_shard;
    case Group::expert_data_replicate:
      return p.expert_data() / p.expert_shard;
    case Group::pipeline:
      return p.pp;
    case Group::world:
      return p.world();
  }
  return 1;
}

int RankPlace::stride(Group group) const {
  const Parallelism& p = parallelism;
  switch (group) {
    case Group::tensor:
    case Group::expert_tensor:
    case Group::world:
      return 1;
    case Group::context:
    case Group::data_shard:
      return p.tp;
    case Group::data_replicate:
      return p.tp * p.cp * p.dp_shard;
    case Group::expert:
      return p.etp;
    case Group::expert_data_shard:
      return p.etp * p.ep;
    case Group::expert_data_replicate:
      return p.etp * p.ep * p.expert_shard;
    case Group::pipeline:
      return p.stage_ranks();
  }
  return 1;
}

std::vector<int> RankPlace::members(Group group) const {
  std::vector<int> out;
  for (int i = 0; i < size(group); ++i) out.push_back(rank + (i - index(group)) * stride(group));
  return out;
}

namespace {

/// One dimension of a tensor, dealt out to `ranks` of which this is number `index`.
struct Dealing {
  std::size_t dimension = 0;
  int index = 0, ranks = 1;
  std::vector<DealtRows> parts{};
};

Dealing dealing(const Cut& cut, const RankPlace& place) {
  const auto last = static_cast<std::size_t>(cut.whole.rank - 1);
  Dealing out;
  switch (cut.split) {
    case WeightSplit::none:
    case WeightSplit::first:
      return out;
    case WeightSplit::column:
    case WeightSplit::row:
      out = {cut.split == WeightSplit::row ? last : 0, place.index(Group::tensor), place.size(Group::tensor)};
      break;
    case WeightSplit::expert:
    case WeightSplit::expert_row:
      out = {cut.split == WeightSplit::expert_row ? last : std::min<std::size_t>(1, last),
             place.index(Group::expert_tensor), place.size(Group::expert_tensor)};
      break;
  }
  const DealtRows all{cut.whole.dim[out.dimension], cut.part.dim[out.dimension]};
  const bool by_parts = !cut.dealt.empty() && cut.split != WeightSplit::row && cut.split != WeightSplit::expert_row;
  out.parts = by_parts ? cut.dealt : std::vector<DealtRows>{all};
  if (all.whole == all.here) out.index = 0, out.ranks = 1, out.parts = {all};
  return out;
}

}  // namespace

std::vector<ElementRun> part_runs(const Cut& cut, const RankPlace& place) {
  if (cut.split == WeightSplit::first && place.index(Group::tensor) > 0) return {};
  const Dealing by = dealing(cut, place);
  if (by.parts.empty()) return {{0, cut.whole.elements(), 0}};
  std::int64_t inner = 1, outer = 1;  // elements of an entry of the dealt dimension; entries before it
  for (std::size_t d = by.dimension + 1; d < static_cast<std::size_t>(cut.whole.rank); ++d) inner *= cut.whole.dim[d];
  for (std::size_t d = 0; d < by.dimension; ++d) outer *= cut.part.dim[d];
  const bool experts = is_expert(cut.split);
  // Experts come one after the other, their other dimensions before the dealt one are whole.
  const std::int64_t each = experts ? outer / cut.part.dim[0] : 1,
                     first_slot = experts ? place.index(Group::expert) * cut.part.dim[0] : 0;
  const auto expert_of = [&](std::int64_t slot) {
    return experts && cut.slots ? cut.slots->at(static_cast<std::size_t>(slot)) : slot;
  };
  std::vector<ElementRun> out;
  std::int64_t here = 0;
  for (std::int64_t o = 0; o < outer; ++o) {
    std::int64_t base = (expert_of(first_slot + o / each) * each + o % each) * cut.whole.dim[by.dimension];
    for (const DealtRows& rows : by.parts) {
      const std::int64_t start = by.index / rows.sharers(by.ranks) * rows.here,
                         count = std::clamp<std::int64_t>(rows.whole - start, 0, rows.here);
      const ElementRun run{(base + start) * inner, count * inner, here};
      if (!out.empty() && out.back().at + out.back().count == run.at && out.back().here + out.back().count == run.here)
        out.back().count += run.count;
      else if (count > 0)
        out.push_back(run);
      here += rows.here * inner;
      base += rows.whole;
    }
  }
  return out;
}

std::vector<ElementRun> held_runs(const Cut& cut, const RankPlace& place) {
  const Group group = shard_group(cut.split);
  const std::int64_t share = ceil_div(cut.part.elements(), static_cast<std::int64_t>(place.size(group))),
                     begin = share * place.index(group), end = begin + share;
  std::vector<ElementRun> out;
  for (const ElementRun& run : part_runs(cut, place)) {
    const std::int64_t from = std::max(run.here, begin), until = std::min(run.here + run.count, end);
    if (from < until) out.push_back({run.at + from - run.here, until - from, from - begin});
  }
  return out;
}

GatherLayout gather_layout(const Block& block, const Parallelism& parallelism,
                           const std::function<DType(DType)>& held,
                           const std::function<DType(const Block&, WeightId)>& fetched) {
  constexpr std::int64_t alignment = 256;  // of what lies as its kernels read it, stored formats among them
  const RankPlace place{.rank = 0, .parallelism = parallelism};
  GatherLayout out;
  for (WeightId id = 0; id < static_cast<WeightId>(block.weights.size()); ++id) {
    const Weight& w = block.weights[static_cast<std::size_t>(id)];
    const std::int64_t degree = place.size(shard_group(w.split));
    if (fetched && !w.trained) {
      out.bytes.value = ceil_div(out.bytes.value, alignment) * alignment;
      out.offset.push_back(out.bytes.value);
      const DType type = fetched(block, id);
      out.bytes += degree == 1 ? stored_bytes(type, w.shape) : stored_bytes(type, {ceil_div(w.shape.elements(), degree)}) * degree;
      continue;
    }
    const bool cast = w.trained && held(DType::bf16) != held(DType::f32);
    if (degree == 1 && !cast) {
      out.offset.push_back(-1);
      continue;
    }
    const std::int64_t width = plain_bytes(held(w.dtype));
    if (width > 0)
      out.bytes.value = ceil_div(out.bytes.value, width) * width;  // where an odd number of bf16 lies before f32
    out.offset.push_back(out.bytes.value);
    out.bytes.value += width * ceil_div(w.shape.elements(), degree) * degree;
  }
  return out;
}

}  // namespace moeplan
