#pragma once
/// What a HF config.json says, normalised. A layer is a list of sublayers (mixers and feed-forwards) on a residual stream.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/dtype.hpp"
#include "core/fields.hpp"

namespace moeplan {

struct Rope {
  bool enabled = true;               ///< false: NoPE
  std::int64_t rotary_dim = 0;       ///< width that rotates; 0: the whole head
  double theta = 10000;
  std::string scaling;               ///< "yarn", "linear", ...; empty without
  double factor = 1;                 ///< of the scaling
  std::int64_t original_positions = 0;  ///< context the scaling starts from
  bool interleaved = false;          ///< pairs are neighbours (DeepSeek's MLA), else halves
  double beta_fast = 32, beta_slow = 1;  ///< YaRN, Llama 3: turns over the trained context above and below which a frequency is kept and stretched
  bool truncated = true;             ///< YaRN: the ramp between them begins and ends at whole pairs
  double magnitude = 1;              ///< YaRN, LongRoPE: multiplies sine and cosine
  double long_magnitude = 1;         ///< LongRoPE: the same for sequences above `original_positions`
  std::vector<double> short_divisors{}, long_divisors{};  ///< LongRoPE: of each pair's frequency, for sequences up to `original_positions` and above
  double score_scale = 1;            ///< YaRN as DeepSeek has it: multiplies the attention logits besides d^-1/2
  bool operator==(const Rope&) const = default;
};

enum class QkNorm : std::uint8_t { none, per_head, full_width, weightless };
enum class OutputGate : std::uint8_t { none, in_q_proj, head_wise, projection, low_rank };

/// MHA/GQA softmax attention; sliding where `window` is set.
struct GqaAttention {
  static constexpr std::string_view kind = "gqa";
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  std::optional<std::int64_t> window;
  bool qkv_bias = false, o_bias = false, sinks = false, fused_qkv = false;
  bool k_is_v = false;                 ///< Gemma-4 full layers: values are the keys, no v_proj
  QkNorm qk_norm = QkNorm::none;
  bool norm_after_rotation = false;    ///< Hunyuan: queries and keys are turned, then normed
  OutputGate gate = OutputGate::none;
  Rope rope;
  /// Block-sparse index branch on GQA (MiniMax-M3): heads, width, keys that survive (blocks x block size); 0 without.
  std::int64_t index_heads = 0, index_dim = 0, index_topk = 0, index_block = 1;
  /// Factored queries (Step-3 MFA): q goes through a shared latent of this width, 0 without.
  std::int64_t q_latent = 0;
  bool operator==(const GqaAttention&) const = default;
};

/// Lightning indexer of DSA. `shared`: reuses the indices of the last layer that owns an indexer.
struct DsaIndexer {
  std::int64_t heads = 0, dim = 0, topk = 0, key_pool = 0;
  bool shared = false;
  bool operator==(const DsaIndexer&) const = default;
};

/// Multi-head latent attention; with `indexer` it is DSA.
struct MlaAttention {
  static constexpr std::string_view kind = "mla";
  std::int64_t heads = 0;
  std::int64_t q_lora = 0;           ///< 0: one q_proj
  std::int64_t kv_lora = 0, nope = 0, rope_dim = 0, v = 0;
  OutputGate gate = OutputGate::none;
  bool sinks = false;
  Rope rope;
  std::optional<DsaIndexer> indexer;
  bool operator==(const MlaAttention&) const = default;
};

struct KdaAttention {
  static constexpr std::string_view kind = "kda";
  std::int64_t heads = 0, head_dim = 0, conv = 4;
  OutputGate gate = OutputGate::low_rank;
  std::optional<double> gate_lower_bound;  ///< bounded gate (K3: -5); softplus without
  std::int64_t stored_a_log = 0;           ///< length as stored if longer than heads
  bool operator==(const KdaAttention&) const = default;
};

struct GdnAttention {
  static constexpr std::string_view kind = "gdn";
  std::int64_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0, conv = 4;
  bool split_projections = false;          ///< Qwen3.5: in_proj_qkv/z/b/a apart
  bool operator==(const GdnAttention&) const = default;
};

struct Mamba2Mixer {
  static constexpr std::string_view kind = "mamba2";
  std::int64_t heads = 0, head_dim = 0, groups = 0, state = 0, conv = 4;
  bool operator==(const Mamba2Mixer&) const = default;
};

struct Mamba1Mixer {
  static constexpr std::string_view kind = "mamba1";
  std::int64_t inner = 0, state = 0, dt_rank = 0, conv = 4;
  bool operator==(const Mamba1Mixer&) const = default;
};

struct LightningAttention {
  static constexpr std::string_view kind = "lightning";
  std::int64_t heads = 0, head_dim = 0;
  bool operator==(const LightningAttention&) const = default;
};

/// DeepSeek-V4: one shared KV head, compressed keys, grouped output.
struct CompressedAttention {
  static constexpr std::string_view kind = "compressed";
  std::int64_t heads = 0, head_dim = 0, q_lora = 0, rope_dim = 0, o_groups = 0, o_lora = 0, window = 0;
  std::int64_t ratio = 0;                  ///< 0: sliding window only
  std::int64_t index_heads = 0, index_dim = 0, index_topk = 0;
  bool operator==(const CompressedAttention&) const = default;
};

enum class Activation : std::uint8_t { silu, gelu, relu2, situ, clamped_swiglu };
template <>
struct EnumNames<Activation> {
  static constexpr std::array names{std::pair{Activation::silu, std::string_view("silu")}, std::pair{Activation::gelu, std::string_view("gelu")},
                                    std::pair{Activation::relu2, std::string_view("relu2")}, std::pair{Activation::situ, std::string_view("situ")},
                                    std::pair{Activation::clamped_swiglu, std::string_view("clamped_swiglu")}};
};

/// Numbers of an activation, used by those that have them.
struct ActivationNumbers {
  double limit = 7, alpha = 1.702;         ///< clamped_swiglu: clamp and slope
  double up_offset = 1;                    ///< clamped_swiglu: added to the clamped up part (gpt-oss 1; DeepSeek-V4, GLM-5.3-Flash 0)
  double beta = 4, linear_beta = 25;       ///< situ: bounds of gate and up
  bool operator==(const ActivationNumbers&) const = default;
};

/// Feed-forward of one width. `gated`: gate and up; otherwise up only.
struct DenseFfn {
  static constexpr std::string_view kind = "dense";
  std::int64_t intermediate = 0;
  bool gated = true, bias = false;
  Activation activation = Activation::silu;
  ActivationNumbers numbers{};
  bool operator==(const DenseFfn&) const = default;
};

/// `sparse_mixer`: each choice is weighed by a softmax over the experts that come close to it (Phi-3.5-MoE).
enum class RouterScore : std::uint8_t { softmax, sigmoid, sqrt_softplus, sparse_mixer };
template <>
struct EnumNames<RouterScore> {
  static constexpr std::array names{std::pair{RouterScore::softmax, std::string_view("softmax")},
                                    std::pair{RouterScore::sigmoid, std::string_view("sigmoid")},
                                    std::pair{RouterScore::sqrt_softplus, std::string_view("sqrt_softplus")},
                                    std::pair{RouterScore::sparse_mixer, std::string_view("sparse_mixer")}};
};
/// How the checkpoint holds routed experts.
enum class ExpertLayout : std::uint8_t { per_expert, fused_gate_up, fused_transposed, separate_3d, flat_2d };

struct MoeFfn {
  static constexpr std::string_view kind = "moe";
  std::int64_t experts = 0, top_k = 0, intermediate = 0;
  std::int64_t latent = 0;                 ///< experts work at this width; 0: at hidden size
  bool latent_norm = false;
  bool gated = true, bias = false;
  bool interleaved = false;                ///< gate and up columns alternate (gpt-oss)
  Activation activation = Activation::silu;
  ActivationNumbers numbers{};
  RouterScore score = RouterScore::softmax;
  bool score_bias = false;                 ///< correction buffer, not trained by gradient
  bool router_bias = false;
  bool normalise = true;
  double route_scale = 1.0;
  double jitter = 0.01;                    ///< sparse_mixer: experts within 2 x jitter of the best, relative, share its softmax
  std::int64_t groups = 1, top_groups = 1;
  std::int64_t zero_experts = 0;           ///< extra router rows without weights (LongCat)
  std::int64_t score_bias_rank = 1;        ///< ERNIE stores the correction as [1, E]
  bool hash_routed = false;                ///< indices come from an integer table [vocabulary, k] (DeepSeek-V4)
  std::int64_t shared_intermediate = 0;    ///< width of the shared expert(s) together; 0 without
  bool shared_gate = false;
  bool shared_fused = false;               ///< gate and up of the shared expert in one matrix [2I, h]
  ExpertLayout layout = ExpertLayout::per_expert;
  bool operator==(const MoeFfn&) const = default;
};

using Mixer = std::variant<GqaAttention, MlaAttention, KdaAttention, GdnAttention, Mamba2Mixer, Mamba1Mixer, LightningAttention,
                           CompressedAttention, DenseFfn, MoeFfn>;

/// `layer_norm` has no bias (DBRX).
enum class NormKind : std::uint8_t { rms, layer_norm_bias, layer_norm, none };

/// What a sublayer reads. `previous_normed`: the normalised input of the sublayer before, result added at the layer's end
/// (LongCat's shortcut experts). `layer_input`: the layer's input (Arctic's experts beside the dense branch). `previous_stream`: what
/// the sublayer before read (Gemma-4's experts beside the dense branch).
enum class SublayerInput : std::uint8_t { stream, previous_normed, layer_input, previous_stream };

struct Sublayer {
  std::string scope{};                     ///< checkpoint prefix below the layer ("self_attn", "block_sparse_moe")
  Mixer mixer{};
  std::string pre_norm{};                  ///< checkpoint name of the norm before; empty without
  std::string post_norm{};                 ///< of the norm after the mixer, before the residual sum; empty without
  std::string residual_name{};             ///< prefix of the residual module's weights ("hc_attn_", "mlp_res_"); empty for plain
  SublayerInput input = SublayerInput::stream;
  bool operator==(const Sublayer&) const = default;
};

/// A tensor class that is resident and counted, and that no operator reads (vision tower, MTP copies, integer tables).
struct IdleTensor {
  std::string name;                        ///< `*` for a block index
  std::vector<std::int64_t> shape;
  std::int64_t count = 1;
  bool operator==(const IdleTensor&) const = default;
};

enum class ResidualKind : std::uint8_t {
  plain,
  attention_residual,   ///< K3: softmax mix over stored block inputs before each sublayer
  hyper,                ///< mHC: m streams (DeepSeek-V4, GLM-5.3-Flash)
  input_hyper,          ///< iHC: m streams (Hy4)
};

struct LayerSpec {
  std::vector<Sublayer> sublayers;
  std::vector<IdleTensor> extra{};         ///< small tensors below the layer that no operator of ours reads (Gemma-4's layer_scalar)
  bool stores_block = false;               ///< attention_residual: this layer's input joins the stored blocks
  bool operator==(const LayerSpec&) const = default;
};

/// How a quantised tensor is laid out in the file.
enum class PackedLayout : std::uint8_t {
  plain,               ///< one tensor
  scale_inv,           ///< weight + weight_scale_inv (DeepSeek-V3 FP8 blocks)
  scale,               ///< weight + scale (DeepSeek-V4)
  compressed_tensors,  ///< weight_packed + weight_scale (+ weight_shape for INT4)
  blocks_scales,       ///< <name>_blocks + <name>_scales (gpt-oss)
};

/// Stored type of a weight class in the checkpoint, from quantization_config and torch_dtype.
struct StoredTypes {
  DType base = DType::bf16;                ///< everything not named below
  DType experts = DType::bf16, attention = DType::bf16, dense = DType::bf16, shared = DType::bf16;
  PackedLayout layout = PackedLayout::plain;
  bool operator==(const StoredTypes&) const = default;
};

struct ModelSpec {
  std::string name;                        ///< file stem or directory name; only for messages
  std::string family;                      ///< architecture file that imported it
  std::string architecture;                ///< config.json `architectures[0]`, else `model_type`
  std::int64_t hidden = 0, vocabulary = 0, max_positions = 0;
  bool tied_head = false, head_bias = false;
  std::int64_t learned_positions = 0;      ///< GPT-3: rows of wpe
  NormKind norm = NormKind::rms;
  double norm_epsilon = 1e-6;
  bool unit_offset_norm = false;           ///< norm weights are stored minus one (Qwen3-Next)
  ResidualKind residual = ResidualKind::plain;
  std::int64_t streams = 1;                ///< hyper connections: m
  bool hyper_head_affine = true;           ///< the weighted sum of the streams before the head has base [m] and scale [1] (Hy4: no)
  std::vector<LayerSpec> layers;
  std::vector<LayerSpec> mtp_layers;
  std::vector<IdleTensor> mtp_extra;       ///< enorm, hnorm, eh_proj ...
  std::vector<IdleTensor> mtp_copies;      ///< embedding and head stored again
  std::vector<IdleTensor> vision;
  StoredTypes stored;
  /// Checkpoint names: prefix of layers ("model.layers."), embedding, final norm, head, residual module before the head.
  std::string layer_prefix = "model.layers.", embedding_name = "model.embed_tokens.weight", norm_name = "model.norm", head_name = "lm_head.weight";
  std::string positions_name;              ///< learned positions
  std::string residual_head_name;          ///< prefix ("model.output_attn_res_", "hc_head_")
  std::string mtp_prefix = "mtp.layers.";
  std::int64_t mtp_first = 0;              ///< index of the first MTP layer after the prefix
  /// From our name of a layer's tensor to the file's: each pair replaces the first occurrence, in order.
  std::vector<std::pair<std::string, std::string>> renames;
  std::vector<std::string> uncovered;      ///< what the program does not run ("image tokens")
  std::vector<std::string> notes;          ///< what the import assumed
  bool operator==(const ModelSpec&) const = default;
};

}  // namespace moeplan
