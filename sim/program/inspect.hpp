#pragma once
/// What `moeplan inspect` says of a model.

#include "core/json.hpp"
#include "core/spec/model.hpp"

namespace moeplan {

/// The document of `inspect --json`; with `tensors` also every tensor of the checkpoint (names with `*` stand for all experts).
[[nodiscard]] Json inspect(const ModelSpec& model, bool tensors = false);

}  // namespace moeplan
