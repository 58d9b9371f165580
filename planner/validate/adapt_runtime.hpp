#pragma once
/// What a row's own words change in the runtime of its framework.

#include "core/spec/model.hpp"
#include "core/spec/profile.hpp"
#include "core/spec/runtime.hpp"
#include "planner/validate/rows.hpp"
#include "planner/validate/words.hpp"

namespace moeplan::validation {

/// `model` as imported. `eager`: whose factors operations launched one by one have.
void adapt_runtime(Runtime& runtime, const Row& row, Sharding sharding, const ModelSpec& model,
                   const Runtime& eager);

/// Replaces what the profile says of attention by the utilisation that the framework's kernels are published with, on
/// this device and in sequences of this length.
void use_attention(DeviceProfile& profile, const AttentionWords& words, const ReachWords& reach, const DeviceSpec& device,
                   std::int64_t sequence);

}  // namespace moeplan::validation
