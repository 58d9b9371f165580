#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// Exchanging heads for tokens needs whole query and key-value heads on every context rank.
std::optional<std::string> heads_exchange(const Problem& problem, const Plan& plan) {
  const Parallelism& p = plan.parallelism;
  if (p.cp == 1 || plan.context_exchange != ContextExchange::all_to_all) return std::nullopt;
  const std::int64_t ranks = static_cast<std::int64_t>(p.cp) * p.tp;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers) {
      std::int64_t heads = 0;
      if (const auto* a = std::get_if<GqaAttention>(&s.mixer); a && a->index_topk == 0) {
        if (a->kv_heads % ranks != 0) return fmt::format("{} key-value heads cannot be exchanged over {} context x {} tensor ranks", a->kv_heads, p.cp, p.tp);
        heads = a->heads;
      } else if (const auto* m = std::get_if<MlaAttention>(&s.mixer); m && !m->indexer) {
        heads = m->heads;
      }
      if (heads % ranks != 0) return fmt::format("{} heads cannot be exchanged over {} context x {} tensor ranks", heads, p.cp, p.tp);
    }
  return std::nullopt;
}
}  // namespace moeplan::rules_of
