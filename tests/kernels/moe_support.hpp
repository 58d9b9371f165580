/// \file
/// Random data and central differences for the tests of the mixture-of-experts operators.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

namespace moeplan::tests {

inline std::vector<double> random_values(std::size_t count, unsigned seed, double scale = 1.0) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal(0.0, scale);
    std::vector<double> values(count);
    for (double& v : values) v = normal(engine);
    return values;
}

/// Largest |analytic - numeric| over the entries of `at`, in units of 1 + |numeric|.
inline double gradient_gap(std::vector<double>& at, const std::vector<double>& analytic,
                           const std::function<double()>& loss, double step = 1e-5) {
    double gap = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
        const double saved = at[i];
        at[i] = saved + step;
        const double up = loss();
        at[i] = saved - step;
        const double down = loss();
        at[i] = saved;
        const double numeric = (up - down) / (2 * step);
        gap = std::max(gap, std::abs(analytic[i] - numeric) / (1 + std::abs(numeric)));
    }
    return gap;
}

/// <a, b>: with b random, the loss whose gradient with respect to a is b.
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

} // namespace moeplan::tests
