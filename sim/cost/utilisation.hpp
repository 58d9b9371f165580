#pragma once
/// Measured utilisation over the shapes of one operator and pass, and what lies between them.
///
///   u = (limit + alone) / time      limit: the data sheet's least time; alone: what a call takes that does nothing
///
/// `alone` keeps u smooth where calls are short: without it u falls with the size of the call and says nothing about the next.

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/catalogue.hpp"

namespace moeplan {

/// Of a call that does next to nothing: start and end of its kernel. The shortest of 541 calls measured on one H200 (a sigmoid of 4,096 x 32, by
/// events around it) took 4.6 us. Only shapes are compared with it: no time is added.
inline constexpr double kAloneSeconds = 4e-6;

/// Central 90 % of true over predicted time.
struct ErrorBand {
  double low = 1, high = 1;
};

/// A call as the tables see it.
struct CallShape {
  static constexpr std::size_t kFields = 20;
  std::array<float, kFields> log{};          ///< ln(1 + value) of the whole-number fields
  std::array<std::uint8_t, kFields> tag{};   ///< switches and enums
  Wants wants{};
};
/// Of a grouped product the rows of one expert take the place of all rows, and how many experts there are counts a quarter: time goes with them.
[[nodiscard]] CallShape shape_of(const Op& op, Wants wants);
/// The same with so many rows for each expert, not whole ones.
[[nodiscard]] CallShape shape_of_rows(const op::GroupedLinear& op, Wants wants, double rows_of_expert);

class UtilisationTable {
 public:
  struct Sample {
    CallShape shape;
    double utilisation = 1, seconds = 0, spread = 0;
    bool compute_bound = true;
  };
  struct Answer {
    double utilisation = 0;
    const Sample* exact = nullptr;
    bool foreign = false;  ///< the nearest sample differs in a switch, a type or the wanted gradients
  };

  void add(const Sample& sample) { samples_.push_back(sample); }
  /// After the last sample: what they differ in, and how well each follows from the others.
  void arrange();

  /// The shape itself if it was measured. Between two measured shapes on one line through it, nearest first: ln u along the line. Else the
  /// three nearest by inverse squared distance. Outside the table its edge answers. `without`: as if this sample were not there.
  [[nodiscard]] Answer look_up(const CallShape& shape, const Sample* without = nullptr) const;
  [[nodiscard]] const std::vector<Sample>& samples() const { return samples_; }
  [[nodiscard]] bool empty() const { return samples_.empty(); }
  [[nodiscard]] ErrorBand error() const { return error_; }
  /// Time of each sample over its prediction from the others; empty for a table of one.
  [[nodiscard]] std::vector<double> left_out() const;

 private:
  struct Near {
    double distance2 = 1e30;
    std::size_t at = 0;
    bool foreign = false;
  };
  [[nodiscard]] double on_a_line(const std::vector<Near>& near, const float* query) const;

  std::vector<Sample> samples_;
  std::vector<std::size_t> varying_;   ///< fields in which the samples differ; the others say nothing about the shape
  std::vector<float> position_;        ///< samples x varying
  std::array<float, CallShape::kFields> low_{}, high_{};
  ErrorBand error_;
};

}  // namespace moeplan
