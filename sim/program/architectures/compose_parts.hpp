#pragma once
/// Shared by the compose files.

#include "sim/program/architectures/compose.hpp"

namespace moeplan::compose {

/// Stored type of a projection of this class in the checkpoint.
[[nodiscard]] DType stored(const ModelSpec& model, WeightClass cls);

/// Size on one tensor rank.
[[nodiscard]] inline std::int64_t local(const Builder& b, std::int64_t n) { return (n + b.context().tp - 1) / b.context().tp; }
/// Rows of a value.
[[nodiscard]] std::int64_t rows(const Builder& b, ValueId x);
[[nodiscard]] std::int64_t columns(const Builder& b, ValueId x);

/// Parts of a cut weight, each dealt out evenly over `ranks`.
[[nodiscard]] std::vector<DealtRows> evenly(int ranks, std::initializer_list<std::int64_t> whole);

/// y = x W^T with W `<name>.weight` [out, in] in the stored type of its class, or in `type`. `here`: rows on this rank where they are
/// not an even share; `dealt`: parts of which they are.
ValueId project(Builder& b, const ModelSpec& model, ValueId x, const std::string& name, std::int64_t out, WeightClass cls,
                WeightSplit split = WeightSplit::none, bool bias = false, std::optional<DType> type = {}, std::optional<std::int64_t> here = {},
                const std::vector<DealtRows>& dealt = {});
/// alpha / rank of the class's LoRA pairs; 1 without.
[[nodiscard]] double lora_scale(const Builder& b, WeightClass cls);
/// The model's norm (RMSNorm or LayerNorm) under `name`.
ValueId norm(Builder& b, const ModelSpec& model, ValueId x, const std::string& name);
/// A small weight beside projections (A_log, convolution, sinks): class other, float32 in the checkpoint unless said otherwise.
WeightId small(Builder& b, const std::string& name, Shape shape, WeightSplit split = WeightSplit::none, DType stored = DType::f32);
/// RMSNorm whatever the model's own norm is (inside a mixer).
ValueId rms(Builder& b, const ModelSpec& model, ValueId x, const std::string& name);
ValueId add(Builder& b, ValueId x, ValueId y);
/// RMSNorm of each of `heads` parts of a row.
ValueId head_norm(Builder& b, const ModelSpec& model, ValueId x, const std::string& name, std::int64_t heads, std::int64_t dim, bool weight = true);
ValueId rotate(Builder& b, const Rope& rope, ValueId x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim, bool trailing, bool inverse = false);

/// Softmax attention over the keys of all context ranks: by ring, by exchanging heads for tokens, or, for a window, with the rows before
/// this rank's runs. `values`: q, k, (k_shared,) v of this rank's tokens.
ValueId attend(Builder& b, op::Attention call, std::span<const ValueId> values, std::span<const WeightId> sinks);
/// A scan that continues over context ranks; the mixer says how large its state is.
ValueId scan(Builder& b, const Mixer& mixer, const Op& call, std::initializer_list<ValueId> values, std::initializer_list<WeightId> weights);
/// Attention sinks of this rank's heads.
WeightId sink_weights(Builder& b, const std::string& name, std::int64_t heads, DType stored = DType::f32);

/// The mixers: normalised input (whole sequence of this rank) -> output, weights below the builder's scope.
ValueId mix(Builder& b, const ModelSpec& model, const GqaAttention& a, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const MlaAttention& a, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const KdaAttention& a, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const GdnAttention& a, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const Mamba2Mixer& a, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const Mamba1Mixer& a, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const LightningAttention& a, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const CompressedAttention& a, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const DenseFfn& f, ValueId x, Stream& stream);
ValueId mix(Builder& b, const ModelSpec& model, const MoeFfn& f, ValueId x, Stream& stream);

}  // namespace moeplan::compose
