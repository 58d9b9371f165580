#pragma once
/// The candidates worth keeping: the best by rank, and the Pareto front behind them.
///
/// Rank: throughput at the lower end of its interval, in steps of half a per cent (the model cannot tell less apart), then less memory,
/// then the simpler layout. The front holds each candidate before which none ranks that needs no more memory and risks no more.

#include <array>
#include <cstdint>
#include <vector>

#include "planner/scorer.hpp"

namespace moeplan {

struct Found {
  std::int64_t bin = 0;            ///< of the throughput, larger is faster
  std::int64_t peak = 0;           ///< bytes, 95th percentile
  double risk = 0;                 ///< of running out of memory
  std::array<std::int32_t, 10> tie{};   ///< simpler layouts first
  double throughput = 0;           ///< at the lower end: tokens a second
  Four step;
  std::size_t block = 0;           ///< index into the grid
  Choice choice;
};

/// A candidate of `block` as it is ranked.
[[nodiscard]] Found found(const Problem& problem, const Plan& block, const ShardStages& stages, std::size_t index, const Choice& choice, const PeakBytes& memory, const Four& step, std::int64_t micro_batches);

/// Step of half a per cent in which a throughput lies.
[[nodiscard]] std::int64_t throughput_bin(double tokens_per_second);

/// Ranks `a` before `b`. A total order: distinct candidates differ.
[[nodiscard]] bool better(const Found& a, const Found& b);

class Incumbents {
 public:
  explicit Incumbents(std::size_t top) : top_(top) {}

  void add(const Found& found);
  /// Whether no candidate of at most this throughput bin, at least this peak and any risk could be kept.
  [[nodiscard]] bool hopeless(std::int64_t bin, std::int64_t peak) const;
  /// Those kept, best first; `front` tells which are on the Pareto front.
  [[nodiscard]] const std::vector<Found>& kept();
  [[nodiscard]] const std::vector<bool>& front();

 private:
  void settle();
  std::size_t top_;
  std::vector<Found> kept_;        ///< settled: best first
  std::vector<Found> fresh_;
  std::vector<bool> front_;
  std::vector<std::int64_t> least_;   ///< settled: least riskless peak up to each
};

}  // namespace moeplan
