/// A slot's weights as its calls read them: pieces put together over ranks, casts, and what comes from host memory.

#include <algorithm>
#include <utility>

#include "executor/backend/convert.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {

void Walk::gather_weights(const Instance& i, std::int32_t buffer) {
  const std::int32_t slot = i.slot;
  gathered_[index(slot)] = buffer;
  claim(buffer);
  const Block& b = block_of(slot);
  struct Part {
    Group group;
    std::byte *mine, *whole;
    std::int64_t count;
    Wire wire;
  };
  std::vector<Part> parts;
  // What lies one behind the other in both memories comes in one copy, the gaps with it.
  Backend::CopyPoint& fetched = fetching_[index(slot)];
  struct {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::int64_t bytes = 0;
  } next;
  const auto fetch = [&] {
    if (next.bytes == 0) return;
    fetched = backend_.copy_beside(next.from, next.to, {std::exchange(next.bytes, 0)});
    if (clock_) timed_copies_.emplace_back(&i, &fetch_);
  };
  for (WeightId w = 0; w < static_cast<WeightId>(b.weights.size()); ++w) {
    if (notes_of(slot).gathered.offset[index(w)] < 0) continue;
    const Parameter& p = parameters_.all()[parameters_.of(index(slot), w)];
    const std::int64_t count = p.held_shape().elements();
    TensorView mine = gathered_view(slot, w, count);
    if (p.away) mine.dtype = p.held;
    std::byte* const whole = mine.data;
    const Group group = shard_group(p.split);
    if (p.shards > 1) mine.data += ranks_->place().index(group) * count * plain_bytes(mine.dtype);
    if (p.away) {
      const std::int64_t bytes = stored_bytes(p.held, p.held_shape()).value, at = next.bytes > 0 ? mine.data - next.to : 0;
      if (next.bytes > 0 && p.value.get() == next.from + at && at >= next.bytes && at - next.bytes < 256) {
        next.bytes = at + bytes;
      } else {
        fetch();
        next = {p.value.get(), mine.data, bytes};
      }
    } else {
      fetch();  // it may lie in what would be a gap
      TensorView held = p.view();
      held.shape = mine.shape;
      backend_.copy(held, mine);
    }
    const Wire wire = wire_of(mine.dtype);
    if (p.shards > 1) parts.push_back({group, mine.data, whole, count * wire.per_element, wire});
  }
  fetch();
  for (const Group group : {Group::data_shard, Group::expert_data_shard}) {
    if (std::none_of(parts.begin(), parts.end(), [&](const Part& p) { return p.group == group; })) continue;
    Communicator& c = ranks_->need(group);
    if (fetched && !c.follow(backend_.copy_queue())) backend_.await(fetched);
    arriving_[index(slot)].push_back(issue(c, backend_, static_cast<bool>(clock_), [&] {
      c.begin_together();
      for (const Part& p : parts)
        if (p.group == group) c.all_gather(p.mine, p.whole, p.count, p.wire.dtype);
      c.end_together();
    }));
  }
}

}  // namespace moeplan
