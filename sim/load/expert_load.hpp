#pragma once
/// How unevenly tokens fall on experts and on the ranks that hold them. Shares of a layer's routed tokens per expert come from a
/// LoadModel; everything else (time, receive buffers, saved activations) follows from the ranks' loads over their mean.
/// Models, measurements and validity: docs/load.md.

#include <cstdint>
#include <functional>
#include <vector>

#include "core/spec/load.hpp"

namespace moeplan {

/// Share of a layer's routed assignments per expert: sums to 1.
using Shares = std::vector<double>;

/// One row per MoE layer, deterministic in the model's seed; `draw` varies the generated distributions (a trace is what it is).
/// A trace must have as many experts as the model; fewer rows than layers repeat in order. Throws InputError otherwise.
[[nodiscard]] std::vector<Shares> expert_shares(const LoadModel& load, std::int64_t layers, std::int64_t experts, std::uint64_t draw = 0);

/// Load of each of `ep` ranks over the mean, experts placed contiguously (expert e on rank e ep / E). Throws InputError if `ep`
/// does not divide the experts.
[[nodiscard]] std::vector<double> rank_loads(const Shares& shares, std::int64_t ep);

/// Busiest rank over the mean.
[[nodiscard]] double rank_factor(const Shares& shares, std::int64_t ep);

/// Of a stage: layers [first, last).
struct StageFactors {
  double step = 1;      ///< mean over the layers of the busiest rank: multiplies expert and exchange time
  double buffer = 1;    ///< busiest rank of the worst layer: sizes receive buffers that every layer reuses
  double saved = 1;     ///< busiest rank of the layers' sum: scales activations saved for backward
};
[[nodiscard]] StageFactors stage_factors(const std::vector<Shares>& shares, std::int64_t ep, std::size_t first, std::size_t last);

/// How much text one routing decision sees together.
struct Sampling {
  std::int64_t sequences = 1;            ///< that reach one expert group in one micro-batch
  std::int64_t sequence_length = 4096;   ///< tokens
  std::int64_t top_k = 8;
  /// Per-sequence precision of the Dirichlet around the layer's shares: 800 (500 to infinity; ESFT sets: law 1185, summary 773).
  double precision = 800;
  bool operator==(const Sampling&) const = default;
};

/// Precision of the one Dirichlet whose mean and variance are those of a micro-batch in which each of N sequences draws its own
/// shares ~ Dirichlet(s x shares) and then its L k assignments multinomially:
/// 1 / (S + 1) = (1 / (s + 1) + s / ((s + 1) L k)) / N.
[[nodiscard]] double effective_precision(const Sampling& sampling);

/// Shares that one micro-batch realises: one draw of Dirichlet(effective precision x population).
[[nodiscard]] Shares realised(const Shares& population, const Sampling& sampling, std::uint64_t seed);

/// P50 and P95 over draws of the load model and its sampling noise.
struct FactorBand {
  StageFactors p50, p95;
};

/// Load of each rank over the mean from a layer's expected shares and those that a micro-batch realises: what placement, replicas and
/// capacity make of them.
using RankLoads = std::function<std::vector<double>(const Shares& population, const Shares& served)>;

/// Factors of any run of layers at several degrees, from draws made once: what a search over stage splits asks. Const and
/// thread-safe after construction. `UniformLoad` stands for forced balance and has no noise.
class LoadTable {
 public:
  /// Throws InputError for a trace that does not fit the model or a degree that does not divide the experts.
  LoadTable(const LoadModel& load, std::int64_t layers, std::int64_t experts, std::vector<std::int64_t> ep_degrees, const Sampling& sampling,
            std::int64_t draws = 16, const RankLoads& rank_loads = {});
  /// MoE layers [first, last); neutral for an empty run. `ep` is one of the degrees given.
  [[nodiscard]] FactorBand stage(std::int64_t ep, std::size_t first, std::size_t last) const;
  [[nodiscard]] std::size_t layers() const { return layers_; }

 private:
  struct Degree {
    std::int64_t ep = 1;
    std::vector<double> loads;    ///< draw x (layer + 1) x rank: loads summed over the layers before
    std::vector<double> busiest;  ///< draw x layer
  };
  std::size_t layers_ = 0, draws_ = 1;
  std::vector<Degree> degrees_;
};

/// `LoadTable` for one degree over all layers.
[[nodiscard]] FactorBand factor_band(const LoadModel& load, std::int64_t layers, std::int64_t experts, std::int64_t ep, const Sampling& sampling,
                                     std::int64_t draws = 16);

/// Expected share of assignments dropped when each expert takes at most `capacity_factor` times the mean: mean of max(0, f - CF)
/// over f = share x experts. No re-routing. Under Megatron's convention the shares are those of one rank's own batch.
[[nodiscard]] double drop_rate(const Shares& shares, double capacity_factor);

/// Shares after every expert takes at most `capacity_factor` times the mean. `reroute`: what does not fit goes to experts with room, in
/// proportion to it, as far as there is room; otherwise it is dropped. `pad`: every expert works on its full capacity.
[[nodiscard]] Shares capped(const Shares& shares, double capacity_factor, bool reroute, bool pad);

/// Same in closed form: log-normal loads of sigma s: Phi(d) - CF Phi(d - s), d = (s^2/2 - ln CF) / s.
[[nodiscard]] double drop_rate_log_normal(double sigma, double capacity_factor);

/// Same for a balanced router, whose counts are Poisson of mean `tokens_per_expert`.
[[nodiscard]] double drop_rate_poisson(double tokens_per_expert, double capacity_factor);

/// Megatron's capacity of an expert, from the batch of one rank: ceil(tokens k / E x CF). It caps what each rank sends; an expert
/// receives at most EP times that. Capacity >= tokens never drops. Source: Megatron-LM `get_capacity`.
[[nodiscard]] std::int64_t expert_capacity(std::int64_t tokens, std::int64_t top_k, std::int64_t experts, double capacity_factor);

/// Rows that a rank works on over the mean when its experts are cut at, or padded to, `capacity_factor` times the mean.
[[nodiscard]] double capped_rank_factor(const Shares& shares, std::int64_t ep, double capacity_factor, bool pad);

}  // namespace moeplan
