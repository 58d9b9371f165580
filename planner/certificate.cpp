#include "planner/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/configs.hpp"
#include "core/error.hpp"

namespace moeplan {
namespace {

/// The smallest cluster of the same kind, by doubling, on which something fits; searched with the same pins where they still fold.
std::optional<std::int64_t> larger_cluster(const Problem& problem, const SearchOptions& options) {
  if (problem.cluster.name == "scaled") return std::nullopt;  // already inside such a search
  Problem larger = problem;
  for (int doubling = 0; doubling < 6; ++doubling) {
    try {
      larger.cluster = resized(larger.cluster, 2 * larger.cluster.devices());
      larger.cluster.name = "scaled";
      SearchOptions quiet = options;
      quiet.progress = nullptr;
      quiet.top = 1;
      if (plan(larger, quiet).feasible > 0) return larger.cluster.devices();
    } catch (const InputError&) {
      continue;  // the batch or a pin does not divide at this size
    }
  }
  return std::nullopt;
}

}  // namespace

Infeasible certificate(const Problem& problem, const NearMiss& nearest, const SearchOptions& options) {
  Infeasible out;
  out.binding = "memory of one device";
  out.need = nearest.memory.peak();
  out.have = problem.cluster.device.memory;
  std::vector<Infeasible::Consumer> all;
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names) all.push_back({std::string(name), nearest.memory[category]});
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  out.largest.assign(all.begin(), all.begin() + 3);
  if (problem.cluster.name == "scaled") return out;
  std::vector<std::string> fixes;
  const std::optional<std::int64_t> devices = larger_cluster(problem, options);
  if (devices) fixes.push_back(fmt::format("{} devices of this kind (found by doubling)", *devices));
  const Workload& w = problem.workload;
  if (w.attention.training == Training::full || w.experts.training == Training::full) fixes.push_back("LoRA instead of full fine-tuning (--method lora)");
  else if (nearest.plan.frozen_storage == DType::bf16 && problem.runtime.runs_quantised) fixes.push_back("frozen weights in fewer bits (--frozen-storage nf4)");
  if (fixes.empty()) fixes.push_back(fmt::format("devices with at least {} of memory", human(out.need)));
  out.nearest_fix = fixes.front();
  for (std::size_t i = 1; i < fixes.size(); ++i) out.nearest_fix += ", or " + fixes[i];
  return out;
}

}  // namespace moeplan
