#include "planner/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/configs.hpp"
#include "core/error.hpp"

namespace moeplan {
namespace {

/// Searched with the same pins and, where they are free, what needs least memory.
bool something_fits(const Problem& problem, SearchOptions options) {
  options.progress = nullptr;
  if (!options.pins.recompute) options.pins.recompute = Recompute::full;
  if (!options.pins.micro_batch) options.pins.micro_batch = 1;
  if (!options.pins.reshard_after_forward) options.pins.reshard_after_forward = true;
  if (!options.pins.prefetch) options.pins.prefetch = 0;
  try {
    return anything_fits(problem, options);
  } catch (const InputError&) {
    return false;  // a pin does not divide at this size
  }
}

/// The smallest cluster of the same kind on which something fits, by doubling. One machine is joined with more by whatever network: memory alone is asked for.
std::optional<std::int64_t> larger_cluster(const Problem& problem, const SearchOptions& options) {
  Problem larger = problem;
  if (std::vector<LinkTier>& tiers = larger.cluster.tiers; !tiers.empty() && tiers.back().kind != LinkKind::network) {
    if (tiers.back().span == 0) tiers.back().span = problem.cluster.devices();
    tiers.push_back(tiers.back());
    tiers.back().kind = LinkKind::network;
    tiers.back().span = 0;
  }
  for (int doubling = 0; doubling < 6; ++doubling) {
    try {
      larger.cluster = resized(larger.cluster, 2 * larger.cluster.devices());
    } catch (const InputError&) {
      return std::nullopt;
    }
    if (something_fits(larger, options)) return larger.cluster.devices();
  }
  return std::nullopt;
}

/// The longest sequence that fits, by halving.
std::optional<std::int64_t> shorter_sequence(const Problem& problem, const SearchOptions& options) {
  Problem shorter = problem;
  while (shorter.workload.sequence_length > 512) {
    shorter.workload.sequence_length /= 2;
    if (something_fits(shorter, options)) return shorter.workload.sequence_length;
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
  std::vector<std::string> fixes;
  const std::string& first = out.largest.front().name;
  const bool by_activations = first == name_of(MemoryCategory::activations) || first == name_of(MemoryCategory::dispatch_buffers) || first == name_of(MemoryCategory::workspace);
  // Activations of one micro-batch do not shrink with more data ranks; states do.
  if (by_activations) {
    if (const auto length = shorter_sequence(problem, options)) fixes.push_back(fmt::format("sequences of {} tokens (found by halving)", *length));
  } else if (const auto devices = larger_cluster(problem, options)) {
    fixes.push_back(fmt::format("{} devices of this kind (found by doubling)", *devices));
  }
  const Workload& w = problem.workload;
  if (w.attention.training == Training::full || w.experts.training == Training::full) fixes.push_back("LoRA instead of full fine-tuning (--method lora)");
  else if (!by_activations && nearest.plan.frozen_storage == DType::bf16 && problem.runtime.runs_quantised) fixes.push_back("frozen weights in fewer bits (--frozen-storage nf4)");
  if (fixes.empty()) fixes.push_back(fmt::format("devices with at least {} of memory", human(out.need)));
  out.nearest_fix = fixes.front();
  for (std::size_t i = 1; i < fixes.size(); ++i) out.nearest_fix += ", or " + fixes[i];
  return out;
}

}  // namespace moeplan
