#pragma once
/// Predicted against measured: one score per row and quantity, and what they come to per source, per hardware and in
/// all.

#include <functional>

#include "planner/validate/predict.hpp"

namespace moeplan::validation {

struct Score {
  std::string id, source, hardware;
  Measure quantity = Measure::step_time;
  double measured = 0, predicted = 0, low = 0, high = 0;  ///< seconds or bytes
  bool high_confidence = false;
  std::string layout;  ///< the degrees, "tp 2, pp 1, cp 1, ep 8"
  [[nodiscard]] double error() const { return predicted / measured - 1; }
  [[nodiscard]] bool in_interval() const { return measured >= low && measured <= high; }
};

/// A plan that ran and is said not to fit, or one that failed for memory and is said to fit.
struct Verdict {
  std::string id;
  bool ran = true;
  double need = 0, have = 0;  ///< bytes: predicted on the device, the device's
};

struct Validation {
  std::vector<Score> scores;
  std::vector<Skipped> skipped;
  std::vector<Verdict> wrong;  ///< verdicts on feasibility that the run contradicts
  std::int64_t rows = 0, complete = 0,
               scored = 0;    ///< complete: confidence high and every required field; scored: of those
  std::int64_t verdicts = 0;  ///< runs whose feasibility was judged
};

struct Summary {
  std::size_t count = 0;
  double mape = 0, median_ape = 0, bias = 0;  ///< bias: mean of the signed errors
  double worst = 0;                           ///< signed error of the worst row
  std::string worst_id;
  double coverage = 0;                     ///< share of rows inside their 90 % interval
  double median_width = 0;                 ///< (high - low) / predicted
  std::optional<double> rank_correlation;  ///< Spearman, from three rows up
};

/// Scores rows; those that cannot be are skipped with the reason. `threads` 0: all cores; the answer does not depend on
/// it.
[[nodiscard]] Validation validate(const Rows& rows, const Library& library, int threads,
                                  const std::function<void(double)>& progress);

[[nodiscard]] Summary summarise(const std::vector<const Score*>& scores);
/// MAPE of rows of one source when those of each layout are scaled by one number, the median of measured over predicted
/// of the other layouts' rows: what a user who has measured some layouts gets for another. Nothing below three layouts.
[[nodiscard]] std::optional<double> mape_with_one_scalar(const std::vector<const Score*>& scores);
/// Groups of one quantity by source or hardware, largest first.
[[nodiscard]] std::vector<std::pair<std::string, std::vector<const Score*>>> grouped_by(
    const std::vector<Score>& scores, Measure quantity, std::string Score::*key);
[[nodiscard]] std::vector<const Score*> of_quantity(const std::vector<Score>& scores, Measure quantity);

/// The document of `moeplan validate --json`.
[[nodiscard]] Json report_json(const Validation& validation);
/// Predicted over measured, both axes logarithmic, one panel per quantity, one colour per source.
[[nodiscard]] std::string plot_svg(const Validation& validation);

}  // namespace moeplan::validation
