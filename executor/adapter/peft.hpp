#pragma once
/// LoRA pairs as HF PEFT reads and writes them. Dense pairs are the same everywhere; those of routed experts come in two dialects:
///   per_expert     (D1) `...experts.{i}.gate_proj.lora_A.weight` [r, in], `.lora_B.weight` [out, r]
///   param_wrapper  (D3, PEFT 0.19 and later) one pair for the stored 3-D parameter: `...experts.base_layer.lora_A.weight` is gate_up_proj,
///                  `...experts.lora_A.weight` down_proj; row e r + k of A and column k E + e of B belong to expert e's component k.
/// Our fused gate and up share A: on export both get a copy, on import both must have the same.

#include <filesystem>
#include <functional>

#include "executor/state/parameters.hpp"
#include "executor/weights/safetensors_file.hpp"

namespace moeplan {

enum class AdapterDialect : std::uint8_t { per_expert, param_wrapper };

/// The tensors of an adapter file, and what adapter_config.json says.
struct AdapterFiles {
  std::vector<NamedTensor> tensors;
  Json config;
};
/// `values` gives a parameter's numbers (its weights, or in tests its gradients).
using ParameterValues = std::function<std::vector<float>(const Parameter&)>;
[[nodiscard]] AdapterFiles export_adapter(const Parameters& parameters, const Problem& problem, const ParameterValues& values, AdapterDialect dialect);

/// Writes `directory/adapter_config.json` and `adapter_model.safetensors` in place of what is there, and reads them back.
void save_adapter(const std::filesystem::path& directory, AdapterFiles files, const std::function<void()>& told = {});

/// Reads an adapter of either dialect into the parameters. Throws InputError for another rank or scale, tensors that are missing or that
/// belong to nothing, DoRA, biases, pickles, and layouts that cannot be told apart.
void load_adapter(const std::filesystem::path& directory, const Problem& problem, Parameters& parameters, Backend& backend);

}  // namespace moeplan
