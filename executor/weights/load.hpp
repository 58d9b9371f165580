#pragma once
/// A model's weights from a HF checkpoint into the parameters: by the model's own tensor names, tensor by tensor, quantised ones
/// dequantised on the way (FP8 in blocks of 128 x 128 or by row, MXFP4 in runs of 32).

#include "executor/state/parameters.hpp"
#include "executor/weights/safetensors_file.hpp"

namespace moeplan {

/// Loads every parameter that has a source; adapters stay as they are. Of a weight that ranks share only what this one holds is read, down to
/// parts of rows. Returns the bytes that were read. Throws InputError for a tensor that is missing or has another shape,
/// listing up to ten that differ, and for stored types that are not read.
std::int64_t load_weights(const TensorFiles& files, const ModelSpec& model, Parameters& parameters, Backend& backend);

}  // namespace moeplan
