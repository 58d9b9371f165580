#pragma once
/// A model's weights from a HF checkpoint into the parameters: by the model's own tensor names, tensor by tensor, quantised ones
/// dequantised on the way (FP8 in blocks of 128 x 128 or by row, MXFP4 in runs of 32).

#include "executor/state/parameters.hpp"
#include "executor/weights/safetensors_file.hpp"

namespace moeplan {

/// Loads every parameter that has a source; adapters stay as they are. Throws InputError for a tensor that is missing or has another shape,
/// listing up to ten that differ, and for stored types that are not read.
void load_weights(const TensorFiles& files, const ModelSpec& model, Parameters& parameters, Backend& backend);

/// `count` elements from `begin` of a stored tensor of `shape` (as the model sees it), whatever it is stored as. `name` is the model's.
[[nodiscard]] std::vector<float> stored_values(const TensorFiles& files, const std::string& name, const std::vector<std::int64_t>& shape, DType type, PackedLayout layout,
                                               std::int64_t begin, std::int64_t count);

}  // namespace moeplan
