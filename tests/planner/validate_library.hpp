#pragma once
/// The words and models that ship, for rows made by tests.

#include <filesystem>

#include "planner/validate/convert.hpp"
#include "planner/validate/rows.hpp"
#include "planner/validate/words.hpp"

namespace moeplan::validation {

inline const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

inline const Library& library() {
  static const Library shipped = [] {
    Library out{kConfigs, load_words(kConfigs), {}};
    out.models = read_models(load_json(kConfigs / "measured" / "models.json"), "models.json");
    return out;
  }();
  return shipped;
}

}  // namespace moeplan::validation
