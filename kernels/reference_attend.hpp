#pragma once
/// Softmax attention of one query over a list of keys, for the operators whose keys are chosen query by query.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

/// One key with its value; in the backward also where their gradients add up.
template <class T>
struct Key {
  const T* key;
  const T* value;
  T* dkey = nullptr;
  T* dvalue = nullptr;
};

/// One query and what it attends with. `sink` joins the denominator where it is set.
template <class T>
struct Query {
  const T* q;
  std::int64_t d_qk, d_v;
  T scale;
  const T* sink = nullptr;
};

template <class T>
[[nodiscard]] T logit(const Query<T>& query, const Key<T>& key) {
  T dot = 0;
  for (std::int64_t c = 0; c < query.d_qk; ++c) dot += query.q[c] * key.key[c];
  return query.scale * dot;
}

/// Writes the output row and returns its log-sum-exp. Without any key the output is zero.
template <class T>
T attend(const Query<T>& query, const std::vector<Key<T>>& keys, T* out) {
  std::vector<T> z;
  T most = query.sink ? *query.sink : -std::numeric_limits<T>::infinity();
  for (const auto& key : keys) most = std::max(most, z.emplace_back(logit(query, key)));
  std::fill(out, out + query.d_v, T(0));
  if (keys.empty() && !query.sink) return most;
  T sum = query.sink ? std::exp(*query.sink - most) : T(0);
  for (const T each : z) sum += std::exp(each - most);
  const T lse = most + std::log(sum);
  for (std::size_t j = 0; j < keys.size(); ++j)
    for (std::int64_t c = 0; c < query.d_v; ++c) out[c] += std::exp(z[j] - lse) * keys[j].value[c];
  return lse;
}

/// Adds to dq and to the keys' gradients.
template <class T>
void attend_backward(const Query<T>& query, const std::vector<Key<T>>& keys, const T* dout, T lse, T delta, T* dq) {
  for (const auto& key : keys) {
    const T p = std::exp(logit(query, key) - lse);
    T dp = 0;
    for (std::int64_t c = 0; c < query.d_v; ++c) dp += dout[c] * key.value[c];
    const T dz = query.scale * p * (dp - delta);
    for (std::int64_t c = 0; c < query.d_qk; ++c) dq[c] += dz * key.key[c];
    for (std::int64_t c = 0; c < query.d_qk; ++c) key.dkey[c] += dz * query.q[c];
    for (std::int64_t c = 0; c < query.d_v; ++c) key.dvalue[c] += p * dout[c];
  }
}

template <class T>
[[nodiscard]] T dot(const T* a, const T* b, std::int64_t n) {
  T sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

}  // namespace moeplan::reference
