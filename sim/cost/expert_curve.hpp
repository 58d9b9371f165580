#pragma once
/// Time of a grouped product of this project's kernels over the rows of an expert, and thereby of any load.
///
///   t(n): the product in which all E have n rows; of it M = t(1) streams the weights, and what multiplies is the rest:
///   t(n)^p = M^p + c(n)^p,   p = 2.3
///   time^p = (mean over experts of M, those without rows nothing)^p + (mean of c(n_e))^p
///
/// With equal rows that is t(n). With others experts whose weights are waited for and experts that multiply go on beside
/// each other, for tiles are dealt out as blocks come to them, so that it is less than the mean of t(n_e). p is that
/// at which M and the time of a tile among many (from t(256) to t(512)) make t(128): 1.4 to 3.8 of 46 shapes of an H200,
/// 2.3 in the median, and 2.2 for two tiles (bench/results/calibration_h200.md).
///
/// t is a staircase: an expert's rows are cut into ceil(n / 128) tiles, and each streams the weights
/// (kernels/grouped_linear/tile_schedule.hpp). Blocks work in pairs where the mean rows say so (`takes_pairs`), and
/// then two tiles take hardly longer than one: 448 experts of 3584 x 6144 take 5.5 ms with 128 rows each, 10.6 with 144
/// (alone), 7.8 with 192 and 256, 13.1 with 320 and 384 (pairs; one H200). So a curve holds for one way of working,
/// whatever the rows of a single expert. MXFP4 experts of few rows on average (`takes_few`) have tiles of 32 instead.

#include <functional>
#include <vector>

#include "kernels/grouped_linear/tile_schedule.hpp"
#include "sim/cost/utilisation.hpp"

namespace moeplan {

/// Rows of an expert, ascending, and seconds of the whole product.
struct ExpertCurve {
  std::vector<double> rows, seconds;
  std::vector<const UtilisationTable::Sample*>
      sample;            ///< that with just these rows and as many experts, if there is one
  int tile = kernels::grouped_linear::tile_tokens;
  bool foreign = false;  ///< some of it follows from other types or gradients

  /// Between measured rows of as many tiles a straight line, held beyond them; with so many tiles as no sample has,
  /// straight over tiles; beyond the last as many times longer (tiles of 32: as many times as it has tiles more). Below one row: as often as there is one.
  [[nodiscard]] double at(double n) const;
  [[nodiscard]] const UtilisationTable::Sample* measured(double n) const;
};

/// Experts with different rows beside each other.
class ExpertsTogether {
 public:
  explicit ExpertsTogether(const ExpertCurve& curve) : curve_(curve) {}
  /// `share` of the experts have `rows` each; shares add up to one.
  void add(double rows, double share);
  [[nodiscard]] double seconds() const;

 private:
  const ExpertCurve& curve_;
  double streams_ = 0, multiplies_ = 0;
};

/// The curve of `experts` at its mean rows, from the samples of its pass. `seconds`: of the call with other rows, at a
/// utilisation.
[[nodiscard]] ExpertCurve expert_curve(const op::GroupedLinear& experts, Wants wants, const UtilisationTable& table,
                                       const std::function<double(const op::GroupedLinear&, double)>& seconds);

}  // namespace moeplan
