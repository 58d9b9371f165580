#pragma once
/// The one door to what an operator call costs: a roofline, corrected by measured utilisation.
///
///   limit = max(flops / peak, bytes / bandwidth)       the speed of light of the call
///   u     = (limit + 4 us) / time                      utilisation (utilisation.hpp), smooth and bounded; interpolated over shapes
///   time  = (limit + 4 us) / u(shape) + launch overhead
///   and where the device lowers its clock to hold its power, longer by the share of the call that follows it (power.hpp)
///
/// A call that was measured on this device gets its time back verbatim; experts under an uneven load are the sum over each one's rows. Otherwise u comes from the nearest measured shapes of the
/// same operator and pass, by inverse squared distance in log space; outside the table u is held. An operator without samples
/// gets the device's published ceilings; a chunked scan that of its measured kin. On another device u is scaled by the ratio of the published ceilings.
/// Source: aiconfigurator's utilisation-space interpolation (median 3.6 % leaving one shape out); validity: docs/cost.md.

#include <memory>
#include <span>
#include <vector>

#include "core/spec/profile.hpp"
#include "core/spec/results.hpp"
#include "core/spec/runtime.hpp"
#include "kernels/catalogue.hpp"
#include "sim/cost/power.hpp"

namespace moeplan {

/// A clock, over the boost clock. Prices are those at `clock`, their lower ends those at `fastest`, their upper ends those at `slowest`, unless that is above `clock`.
struct HeldClock {
  double clock = 1, fastest = 1, slowest = 1;
};

/// Built once per problem; const and thread-safe afterwards.
class Prices {
 public:
  /// `spread`: rows of experts over their mean, a sample of what the problem's load does (`load_spread`); empty: all alike. It says how many
  /// rows each expert of a grouped product has where only their sum is known, and matters to this project's own kernels alone.
  /// Throws InputError for a sample whose key is no call of the catalogue.
  Prices(const DeviceSpec& device, const DeviceProfile& profile, const Runtime& runtime, std::vector<double> spread = {});

  /// The same where the rows of experts spread otherwise; what follows from the samples alone is shared.
  [[nodiscard]] Prices spread_as(std::vector<double> spread) const;

  [[nodiscard]] Estimate price(const OpCall& call) const;
  /// Of a grouped product with these rows of each expert, whatever the call says; of other calls the same as without.
  [[nodiscard]] Estimate price(const OpCall& call, std::span<const std::int64_t> rows_of_expert) const;
  /// Time in which a call's operands that are columns of others are made dense, and its results put back: `dense` bytes in all
  /// (`copied_bytes`, sim/program), which this project's own kernels want. Zero for other runtimes, whose kernels take strides.
  [[nodiscard]] Seconds copies(Bytes dense) const;

  /// A call at rest and what it draws; of the latter nothing where the profile says nothing of power, or is another device's.
  struct Rested {
    Estimate estimate;
    PoweredCall power;
  };
  [[nodiscard]] Rested rested(const OpCall& call) const;
  [[nodiscard]] Rested rested(const OpCall& call, std::span<const std::int64_t> rows_of_expert) const;   ///< as `price` with rows
  /// The same at a clock: `price(call)` is that at the one that is held.
  [[nodiscard]] Estimate held(const Rested& call, const HeldClock& clock) const;
  [[nodiscard]] const PowerProfile* power() const { return power_ ? &power_->profile() : nullptr; }
  /// Copies of so many bytes read and written in `taken`, or in the time that memory's achieved rate allows: what they draw; nothing where no power is known.
  [[nodiscard]] PoweredCall copied(double bytes, std::optional<Seconds> taken) const;
  /// From now on prices are those at this clock.
  void hold(const HeldClock& clock) { clock_ = clock; }
  /// MHz that are held; nothing where no power is known.
  [[nodiscard]] std::optional<double> clock() const { return power_ ? std::optional(clock_.clock * power_->profile().boost) : std::nullopt; }

  [[nodiscard]] const Runtime& runtime() const { return runtime_; }

  /// Least time that the device's data sheet allows: max(flops / peak, bytes / bandwidth). Nothing is achieved, nothing launched.
  [[nodiscard]] Seconds limit(const OpCall& call) const;

  /// What leaving each sample out in turn shows: time of the sample over its prediction from the others.
  [[nodiscard]] std::vector<double> left_out() const;
  /// Time of each sample over its roofline prediction.
  [[nodiscard]] std::vector<double> against_roofline() const;

 private:
  struct Tables;
  struct UnderLoad;
  /// What the runtime's own form of a call does, where it differs from the catalogue's.
  struct Work {
    double flops = 0, bytes = 0;
    double speed = 1;      ///< peak of the type it multiplies in over that of bf16
    double besides = 0;    ///< bytes moved by kernels beside it
    bool own = false;      ///< measured times of the catalogue's form do not hold verbatim
  };
  [[nodiscard]] double roofline(double flops, double bytes) const;
  [[nodiscard]] Work work_of(const OpCall& call, Wants wants, bool in_bf16) const;
  [[nodiscard]] Estimate at_rest(const OpCall& call) const;
  [[nodiscard]] Rested rested(const OpCall& call, const Estimate& estimate) const;
  [[nodiscard]] Estimate price(const OpCall& call, bool in_bf16) const;   ///< in_bf16: whatever type the runtime multiplies in (heads)
  [[nodiscard]] Estimate whole_head(const op::CrossEntropy& head, const OpCall& call) const;
  [[nodiscard]] Estimate grouped(const op::GroupedLinear& op, const OpCall& call, std::span<const double> rows, double weight) const;

  DeviceSpec device_;
  Runtime runtime_;
  std::vector<double> spread_;
  double matmul_scale_ = 1, bandwidth_scale_ = 1;  ///< this device's published ceilings over those of the profile's device
  bool same_device_ = false, same_generation_ = false;
  double launch_ = 0;
  std::shared_ptr<const Tables> tables_;
  std::shared_ptr<UnderLoad> under_load_;
  std::shared_ptr<const PowerTables> power_;   ///< of this device's own profile
  HeldClock clock_;
};

}  // namespace moeplan
