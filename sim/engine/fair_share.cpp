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
  links_.push_back({.capacity = capacity.value, .demand = 0, .flows = {}, .mark = 0, .left = 0, .slope = 0});
  return static_cast<std::int32_t>(links_.size() - 1);
}

std::int32_t FairShare::start(std::span<const LinkUse> uses) {
  std::int32_t id;
  if (free_.empty()) {
    id = static_cast<std::int32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& f = flows_[index(id)];
  f.uses.clear();
  f.full = 0;
  f.speed = 1;
  touched_.clear();
  for (const LinkUse& use : uses) {
    Link& link = links_[index(use.link)];
    const double rate = std::min(use.bytes_per_second, link.capacity);
    if (rate <= 0) continue;
    f.uses.push_back({use.link, rate});
    f.full = std::max(f.full, rate);
    link.demand += rate;
    link.flows.push_back({id, rate});
    if (link.contended()) touched_.push_back(use.link);
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
    if (link.contended()) touched_.push_back(use.link);
    link.flows.erase(std::find_if(link.flows.begin(), link.flows.end(), [flow](const LinkUse& u) { return u.link == flow; }));
    // Summed anew, so that demand does not drift with the number of flows that passed.
    link.demand = 0;
    for (const LinkUse& other : link.flows) link.demand += other.bytes_per_second;
  }
  f.uses.clear();
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

void FairShare::share(std::span<const std::int32_t> from_links, std::int32_t self) {
  ++mark_;
  component_flows_.clear();
  component_links_.clear();
  // Flows are coupled through the given links and through every contended one reached from them.
  const auto reach = [&](std::int32_t l) {
    Link& link = links_[index(l)];
    if (link.mark == mark_) return;
    link.mark = mark_;
    component_links_.push_back(l);
  };
  for (const std::int32_t l : from_links) reach(l);
  for (std::size_t i = 0; i < component_links_.size(); ++i) {
    for (const auto& [f, rate] : links_[index(component_links_[i])].flows) {
      Flow& flow = flows_[index(f)];
      if (flow.mark == mark_) continue;
      flow.mark = mark_;
      component_flows_.push_back(f);
      for (const LinkUse& use : flow.uses)
        if (links_[index(use.link)].contended()) reach(use.link);
    }
  }
  std::sort(component_flows_.begin(), component_flows_.end());
  for (const std::int32_t l : component_links_) links_[index(l)].left = links_[index(l)].capacity;
  for (const std::int32_t f : component_flows_) flows_[index(f)].fixed = false;
  std::size_t open = component_flows_.size();
  while (open > 0) {
    for (const std::int32_t l : component_links_) links_[index(l)].slope = 0;
    double level = std::numeric_limits<double>::infinity();
    for (const std::int32_t f : component_flows_) {
      const Flow& flow = flows_[index(f)];
      if (flow.fixed) continue;
      level = std::min(level, flow.full);
      for (const LinkUse& use : flow.uses)
        if (links_[index(use.link)].mark == mark_) links_[index(use.link)].slope += use.bytes_per_second / flow.full;
    }
    for (const std::int32_t l : component_links_) {
      const Link& link = links_[index(l)];
      if (link.slope > 0) level = std::min(level, std::max(0.0, link.left) / link.slope);
    }
    bool stopped = false;
    const auto fix = [&](Flow& flow, std::int32_t id) {
      const double speed = flow.full <= level * (1 + 1e-12) ? 1.0 : level / flow.full;
      flow.fixed = true;
      stopped = true;
      --open;
      for (const LinkUse& use : flow.uses)
        if (links_[index(use.link)].mark == mark_) links_[index(use.link)].left -= use.bytes_per_second * speed;
      if (speed != flow.speed && id != self) changed_.push_back(id);
      flow.speed = speed;
    };
    // Which links are full is decided before any flow is fixed: fixing takes from `left`.
    touched_.clear();
    for (const std::int32_t f : component_flows_) {
      const Flow& flow = flows_[index(f)];
      if (flow.fixed) continue;
      bool stop = flow.full <= level * (1 + 1e-12);
      for (const LinkUse& use : flow.uses) {
        const Link& link = links_[index(use.link)];
        stop = stop || (link.mark == mark_ && link.slope > 0 && std::max(0.0, link.left) <= level * link.slope * (1 + 1e-12));
      }
      if (stop) touched_.push_back(f);
    }
    for (const std::int32_t f : touched_) fix(flows_[index(f)], f);
    if (!stopped) break;
  }
}

}  // namespace moeplan
