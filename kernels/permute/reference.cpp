#include "kernels/permute/reference.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace moeplan::kernels::permute::reference {

void sort(const Dims& d, std::span<const int> experts, std::span<const int> first_copy, const Tables& tables) {
    const auto copy_of = [&](int token, int expert) {
        if (first_copy.empty() || expert < 0) return expert;
        return first_copy[expert] + token % (first_copy[expert + 1] - first_copy[expert]);
    };
    std::vector<int> counts(d.copies, 0);
    for (int i = 0; i < d.tokens * d.top_k; ++i)
        if (experts[i] >= 0) ++counts[copy_of(i / d.top_k, experts[i])];
    tables.offsets[0] = 0;
    for (int c = 0; c < d.copies; ++c)
        tables.offsets[c + 1] = tables.offsets[c] + (d.capacity > 0 ? std::min(counts[c], d.capacity) : counts[c]);
    std::vector<int> next(d.copies, 0);
    for (int i = 0; i < d.tokens * d.top_k; ++i) {
        const int copy = copy_of(i / d.top_k, experts[i]);
        if (copy < 0) {
            tables.row_of[i] = -1;
            continue;
        }
        const int place = next[copy]++;
        const bool kept = d.capacity == 0 || place < d.capacity;
        tables.row_of[i] = kept ? tables.offsets[copy] + place : -1;
        if (kept) tables.token_of[tables.row_of[i]] = i / d.top_k;
    }
}

template <typename T>
void forward(const Dims& d, int h, std::span<const int> offsets, std::span<const int> token_of, std::span<const T> x,
             std::span<T> permuted) {
    const std::size_t width = h;
    for (std::size_t r = 0; r < static_cast<std::size_t>(offsets[d.copies]); ++r)
        for (std::size_t i = 0; i < width; ++i) permuted[r * width + i] = x[token_of[r] * width + i];
}

template <typename T>
void backward(const Dims& d, int h, std::span<const int> row_of, std::span<const T> dpermuted, std::span<T> dx) {
    const std::size_t width = h;
    for (std::size_t t = 0; t < static_cast<std::size_t>(d.tokens); ++t)
        for (std::size_t i = 0; i < width; ++i) {
            T sum = 0;
            for (int j = 0; j < d.top_k; ++j) {
                const int row = row_of[t * d.top_k + j];
                if (row >= 0) sum += dpermuted[row * width + i];
            }
            dx[t * width + i] = sum;
        }
}

template void forward(const Dims&, int, std::span<const int>, std::span<const int>, std::span<const float>,
                      std::span<float>);
template void forward(const Dims&, int, std::span<const int>, std::span<const int>, std::span<const double>,
                      std::span<double>);
template void backward(const Dims&, int, std::span<const int>, std::span<const float>, std::span<float>);
template void backward(const Dims&, int, std::span<const int>, std::span<const double>, std::span<double>);

} // namespace moeplan::kernels::permute::reference
