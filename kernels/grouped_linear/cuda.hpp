#pragma once
/// Grouped linear layers on the GPU: one persistent launch over all experts, forward and input gradient.
///
/// Rows are the routed slots, sorted by expert; `offsets[e]` to `offsets[e + 1]` (device memory, experts + 1 entries,
/// offsets[0] = 0) are expert e's. Nothing is read back to the host, so the launches can be captured in a graph whose
/// replays see other counts. Experts may have no rows. bf16 in and out, fp32 accumulation, results do not depend on
/// how the work was distributed over blocks.
///
/// `next` of a call is an int in device memory from which blocks take their tiles as they come to them (dealing.cuh): zero
/// before the launch and after it, so that one serves all launches of a stream. Without it the blocks divide the tiles
/// beforehand, and those that find no multiprocessor beside other kernels hold up the rest.
///
/// sm_90a: tensor copies and wgmma. A device that is not Hopper is refused by name, but for the `portable` forms.

#include "kernels/base/cuda.hpp"
#include "kernels/grouped_linear/activation.hpp"
#include "kernels/grouped_linear/dims.hpp"

#include <cuda_bf16.h>

namespace moeplan::kernels::grouped_linear {

using bf16 = __nv_bfloat16;

/// How many blocks share a weight tile; `automatic` decides by rows per expert.
enum class Clusters : int { automatic = 0, single = 1, pairs = 2 };

/// A low-rank adapter's share of a product, added inside the same launch as `rank` more of the contraction:
/// forward y += low B^T with low = lambda x A^T; input gradient dx += low A with low = lambda dy B. `low` comes from
/// `low_rows`; no delta of the weight is formed.
struct LowRank {
    int rank = 0;                 ///< 0: none; a multiple of 8
    bool shared = false;          ///< one factor for all experts
    const bf16* low = nullptr;    ///< [rows, rank], one row per slot
    const bf16* factor = nullptr; ///< forward: B [experts or 1, out, rank]; gradient: A [experts or 1, rank, in]
};

/// y = x W^T (+ bias) (+ low rank), times `row_scale` if given.
struct Forward {
    Dims dims;
    const bf16* x = nullptr;         ///< [x_rows, in]
    int x_rows = 0;
    const int* gather = nullptr;     ///< [rows]: row of x for each slot, absent: slot s reads row s
    const bf16* weight = nullptr;    ///< [experts, out, in]
    const bf16* bias = nullptr;      ///< [experts, out] or absent
    const int* offsets = nullptr;    ///< [experts + 1], device
    const float* row_scale = nullptr; ///< [rows] or absent
    bf16* y = nullptr;               ///< [rows, out]
    Clusters clusters = Clusters::automatic;
    int* next = nullptr;
    LowRank adapter = {};
    float alpha = 1.0f;
    bool portable = false;           ///< in mma.sync, which any device from compute capability 8.0 on runs
};
void forward(const Forward& args, cudaStream_t stream);

/// The gate-up layer with its activation: pre = x W^T (+ bias), y = activation(pre_a, pre_b).
struct GatedForward {
    Dims dims;                       ///< out = 2 i
    const bf16* x = nullptr;
    int x_rows = 0;
    const int* gather = nullptr;
    const bf16* weight = nullptr;    ///< [experts, 2 i, in]
    const bf16* bias = nullptr;      ///< [experts, 2 i], rows as in `weight`
    const int* offsets = nullptr;
    GateLayout layout = GateLayout::halves;
    GatedActivation activation = GatedActivation::swiglu;
    bf16* y = nullptr;               ///< [rows, i]
    bf16* pre = nullptr;             ///< [rows, 2 i] in halves whatever the layout, or absent
    Clusters clusters = Clusters::automatic;
    int* next = nullptr;
    LowRank adapter = {};            ///< B's rows are laid out as the weight's
};
void gated_forward(const GatedForward& args, cudaStream_t stream);

/// dx = dy W (+ low rank), times `row_scale` if given.
struct InputGradient {
    Dims dims;
    const bf16* dy = nullptr;        ///< [dy_rows, out]; for an interleaved weight in halves, as `pre`
    int dy_rows = 0;
    const int* gather = nullptr;     ///< [rows]: row of dy for each slot
    const bf16* weight = nullptr;    ///< [experts, out, in]
    const int* offsets = nullptr;
    const float* row_scale = nullptr;
    GateLayout layout = GateLayout::halves;
    bf16* dx = nullptr;              ///< [rows, in]
    Clusters clusters = Clusters::automatic;
    int* next = nullptr;
    LowRank adapter = {};
    float alpha = 1.0f;
    bool portable = false;           ///< as in Forward; in halves alone
};
void input_gradient(const InputGradient& args, cudaStream_t stream);

/// An adapter's low-rank rows: low = alpha from F_e^T with F = A (forward), low = alpha from F_e with F = B (gradient).
struct LowRows {
    int factors = 0;              ///< experts, or 1 for all rows
    int rows = 0;
    int width = 0;                ///< of `from`, a multiple of 8: the layer's in (forward) or out (gradient)
    int rank = 0;                 ///< a multiple of 8
    bool gradient = false;
    const bf16* from = nullptr;   ///< [rows, width]: x, or dy
    const bf16* factor = nullptr; ///< A [factors, rank, width], or B [factors, width, rank]
    const int* offsets = nullptr; ///< [factors + 1]
    bf16* low = nullptr;          ///< [rows, rank]
    float alpha = 1.0f;
    bf16* scaled = nullptr;       ///< scale times `low`, as rounded; or absent
    float scale = 1.0f;
    int* next = nullptr;
};
void low_rows(const LowRows& args, cudaStream_t stream);

/// Products over an expert's slots: out[e] = sum over its rows of a_row b_row^T, fp32, one block per output tile, so the
/// order of the sum is fixed. Experts without rows get zeros. With a = dy and b = x it is the gradient of a trained
/// weight [out, in]; with a = dy, b = low the gradient dB [out, rank]; with a = x, b = low of the gradient pass and
/// `transposed` the gradient dA [rank, in].
struct SlotProduct {
    int experts = 0;
    int rows = 0;
    int a_width = 0;              ///< a multiple of 8
    int b_width = 0;              ///< a multiple of 8
    bool transposed = false;      ///< out [experts, b_width, a_width] instead of [experts, a_width, b_width]
    const bf16* a = nullptr;      ///< [rows, a_width]
    const bf16* b = nullptr;      ///< [rows, b_width]
    const int* offsets = nullptr; ///< [experts + 1]
    float* out = nullptr;         ///< or absent
    bf16* narrow = nullptr;       ///< the result in bf16, times `scale`, where `out` is absent
    float scale = 1.0f;
    int* next = nullptr;
    bool portable = false;        ///< as in Forward
};
void slot_product(const SlotProduct& args, cudaStream_t stream);

/// Backward of the gated activation and of the routing weight in one pass, from g = dout W_down (the input gradient of the
/// down layer without its routing weight). For choice c of row r = row_of[c] (absent: r = c; -1: dropped):
///     dpre_r = w_c g_r activation'(pre_r),   dweights_c = <g_r, activation(pre_r)>
/// so that neither the down layer's output nor its input need be kept.
struct GatedBackward {
    int choices = 0;
    int width = 0;                   ///< i, a multiple of 8
    const int* row_of = nullptr;     ///< [choices] or absent
    const float* weights = nullptr;  ///< [choices] or absent (1)
    const bf16* pre = nullptr;       ///< [rows, 2 i] in halves
    const bf16* g = nullptr;         ///< [rows, i]
    GatedActivation activation = GatedActivation::swiglu;
    bf16* dpre = nullptr;            ///< [rows, 2 i] in halves
    float* dweights = nullptr;       ///< [choices] or absent
};
void gated_backward(const GatedBackward& args, cudaStream_t stream);

/// What the kernels keep beside their operands: nothing.
[[nodiscard]] constexpr std::size_t workspace_bytes(const Dims&) { return 0; }

} // namespace moeplan::kernels::grouped_linear
