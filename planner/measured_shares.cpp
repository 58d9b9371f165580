#include "planner/measured_shares.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/spec/profile_keys.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/cost/groups.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

struct Made {
  CommCall call;
  GroupShape where;
};

/// Calls that may run beside computing, one of each kind.
std::vector<Made> calls_of(const Problem& problem, const Plan& plan) {
  std::vector<Made> out;
  const auto add = [&](const CommCall& call) {
    const GroupShape where = group_shape(call.group, plan.parallelism);
    if (where.size <= 1 || is_host_copy(call.collective)) return;
    const auto alike = [&](const Made& m) { return m.call.collective == call.collective && m.call.group == call.group && m.call.beside_compute == call.beside_compute; };
    if (std::none_of(out.begin(), out.end(), alike)) out.push_back({call, where});
  };
  for (int stage = 0; stage < plan.parallelism.pp; ++stage) {
    const Program program = lower(problem, plan, stage * plan.parallelism.stage_ranks());
    for (const Block& b : program.blocks)
      for (const auto* pass : {&b.forward, &b.backward, &b.weight_backward})
        for (const BlockNode& node : *pass)
          if (const auto* call = std::get_if<CommCall>(&node.call); call && node.lane != Lane::compute) add(*call);
    const auto add_if = [&](Bytes payload, Collective c, Group g) {
      if (payload.value > 0) add({.collective = c, .group = g, .payload = payload});
    };
    for (const Slot& s : program.slots) {   // as slot_collectives prices them
      add_if(s.sharding.dense_gather, Collective::all_gather, Group::data_shard);
      add_if(s.sharding.expert_gather, Collective::all_gather, Group::expert_data_shard);
      add_if(s.sharding.tensor_reduce, Collective::all_reduce, Group::tensor);
      add_if(s.sharding.dense_reduce, Collective::reduce_scatter, Group::data_shard);
      add_if(s.sharding.dense_reduce, Collective::all_reduce, Group::data_replicate);
      add_if(s.sharding.expert_reduce, Collective::reduce_scatter, Group::expert_data_shard);
      add_if(s.sharding.expert_reduce, Collective::all_reduce, Group::expert_data_replicate);
    }
  }
  return out;
}

/// The profile with another share in the place of `s`.
DeviceProfile changed(const DeviceProfile& profile, const LinkSamples::Share& s) {
  DeviceProfile out = profile;
  const std::string begin = fmt::format("{} {} ", kDelayKey, s.collective), ranks = fmt::format(" ranks={} ", s.ranks), hosts = fmt::format(" hosts={} ", s.hosts);
  for (ProfileSample& sample : out.samples) {
    const std::string key = sample.key + ' ';
    const bool same_hosts = key.find(hosts) != std::string::npos || (s.hosts == 1 && key.find(" hosts=") == std::string::npos);
    if (key.starts_with(begin) && key.find(ranks) != std::string::npos && same_hosts) sample.median = {s.share > 0 ? 0.0 : 1e9};
  }
  return out;
}

}  // namespace

std::vector<LinkSamples::Share> measured_shares(const Problem& problem, std::span<const Plan> plans) {
  if (problem.profile.device.name != problem.cluster.device.name) return {};
  const std::vector<LinkSamples::Share> known = LinkSamples(problem.profile).shares();
  if (known.empty()) return {};
  std::vector<Made> calls;
  for (const Plan& plan : plans)
    for (Made& each : calls_of(problem, plan)) calls.push_back(each);
  const Links links(problem.cluster, problem.runtime, {}, problem.profile);
  std::vector<LinkSamples::Share> out;
  for (const LinkSamples::Share& s : known) {
    const Links other(problem.cluster, problem.runtime, {}, changed(problem.profile, s));
    if (std::any_of(calls.begin(), calls.end(), [&](const Made& m) { return links.lent(m.call, m.where) != other.lent(m.call, m.where); })) out.push_back(s);
  }
  return out;
}

}  // namespace moeplan
