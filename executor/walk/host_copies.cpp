/// Kept values that wait in host memory. A copy out follows the call that made its value and runs beside what comes next; the place it leaves is
/// not written again before it has left (`claim`). Copies back begin with the backward pass, and a call waits for the values that it reads.

#include <algorithm>
#include <utility>

#include "executor/walk/walk.hpp"

namespace moeplan {

void Walk::copy_kept(const Instance& i, const BlockNode& n, const PassPlacement& place) {
  const bool leaves = std::get<CommCall>(n.call).collective == Collective::to_host;
  const ValueId here = leaves ? n.reads.front() : n.writes.front(), kept = leaves ? here : n.operands.front();
  const ArenaBuffer& buffer = arena_.buffers[index(place.values[index(here)])];
  const ArenaBuffer& away = arena_.host[index(arena_.lane(i.micro_batch).slots[index(i.slot)].host.at(kept))];
  const bool null = backend_.name() == "null";
  std::byte* const device = memory_.get() + (null ? 0 : buffer.offset);
  std::byte* const host = host_.get() + (null ? 0 : away.offset);
  Backend::CopyPoint point = leaves ? backend_.copy_beside(device, host, buffer.bytes) : backend_.copy_beside(host, device, buffer.bytes);
  if (clock_) timed_copies_.emplace_back(&i, &n);
  if (leaves)
    leaving_.push_back({buffer.offset, buffer.offset + buffer.bytes.value, std::move(point)});
  else
    returning_.push_back({i.micro_batch, i.slot, here, std::move(point)});
}

/// Before somebody writes to a buffer whose place another had: what leaves from there has left.
void Walk::claim(std::int32_t buffer) {
  if (leaving_.empty() || buffer < 0) return;
  const ArenaBuffer& mine = arena_.buffers[index(buffer)];
  const auto last = std::find_if(leaving_.rbegin(), leaving_.rend(), [&](const Leaving& each) {
    return each.begin < mine.offset + mine.bytes.value && mine.offset < each.end;
  });
  if (last == leaving_.rend()) return;
  await_copy(last->point);
  leaving_.erase(leaving_.begin(), last.base());  // those before it have left too
}

/// Before a call: what it reads is back, and what it writes to is free.
void Walk::meet_copies(const Instance& i, const BlockNode& n, const PassPlacement& place, std::int32_t workspace) {
  if (!returning_.empty()) {
    const Block& b = block_of(i.slot);
    const auto reads = [&](const Returning& each) {
      return each.micro_batch == i.micro_batch && each.slot == i.slot &&
             std::any_of(n.reads.begin(), n.reads.end(), [&](ValueId v) { return b.alias[index(v)] == each.value; });
    };
    // In the order of the lane: those before the last one that is read are back with it.
    const auto last = std::find_if(returning_.rbegin(), returning_.rend(), reads);
    if (last != returning_.rend()) {
      await_copy(last->point);
      returning_.erase(returning_.begin(), last.base());
    }
  }
  if (leaving_.empty()) return;
  for (const auto* list : {&n.writes, &n.gradients})
    for (const ValueId v : *list)
      if (v >= 0) claim(place.values[index(v)]);
  claim(workspace);
}

/// What is queued from here on comes after a copy.
void Walk::await_copy(const Backend::CopyPoint& point) {
  backend_.await(point);
  waited_ = true;
}

void Walk::settle_copies() {
  if (!leaving_.empty()) await_copy(leaving_.back().point);
  if (!returning_.empty()) await_copy(returning_.back().point);
  leaving_.clear(), returning_.clear();
  for (Backend::CopyPoint& point : fetching_)
    if (point) await_copy(std::exchange(point, nullptr));
}

}  // namespace moeplan
