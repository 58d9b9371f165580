#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {
namespace {

using Reason = std::optional<std::string>;

/// `n` parts over `ranks`, whole.
Reason whole(const char* what, std::int64_t n, int ranks) {
  if (n % ranks == 0) return std::nullopt;
  return fmt::format("{} {} do not divide over {} tensor ranks", n, what, ranks);
}

/// `n` parts over `ranks`, or each part whole on several ranks, as Megatron replicates key-value heads.
Reason whole_or_copied(const char* what, std::int64_t n, int ranks) {
  if (n % ranks == 0 || ranks % n == 0) return std::nullopt;
  return fmt::format("{} {} neither divide over {} tensor ranks nor go into them", n, what, ranks);
}

struct Cut {
  int tp, etp;
  Reason operator()(const GqaAttention& a) const {
    if (auto no = whole("attention heads", a.heads, tp)) return no;
    return whole_or_copied("key-value heads", a.kv_heads, tp);
  }
  Reason operator()(const MlaAttention& a) const { return whole("attention heads", a.heads, tp); }
  Reason operator()(const KdaAttention& a) const { return whole("KDA heads", a.heads, tp); }
  Reason operator()(const GdnAttention& a) const { return whole("Gated DeltaNet key heads", a.k_heads, tp); }
  Reason operator()(const Mamba2Mixer& a) const {
    if (auto no = whole("Mamba-2 heads", a.heads, tp)) return no;
    return whole_or_copied("Mamba-2 groups", a.groups, tp);
  }
  Reason operator()(const Mamba1Mixer& a) const { return whole("Mamba-1 channels", a.inner, tp); }
  Reason operator()(const LightningAttention& a) const { return whole("attention heads", a.heads, tp); }
  Reason operator()(const CompressedAttention& a) const {
    if (auto no = whole("attention heads", a.heads, tp)) return no;
    return whole("output groups", a.o_groups, tp);
  }
  Reason operator()(const DenseFfn& f) const { return whole("feed-forward columns", f.intermediate, tp); }
  Reason operator()(const MoeFfn& f) const {
    if (auto no = whole("shared-expert columns", f.shared_intermediate, tp)) return no;
    if (f.intermediate % etp == 0) return std::nullopt;
    return fmt::format("{} expert columns do not divide over {} expert-tensor ranks", f.intermediate, etp);
  }
};

}  // namespace

/// Tensor ranks take whole heads, groups and columns; expert-tensor ranks whole columns of each expert.
Reason tensor_divides(const Problem& problem, const Plan& plan) {
  const Parallelism& p = plan.parallelism;
  if (p.tp == 1 && p.etp == 1) return std::nullopt;
  for (std::size_t l = 0; l < problem.model.layers.size(); ++l) {
    if (l > 0 && problem.model.layers[l] == problem.model.layers[l - 1]) continue;
    for (const Sublayer& s : problem.model.layers[l].sublayers)
      if (auto no = std::visit(Cut{p.tp, p.etp}, s.mixer)) return no;
  }
  return std::nullopt;
}
}  // namespace moeplan::rules_of
