#pragma once
/// The router on the GPU. One warp per token; mathematics and ties: routing.hpp. Deterministic: float sums have a fixed
/// order, counts are integers.

#include "kernels/base/cuda.hpp"
#include "kernels/router/routing.hpp"

namespace moeplan::kernels::router {

struct Forward {
    Dims dims;
    const float* logits = nullptr; ///< [t, e]
    const float* bias = nullptr;   ///< [e] or absent
    int* experts = nullptr;        ///< [t, k]
    float* weights = nullptr;      ///< [t, k]
    int* counts = nullptr;         ///< [e], overwritten
    float* loss = nullptr;         ///< [1], with dims.auxiliary != 0
    void* workspace = nullptr;     ///< workspace_bytes(dims)
    float* scores = nullptr;       ///< [t, e] s, or not wanted
    /// Experts from a table by token id instead of by score (DeepSeek-V4): ids [t], table [vocabulary, k]. Both or neither.
    const int* ids = nullptr;
    const int* table = nullptr;
    int vocabulary = 0;            ///< ids are held within it
    /// The last experts have no weights (LongCat): their choices weigh 0, and what they drew is summed here, [t].
    int identities = 0;
    float* identity_weight = nullptr;
};
/// Throws `UnsupportedShape` on dims the router cannot do (more than 1024 experts, top_k above 32, more than 32 groups).
void forward(const Forward& args, cudaStream_t stream);

struct Backward {
    Dims dims;
    const float* logits = nullptr;   ///< [t, e], or absent with `scores`
    const float* scores = nullptr;   ///< [t, e] as the forward made them
    const int* experts = nullptr;    ///< [t, k] as chosen
    const int* counts = nullptr;     ///< [e], with dims.auxiliary != 0
    const float* dweights = nullptr; ///< [t, k], or absent for 0
    int identities = 0;
    const float* didentity = nullptr; ///< [t], or absent for 0
    const float* dloss = nullptr;    ///< [1] on the device, or absent for 1
    float* dlogits = nullptr;        ///< [t, e]
};
void backward(const Backward& args, cudaStream_t stream);

/// bias_e += rate * sign(mean count - count_e).
void update_bias(int experts, const int* counts, float rate, float* bias, cudaStream_t stream);

/// Partial sums of the auxiliary loss; 0 without it.
[[nodiscard]] std::size_t workspace_bytes(const Dims& dims);

} // namespace moeplan::kernels::router
