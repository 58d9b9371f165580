#include "kernels/combine/reference.hpp"

#include <cstddef>

namespace moeplan::kernels::combine::reference {

template <typename T>
void forward(const permute::Dims& d, int h, std::span<const int> row_of, std::span<const T> weights,
             std::span<const T> y, std::span<T> out) {
    const std::size_t width = h, k = d.top_k;
    for (std::size_t t = 0; t < static_cast<std::size_t>(d.tokens); ++t)
        for (std::size_t i = 0; i < width; ++i) {
            T sum = 0;
            for (std::size_t j = 0; j < k; ++j) {
                const int row = row_of[t * k + j];
                if (row >= 0) sum += weights[t * k + j] * y[row * width + i];
            }
            out[t * width + i] = sum;
        }
}

template <typename T>
void backward(const permute::Dims& d, int h, std::span<const int> row_of, std::span<const T> weights,
              std::span<const T> y, std::span<const T> dout, std::span<T> dy, std::span<T> dweights) {
    const std::size_t width = h, k = d.top_k;
    for (std::size_t t = 0; t < static_cast<std::size_t>(d.tokens); ++t)
        for (std::size_t j = 0; j < k; ++j) {
            const int row = row_of[t * k + j];
            T product = 0;
            for (std::size_t i = 0; row >= 0 && i < width; ++i) {
                dy[row * width + i] = weights[t * k + j] * dout[t * width + i];
                product += dout[t * width + i] * y[row * width + i];
            }
            dweights[t * k + j] = product;
        }
}

#define MOEPLAN_INSTANTIATE(T)                                                                                       \
    template void forward(const permute::Dims&, int, std::span<const int>, std::span<const T>, std::span<const T>,   \
                          std::span<T>);                                                                             \
    template void backward(const permute::Dims&, int, std::span<const int>, std::span<const T>, std::span<const T>,  \
                           std::span<const T>, std::span<T>, std::span<T>)
MOEPLAN_INSTANTIATE(float);
MOEPLAN_INSTANTIATE(double);
#undef MOEPLAN_INSTANTIATE

} // namespace moeplan::kernels::combine::reference
