#pragma once
/// Kimi Delta Attention: the fused forward and backward on the GPU.
///
/// Per sequence and head, with head width D (keys and values alike), log decay g_t in (-inf, 0]^D and step b_t:
///
///     k_t, q_t    normalised: x / sqrt(sum x^2 + 1e-6);  q_t also times `scale`
///     g_t         softplus gate: -exp(A_log) softplus(z_t + dt_bias);  bounded gate: l sigmoid(exp(A_log) (z_t +
///     dt_bias)) S_t       = (I - b_t k_t k_t^T) Diag(exp(g_t)) S_{t-1} + b_t k_t v_t^T          (S is D x D, key index
///     first) o_t       = S_t^T q_t
///
/// Tensors are contiguous: q, k, v, gate, out and their gradients bf16 [tokens, heads, D]; beta fp32 [tokens, heads],
/// already activated (the caller applies its sigmoid; `d_beta` is the gradient of the activated value); A_log fp32
/// [heads]; dt_bias fp32 [heads, D]; states fp32 [sequences, heads, D (key), D (value)]. Sequences are packed one after
/// the other: `cu_seqlens` (device, int64, sequences + 1 offsets, first 0, last `tokens`) or, where it is null, equal
/// lengths of tokens / sequences. Every offset is 64-bit.
///
/// Exact for any gate: no state is ever dropped. Results do not depend on scheduling: the same inputs give the same
/// bits. The backward needs q, k, v, gate and beta and nothing else from the forward.

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace moeplan::kernels::kda {

using Bf16 = std::uint16_t;  ///< the bits of a bfloat16
using StreamHandle = CUstream_st*;

enum class GateForm { softplus, bounded };

struct Gate {
  GateForm form = GateForm::softplus;
  float lower_bound = -5.0f;  ///< l of the bounded form, in [-5, 0)
};

struct Dims {
  std::int64_t tokens = 0;  ///< over all sequences
  int heads = 0;            ///< 1 to 128
  int head_dim = 128;       ///< 64 or 128
  std::int64_t sequences = 1;
};

/// How the work is cut. Results of different cuts agree to rounding.
struct Options {
  /// Most scratch bytes a call may use; 0 is no limit. What does not fit is worked on in parts, one after the other (scratch.hpp).
  std::size_t workspace_limit = 0;
  /// Chunks of 64 tokens per segment of a sequence scanned in parallel and joined by exact affine composition;
  /// 0 lets the library decide, a value past the longest sequence turns segments off.
  std::int64_t segment_chunks = 0;
};

struct Forward {
  Dims dims;
  Gate gate_form;
  Options options;
  float scale = 0.0f;  ///< of the query; 0 means D^-1/2
  const Bf16* q = nullptr;
  const Bf16* k = nullptr;
  const Bf16* v = nullptr;
  const Bf16* gate = nullptr;
  const float* beta = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;  ///< may be null: no bias
  const std::int64_t* cu_seqlens = nullptr;
  const float* initial_state = nullptr;  ///< may be null: zeros
  Bf16* out = nullptr;
  float* final_state = nullptr;  ///< may be null: not wanted
  void* workspace = nullptr;     ///< workspace_bytes(dims, options, Pass::forward), 256-byte aligned
};

struct Backward {
  Forward forward;  ///< the same inputs; `out`, `final_state` unused; `workspace` sized for Pass::backward
  const Bf16* d_out = nullptr;
  const float* d_final_state = nullptr;  ///< may be null: zeros
  Bf16* d_q = nullptr;  ///< this and every other gradient may be null: not wanted
  Bf16* d_k = nullptr;
  Bf16* d_v = nullptr;
  Bf16* d_gate = nullptr;
  float* d_beta = nullptr;
  float* d_a_log = nullptr;          ///< [heads]
  float* d_dt_bias = nullptr;        ///< [heads, D]
  float* d_initial_state = nullptr;
};

enum class Pass { forward, backward };

/// Scratch bytes a call will use, after `options.workspace_limit` has been honoured as far as one head at a time
/// allows. Throws UnsupportedShape for dims outside the contract.
[[nodiscard]] std::size_t workspace_bytes(const Dims& dims, const Options& options, Pass pass);

/// Queues the forward on `stream`. Throws UnsupportedShape or CudaError; never synchronises.
void forward(const Forward& call, StreamHandle stream);

/// Queues the backward on `stream`.
void backward(const Backward& call, StreamHandle stream);

}  // namespace moeplan::kernels::kda
