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

std::vector<ElementRun> part_runs(const Shape& whole, const Shape& part, WeightSplit split, const RankPlace& place) {
  if (whole.elements() == part.elements()) return {{0, whole.elements()}};
  const auto last = static_cast<std::size_t>(whole.rank - 1);
  std::int64_t inner = 1;  // elements of one entry of the first dimension
  for (std::size_t d = 1; d <= last; ++d) inner *= whole.dim[d];
  const auto rows = [&](std::int64_t first, std::int64_t count) { return ElementRun{first * inner, count * inner}; };
  const int e = place.index(Group::expert), t = place.index(Group::tensor);
  switch (split) {
    case WeightSplit::none:
      break;
    case WeightSplit::column:
      return {rows(t * part.dim[0], part.dim[0])};
    case WeightSplit::row: {
      std::vector<ElementRun> out;
      const std::int64_t columns = whole.dim[last], mine = part.dim[last];
      for (std::int64_t r = 0; r < whole.elements() / columns; ++r) out.push_back({r * columns + t * mine, mine});
      return out;
    }
    case WeightSplit::expert:
    case WeightSplit::expert_row:
      if (part.elements() / part.dim[0] != inner) break;  // over expert-tensor ranks too
      return {rows(e * part.dim[0], part.dim[0])};
  }
  throw std::logic_error("a weight that is cut in a way that the executor does not hold");
}

std::vector<ElementRun> held_runs(const Shape& whole, const Shape& part, WeightSplit split, const RankPlace& place) {
  const Group group = shard_group(split);
  const std::int64_t share = ceil_div(part.elements(), static_cast<std::int64_t>(place.size(group))),
                     begin = share * place.index(group), end = begin + share;
  std::vector<ElementRun> out;
  std::int64_t at = 0;  // in the part
  for (const ElementRun& run : part_runs(whole, part, split, place)) {
    const std::int64_t from = std::max(at, begin), until = std::min(at + run.count, end);
    if (from < until) out.push_back({run.at + from - at, until - from});
    at += run.count;
  }
  return out;
}

GatherLayout gather_layout(const Block& block, const Parallelism& parallelism,
                           const std::function<DType(DType)>& held) {
  const RankPlace place{.rank = 0, .parallelism = parallelism};
  GatherLayout out;
  for (const Weight& w : block.weights) {
    const std::int64_t degree = place.size(shard_group(w.split));
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
