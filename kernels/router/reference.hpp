#pragma once
/// The router in plain loops (float and double). Mathematics: routing.hpp.

#include "kernels/router/routing.hpp"

#include <span>

namespace moeplan::kernels::router::reference {

template <typename T>
struct Choice {
    std::span<int> experts; ///< [t, k], best first
    std::span<T> weights;   ///< [t, k]
    std::span<int> counts;  ///< [e], choices per expert
};

/// Routes every token and returns the auxiliary loss. `bias` may be empty. Throws std::invalid_argument on impossible
/// dims, with the numbers.
template <typename T>
T forward(const Dims& dims, std::span<const T> logits, std::span<const T> bias, const Choice<T>& choice);

/// dlogits [t, e] from dweights [t, k] and the gradient `dloss` of the auxiliary loss. The choice is held fixed.
template <typename T>
void backward(const Dims& dims, std::span<const T> logits, std::span<const int> experts, std::span<const int> counts,
              std::span<const T> dweights, T dloss, std::span<T> dlogits);

/// One step of loss-free balancing: b_e += rate * sign(mean count - count_e). Source: arXiv 2408.15664.
template <typename T>
void update_bias(std::span<const int> counts, T rate, std::span<T> bias);

} // namespace moeplan::kernels::router::reference
