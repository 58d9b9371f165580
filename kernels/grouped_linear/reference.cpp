#include "kernels/grouped_linear/reference.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace moeplan::kernels::grouped_linear::reference {
namespace {

/// y += scale * M x with M [rows, columns].
template <typename T>
void add_product(std::span<const T> m, std::size_t rows, std::size_t columns, T scale, const T* x, T* y) {
    for (std::size_t r = 0; r < rows; ++r) {
        T sum = 0;
        for (std::size_t c = 0; c < columns; ++c) sum += m[r * columns + c] * x[c];
        y[r] += scale * sum;
    }
}

/// x += scale * M^T y.
template <typename T>
void add_transposed(std::span<const T> m, std::size_t rows, std::size_t columns, T scale, const T* y, T* x) {
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns; ++c) x[c] += scale * m[r * columns + c] * y[r];
}

/// M += scale * y x^T.
template <typename T>
void add_outer(std::span<T> m, std::size_t rows, std::size_t columns, T scale, const T* y, const T* x) {
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns; ++c) m[r * columns + c] += scale * y[r] * x[c];
}

/// Calls body(expert, slot, row, scale) for every slot in order.
template <typename T, typename Body>
void for_each_slot(const Layer<T>& l, const Body& body) {
    for (int e = 0; e < l.dims.experts; ++e)
        for (int s = l.offsets[e]; s < l.offsets[e + 1]; ++s) {
            const std::size_t row = l.gather.empty() ? s : l.gather[s];
            body(static_cast<std::size_t>(e), static_cast<std::size_t>(s), row,
                 l.row_scale.empty() ? T(1) : l.row_scale[s]);
        }
}

/// One expert's matrices.
template <typename T>
struct Expert {
    std::span<const T> weight, a, b;
};
template <typename T>
Expert<T> expert_of(const Layer<T>& l, std::size_t e) {
    const std::size_t in = l.dims.in, out = l.dims.out, rank = l.adapter.rank, which = l.adapter.shared ? 0 : e;
    Expert<T> result{l.weight.subspan(e * out * in, out * in), {}, {}};
    if (rank != 0) {
        result.a = l.adapter.a.subspan(which * rank * in, rank * in);
        result.b = l.adapter.b.subspan(which * out * rank, out * rank);
    }
    return result;
}

} // namespace

template <typename T>
void forward(const Layer<T>& l, std::span<const T> x, std::span<T> y) {
    const std::size_t in = l.dims.in, out = l.dims.out, rank = l.adapter.rank;
    for_each_slot(l, [&](std::size_t e, std::size_t s, std::size_t row, T scale) {
        const Expert<T> expert = expert_of(l, e);
        std::vector<T> sum(out, T(0)), low(rank, T(0));
        add_product(expert.weight, out, in, T(1), &x[row * in], sum.data());
        add_product(expert.a, rank, in, T(1), &x[row * in], low.data());
        add_product(expert.b, out, rank, l.adapter.scale, low.data(), sum.data());
        for (std::size_t o = 0; o < out; ++o)
            y[s * out + o] = scale * (sum[o] + (l.bias.empty() ? T(0) : l.bias[e * out + o]));
    });
}

template <typename T>
void input_gradient(const Layer<T>& l, std::span<const T> dy, std::span<T> dx) {
    const std::size_t in = l.dims.in, out = l.dims.out, rank = l.adapter.rank;
    for_each_slot(l, [&](std::size_t e, std::size_t s, std::size_t row, T scale) {
        const Expert<T> expert = expert_of(l, e);
        T* to = &dx[s * in];
        std::fill_n(to, in, T(0));
        add_transposed(expert.weight, out, in, scale, &dy[row * out], to);
        std::vector<T> low(rank, T(0));
        add_transposed(expert.b, out, rank, T(1), &dy[row * out], low.data());
        add_transposed(expert.a, rank, in, scale * l.adapter.scale, low.data(), to);
    });
}

template <typename T>
void weight_gradients(const Layer<T>& l, std::span<const T> x, std::span<const T> dy, const WeightGradients<T>& g) {
    const std::size_t in = l.dims.in, out = l.dims.out, rank = l.adapter.rank;
    for (const std::span<T> gradient : {g.dweight, g.dbias, g.da, g.db})
        std::fill(gradient.begin(), gradient.end(), T(0));
    for_each_slot(l, [&](std::size_t e, std::size_t s, std::size_t row, T scale) {
        const T* from = &x[row * in];
        const T* to = &dy[s * out];
        if (!g.dweight.empty()) add_outer(g.dweight.subspan(e * out * in, out * in), out, in, scale, to, from);
        if (!g.dbias.empty())
            for (std::size_t o = 0; o < out; ++o) g.dbias[e * out + o] += scale * to[o];
        if (rank == 0) return;
        const Expert<T> expert = expert_of(l, e);
        const std::size_t which = l.adapter.shared ? 0 : e;
        std::vector<T> low(rank, T(0)), back(rank, T(0));
        add_product(expert.a, rank, in, T(1), from, low.data());
        add_transposed(expert.b, out, rank, T(1), to, back.data());
        const T lambda = scale * l.adapter.scale;
        if (!g.da.empty()) add_outer(g.da.subspan(which * rank * in, rank * in), rank, in, lambda, back.data(), from);
        if (!g.db.empty()) add_outer(g.db.subspan(which * out * rank, out * rank), out, rank, lambda, to, low.data());
    });
}

template <typename T>
void activate(GatedActivation kind, int rows, int width, std::span<const T> pre, std::span<T> y) {
    const std::size_t i = width;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
        for (std::size_t c = 0; c < i; ++c)
            y[r * i + c] = gated_activation(kind, pre[r * 2 * i + c], pre[r * 2 * i + i + c]);
}

template <typename T>
void activate_gradient(GatedActivation kind, int rows, int width, std::span<const T> pre, std::span<const T> dy,
                       std::span<T> dpre) {
    const std::size_t i = width;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
        for (std::size_t c = 0; c < i; ++c) {
            const auto d = gated_gradient(kind, pre[r * 2 * i + c], pre[r * 2 * i + i + c]);
            dpre[r * 2 * i + c] = dy[r * i + c] * d.da;
            dpre[r * 2 * i + i + c] = dy[r * i + c] * d.db;
        }
}

#define MOEPLAN_INSTANTIATE(T)                                                                                     \
    template void forward(const Layer<T>&, std::span<const T>, std::span<T>);                                      \
    template void input_gradient(const Layer<T>&, std::span<const T>, std::span<T>);                               \
    template void weight_gradients(const Layer<T>&, std::span<const T>, std::span<const T>,                        \
                                   const WeightGradients<T>&);                                                     \
    template void activate(GatedActivation, int, int, std::span<const T>, std::span<T>);                           \
    template void activate_gradient(GatedActivation, int, int, std::span<const T>, std::span<const T>, std::span<T>)
MOEPLAN_INSTANTIATE(float);
MOEPLAN_INSTANTIATE(double);
#undef MOEPLAN_INSTANTIATE

} // namespace moeplan::kernels::grouped_linear::reference
