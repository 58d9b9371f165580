#include "cli/compare_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "planner/exchange_options.hpp"
#include "sim/load/expert_load.hpp"
#include "sim/load/random.hpp"

namespace moeplan::cli {
namespace {

constexpr std::size_t kParts = 10;   ///< of a step's passes

/// Most of a step function in each part of [0, end): `points` by time, each holding until the next; those behind it count for the last.
std::array<double, kParts> most_in_parts(const std::vector<std::pair<Picoseconds, double>>& points, Picoseconds end) {
  std::array<double, kParts> out{};
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto part = [&](Picoseconds at) { return std::min(kParts - 1, static_cast<std::size_t>(static_cast<double>(kParts) * std::clamp(static_cast<double>(at) / static_cast<double>(std::max<Picoseconds>(1, end)), 0.0, 1.0))); };
    const Picoseconds until = i + 1 < points.size() ? points[i + 1].first : end;
    if (until <= points[i].first && i + 1 < points.size()) continue;   // gone at once
    for (std::size_t p = part(points[i].first); p <= part(std::max(points[i].first, until - 1)); ++p) out[p] = std::max(out[p], points[i].second);
  }
  return out;
}

}  // namespace

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

std::string error_text(const Pair& p) { return p.predicted > 0 ? fmt::format("{:+.1f} %", 100 * (p.measured / p.predicted - 1)) : p.measured > 0 ? "not predicted" : ""; }

Json pair_json(const Pair& p) { return {{"predicted", p.predicted}, {"measured", p.measured}, {"error", p.predicted > 0 ? Json(p.measured / p.predicted - 1) : Json(nullptr)}}; }

Json pairs_json(const Pairs& pairs) {
  Json out = Json::object();
  for (const auto& [name, p] : pairs) out[name] = pair_json(p);
  return out;
}

Pairs lanes_of(const Pairs& operators) {
  Pairs out;
  for (const auto& [name, p] : operators) {
    if (name == "wait for copies") continue;   // no lane is at work for it
    if (p.predicted <= 0 && p.measured <= 0) continue;
    Pair& lane = out[name == "communication" ? "communication" : name.starts_with("copies ") ? "copy" : "compute"];
    lane.predicted += p.predicted, lane.measured += p.measured;
  }
  return out;
}

Pairs expert_loads(const Problem& problem, const Plan& plan, const LoadModel& served) {
  const std::int64_t experts = routed_experts(problem.model);
  std::int64_t layers = 0, top_k = 0;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) ++layers, top_k = moe->top_k;
  if (experts == 0 || layers == 0) return {};
  const bool noise = !std::holds_alternative<UniformLoad>(problem.load.distribution) && !std::holds_alternative<TraceLoad>(problem.load.distribution);
  const Sampling step{.sequences = plan.micro_batch * plan.micro_batches * plan.parallelism.dp(), .sequence_length = problem.workload.sequence_length, .top_k = top_k};
  std::vector<Shares> planned = expert_shares(problem.load, layers, experts);
  for (std::size_t l = 0; noise && l < planned.size(); ++l) planned[l] = realised(planned[l], step, seed_of(problem.load.seed, l));
  const std::vector<Shares> measured = expert_shares(served, layers, experts);
  Pairs out;
  const auto add = [&](const std::string& what, std::int64_t parts) {
    std::array<std::vector<double>, 2> factors;
    for (std::size_t l = 0; l < planned.size(); ++l) factors[0].push_back(rank_factor(planned[l], parts)), factors[1].push_back(rank_factor(measured[l], parts));
    out[what + ", median layer"] = {median(factors[0]), median(factors[1])};
    out[what + ", where most"] = {*std::max_element(factors[0].begin(), factors[0].end()), *std::max_element(factors[1].begin(), factors[1].end())};
  };
  add("busiest expert", experts);
  if (plan.parallelism.ep > 1) add("busiest rank", plan.parallelism.ep);
  return out;
}

Picoseconds passes_end(const StepTimeline& timeline, std::int32_t rank) {
  Picoseconds out = 0;
  for (const TimelineEvent& e : timeline.events)
    if (e.rank == rank && (e.kind == Activity::forward || e.kind == Activity::backward || e.kind == Activity::recompute)) out = std::max(out, e.end());
  return out;
}

std::vector<Pair> memory_over_passes(const MemoryTimeline& predicted, Picoseconds predicted_end, const Json& measured, Picoseconds measured_end, const std::string& where) {
  std::vector<std::pair<Picoseconds, double>> planned, seen;
  double held = 0;
  for (const MemoryChange& c : changes(predicted)) {
    const double bytes = static_cast<double>(predicted.blocks[static_cast<std::size_t>(c.block)].bytes.value);
    held += c.comes ? bytes : -bytes;
    planned.emplace_back(c.at, held);
  }
  for (const Json& point : measured) {
    const bool whole = point.is_object() && point.contains("start_ps") && point["start_ps"].is_number_integer() && point.contains("bytes") && point["bytes"].is_number();
    if (!whole || point["start_ps"].get<Picoseconds>() < (seen.empty() ? 0 : seen.back().first)) throw InputError(where, "is no list of {\"start_ps\", \"bytes\"} in order of time", "`moeplan run -o` writes it");
    seen.emplace_back(point["start_ps"].get<Picoseconds>(), point["bytes"].get<double>());
  }
  std::vector<Pair> out;
  const auto a = most_in_parts(planned, predicted_end), b = most_in_parts(seen, measured_end);
  for (std::size_t p = 0; p < kParts; ++p) out.push_back({a[p], b[p]});
  return out;
}

}  // namespace moeplan::cli
