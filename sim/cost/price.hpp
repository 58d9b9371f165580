#pragma once
/// The one door to what an operator call costs: a roofline, corrected by measured utilisation.
///
///   limit = max(flops / peak, bytes / bandwidth)       the speed of light of the call
///   u     = limit / time                               utilisation, smooth and bounded; interpolated over shapes
///   time  = limit / u(shape) + launch overhead
///
/// A call that was measured on this device gets its time back verbatim. Otherwise u comes from the nearest measured shapes of the
/// same operator and pass, by inverse squared distance in log space; outside the table u is held. An operator without samples
/// gets the device's published ceilings; a chunked scan that of its measured kin. On another device u is scaled by the ratio of the published ceilings.
/// Source: aiconfigurator's utilisation-space interpolation (median 3.6 % leaving one shape out); validity: docs/cost.md.

#include <array>
#include <vector>

#include "core/spec/profile.hpp"
#include "core/spec/results.hpp"
#include "core/spec/runtime.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan {

/// Central 90 % of true over predicted time.
struct ErrorBand {
  double low = 1, high = 1;
};

/// Built once per problem; const and thread-safe afterwards.
class Prices {
 public:
  /// Throws InputError for a sample whose key is no call of the catalogue.
  Prices(const DeviceSpec& device, const DeviceProfile& profile, const Runtime& runtime);

  [[nodiscard]] Estimate price(const OpCall& call) const;

  /// Least time that the device's data sheet allows: max(flops / peak, bytes / bandwidth). Nothing is achieved, nothing launched.
  [[nodiscard]] Seconds limit(const OpCall& call) const;

  /// What leaving each sample out in turn shows: time of the sample over its prediction from the others.
  [[nodiscard]] std::vector<double> left_out() const;
  /// Time of each sample over its roofline prediction.
  [[nodiscard]] std::vector<double> against_roofline() const;

 private:
  static constexpr std::size_t kFields = 20;
  struct Shape {
    std::array<float, kFields> log{};    ///< ln(1 + value) of the whole-number fields
    std::array<std::uint8_t, kFields> tag{};  ///< switches and enums
    Wants wants{};
  };
  struct Sample {
    Shape shape;
    double utilisation = 1, seconds = 0, spread = 0;
    bool compute_bound = true;
  };
  struct Table {
    std::vector<Sample> samples;
    std::vector<std::size_t> varying;   ///< fields in which the samples differ; the others say nothing about the shape
    std::vector<float> position;        ///< samples x varying
    std::array<float, kFields> low{}, high{};
    ErrorBand error;
  };
  struct Limit {
    double seconds = 0;
    bool compute_bound = true;
  };
  struct Answer {
    double utilisation = 0;
    const Sample* exact = nullptr;
    bool foreign = false;  ///< the nearest sample differs in a switch, a type or the wanted gradients
  };

  [[nodiscard]] static Shape shape_of(const Op& op, Wants wants);
  [[nodiscard]] static Limit limit_on(const DeviceSpec& device, double flops, double bytes);
  static void arrange(Table& table);
  [[nodiscard]] static Answer look_up(const Table& table, const Shape& shape, const Sample* without);
  [[nodiscard]] double roofline(double flops, double bytes) const;
  /// What the runtime's own form of a call does, where it differs from the catalogue's.
  struct Work {
    double flops = 0, bytes = 0;
    double speed = 1;      ///< peak of the type it multiplies in over that of bf16
    double besides = 0;    ///< bytes moved by kernels beside it
    bool own = false;      ///< measured times of the catalogue's form do not hold verbatim
  };
  [[nodiscard]] Work work_of(const OpCall& call, Wants wants, bool in_bf16) const;
  [[nodiscard]] Estimate price(const OpCall& call, bool in_bf16) const;   ///< in_bf16: whatever type the runtime multiplies in (heads)
  [[nodiscard]] Estimate whole_head(const op::CrossEntropy& head, const OpCall& call) const;

  DeviceSpec device_;
  Runtime runtime_;
  double matmul_scale_ = 1, bandwidth_scale_ = 1;  ///< this device's published ceilings over those of the profile's device
  bool same_device_ = false, same_generation_ = false;
  double launch_ = 0;
  std::array<std::array<Table, 2>, std::variant_size_v<Op>> table_;
};

}  // namespace moeplan
