#pragma once
/// What the load model means for a plan's expert exchange: rows that reach the hottest rank over the balanced share, and what is dropped.

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "core/spec/plan.hpp"
#include "sim/load/placed.hpp"
#include "sim/load/expert_load.hpp"

namespace moeplan {

/// Bands of runs of layers, remembered. From any thread: an entry is written once, by whoever claims it.
class BandCache {
 public:
  explicit BandCache(std::size_t layers);
  /// What `band()` returns, asked for at most once a run (more often while another thread is at it).
  template <class F>
  [[nodiscard]] FactorBand get(std::size_t first, std::size_t last, const F& band) const {
    const std::size_t i = first * side_ + last;
    std::atomic<std::uint8_t>& state = states_[i];
    if (state.load(std::memory_order_acquire) == kThere) return bands_[i];
    const FactorBand found = band();
    std::uint8_t untouched = 0;
    if (state.compare_exchange_strong(untouched, kClaimed, std::memory_order_acq_rel)) {
      bands_[i] = found;
      state.store(kThere, std::memory_order_release);
    }
    return found;
  }

 private:
  static constexpr std::uint8_t kClaimed = 1, kThere = 2;
  std::size_t side_;
  std::unique_ptr<FactorBand[]> bands_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> states_;
};

class LoadFactors {
 public:
  /// Draws the loads once for all expert degrees that divide the experts, when a plan with expert ranks first asks: a plan without them is
  /// priced ten times as fast, which the window's live estimate needs. The token noise is that of `kSequences` sequences a
  /// micro-batch and expert group: larger groups are a little calmer (docs/load.md: rank noise stays under 4 %).
  /// `only`: the one degree that will be asked for, where a plan is priced alone; drawn alone it is the same to the bit.
  explicit LoadFactors(const Problem& problem, std::optional<int> only = {});

  /// Makes room for those of a plan with a capacity, replicas or a placement, if it has any; they are drawn when it first asks. Not thread-safe;
  /// before the first `stage` of such a plan.
  /// Experts are placed by the expected load (a fresh placement); the step serves what a micro-batch realises.
  void prepare(const Plan& plan);

  /// Decoder layers [first, last). Neutral at ep = 1 and for models without experts.
  [[nodiscard]] FactorBand stage(const Plan& plan, std::int64_t first, std::int64_t last) const;

  /// Expected share of assignments that the plan's capacity drops; 0 for dropless and rerouted plans.
  [[nodiscard]] double dropped(const Plan& plan) const;

  static constexpr std::int64_t kSequences = 16;

 private:
  struct Shaped {
    ExpertExchange exchange;
    Parallelism parallelism;
    BandCache bands;
    std::once_flag drawn{};
    std::optional<LoadTable> table{};
    double dropped = 0;
  };
  void draw(Shaped& shaped) const;
  [[nodiscard]] static bool plain(const ExpertExchange& x) { return !x.capacity_factor && x.replicas == 0 && x.placement == ExpertPlacement::contiguous; }
  /// The parts that rows depend on; the others are how they travel.
  [[nodiscard]] static ExpertExchange of_load(const ExpertExchange& x);
  [[nodiscard]] const Shaped* shaped(const Plan& plan) const;

  const Problem& problem_;
  std::vector<std::size_t> moe_before_;   ///< MoE layers before each layer
  std::int64_t experts_ = 0, groups_ = 1;
  Sampling sampling_{};
  std::vector<std::int64_t> degrees_;
  std::vector<BandCache> bands_;          ///< by degree
  mutable std::once_flag drawn_;
  mutable std::optional<LoadTable> table_;
  std::vector<std::unique_ptr<Shaped>> shaped_;
};

}  // namespace moeplan
