#include "sim/cost/expert_places.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/load/placed.hpp"

namespace moeplan {
namespace {

/// Probability that `chosen` distinct ones of `all` are none of `taken` of them.
double none_of(double all, double taken, double chosen) {
  double p = 1;
  for (double i = 0; i < chosen; ++i) p *= std::max(0.0, all - taken - i) / std::max(1.0, all - i);
  return p;
}

/// C(n, k).
double choose(double n, std::int64_t k) {
  if (static_cast<double>(k) > n) return 0;
  double ways = 1;
  for (std::int64_t i = 0; i < k; ++i) ways *= (n - static_cast<double>(i)) / static_cast<double>(i + 1);
  return ways;
}

/// A token's choice under group-limited routing.
struct Choice {
  std::int64_t groups, top_groups, group, top_k;   ///< `group`: experts of one
  [[nodiscard]] double eligible() const { return static_cast<double>(top_groups * group); }
};

/// Experts of each group among experts [begin, end), largest first: what the chances of a run of experts depend on.
std::vector<std::int64_t> held(const Choice& c, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> out;
  for (std::int64_t g = begin / c.group; g * c.group < end; ++g) out.push_back(std::min(end, (g + 1) * c.group) - std::max(begin, g * c.group));
  std::sort(out.begin(), out.end(), std::greater());
  return out;
}

/// Probability that a token meets none of the experts held, or, of those, none on `part` of their `slots` in any order (part = slots: none at all).
double missed(const Choice& c, const std::vector<std::int64_t>& experts, double slots, double part) {
  std::int64_t most = 0;
  for (const std::int64_t n : experts) most += n;
  // ways[m][x]: sets of m groups with x of the experts; groups without any are chosen freely in the end.
  const auto width = static_cast<std::size_t>(most) + 1;
  std::vector<double> ways(static_cast<std::size_t>(c.top_groups + 1) * width, 0.0);
  ways[0] = 1;
  for (const std::int64_t n : experts)
    for (std::int64_t m = c.top_groups; m > 0; --m)
      for (std::int64_t x = most; x >= n; --x) ways[static_cast<std::size_t>(m) * width + static_cast<std::size_t>(x)] += ways[static_cast<std::size_t>(m - 1) * width + static_cast<std::size_t>(x - n)];
  const double elsewhere = static_cast<double>(c.groups - std::ssize(experts)), k = static_cast<double>(c.top_k);
  double none = 0;
  for (std::int64_t m = 0; m <= c.top_groups; ++m)
    for (std::int64_t x = 0; x <= most; ++x) {
      const double sets = ways[static_cast<std::size_t>(m) * width + static_cast<std::size_t>(x)] * choose(elsewhere, c.top_groups - m);
      if (sets <= 0) continue;
      if (part >= slots) { none += sets * none_of(c.eligible(), static_cast<double>(x), k); continue; }
      for (std::int64_t y = 0; y <= c.top_k; ++y)   // y of the token's experts among the x
        none += sets * choose(static_cast<double>(x), y) * choose(c.eligible() - static_cast<double>(x), c.top_k - y) / choose(c.eligible(), c.top_k) * none_of(slots, part, static_cast<double>(y));
    }
  return none / choose(static_cast<double>(c.groups), c.top_groups);
}

}  // namespace

double distinct_domains(double experts, double top_k, double domains) {
  if (domains <= 1 || experts <= 0 || top_k <= 0) return experts > 0 && top_k > 0 && domains > 0 ? 1 : 0;
  return domains * (1 - none_of(experts, experts / domains, top_k));
}

double distinct_domains(double experts, double top_k, double domains, const ExpertPlaces& places) {
  const auto all = static_cast<std::int64_t>(experts), k = static_cast<std::int64_t>(std::llround(top_k));
  const bool limited = places.groups > places.top_groups && places.top_groups > 0 && all % places.groups == 0 && k <= places.top_groups * (all / places.groups);
  if (!limited || domains <= 1 || k <= 0) return distinct_domains(experts + static_cast<double>(places.more_slots), top_k, domains);
  const Choice c{places.groups, places.top_groups, all / places.groups, k};
  const bool shuffled = places.runs > 0 && static_cast<double>(places.runs) < domains;   // a domain is a part of a run
  // Equal parts of the experts, in order; the last may be short.
  const double each = shuffled ? experts / static_cast<double>(places.runs) : experts / domains;
  const double slots = each + (shuffled ? static_cast<double>(places.more_slots) / static_cast<double>(places.runs) : 0), part = shuffled ? (experts + static_cast<double>(places.more_slots)) / domains : slots;
  const auto count = static_cast<std::int64_t>(std::ceil(experts / each - 1e-9)), whole = static_cast<std::int64_t>(std::llround(each));
  const bool alike = static_cast<double>(whole) == each && (whole % c.group == 0 || c.group % whole == 0);
  double sum = 0;
  for (std::int64_t i = 0; i < (alike ? 1 : count); ++i) {
    const auto at = [&](std::int64_t n) { return std::min(all, static_cast<std::int64_t>(std::llround(static_cast<double>(n) * each))); };
    sum += 1 - missed(c, held(c, at(i), at(i + 1)), slots, part);
  }
  return shuffled ? domains * sum / static_cast<double>(alike ? 1 : count) : alike ? domains * sum : sum;
}

ExpertPlaces expert_places(const ModelSpec& model, const ExpertExchange& exchange, const Parallelism& parallelism, const ClusterSpec& cluster) {
  ExpertPlaces out;
  std::int64_t experts = 0;
  for (const LayerSpec& layer : model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) experts = moe->experts, out.groups = std::max<std::int64_t>(1, moe->groups), out.top_groups = std::max<std::int64_t>(1, moe->top_groups);
  out.more_slots = exchange.replicas;
  if (exchange.placement != ExpertPlacement::contiguous) out.runs = nodes_kept(exchange, experts, out.groups, parallelism, cluster).nodes;
  return out;
}

}  // namespace moeplan
