#include "sim/engine/fair_share.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace moeplan {
namespace {
std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
}  // namespace

std::int32_t FairShare::add_link(BytesPerSecond capacity) {
  if (!(capacity.value > 0)) throw std::invalid_argument("a link's capacity must be above zero");
  links_.push_back({.capacity = capacity.value, .demand = 0, .flows = {}});
  reached_.emplace_back();
  return static_cast<std::int32_t>(links_.size() - 1);
}

std::vector<LinkUse> FairShare::clipped(std::span<const LinkUse> uses) const {
  std::vector<LinkUse> out;
  for (const LinkUse& use : uses)
    if (use.bytes_per_second > 0) out.push_back({use.link, std::min(use.bytes_per_second, links_[index(use.link)].capacity)});
  return out;
}

std::int32_t FairShare::start(std::span<const LinkUse> uses) {
  std::vector<LinkUse> own = clipped(uses);
  const std::int32_t id = start_in_place(own);
  flows_[index(id)].own = std::move(own);   // the elements stay where they are
  return id;
}

std::int32_t FairShare::start_in_place(std::span<const LinkUse> uses) {
  std::int32_t id;
  if (free_.empty()) {
    id = static_cast<std::int32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& f = flows_[index(id)];
  f.uses = uses;
  f.full = 0;
  f.speed = 1;
  touched_.clear();
  for (const LinkUse& use : uses) {
    Link& link = links_[index(use.link)];
    f.full = std::max(f.full, use.bytes_per_second);
    link.demand += use.bytes_per_second;
    link.flows.push_back({id, use.bytes_per_second});
    if (judge(use.link)) touched_.push_back(use.link);
  }
  changed_.clear();
  if (deferred_) waiting_.insert(waiting_.end(), touched_.begin(), touched_.end());
  else if (!touched_.empty()) share(touched_, id);
  return id;
}

void FairShare::end(std::int32_t flow) {
  Flow& f = flows_[index(flow)];
  touched_.clear();
  for (const LinkUse& use : f.uses) {
    Link& link = links_[index(use.link)];
    if (reached_[index(use.link)].contended) touched_.push_back(use.link);
    link.flows.erase(std::find_if(link.flows.begin(), link.flows.end(), [flow](const LinkUse& u) { return u.link == flow; }));
    // Summed anew, so that demand does not drift with the number of flows that passed.
    link.demand = 0;
    for (const LinkUse& other : link.flows) link.demand += other.bytes_per_second;
    judge(use.link);
  }
  f.uses = {};
  free_.push_back(flow);
  changed_.clear();
  if (deferred_) waiting_.insert(waiting_.end(), touched_.begin(), touched_.end());
  else if (!touched_.empty()) share(touched_, -1);
}

void FairShare::settle() {
  changed_.clear();
  if (waiting_.empty()) return;
  share(waiting_, -1);
  waiting_.clear();
}

bool FairShare::judge(std::int32_t link) {
  const Link& l = links_[index(link)];
  return reached_[index(link)].contended = l.flows.size() > 1 && l.demand > l.capacity * (1 + 1e-9);
}

void FairShare::reach(std::int32_t link) {
  Reached& r = reached_[index(link)];
  if (r.mark == mark_) return;
  r.mark = mark_;
  r.place = static_cast<std::int32_t>(component_.size());
  component_.push_back(link);
  filling_.push_back({.left = links_[index(link)].capacity});
}

/// Flows are coupled through the given links and through every contended one reached from them.
void FairShare::gather(std::span<const std::int32_t> from_links) {
  ++mark_;
  component_.clear();
  filling_.clear();
  parts_.clear();
  members_.clear();
  for (const std::int32_t l : from_links) reach(l);
  for (std::size_t i = 0; i < component_.size(); ++i) {
    for (const auto& [id, rate] : links_[index(component_[i])].flows) {
      Flow& flow = flows_[index(id)];
      if (flow.mark == mark_) continue;
      flow.mark = mark_;
      const auto begin = static_cast<std::uint32_t>(parts_.size());
      for (const LinkUse& use : flow.uses) {
        const Reached& link = reached_[index(use.link)];
        if (link.contended) reach(use.link);
        if (link.mark == mark_) parts_.push_back({link.place, use.bytes_per_second, use.bytes_per_second / flow.full});
      }
      members_.push_back({.flow = id, .begin = begin, .end = static_cast<std::uint32_t>(parts_.size()), .full = flow.full});
    }
  }
  // Sums do not depend on the order in which flows were met.
  std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) { return a.flow < b.flow; });
}

void FairShare::share(std::span<const std::int32_t> from_links, std::int32_t self) {
  gather(from_links);
  const auto parts = [this](const Member& m) { return std::span(parts_).subspan(m.begin, m.end - m.begin); };
  std::size_t open = members_.size();
  while (open > 0) {
    for (Filling& f : filling_) f.slope = 0;
    double level = std::numeric_limits<double>::infinity();
    for (const Member& m : members_) {
      if (m.fixed) continue;
      level = std::min(level, m.full);
      for (const Part& part : parts(m)) filling_[index(part.place)].slope += part.slope;
    }
    for (const Filling& f : filling_)
      if (f.slope > 0) level = std::min(level, std::max(0.0, f.left) / f.slope);
    // Which links are full, and which flows stop, is decided before any flow is fixed: fixing takes from `left`.
    for (Filling& f : filling_) f.full = f.slope > 0 && std::max(0.0, f.left) <= level * f.slope * (1 + 1e-12);
    for (Member& m : members_) {
      if (m.fixed) continue;
      const auto on = parts(m);
      m.stops = m.full <= level * (1 + 1e-12) || std::any_of(on.begin(), on.end(), [&](const Part& part) { return filling_[index(part.place)].full; });
    }
    bool stopped = false;
    for (Member& m : members_) {
      if (m.fixed || !m.stops) continue;
      const double speed = m.full <= level * (1 + 1e-12) ? 1.0 : level / m.full;
      m.fixed = stopped = true;
      --open;
      for (const Part& part : parts(m)) filling_[index(part.place)].left -= part.rate * speed;
      Flow& flow = flows_[index(m.flow)];
      if (speed != flow.speed && m.flow != self) changed_.push_back(m.flow);
      flow.speed = speed;
    }
    if (!stopped) break;
  }
}

}  // namespace moeplan
