#pragma once
/// What calls and messages of a job put on the links, found once each.

#include <map>
#include <memory>
#include <optional>

#include "sim/engine/engine.hpp"
#include "sim/engine/network.hpp"

namespace moeplan {

class LinkUses {
 public:
  LinkUses(const Job& job, const ClusterSpec* cluster, FairShare& links) : job_(job) {
    if (!cluster) return;
    std::vector<std::int64_t> devices;
    for (const JobRank& r : job.ranks) devices.push_back(r.rank);
    network_ = std::make_unique<Network>(*cluster, devices, links);
    calls_.resize(job.ranks.size());
    routes_.resize(job.ranks.size());
    for (auto& u : calls_) u.resize(job.calls.size());
    for (auto& u : routes_) u.resize(2 * job.calls.size());
  }

  [[nodiscard]] std::span<const LinkUse> of_call(std::int32_t rank, std::int32_t call) {
    if (!network_) return {};
    auto& known = calls_[index(rank)][index(call)];
    const JobCall& c = job_.calls[index(call)];
    if (!known) known = network_->collective(index(rank), c.bytes, to_seconds(c.duration).value);
    return *known;
  }

  [[nodiscard]] std::span<const LinkUse> of_message(std::int32_t from, std::int32_t to, std::int32_t call, bool downstream) {
    if (!network_ || to < 0) return {};
    auto& known = routes_[index(from)][2 * index(call) + (downstream ? 0 : 1)];
    const JobCall& c = job_.calls[index(call)];
    if (!known) {
      double bytes = 0;
      for (const double b : c.bytes) bytes = std::max(bytes, b);
      known = network_->message(index(from), index(to), bytes, to_seconds(c.duration).value);
    }
    return *known;
  }

  /// One member of a call that several played ranks make together.
  struct Member {
    std::int32_t rank = 0, call = 0;
    Picoseconds duration = 0;
  };
  /// Sum over the members; one that has less to send than the slowest sends more slowly. `group`: where all make the same call, it is
  /// found once for the group.
  [[nodiscard]] std::span<const LinkUse> of_joint(std::span<const Member> members, Picoseconds duration, std::int32_t group) {
    if (!network_) return {};
    const bool same = std::all_of(members.begin(), members.end(), [&](const Member& m) { return m.call == members.front().call; });
    if (!same) return joint_ = sum(members, duration);
    const auto [it, fresh] = joints_.try_emplace({group, members.front().call});
    if (fresh) it->second = sum(members, duration);
    return it->second;
  }

 private:
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  std::vector<LinkUse> sum(std::span<const Member> members, Picoseconds duration) {
    std::vector<LinkUse> uses;
    for (const Member& m : members) {
      const double stretch = duration > 0 ? static_cast<double>(m.duration) / static_cast<double>(duration) : 0;
      for (const LinkUse& u : of_call(m.rank, m.call)) {
        if (place_.size() <= index(u.link)) place_.resize(index(u.link) + 1, -1);
        std::int32_t& place = place_[index(u.link)];
        if (place < 0) { place = static_cast<std::int32_t>(uses.size()); uses.push_back({u.link, 0}); }
        uses[index(place)].bytes_per_second += u.bytes_per_second * stretch;
      }
    }
    for (const LinkUse& u : uses) place_[index(u.link)] = -1;
    return uses;
  }

  const Job& job_;
  std::unique_ptr<Network> network_;
  std::vector<std::vector<std::optional<std::vector<LinkUse>>>> calls_, routes_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<LinkUse>> joints_;   ///< by group and call
  std::vector<LinkUse> joint_;
  std::vector<std::int32_t> place_;
};

}  // namespace moeplan
