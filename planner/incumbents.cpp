#include "planner/incumbents.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "planner/intervals.hpp"

namespace moeplan {
namespace {

/// Throughputs within half a per cent are one to a model that is off by more than that.
constexpr double kResolution = 0.005;

}  // namespace

std::int64_t throughput_bin(double tokens_per_second) { return static_cast<std::int64_t>(std::floor(std::log(tokens_per_second) / kResolution)); }

Found found(const Problem& problem, const Plan& block, const ShardStages& s, std::size_t index, const Choice& c, const PeakBytes& memory, const Four& step, std::int64_t micro_batches) {
  const double tokens = static_cast<double>(block.micro_batch * micro_batches * s.dp) * static_cast<double>(problem.workload.sequence_length);
  Found f{.throughput = tokens / step_interval(step).high, .step = step, .block = index, .choice = c};
  f.bin = throughput_bin(f.throughput);
  f.peak = memory.p95;
  f.risk = out_of_memory_risk(memory.median, memory.p95, problem.cluster.device.memory.value);
  const Parallelism& p = block.parallelism;
  f.tie = {s.pp * s.virtual_stages, p.tp, p.ep, s.dense[c.dense].shard, s.expert[c.expert].shard, static_cast<std::int32_t>(block.micro_batch), static_cast<std::int32_t>(block.recompute), c.reshard, p.cp, p.etp};
  return f;
}

bool better(const Found& a, const Found& b) {
  return std::tuple(-a.bin, a.peak, a.tie, -a.throughput, a.block, a.choice.stages, a.choice.dense, a.choice.expert, !a.choice.reshard, a.choice.prefetch, a.choice.schedule) <
         std::tuple(-b.bin, b.peak, b.tie, -b.throughput, b.block, b.choice.stages, b.choice.dense, b.choice.expert, !b.choice.reshard, b.choice.prefetch, b.choice.schedule);
}

void Incumbents::add(const Found& found) {
  fresh_.push_back(found);
  if (fresh_.size() >= 32 + kept_.size() / 8) settle();   // a share of what is kept: settling takes time in its length
}

void Incumbents::settle() {
  if (fresh_.empty()) return;
  std::sort(fresh_.begin(), fresh_.end(), better);
  const auto settled = static_cast<std::ptrdiff_t>(kept_.size());
  kept_.insert(kept_.end(), fresh_.begin(), fresh_.end());
  std::inplace_merge(kept_.begin(), kept_.begin() + settled, kept_.end(), better);
  fresh_.clear();
  std::vector<Found> stays;
  std::vector<std::pair<std::int64_t, double>> before;   // undominated (peak, risk) so far
  front_.clear();
  least_.clear();
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Found& f : kept_) {
    const bool front = std::none_of(before.begin(), before.end(), [&](const auto& b) { return b.first <= f.peak && b.second <= f.risk; });
    if (front) before.emplace_back(f.peak, f.risk);
    if (!front && stays.size() >= top_) continue;
    if (f.risk == 0) least = std::min(least, f.peak);
    stays.push_back(f);
    front_.push_back(front);
    least_.push_back(least);
  }
  kept_ = std::move(stays);
}

bool Incumbents::hopeless(std::int64_t bin, std::int64_t peak) const {
  // Those that rank before it whatever it turns out to be.
  const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(least_.size());
  const auto before = static_cast<std::size_t>(std::partition_point(kept_.begin(), end, [&](const Found& f) { return f.bin > bin || (f.bin == bin && f.peak < peak); }) - kept_.begin());
  return before >= top_ && before > 0 && least_[before - 1] <= peak;
}

const std::vector<Found>& Incumbents::kept() {
  settle();
  return kept_;
}
const std::vector<bool>& Incumbents::front() {
  settle();
  return front_;
}

}  // namespace moeplan
