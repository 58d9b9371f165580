#pragma once
/// All tensors of a model, read off its composed blocks: names, shapes and types in the checkpoint, parameters by category and scope.

#include <functional>
#include <string>
#include <vector>

#include "core/spec/model.hpp"
#include "sim/program/graph.hpp"

namespace moeplan {

/// The blocks of a model, each kind of layer once.
struct ModelBlocks {
  Graph embedding, head, idle;
  std::vector<Graph> kinds;               ///< one per distinct LayerSpec
  std::vector<std::size_t> example;       ///< a layer of each kind
  std::vector<std::size_t> kind_of;       ///< per layer
};

/// Composes every block once, unsharded, all weights frozen, for sequences of 8192 tokens.
[[nodiscard]] ModelBlocks compose_model(const ModelSpec& model);

enum class Scope : std::uint8_t { main, mtp, mtp_copies, vision, tables };

/// A tensor (or `count` of them, one per expert: `*` in the name) as our operators use it.
struct ModelTensor {
  std::string name;
  std::vector<std::int64_t> shape;   ///< as stored, before quantisation
  std::int64_t count = 1;
  DType dtype = DType::bf16;         ///< as stored
  std::int64_t padding = 0;          ///< stored elements beyond the used ones, per tensor
  Scope scope = Scope::main;
  std::int64_t layer = -1;           ///< -1: belongs to no layer
};

/// Every tensor that a checkpoint of the model may hold, in file order of the layers.
[[nodiscard]] std::vector<ModelTensor> model_tensors(const ModelSpec& model, const ModelBlocks& blocks);

/// One tensor of the file; a quantised weight is several (payload, scales). `dtype` is the safetensors word ("BF16", "F8_E4M3", "U8").
struct FileTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t count = 1;
  std::string dtype;
  Bytes bytes{};                     ///< of one
};
[[nodiscard]] std::vector<FileTensor> file_tensors(const ModelTensor& tensor, PackedLayout layout);

/// Elements that a model has, each parameter once. `other`: latent projections, residual modules, indexers' companions.
struct ParameterCounts {
  std::int64_t embedding = 0, attention = 0, router = 0, routed_experts = 0, shared_experts = 0, dense_ffn = 0, norms = 0, lm_head = 0, vision = 0, mtp = 0, other = 0;
  std::int64_t main = 0, mtp_copies = 0, tables = 0;   ///< `main`: everything but mtp, its copies, vision and integer tables
  std::int64_t activated = 0;          ///< of main: experts count by top-k / experts; input embedding included
  std::int64_t input_embedding = 0;    ///< elements of the token embedding
  std::int64_t stored_bytes = 0;       ///< of main, mtp, vision and tables, scales and padding included (copies are not)
  std::int64_t stored_tensors = 0;
  [[nodiscard]] std::int64_t total() const { return main + vision; }
};

/// Sums checked against 63 bits; throws InputError{model name} beyond.
[[nodiscard]] ParameterCounts count_parameters(const ModelSpec& model, const ModelBlocks& blocks);

}  // namespace moeplan
