#pragma once
/// Which modules of the HF model a pair of ours stands for.

#include "executor/state/parameters.hpp"

namespace moeplan {

/// Rows of B that one module of the checkpoint has; `step` 2 where gate and up rows alternate.
struct AdapterModule {
  std::string name;               ///< module path without ".weight"; `*` for the expert
  std::int64_t begin = 0, rows = 0, step = 1;
};

/// One LoRA pair of ours.
struct AdapterPair {
  std::size_t a = 0, b = 0;       ///< indices into the parameters
  std::int64_t experts = 0;       ///< routed experts that the model has; 0 for a dense pair
  bool shared = false;            ///< one pair for all experts
  bool embedding = false;
  std::string parameter;          ///< experts: path of the stored 3-D parameter ("...mlp.experts.gate_up_proj")
  std::vector<AdapterModule> modules;
};

/// A module's path in transformers where it is another than the checkpoint's (renamed when it loads): "block_sparse_moe" is "mlp" there.
[[nodiscard]] std::string transformers_path(const ModelSpec& model, std::string name);

/// All pairs, in the order of the parameters.
[[nodiscard]] std::vector<AdapterPair> adapter_pairs(const Parameters& parameters, const ModelSpec& model);

}  // namespace moeplan
