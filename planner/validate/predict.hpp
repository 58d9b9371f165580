#pragma once
/// What moeplan says of a case: the planner's own forecast of the plan under the runtime that ran it, with a central 90
/// % interval.

#include "planner/validate/convert.hpp"

namespace moeplan::validation {

struct Predicted {
  double value = 0, low = 0, high = 0;
};

struct Prediction {
  Predicted step;       ///< seconds
  Predicted allocated;  ///< bytes handed out by the allocator at the peak of the fullest rank
  Predicted reserved;   ///< bytes it holds
  Predicted device;     ///< what the driver reports
  bool fits =
      true;  ///< the device holds what is live at the peak; of a setting that the row does not say, at its least
};

[[nodiscard]] Prediction predict(const Case& c, const Words& words);

}  // namespace moeplan::validation
