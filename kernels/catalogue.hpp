#pragma once
/// Every operator there is, one line each, and what follows from the contracts. Adding an operator is one folder, one line in `Op`
/// and one row in the table of `catalogue.cpp` that says which backends are in the tree.

#include <optional>
#include <string>
#include <variant>

#include "core/json.hpp"
#include "kernels/activation/op.hpp"
#include "kernels/adamw/op.hpp"
#include "kernels/add/op.hpp"
#include "kernels/attention/op.hpp"
#include "kernels/attention_residual/op.hpp"
#include "kernels/cast/op.hpp"
#include "kernels/combine/op.hpp"
#include "kernels/compress/op.hpp"
#include "kernels/compressed_attention/op.hpp"
#include "kernels/cross_entropy/op.hpp"
#include "kernels/dequantise/op.hpp"
#include "kernels/embedding/op.hpp"
#include "kernels/gated_delta_net/op.hpp"
#include "kernels/gated_rms_norm/op.hpp"
#include "kernels/glu/op.hpp"
#include "kernels/grad_norm/op.hpp"
#include "kernels/grouped_linear/op.hpp"
#include "kernels/head_linear/op.hpp"
#include "kernels/hyper_expand/op.hpp"
#include "kernels/hyper_post/op.hpp"
#include "kernels/hyper_pre/op.hpp"
#include "kernels/indexer/op.hpp"
#include "kernels/join/op.hpp"
#include "kernels/kda/op.hpp"
#include "kernels/layer_norm/op.hpp"
#include "kernels/lightning_attention/op.hpp"
#include "kernels/linear/op.hpp"
#include "kernels/mamba1/op.hpp"
#include "kernels/mamba2/op.hpp"
#include "kernels/mul_gate/op.hpp"
#include "kernels/permute/op.hpp"
#include "kernels/quantise/op.hpp"
#include "kernels/rms_norm/op.hpp"
#include "kernels/rope/op.hpp"
#include "kernels/router/op.hpp"
#include "kernels/short_conv/op.hpp"
#include "kernels/sparse_attention/op.hpp"
#include "kernels/split/op.hpp"

namespace moeplan {

using Op = std::variant<
    op::Embedding,
    op::Linear,
    op::HeadLinear,
    op::RmsNorm,
    op::GatedRmsNorm,
    op::LayerNorm,
    op::Rope,
    op::Split,
    op::Join,
    op::Glu,
    op::Activate,
    op::Add,
    op::MulGate,
    op::Attention,
    op::Indexer,
    op::SparseAttention,
    op::Compress,
    op::CompressedAttention,
    op::Kda,
    op::GatedDeltaNet,
    op::Mamba2,
    op::Mamba1,
    op::LightningAttention,
    op::ShortConv,
    op::AttentionResidual,
    op::HyperExpand,
    op::HyperPre,
    op::HyperPost,
    op::Router,
    op::Permute,
    op::GroupedLinear,
    op::Combine,
    op::CrossEntropy,
    op::AdamW,
    op::GradNorm,
    op::Cast,
    op::Quantise,
    op::Dequantise>;

/// One call of a program: which operator, which way, and for a backward call which gradients are wanted.
struct OpCall {
  Op op;
  Pass pass = Pass::forward;
  Wants wants{};
  bool operator==(const OpCall&) const = default;
};

/// Which implementations of an operator can be called through the catalogue.
struct Backends {
  bool reference = false;   ///< by `kernels/reference.hpp`
  bool cuda = false;
  bool operator==(const Backends&) const = default;
};

[[nodiscard]] std::string_view kind(const Op& op);
[[nodiscard]] Operands operands(const Op& op);

/// True if the outputs are views of the first input: no bytes of their own, no time (`split`).
[[nodiscard]] bool is_view(const Op& op);

/// What of `wants` there is to compute: no input gradient without a differentiable input, no weight gradient without a trained weight.
[[nodiscard]] Wants possible(const Op& op, Wants wants);

/// Arithmetic of one call; zero for a backward that wants nothing (or nothing possible).
[[nodiscard]] Flops flops(const Op& op, Pass pass, Wants wants = {});

/// Scratch that the call needs while it runs, besides its operands.
[[nodiscard]] Bytes workspace(const Op& op, Pass pass, Wants wants = {});

/// Bytes between memory and chip, each operand read once and each written once. Forward: inputs and weights in, outputs out. Backward:
/// the outputs' gradients and every operand that is needed again in, the wanted gradients out (in their operand's type; of quantised
/// weights there is none). Operators that touch less say so themselves (`embedding`).
[[nodiscard]] Bytes bytes_moved(const Op& op, Pass pass, Wants wants = {});

/// Bytes that this call keeps for its backward, weights left out: inputs, outputs and auxiliary outputs that are needed again.
/// Neighbours share tensors (one's output is the next one's input): a sum over calls counts those twice; a program walks values instead.
[[nodiscard]] Bytes kept_bytes(const Op& op, Wants wants = {});

/// Calibration key: kind, the fields that are not at their default in order, and the pass: "rms_norm tokens=8192 hidden=7168 forward",
/// "linear tokens=64 in=8 out=8 lora_rank=4 backward dx dw". Real-valued fields (scales, epsilons) do not change the time and stay out.
[[nodiscard]] std::string key(const Op& op, Pass pass, Wants wants = {});

/// The call that a key stands for, real-valued fields at their defaults; nothing if the text is not a key.
[[nodiscard]] std::optional<OpCall> parse_key(std::string_view text);

/// Which implementations are in the tree. Unknown kinds have none.
[[nodiscard]] Backends backends(std::string_view kind);

/// One example of each operator: the first of its cases, in the order of `Op`.
[[nodiscard]] std::vector<Op> examples();

/// Every case of every operator.
[[nodiscard]] std::vector<Op> all_cases();

/// For `moeplan ops`: name, one line on what it is, backends, fields with their documentation, operands of the first case.
[[nodiscard]] Json describe();

}  // namespace moeplan
