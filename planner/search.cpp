#include <fmt/format.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "core/error.hpp"
#include "planner/certificate.hpp"
#include "planner/evaluate.hpp"
#include "planner/rules.hpp"
#include "planner/space.hpp"

namespace moeplan {
namespace {

/// What one group of candidates came to. Groups are merged in order, so that threads do not show in the answer.
struct GroupResult {
  std::vector<RankedPlan> feasible;
  std::map<std::string, std::int64_t> rejected;
  std::map<std::string, std::string> example;
  std::map<std::string, NearMiss> nearest;   ///< by memory rule: smallest need among those it rejects
};

void reject(GroupResult& r, const std::string& rule, const std::string& reason) {
  ++r.rejected[rule];
  r.example.try_emplace(rule, reason);
}

void too_large(GroupResult& r, const char* rule, const Plan& plan, const MemoryBreakdown& memory) {
  ++r.rejected[rule];
  const auto [it, fresh] = r.nearest.try_emplace(rule, NearMiss{plan, memory});
  if (!fresh && memory.peak() < it->second.memory.peak()) it->second = {plan, memory};
}

GroupResult evaluate(const Evaluator& shared, const CandidateGroup& group, const Problem& problem) {
  GroupResult out;
  const Bytes have = problem.cluster.device.memory;
  Evaluator::Group pricer(shared, group.plans.front());
  for (const Plan& plan : group.plans) {
    if (const auto rejection = first_rejection(problem, plan)) { reject(out, rejection->rule, rejection->reason); continue; }
    const MemoryBreakdown standing = pricer.standing(plan);
    if (standing.peak() > have) { too_large(out, "memory_states", plan, standing); continue; }
    const Forecast f = pricer.forecast(plan);
    if (f.memory_p95.peak() > have) { too_large(out, "memory_peak", plan, f.memory_p95); continue; }
    out.feasible.push_back({plan, f});
  }
  return out;
}

/// Throughputs within half a per cent are one to a model that is off by more than that.
constexpr double kResolution = 0.005;

/// Higher throughput first; of those the model cannot tell apart less memory, then the simpler layout.
bool better(const RankedPlan& a, const RankedPlan& b) {
  const auto key = [](const RankedPlan& r) {
    const Parallelism& p = r.plan.parallelism;
    return std::tuple(-std::floor(std::log(r.forecast.tokens_per_second) / kResolution), r.forecast.memory_p95.peak().value, p.pp, p.tp, p.ep, p.dp_shard, p.expert_shard, r.plan.micro_batch, static_cast<int>(r.plan.recompute), r.plan.reshard_after_forward, -r.forecast.tokens_per_second);
  };
  return key(a) < key(b);
}

}  // namespace

Answer plan(const Problem& problem, const SearchOptions& options) {
  const std::vector<CandidateGroup> groups = candidates(problem, options);
  Evaluator shared(problem, options.full_attention_flops);
  for (const CandidateGroup& group : groups) shared.prepare(group.plans.front());
  std::vector<GroupResult> results(groups.size());
  std::atomic<std::size_t> done{0};
  tbb::task_arena arena(options.threads > 0 ? std::min(options.threads, tbb::info::default_concurrency()) : tbb::task_arena::automatic);
  arena.execute([&] {
    tbb::parallel_for(std::size_t{0}, groups.size(), [&](std::size_t i) {
      results[i] = evaluate(shared, groups[i], problem);
      if (options.progress) options.progress(static_cast<double>(++done) / static_cast<double>(groups.size()));
    });
  });

  Answer answer;
  std::map<std::string, NearMiss> nearest;
  std::vector<RankedPlan> all;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    answer.searched += static_cast<std::int64_t>(groups[i].plans.size());
    for (auto& [rule, count] : results[i].rejected) answer.rejected[rule] += count;
    for (auto& [rule, reason] : results[i].example) answer.example.try_emplace(rule, reason);
    for (auto& [rule, miss] : results[i].nearest) {
      const auto [it, fresh] = nearest.try_emplace(rule, miss);
      if (!fresh && miss.memory.peak() < it->second.memory.peak()) it->second = miss;
    }
    for (RankedPlan& r : results[i].feasible) all.push_back(std::move(r));
  }
  for (const auto& [rule, miss] : nearest)
    answer.example[rule] = fmt::format("the closest one needs {} of a device's {} ({})", human(miss.memory.peak()), human(problem.cluster.device.memory),
                                       miss.memory.peak_at.empty() ? "states alone" : miss.memory.peak_at);
  answer.feasible = static_cast<std::int64_t>(all.size());
  if (all.empty()) {
    if (nearest.empty()) {
      std::string why;
      for (const auto& [rule, reason] : answer.example) why += (why.empty() ? "" : "; ") + rule + ": " + reason;
      throw InputError("plan", "no candidate passes the rules: " + why, "change the batch, the pinned degrees or the cluster");
    }
    // A candidate whose states fit came closer than one whose states alone do not.
    const auto peak = nearest.find("memory_peak");
    answer.infeasible = certificate(problem, peak != nearest.end() ? peak->second : nearest.begin()->second, options);
    return answer;
  }
  std::sort(all.begin(), all.end(), better);
  // Front over time per token and peak memory; on one cluster device-hours and money follow the time.
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t peak = all[i].forecast.memory_p95.peak().value;
    const bool front = peak < least;
    if (front) least = peak;
    if (front) answer.pareto.push_back(answer.plans.size());
    if (front || i < static_cast<std::size_t>(options.top)) answer.plans.push_back(std::move(all[i]));
  }
  return answer;
}

}  // namespace moeplan
