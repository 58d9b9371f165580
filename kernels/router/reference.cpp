#include "kernels/router/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace moeplan::kernels::router::reference {
namespace {

template <typename T>
std::vector<T> scores(const Dims& d, const T* logits) {
    std::vector<T> s(logits, logits + d.experts);
    if (d.score == Score::sigmoid) {
        for (T& v : s) v = T(1) / (T(1) + std::exp(-v));
        return s;
    }
    if (d.score == Score::sqrt_softplus) {
        for (T& v : s) v = std::sqrt(std::max(v, T(0)) + std::log1p(std::exp(-std::abs(v))));
        return s;
    }
    const T most = *std::max_element(s.begin(), s.end());
    T sum = 0;
    for (T& v : s) sum += v = std::exp(v - most);
    for (T& v : s) v /= sum;
    return s;
}

/// Indices of the `count` largest values, best first, ties to the lower index.
template <typename T>
std::vector<int> largest(const std::vector<T>& values, int count) {
    std::vector<int> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
    order.resize(count);
    return order;
}

/// Which experts may be chosen.
template <typename T>
std::vector<bool> allowed(const Dims& d, const std::vector<T>& selection) {
    if (d.groups == 1) return std::vector<bool>(d.experts, true);
    const int size = d.experts / d.groups;
    std::vector<T> group(d.groups);
    for (int g = 0; g < d.groups; ++g) {
        const std::vector<T> mine(selection.begin() + g * size, selection.begin() + (g + 1) * size);
        for (int i : largest(mine, std::min(d.pair_ranks ? 2 : 1, size))) group[g] += mine[i];
    }
    std::vector<bool> result(d.experts, false);
    for (int g : largest(group, d.kept_groups))
        for (int e = g * size; e < (g + 1) * size; ++e) result[e] = true;
    return result;
}

void validate(const Dims& d) {
    const bool good = d.tokens >= 0 && d.experts >= 1 && d.experts <= 1024 && d.top_k >= 1 && d.top_k <= 32 &&
                      d.groups >= 1 && d.experts % d.groups == 0 && d.kept_groups >= 1 && d.kept_groups <= d.groups &&
                      d.top_k <= d.experts / d.groups * d.kept_groups;
    if (!good)
        throw std::invalid_argument(
            "router: experts=" + std::to_string(d.experts) + " (1 to 1024), top_k=" + std::to_string(d.top_k) +
            " (1 to 32), groups=" + std::to_string(d.groups) + ", kept_groups=" + std::to_string(d.kept_groups) +
            ": groups must divide experts, and the kept groups must hold top_k experts");
}

} // namespace

template <typename T>
T forward(const Dims& d, std::span<const T> logits, std::span<const T> bias, const Choice<T>& choice) {
    validate(d);
    const std::size_t experts = d.experts, k = d.top_k;
    std::fill(choice.counts.begin(), choice.counts.end(), 0);
    std::vector<T> share(experts, T(0)); // sum over tokens of the normalised scores
    for (std::size_t t = 0; t < static_cast<std::size_t>(d.tokens); ++t) {
        const std::vector<T> s = scores(d, &logits[t * experts]);
        std::vector<T> selection = s;
        if (!bias.empty())
            for (std::size_t e = 0; e < experts; ++e) selection[e] += bias[e];
        const std::vector<bool> may = allowed(d, selection);
        for (std::size_t e = 0; e < experts; ++e)
            if (!may[e]) selection[e] = -std::numeric_limits<T>::infinity();
        const std::vector<int> chosen = largest(selection, d.top_k);
        T sum = 0;
        for (int e : chosen) sum += s[e];
        for (std::size_t j = 0; j < k; ++j) {
            choice.experts[t * k + j] = chosen[j];
            choice.weights[t * k + j] = T(d.scale) * (d.normalise ? s[chosen[j]] / sum : s[chosen[j]]);
            ++choice.counts[chosen[j]];
        }
        const T total = std::accumulate(s.begin(), s.end(), T(0));
        for (std::size_t e = 0; e < experts; ++e) share[e] += s[e] / total;
    }
    if (d.tokens == 0) return T(0);
    T loss = 0;
    for (std::size_t e = 0; e < experts; ++e) loss += share[e] * T(choice.counts[e]);
    return T(d.auxiliary) * T(d.experts) * loss / (T(d.tokens) * T(d.tokens) * T(d.top_k));
}

template <typename T>
void backward(const Dims& d, std::span<const T> logits, std::span<const int> chosen, std::span<const int> counts,
              std::span<const T> dweights, T dloss, std::span<T> dlogits) {
    validate(d);
    const std::size_t experts = d.experts, k = d.top_k;
    for (std::size_t t = 0; t < static_cast<std::size_t>(d.tokens); ++t) {
        const std::vector<T> s = scores(d, &logits[t * experts]);
        std::vector<T> ds(experts, T(0));
        // w_j = scale s_j / S:  ds_j = scale (dw_j - sum_i dw_i s_i / S) / S
        T sum = 0, mean = 0;
        for (std::size_t j = 0; j < k; ++j) sum += s[chosen[t * k + j]];
        for (std::size_t j = 0; j < k; ++j) mean += dweights[t * k + j] * s[chosen[t * k + j]] / sum;
        for (std::size_t j = 0; j < k; ++j) {
            const T dw = dweights[t * k + j];
            ds[chosen[t * k + j]] += T(d.scale) * (d.normalise ? (dw - mean) / sum : dw);
        }
        // loss = a E sum_e f_e mean_t(p_te), p = s / total:  ds_e = (dp_e - sum_f dp_f p_f) / total
        const T total = std::accumulate(s.begin(), s.end(), T(0));
        const T factor = dloss * T(d.auxiliary) * T(d.experts) / (T(d.tokens) * T(d.tokens) * T(d.top_k));
        T shared = 0;
        for (std::size_t e = 0; e < experts; ++e) shared += factor * T(counts[e]) * s[e] / total;
        for (std::size_t e = 0; e < experts; ++e) ds[e] += (factor * T(counts[e]) - shared) / total;
        T inner = 0;
        for (std::size_t e = 0; e < experts; ++e) inner += ds[e] * s[e];
        for (std::size_t e = 0; e < experts; ++e) {
            T& dl = dlogits[t * experts + e];
            if (d.score == Score::sigmoid) dl = ds[e] * s[e] * (T(1) - s[e]);
            else if (d.score == Score::softmax) dl = s[e] * (ds[e] - inner);
            else dl = s[e] > 0 ? -ds[e] * std::expm1(-s[e] * s[e]) / (T(2) * s[e]) : T(0); // sigmoid(l) / 2 s
        }
    }
}

template <typename T>
void update_bias(std::span<const int> counts, T rate, std::span<T> bias) {
    const long long total = std::accumulate(counts.begin(), counts.end(), 0ll);
    const long long experts = static_cast<long long>(counts.size());
    for (std::size_t e = 0; e < counts.size(); ++e) {
        const long long excess = experts * counts[e] - total; // sign of count - mean, exactly
        bias[e] += rate * T((excess < 0) - (excess > 0));
    }
}

#define MOEPLAN_INSTANTIATE(T)                                                                                      \
    template T forward(const Dims&, std::span<const T>, std::span<const T>, const Choice<T>&);                      \
    template void backward(const Dims&, std::span<const T>, std::span<const int>, std::span<const int>,             \
                           std::span<const T>, T, std::span<T>);                                                    \
    template void update_bias(std::span<const int>, T, std::span<T>)
MOEPLAN_INSTANTIATE(float);
MOEPLAN_INSTANTIATE(double);
#undef MOEPLAN_INSTANTIATE

} // namespace moeplan::kernels::router::reference
