#include "sim/load/exchange.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "sim/load/random.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// How many of `n` assignments fall on each expert.
void draw_counts(const Shares& population, double precision, std::int64_t n, Random& random, std::vector<std::int64_t>& counts) {
  std::vector<double> below(population.size() + 1, 0);
  for (std::size_t e = 0; e < population.size(); ++e) below[e + 1] = below[e] + (population[e] > 0 ? random.gamma(precision * population[e]) : 0);
  const double all = below.back();
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = std::upper_bound(below.begin() + 1, below.end() - 1, random.uniform() * all);
    ++counts[static_cast<std::size_t>(at - below.begin()) - 1];
  }
}

}  // namespace

std::int64_t Exchange::sent(std::int64_t source) const { return std::accumulate(rows.begin() + source * ranks, rows.begin() + (source + 1) * ranks, std::int64_t{0}); }

std::int64_t Exchange::received(std::int64_t destination) const {
  std::int64_t sum = 0;
  for (std::int64_t s = 0; s < ranks; ++s) sum += rows[index(s * ranks + destination)];
  return sum;
}

std::int64_t Exchange::total() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }

Exchange draw_exchange(const Shares& population, const Placement& placement, const SourceBatch& batch, std::uint64_t seed) {
  if (batch.sequences < 1 || batch.tokens < 1 || batch.top_k < 1 || !(batch.precision > 0)) throw InputError("load", "a batch without tokens", "give sequences, their tokens and top-k of at least 1");
  const auto experts = static_cast<std::int64_t>(population.size());
  std::vector<std::vector<std::int64_t>> slots(population.size());
  for (std::size_t s = 0; s < placement.expert.size(); ++s) slots.at(index(placement.expert[s])).push_back(static_cast<std::int64_t>(s));
  for (std::size_t e = 0; e < slots.size(); ++e)
    if (slots[e].empty()) throw InputError("placement", "expert " + std::to_string(e) + " has no slot", "give every expert at least one");
  const std::int64_t each = placement.slots_per_rank();
  const std::int64_t most = batch.capacity_factor ? expert_capacity(batch.sequences * batch.tokens, batch.top_k, experts, *batch.capacity_factor) : -1;
  Exchange out;
  out.ranks = placement.ranks;
  out.rows.assign(index(out.ranks * out.ranks), 0);
  out.slot_rows.assign(placement.expert.size(), 0);
  for (std::int64_t source = 0; source < out.ranks; ++source) {
    Random random(seed_of(static_cast<std::int64_t>(seed), static_cast<std::uint64_t>(source)));
    std::vector<std::int64_t> counts(population.size(), 0);
    for (std::int64_t s = 0; s < batch.sequences; ++s) draw_counts(population, batch.precision, batch.tokens * batch.top_k, random, counts);
    for (std::size_t e = 0; e < counts.size(); ++e) {
      std::int64_t n = counts[e];
      if (most >= 0 && n > most) {
        out.dropped += n - most;
        n = most;
      }
      const auto copies = static_cast<std::int64_t>(slots[e].size());
      for (std::int64_t c = 0; c < copies; ++c) {
        // Sources begin with different replicas, so that remainders spread.
        const std::int64_t slot = slots[e][index((c + source) % copies)], part = n * (c + 1) / copies - n * c / copies;
        out.slot_rows[index(slot)] += part;
        out.rows[index(source * out.ranks + slot / each)] += part;
      }
    }
  }
  return out;
}

}  // namespace moeplan
