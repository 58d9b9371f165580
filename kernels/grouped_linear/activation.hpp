#pragma once
/// The gated activations of expert blocks, one definition for references and kernels. a is the gate, b the linear part:
///
///  - swiglu:          silu(a) b                                    (DeepSeek, Qwen, Kimi)
///  - situ:            beta tanh(a / beta) sigmoid(a) * lambda tanh(b / lambda), beta 4, lambda 25   (K3)
///  - swiglu_clamped:  a' sigmoid(1.702 a') (b' + 1), a' = min(a, 7), b' = clamp(b, -7, 7)           (gpt-oss)

#include <cmath>

#if defined(__CUDACC__)
#define MOEPLAN_ACTIVATION __host__ __device__ __forceinline__
#else
#define MOEPLAN_ACTIVATION inline
#endif

namespace moeplan::kernels {

enum class GatedActivation : int { swiglu, situ, swiglu_clamped };

namespace activation_detail {
template <typename T>
MOEPLAN_ACTIVATION T sigmoid(T x) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 4) return __fdividef(1.0f, 1.0f + __expf(-x));
#endif
    return T(1) / (T(1) + std::exp(-x));
}
template <typename T>
MOEPLAN_ACTIVATION T smallest(T a, T b) {
    return a < b ? a : b;
}
} // namespace activation_detail

/// The activation's value.
template <typename T>
MOEPLAN_ACTIVATION T gated_activation(GatedActivation kind, T a, T b) {
    using namespace activation_detail;
    if (kind == GatedActivation::swiglu) return a * sigmoid(a) * b;
    if (kind == GatedActivation::situ)
        return T(4) * std::tanh(a / T(4)) * sigmoid(a) * T(25) * std::tanh(b / T(25));
    const T clamped = smallest(a, T(7));
    const T linear = b < T(-7) ? T(-7) : smallest(b, T(7));
    return clamped * sigmoid(T(1.702) * clamped) * (linear + T(1));
}

/// Its derivatives with respect to a and b.
template <typename T>
struct GatedGradient {
    T da, db;
};
template <typename T>
MOEPLAN_ACTIVATION GatedGradient<T> gated_gradient(GatedActivation kind, T a, T b) {
    using namespace activation_detail;
    if (kind == GatedActivation::swiglu) {
        const T s = sigmoid(a);
        return {b * s * (T(1) + a * (T(1) - s)), a * s};
    }
    if (kind == GatedActivation::situ) {
        const T s = sigmoid(a), ta = std::tanh(a / T(4)), tb = std::tanh(b / T(25));
        return {((T(1) - ta * ta) * s + T(4) * ta * s * (T(1) - s)) * T(25) * tb,
                T(4) * ta * s * (T(1) - tb * tb)};
    }
    const T clamped = smallest(a, T(7));
    const T linear = b < T(-7) ? T(-7) : smallest(b, T(7));
    const T s = sigmoid(T(1.702) * clamped);
    return {a > T(7) ? T(0) : (linear + T(1)) * s * (T(1) + T(1.702) * clamped * (T(1) - s)),
            b < T(-7) || b > T(7) ? T(0) : clamped * s};
}

} // namespace moeplan::kernels
