#include <fmt/format.h>

#include "core/spec/plan.hpp"
#include "sim/program/program.hpp"

namespace moeplan::rules_of {
namespace {

/// Rows before a run that a mixer reads beyond its attention: convolution taps, a compressed key's earlier run, a plain window.
std::int64_t reach(const Mixer& mixer) {
  if (const auto* a = std::get_if<KdaAttention>(&mixer)) return a->conv - 1;
  if (const auto* a = std::get_if<GdnAttention>(&mixer)) return a->conv - 1;
  if (const auto* a = std::get_if<Mamba2Mixer>(&mixer)) return a->conv - 1;
  if (const auto* a = std::get_if<Mamba1Mixer>(&mixer)) return a->conv - 1;
  if (const auto* a = std::get_if<CompressedAttention>(&mixer)) return std::max(a->window - 1, a->ratio);
  return 0;
}

}  // namespace

/// What a context rank reads from before its runs must lie on the ranks next to it.
std::optional<std::string> window_reaches(const Problem& problem, const Plan& plan) {
  if (plan.parallelism.cp == 1) return std::nullopt;
  const std::int64_t run = problem.workload.sequence_length / (static_cast<std::int64_t>(plan.parallelism.cp) * context_runs(problem.model, plan));
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (reach(s.mixer) > run) return fmt::format("a layer reads {} tokens back, context ranks hold runs of {}", reach(s.mixer), run);
  return std::nullopt;
}
}  // namespace moeplan::rules_of
