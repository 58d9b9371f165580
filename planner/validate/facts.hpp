#pragma once
/// What is known of a measured row beyond its own fields: of its source, of its model, of its device. Data
/// (configs/measured/words.json), so that a row reads the same wherever it is kept.

#include "planner/validate/convert.hpp"

namespace moeplan::validation {

/// Everything that a row says in words, for words to be looked for.
[[nodiscard]] std::string described(const Row& row);

/// The row with what is known of all rows of its source: versions, variants of devices, packed documents, the unit of
/// memory. What a row says itself stays, but for a device that its source names more closely.
[[nodiscard]] Row with_facts(Row row, const Words& words);

/// Dimensions under the row's name for its model, else under one that differs only in punctuation, maker or "-instruct";
/// what they leave out, as the words for its name say. Empty where nothing is known.
[[nodiscard]] ModelDims dims_of(const Row& row, const Library& library);

/// Name of the configuration in configs/models that stands for the row's model.
[[nodiscard]] std::optional<std::string> model_in_library(const Row& row, const ModelDims& dims, const Library& library);

/// Whether a device's name holds each of the words (separated by blanks), none of them as a part of a longer number or
/// name: "RTX 4090" and "rtx4090-24gb" hold "rtx4090", "gb200" does not hold "b200", nor "h200" "h20".
[[nodiscard]] bool names_device(const std::string& hardware, const std::string& words);

[[nodiscard]] const HardwareWords* hardware_of(const Row& row, const Words& words);
[[nodiscard]] const FrameworkWords* framework_of(const Row& row, const Words& words);

}  // namespace moeplan::validation
