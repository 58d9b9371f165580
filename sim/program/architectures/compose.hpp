#pragma once
/// Composes operators into the blocks of a model. What a block declares is all there is of it: parameter counts, checkpoint tensors
/// and step programs are read off the same graphs.

#include <string>
#include <vector>

#include "core/spec/model.hpp"
#include "sim/program/builder.hpp"

namespace moeplan {

/// What flows between the layers. `x` is [t, h], or [t, m h] under hyper-connections.
struct Stream {
  ValueId x = -1;
  std::vector<ValueId> blocks;   ///< stored block inputs (attention residuals), oldest first
  ValueId indices = -1;          ///< of the last layer that owns an indexer; [t, top-k]
  ValueId token_ids = -1;        ///< for hash routing; [t]
  bool made_indices = false;     ///< in this block
};

/// Token ids -> x. Weight names are those of the checkpoint.
void compose_embedding(Builder& b, const ModelSpec& model, Stream& stream);
/// One decoder layer. Weight and source names are ours, relative to the layer (`checkpoint_name` gives the file's).
void compose_layer(Builder& b, const ModelSpec& model, const LayerSpec& layer, Stream& stream);
/// Tokens that the loss works on together: a `loss_chunks`-th of them in whole tiles of 128, the rows of a product's tile, and at least 2,048, or all where
/// there are fewer. Each piece reads the head's weights twice more (logits, dx), 2.3 GB of Kimi-K3's, which take 1.0 ms to read on an H200;
/// products of 2,048 rows outlast that ten times, of 448 rows twice. What a piece holds, fp32 of 8,192 logits and of dx for each token, is 126 MB there.
[[nodiscard]] std::int64_t loss_tokens(std::int64_t tokens, std::int64_t loss_chunks);

/// Final norm, and head with loss in pieces of `loss_tokens`. A tied head declares the embedding's name and no source.
void compose_head(Builder& b, const ModelSpec& model, Stream& stream, std::int64_t loss_chunks);
/// Weights that no block runs: vision tower, MTP layers with what belongs to them, small tensors of the layers. Counted, resident, frozen.
void compose_idle(Builder& b, const ModelSpec& model);

/// Declares what a block that starts at `layer` (layers = the head) receives: x, then stored blocks, shared indices, token ids.
[[nodiscard]] Stream stream_inputs(Builder& b, const ModelSpec& model, std::int64_t layer);
/// Marks what leaves a block: x, then indices that it made. (A stored block is the storing layer's own input.)
void stream_outputs(Builder& b, const Stream& stream);

/// Equal for layers whose blocks lower equal: same sublayers, same number of stored blocks that reach them.
[[nodiscard]] std::string layer_kind(const ModelSpec& model, std::int64_t layer);

/// "gqa", "mla", "dsa", "kda", ...; "none" for a block that has no mixer of tokens. "dense", "moe" or "none".
[[nodiscard]] std::string attention_name(const LayerSpec& layer);
[[nodiscard]] std::string ffn_name(const LayerSpec& layer);

/// A layer's tensor as the file names it: prefix, index, and the model's renames applied to our name.
[[nodiscard]] std::string checkpoint_name(const ModelSpec& model, const std::string& prefix, std::int64_t layer, const std::string& ours);

}  // namespace moeplan
