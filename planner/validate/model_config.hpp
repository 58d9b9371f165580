#pragma once
/// A model from its printed dimensions, as the config.json that a checkpoint of it would carry, so that it takes the
/// same import as any other.

#include "planner/validate/rows.hpp"

namespace moeplan::validation {

/// A configuration of the family that the dimensions point to: latent attention (DeepSeek), experts (Mixtral,
/// Qwen-MoE), gated feed-forward (Llama), otherwise GPT. `sequence` bounds learned positions where nothing else does.
/// Throws InputError naming the missing dimension.
[[nodiscard]] Json model_config(const ModelDims& dims, const std::string& name, std::int64_t sequence);

}  // namespace moeplan::validation
