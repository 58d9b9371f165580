/// What is under way between ranks while others compute: when it is waited for, and how much of it was hidden.

#include <algorithm>
#include <utility>

#include "executor/walk/pieces.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {

/// What calls to other ranks read and write: as the communicators want it.
Backend::Memory Walk::allocate_shared(Bytes bytes, const std::string& what) {
  if (ranks_ && options_.registers)
    if (Backend::Memory memory = ranks_->world().shareable(bytes.value)) return memory;
  return backend_.allocate(bytes, what);
}

/// Both of what a call may read or write, so that all its ranks have registered memory wherever their rows lie. What gathers read, the
/// pieces that ranks keep, is not.
void Walk::register_memory() {
  if (!ranks_ || !options_.registers) return;
  for (const auto& [memory, bytes] : {std::pair{memory_, arena_.size}, std::pair{staging_, staged_.buffer}}) {
    RankGroups::Registrations done = ranks_->register_memory(memory, bytes);
    if (!done.refused.empty()) registered_.refused = std::move(done.refused);
    if (done.handles.empty()) continue;
    registered_.bytes += bytes;
    registered_.communicators = std::max(registered_.communicators, done.handles.size());
    registrations_.insert(registrations_.end(), done.handles.begin(), done.handles.end());
  }
}

/// The backend's queue has what is under way. What it waited for here was not hidden.
void Walk::await(UnderWay way, Overlap& of, const Instance* instance, const BlockNode* node) {
  way.await(backend_);
  if (!clock_) return;
  timed_.emplace_back(instance, node), backend_.stamp();
  awaited_.push_back({std::move(way), &of, timed_.size() - 1});
}

/// Puts down the rows that a call reads; all of them before a pass ends.
void Walk::land(const Block& block, const BlockNode* reader) {
  std::vector<InFlight> later;
  for (InFlight& each : in_flight_) {
    const bool now = !reader || std::any_of(reader->reads.begin(), reader->reads.end(), [&](ValueId v) {
      return whole_of(block, v) == each.value && (piece_of(block, v) < 0 || piece_of(block, v) == each.piece);
    });
    now ? land(each) : later.push_back(std::move(each));
  }
  in_flight_ = std::move(later);
}

void Walk::land(const InFlight& each) {
  await(each.landing.way, overlaps_.exchange, each.instance, each.node);
  each.landing.place();
  if (clock_) timed_.emplace_back(each.instance, each.node), backend_.stamp();
}

/// What runs from here on has the slot's gathered weights.
void Walk::await_weights(std::int32_t slot) {
  for (UnderWay& way : arriving_[index(slot)]) {
    if (way.there) begin_clock();
    await(std::move(way), overlaps_.gather, nullptr, nullptr);
  }
  arriving_[index(slot)].clear();
  if (fetching_[index(slot)]) backend_.await(std::exchange(fetching_[index(slot)], nullptr));
}

}  // namespace moeplan
