#include "sim/cost/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "kernels/row_runs.hpp"
#include "sim/cost/channels.hpp"

namespace moeplan {
namespace {

/// NCCL 2.28.9 src/graph/tuning.cc, microseconds.
enum Protocol : std::size_t { kLL, kLL128, kSimple, kProtocols };
struct Hop { double tree, ring; };
constexpr std::array<Hop, kProtocols> kBase{{{6.8, 6.6}, {14.0, 14.0}, {8.4, 8.4}}};
constexpr std::array<Hop, kProtocols> kScaleUpHop{{{0.6, 0.6}, {1.25, 1.9}, {4.0, 3.4}}};
constexpr std::array<Hop, kProtocols> kPcieHop{{{1.0, 1.0}, {1.9, 2.5}, {4.0, 5.7}}};
constexpr std::array<Hop, kProtocols> kNetHop{{{5.0, 2.7}, {8.5, 4.0}, {14.0, 14.0}}};
constexpr double kNvlsBase = 25.0, kNvlsTreeHop = 20.9;
/// Least time that a ring step inside a node takes when the ring also crosses the network (Intel hosts; three times for Simple).
constexpr double kNetOverhead = 1.0;
/// LL moves 8 bytes of data in 16; LL128 120 in 128, of which NCCL counts on 0.92. Tree LL reaches 1/3.8 of the ring.
constexpr std::array<double, kProtocols> kRingShare{0.5, 0.92, 1.0}, kTreeShare{1 / 3.8, 0.92, 1.0};
/// LL ceiling on the bus bandwidth: 141 of 450 GB/s on Hopper, 282 of 900 on Blackwell, 87.7 of 300 on Ampere in one node; 39 and
/// 20.4 GB/s on two and on more nodes (Intel hosts).
constexpr double kLLShareOfScaleUp = 0.313, kLLTwoNodes = 39e9, kLLManyNodes = 20.4e9;
/// The tree pattern against the ring's rate in a node (tuning.cc: 0.85).
constexpr double kTreePattern = 0.85;
/// NCCL picks NVLS from 5 GPUs up on H200, from 6 on B200 (2.27.7, ml-engineering network chapter).
constexpr double kNvlsFrom = 5;
/// Central 90 % of measured over predicted time, docs/cost.md (collectives; expert exchanges).
constexpr double kCollectiveLow = 0.80, kCollectiveHigh = 2.0, kExchangeLow = 0.80, kExchangeHigh = 1.5;
/// Reading the counts back: a 4 KB copy to the host (6.9 us) and two launches (4.6 us each), measured on one H200, 2026-11-29.
constexpr double kHostRead = 16.1e-6;
/// A copy of rows that the host issues: 64 of 3 MiB took 284 us where their bytes take 104, measured on one H200, 2026-11-30. One launch takes kRowRuns of them.
constexpr double kRowCopy = 4.4e-6;
/// A small copy between device and host: 6.9 us, the same measurement.
constexpr double kHostCopyLatency = 6.9e-6;
/// Mean wait in the notify kernels of DeepSeek's production trace, EP64: 2.0 ms, because they wait for the slowest peer.
constexpr double kNotifyHigh = 2.0e-3;

double hop(const std::array<Hop, kProtocols>& table, Protocol p, bool tree, double latency_us) {
  return (tree ? table[p].tree : table[p].ring) * latency_us / table[kLL].ring;
}
const std::array<Hop, kProtocols>& hops_of(LinkKind kind) {
  return kind == LinkKind::scale_up ? kScaleUpHop : kind == LinkKind::pcie ? kPcieHop : kNetHop;
}

/// Rounds in which `ranks` x `runs` affine maps are combined into every prefix.
double scan_rounds(std::int64_t ranks, std::int64_t runs) { return std::ceil(std::log2(static_cast<double>(ranks * std::max<std::int64_t>(1, runs)))); }

/// What carries the call in the samples; empty for what has none.
std::string sampled_as(Collective collective) {
  switch (collective) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_reduce:
    case Collective::send_receive: return std::string(name_of(collective));
    case Collective::dispatch:
    case Collective::combine:
    case Collective::all_to_all: return "dispatch";
    default: return {};
  }
}

}  // namespace

Links::Links(const ClusterSpec& cluster, const Runtime& runtime, const ExpertPlaces& places, const DeviceProfile& profile)
    : places_(places), deduplicated_(runtime.deduplicated_dispatch), orders_rows_(runtime.own_kernels), launch_(runtime.launch_overhead.value), host_rate_(cluster.device.host_link.value * kHostLinkShare),
      memory_rate_(cluster.device.memory_bandwidth.value * cluster.device.achieved_bandwidth), multiprocessors_(static_cast<double>(cluster.device.multiprocessors)) {
  if (profile.device.name == cluster.device.name)
    if (LinkSamples samples(profile); !samples.empty()) samples_ = std::make_shared<const LinkSamples>(std::move(samples));
  if (cluster.tiers.empty() || cluster.tiers.size() > kMaxTiers)
    throw InputError(cluster.name + ": tiers", fmt::format("{} tiers", cluster.tiers.size()), fmt::format("give 1 to {}", kMaxTiers));
  for (const LinkTier& t : cluster.tiers) {
    const double b = t.bandwidth.value;
    const Channels channels = nccl_channels(cluster, tiers_);
    tier_[tiers_++] = {t.kind, t.span == 0 ? 1e9 : static_cast<double>(t.span), b, b * t.efficiency, b * t.all_to_all_efficiency, b * t.in_network_reduction,
                       t.latency.value, t.dispatch_latency.value, channels.collectives, channels.sends};
  }
}

Links Links::placed(const ExpertPlaces& places) const {
  Links out = *this;
  out.places_ = places;
  return out;
}

std::array<double, kMaxTiers> Links::members(GroupShape group) const {
  const double n = static_cast<double>(group.size), stride = static_cast<double>(group.stride);
  std::array<double, kMaxTiers> m{};
  for (std::size_t t = 0; t < tiers_; ++t) m[t] = t + 1 == tiers_ ? n : std::clamp(std::floor(tier_[t].span / stride), 1.0, n);
  return m;
}

double Links::lent(const CommCall& call, GroupShape group) const {
  if (group.size <= 1 || multiprocessors_ <= 0 || is_host_copy(call.collective)) return 0;
  const auto m = members(group);
  std::size_t outermost = 0;
  while (outermost + 1 < tiers_ && m[outermost] < static_cast<double>(group.size)) ++outermost;
  const Tier& tier = tier_[outermost];
  const bool once = deduplicated_ && (call.collective == Collective::dispatch || call.collective == Collective::combine);
  if (const std::string name = sampled_as(call.collective); samples_ && !once && !name.empty())
    if (const auto share = samples_->share(name, group.size, outermost == 0 ? 1 : tier_[outermost - 1].span, tier.span, tier.kind == LinkKind::network || outermost > 0)) {
      // Rows that move beside computing take longer than alone, and what was measured they cost once.
      const bool longer = call.beside_compute && (call.collective == Collective::dispatch || call.collective == Collective::combine);
      return std::min(*share * (longer ? kOverlappedExchangeRate : 1), kMostLent);
    }
  double held = tier.channels;
  switch (call.collective) {
    case Collective::dispatch: case Collective::combine: held = deduplicated_ && tier.send_channels > 0 ? channel_rules().token_once : tier.send_channels; break;
    case Collective::all_to_all: held = tier.send_channels; break;
    case Collective::send_receive: case Collective::state_chain: case Collective::state_scan:
      held = tier.kind == LinkKind::network ? std::min(channel_rules().neighbour_over_network, tier.send_channels) : tier.send_channels;
      break;
    default: break;
  }
  return std::min(held / multiprocessors_, kMostLent);
}

double Links::rate(std::size_t tier, bool exchange) const { return exchange ? tier_[tier].exchange_rate : tier_[tier].collective_rate; }

TierBytes Links::bytes(const CommCall& call, GroupShape group) const {
  TierBytes out{};
  const double n = static_cast<double>(group.size), payload = static_cast<double>(call.payload.value);
  if (group.size <= 1) return out;
  const auto m = members(group);
  for (std::size_t t = 0; t < tiers_; ++t) {
    const double inner = t == 0 ? 1 : m[t - 1];
    if (m[t] <= inner) continue;
    switch (call.collective) {
      case Collective::all_gather:
      case Collective::reduce_scatter: out[t] = payload * (n - 1) / n / inner; break;
      case Collective::all_reduce: out[t] = 2 * payload * (n - 1) / n / inner; break;
      case Collective::dispatch:
      case Collective::combine:
        if (deduplicated_ && call.rows > 0 && call.tokens > 0) {
          // Copies to distinct domains of the tier inside this one, those that leave the sender's own.
          const double rows = static_cast<double>(call.rows), tokens = static_cast<double>(call.tokens);
          // Direct: to each rank that holds one of its experts, whatever lies between.
          const double copies = std::min(rows, tokens * distinct_domains(static_cast<double>(call.experts), rows / tokens, call.direct ? n : n / inner, places_));
          out[t] = payload / rows * copies * (call.direct ? (m[t] - inner) / n : 1 - inner / m[t]);
        } else {
          out[t] = payload * (m[t] - inner) / n;
        }
        break;
      case Collective::send_receive:
      case Collective::state_chain: out[t] = payload; break;
      case Collective::state_scan: out[t] = payload * scan_rounds(group.size, call.rows); break;
      case Collective::all_to_all: out[t] = payload * (m[t] - inner) / n; break;
      case Collective::to_host:
      case Collective::from_host: break;
    }
  }
  if (call.collective == Collective::send_receive || call.collective == Collective::state_chain || call.collective == Collective::state_scan) {  // neighbours; the farthest pair sets the pace
    std::size_t far = 0;
    for (std::size_t t = 0; t < tiers_; ++t)
      if (out[t] > 0) far = t;
    for (std::size_t t = 0; t < far; ++t) out[t] = 0;
  }
  return out;
}

double Links::all_reduce_tree(double payload, const std::array<double, kMaxTiers>& m) const {
  double best = 1e30, up = 0, latency_nvls = kNvlsBase;
  const bool nvls = tier_[0].in_network_rate > 0 && m[0] >= kNvlsFrom;
  std::array<double, kMaxTiers> tier_time{};
  double k = 1;
  for (std::size_t t = 1; t < tiers_; ++t) {
    const double r = m[t] / m[t - 1];
    if (r <= 1) continue;
    k *= r;
    // Two binary trees of half the payload each: 2 (r - 1) edges, half of it up and half down, over r domains with m[t-1] links.
    tier_time[t] = 2 * payload * (r - 1) / r / m[t - 1] / tier_[t].collective_rate;
    up = std::max(up, tier_time[t]);
    latency_nvls += 2 * std::log2(r) * kNvlsTreeHop * (tier_[t].latency * 1e6 / kNetHop[kLL].ring);
  }
  if (nvls) best = latency_nvls * 1e-6 + std::max(up, payload / tier_[0].in_network_rate);
  if (k <= 1) return best;
  const double inside = m[0] > 1 ? 2 * payload * (m[0] - 1) / m[0] / (tier_[0].collective_rate * kTreePattern) : 0;
  for (const Protocol p : {kLL, kLL128, kSimple}) {
    double us = kBase[p].tree + 2 * (m[0] - 1) * hop(hops_of(tier_[0].kind), p, true, tier_[0].latency * 1e6);
    for (std::size_t t = 1; t < tiers_; ++t)
      if (m[t] > m[t - 1]) us += 2 * std::log2(m[t] / m[t - 1]) * hop(hops_of(tier_[t].kind), p, true, tier_[t].latency * 1e6);
    best = std::min(best, us * 1e-6 + std::max(inside, up) / kTreeShare[p]);
  }
  return best;
}

double Links::collective(Collective op, double payload, GroupShape group) const {
  const auto m = members(group);
  const double n = static_cast<double>(group.size), times = op == Collective::all_reduce ? 2 : 1;
  CommCall call;
  call.collective = op;
  call.payload = {static_cast<std::int64_t>(payload)};
  const TierBytes b = bytes(call, group);
  double slowest = 0, domains = 1;
  for (std::size_t t = 0; t < tiers_; ++t) {
    if (b[t] > 0) slowest = std::max(slowest, b[t] / tier_[t].collective_rate);
    if (t > 0 && m[t] > m[t - 1]) domains *= m[t] / m[t - 1];
  }
  const double ll_cap = domains <= 1 ? kLLShareOfScaleUp * tier_[0].bandwidth : domains < 4 ? kLLTwoNodes : kLLManyNodes;
  double best = op == Collective::all_reduce ? all_reduce_tree(payload, m) : 1e30;
  for (const Protocol p : {kLL, kLL128, kSimple}) {
    double us = kBase[p].ring;
    for (std::size_t t = 0; t < tiers_; ++t) {
      const double inner = t == 0 ? 1 : m[t - 1];
      if (m[t] <= inner) continue;
      double step = hop(hops_of(tier_[t].kind), p, false, tier_[t].latency * 1e6);
      if (t == 0 && domains > 1) step = std::max(step, kNetOverhead * (p == kSimple ? 3 : 1));
      us += times * (n / inner - n / m[t]) * step;  // hops of the ring that cross this tier and no wider one
    }
    double transfer = slowest / kRingShare[p];
    if (p == kLL) transfer = std::max(transfer, times * payload * (n - 1) / n / ll_cap);
    best = std::min(best, us * 1e-6 + transfer);
  }
  return best;
}

double Links::message_latency(std::size_t tier) const {
  return (kBase[kSimple].ring + hop(hops_of(tier_[tier].kind), kSimple, false, tier_[tier].latency * 1e6)) * 1e-6;
}

/// Samples are of neighbours: they hold within a domain wherever its ranks are, and beyond it for as many consecutive ranks.
bool Links::lies_as_measured(GroupShape group) const {
  return samples_ && group.size > 1 && (group.stride == 1 || (tier_[0].kind != LinkKind::network && members(group)[0] >= static_cast<double>(group.size)));
}

namespace {
/// Hosts of `ranks` of which `inner` share a domain of the first tier; where that is a network, each is a host of its own.
std::int64_t hosts_of(LinkKind first, double ranks, double inner) { return static_cast<std::int64_t>(std::ceil(first == LinkKind::network ? ranks : ranks / inner)); }
}  // namespace

/// Measured with as many rows for every other rank: longer for the busiest, and beside compute.
std::optional<Estimate> Links::measured(const CommCall& call, GroupShape group, double skew) const {
  const std::string name = sampled_as(call.collective);
  const double n = static_cast<double>(group.size);
  if (!lies_as_measured(group) || name.empty()) return std::nullopt;
  const bool rows = call.collective == Collective::dispatch || call.collective == Collective::combine;
  const TierBytes sent = bytes(call, group);
  if (rows && deduplicated_ && sent[0] < std::accumulate(sent.begin(), sent.end(), 0.0)) return std::nullopt;   // hop by hop, which was not measured
  const double payload = rows ? std::accumulate(sent.begin(), sent.end(), 0.0) * n / (n - 1) * std::max(1.0, skew) : static_cast<double>(call.payload.value);
  const std::int64_t hosts = hosts_of(tier_[0].kind, n, members(group)[0]);
  const auto known = samples_->time(name, group.size, payload, hosts);
  if (!known) return std::nullopt;
  double time = known->seconds;
  if (rows && call.beside_compute) {
    const double latency = samples_->time(name, group.size, 0, hosts)->seconds;
    time = latency + std::max(0.0, time - latency) / kOverlappedExchangeRate;
  }
  const bool exact = known->exact && !(rows && call.beside_compute);
  const double low = exact ? 1 - std::min(1.0, known->spread) : kExchangeLow, high = exact ? 1 + known->spread : kExchangeHigh, besides = rows ? ordering(call, group, skew) : 0;
  return Estimate{{time + besides}, {time * low + besides}, {time * high + besides}, exact && besides == 0 ? Basis::measured : Basis::interpolated};
}

/// Rows are read and written once more, in runs of each local expert and rank.
double Links::ordering(const CommCall& call, GroupShape group, double skew) const {
  if (!orders_rows_) return 0;
  const double copies = std::max(static_cast<double>(call.experts), static_cast<double>(group.size));
  return std::max(2 * static_cast<double>(call.payload.value) * std::max(1.0, skew) / memory_rate_, std::ceil(copies / kRowRuns) * kRowCopy);
}

Estimate Links::price(const CommCall& call, GroupShape group, double skew) const {
  if (is_host_copy(call.collective)) {
    const double copy = host_rate_ > 0 ? static_cast<double>(call.payload.value) / host_rate_ + kHostCopyLatency + launch_ : 0;
    return {{copy}, {copy * kCollectiveLow}, {copy * kCollectiveHigh}, Basis::roofline};
  }
  if (group.size <= 1) return {};
  if (const auto known = measured(call, group, skew)) return *known;
  double time = 0, low = kCollectiveLow, high = kCollectiveHigh;
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_reduce: time = collective(call.collective, static_cast<double>(call.payload.value), group); break;
    case Collective::dispatch:
    case Collective::combine: {
      const TierBytes b = bytes(call, group);
      double latency = 0;
      for (std::size_t t = 0; t < tiers_; ++t) {
        if (b[t] > 0) time = std::max(time, b[t] / tier_[t].exchange_rate);
        const double inner = t == 0 ? 1 : members(group)[t - 1];
        if (members(group)[t] > inner) latency = std::max(latency, tier_[t].dispatch_latency);
      }
      time = time * std::max(1.0, skew) / (call.beside_compute ? kOverlappedExchangeRate : 1) + latency;
      low = kExchangeLow, high = kExchangeHigh;
      break;
    }
    case Collective::send_receive: {
      const TierBytes b = bytes(call, group);
      for (std::size_t t = 0; t < tiers_; ++t)
        if (b[t] > 0)
          time = b[t] / tier_[t].collective_rate + message_latency(t);
      break;
    }
    case Collective::to_host:
    case Collective::from_host: break;   // priced above
    case Collective::all_to_all: {
      const TierBytes b = bytes(call, group);
      double latency = 0;
      for (std::size_t t = 0; t < tiers_; ++t) {
        if (b[t] <= 0) continue;
        time = std::max(time, b[t] / tier_[t].exchange_rate);
        latency = message_latency(t);
      }
      time += latency;
      break;
    }
    case Collective::state_chain: {
      // One run after the other, up the ranks and down again: the hops of all tiers add up, each with one run's state.
      const auto m = members(group);
      const double n = static_cast<double>(group.size), runs = static_cast<double>(std::max<std::int64_t>(1, call.rows)), state = static_cast<double>(call.payload.value) / runs;
      for (std::size_t t = 0; t < tiers_; ++t)
        time += runs * std::max(0.0, n / (t == 0 ? 1 : m[t - 1]) - n / m[t]) * (state / tier_[t].collective_rate + message_latency(t));
      break;
    }
    case Collective::state_scan: {
      const TierBytes b = bytes(call, group);
      for (std::size_t t = 0; t < tiers_; ++t)
        if (b[t] > 0) time = b[t] / tier_[t].collective_rate + scan_rounds(group.size, call.rows) * message_latency(t);
      break;
    }
  }
  time += launch_;
  return {{time}, {time * low}, {time * high}, Basis::roofline};
}

Estimate Links::host_wait(GroupShape group) const {
  const auto m = members(group);
  if (lies_as_measured(group))
    if (const auto known = samples_->time("counts", group.size, 0, hosts_of(tier_[0].kind, static_cast<double>(group.size), m[0]))) return {{known->seconds}, {known->seconds}, {std::max(known->seconds, kNotifyHigh)}, Basis::interpolated};
  double latency = 0;
  for (std::size_t t = 0; t < tiers_; ++t)
    if (m[t] > (t == 0 ? 1 : m[t - 1])) latency = std::max(latency, tier_[t].dispatch_latency);
  const double time = latency + kHostRead;
  return {{time}, {time}, {group.size > 1 ? std::max(time, kNotifyHigh) : time}, Basis::roofline};
}

}  // namespace moeplan
