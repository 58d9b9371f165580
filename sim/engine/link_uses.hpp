#pragma once
/// What calls and messages of a job put on the links, found once each, and kept in place for FairShare::start_in_place.

#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include "sim/engine/engine.hpp"
#include "sim/engine/network.hpp"

namespace moeplan {

class LinkUses {
 public:
  LinkUses(const Job& job, const ClusterSpec* cluster, FairShare& links) : job_(job), links_(links) {
    if (!cluster) return;
    std::vector<std::int64_t> devices;
    for (const JobRank& r : job.ranks) devices.push_back(r.rank);
    network_ = std::make_unique<Network>(*cluster, devices, links);
    std::vector<std::vector<std::int32_t>> of_program;
    for (const JobProgram& p : job.programs) of_program.push_back(calls_of(p));
    for (const JobRank& r : job.ranks) {
      first_.push_back(numbers_.size());
      numbers_.insert(numbers_.end(), of_program[index(r.program)].begin(), of_program[index(r.program)].end());
    }
    first_.push_back(numbers_.size());
    calls_.resize(numbers_.size());
    wanted_.resize(numbers_.size());
    routes_.resize(2 * numbers_.size());
  }

  [[nodiscard]] std::span<const LinkUse> of_call(std::int32_t rank, std::int32_t call) {
    if (!network_) return {};
    Known& known = calls_[place(rank, call)];
    if (!known.found) known = keep(links_.clipped(collective(rank, call)));
    return known.uses;
  }

  [[nodiscard]] std::span<const LinkUse> of_message(std::int32_t from, std::int32_t to, std::int32_t call, bool downstream) {
    if (!network_ || to < 0) return {};
    Known& known = routes_[2 * place(from, call) + (downstream ? 0 : 1)];
    if (!known.found) {
      const JobCall& c = job_.calls[index(call)];
      double bytes = 0;
      for (const double b : c.bytes) bytes = std::max(bytes, b);
      known = keep(links_.clipped(network_->message(index(from), index(to), bytes, to_seconds(c.duration).value)));
    }
    return known.uses;
  }

  /// One member of a call that several played ranks make together.
  struct Member {
    std::int32_t rank = 0, call = 0;
    Picoseconds duration = 0;
  };
  /// Sum over the members; one that has less to send than the slowest sends more slowly. `group`: where all make the same call, it is
  /// found once for the group; else it is kept until `call`, the running call's number, has ended and makes another.
  [[nodiscard]] std::span<const LinkUse> of_joint(std::span<const Member> members, Picoseconds duration, std::int32_t group, std::int32_t call) {
    if (!network_) return {};
    const bool same = std::all_of(members.begin(), members.end(), [&](const Member& m) { return m.call == members.front().call; });
    if (!same) return mixed_[call] = links_.clipped(sum(members, duration));
    const auto [it, fresh] = joints_.try_emplace({group, members.front().call});
    if (fresh) it->second = links_.clipped(sum(members, duration));
    return it->second;
  }

 private:
  struct Known {
    std::span<const LinkUse> uses;
    bool found = false;
  };
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  /// Distinct calls of a program, ascending.
  std::vector<std::int32_t> calls_of(const JobProgram& p) const {
    std::vector<std::int32_t> out;
    for (const Task& t : p.tasks) {
      if (t.call >= 0) out.push_back(t.call);
      if (t.kind != Task::Kind::pass) continue;
      for (const Step& s : job_.passes[index(t.pass)].steps)
        if (s.call >= 0) out.push_back(s.call);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }
  /// Only what a rank's own program calls has a place, so that ranks with programs of their own stay linear in memory.
  std::size_t place(std::int32_t rank, std::int32_t call) const {
    const auto begin = numbers_.begin() + static_cast<std::ptrdiff_t>(first_[index(rank)]), end = numbers_.begin() + static_cast<std::ptrdiff_t>(first_[index(rank) + 1]);
    return static_cast<std::size_t>(std::lower_bound(begin, end, call) - numbers_.begin());
  }
  Known keep(std::vector<LinkUse> uses) { return {kept_.emplace_back(std::move(uses)), true}; }
  std::vector<LinkUse> collective(std::int32_t rank, std::int32_t call) const {
    const JobCall& c = job_.calls[index(call)];
    return network_->collective(index(rank), c.bytes, to_seconds(c.duration).value);
  }
  /// What a member wants of the links, above their capacity or not.
  std::span<const LinkUse> wanted(std::int32_t rank, std::int32_t call) {
    Known& known = wanted_[place(rank, call)];
    if (!known.found) known = keep(collective(rank, call));
    return known.uses;
  }
  std::vector<LinkUse> sum(std::span<const Member> members, Picoseconds duration) {
    std::vector<LinkUse> uses;
    for (const Member& m : members) {
      const double stretch = duration > 0 ? static_cast<double>(m.duration) / static_cast<double>(duration) : 0;
      for (const LinkUse& u : wanted(m.rank, m.call)) {
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
  const FairShare& links_;
  std::unique_ptr<Network> network_;
  std::vector<std::size_t> first_;                       ///< per rank: its first place
  std::vector<std::int32_t> numbers_;                    ///< per place: the call
  std::vector<Known> calls_, wanted_, routes_;           ///< per place; routes: per direction
  std::deque<std::vector<LinkUse>> kept_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<LinkUse>> joints_;   ///< by group and call
  std::map<std::int32_t, std::vector<LinkUse>> mixed_;                             ///< by running call
  std::vector<std::int32_t> place_;
};

}  // namespace moeplan
