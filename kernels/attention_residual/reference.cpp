/// s_i = r_i sum_c w_c v_ic with w = norm * proj and r_i = (mean v_i^2 + eps)^-1/2,  p = softmax(s),  y = sum_i p_i v_i.
/// ds_i = p_i (dy . v_i - sum_j p_j dy . v_j),  dv_i = p_i dy + ds_i r_i (w - v_i r_i^2 mean(w v_i)),
/// dnorm = sum ds_i r_i v_i proj,  dproj = sum ds_i r_i v_i norm.

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention_residual/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {
namespace {

std::string stream_name(std::int64_t i) { return i == 0 ? "sum" : "block_" + std::to_string(i - 1); }

template <class T>
T weighted(const op::AttentionResidual& op, const View<T>& v, const View<T>& norm, const View<T>& proj, std::int64_t t) {
  T sum = 0;
  for (std::int64_t c = 0; c < op.hidden; ++c) sum += norm[c] * proj[c] * v(t, c);
  return sum;
}

}  // namespace

template <class T>
void forward(const op::AttentionResidual& op, const Frame<T>& f) {
  const auto norm = f["norm"], proj = f["proj"], y = f["y"], mix = f["mix"], inverse_rms = f["inverse_rms"];
  std::vector<View<T>> streams;
  for (std::int64_t i = 0; i <= op.blocks; ++i) streams.push_back(f[stream_name(i)]);
  const auto n = static_cast<std::int64_t>(streams.size());
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    for (std::int64_t i = 0; i < n; ++i) {
      const View<T>& v = streams[static_cast<std::size_t>(i)];
      T squares = 0;
      for (std::int64_t c = 0; c < op.hidden; ++c) squares += v(t, c) * v(t, c);
      inverse_rms(t, i) = 1 / std::sqrt(squares / static_cast<T>(op.hidden) + static_cast<T>(op.epsilon));
      mix(t, i) = inverse_rms(t, i) * weighted(op, v, norm, proj, t);
    }
    const T most = *std::max_element(mix.row(t), mix.row(t) + n);
    T sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(mix(t, i) - most);
    for (std::int64_t i = 0; i < n; ++i) mix(t, i) = std::exp(mix(t, i) - most) / sum;
    for (std::int64_t c = 0; c < op.hidden; ++c) {
      T out = 0;
      for (std::int64_t i = 0; i < n; ++i) out += mix(t, i) * streams[static_cast<std::size_t>(i)](t, c);
      y(t, c) = out;
    }
  }
}

template <class T>
void backward(const op::AttentionResidual& op, const Frame<T>& f) {
  const auto norm = f["norm"], proj = f["proj"], mix = f["mix"], inverse_rms = f["inverse_rms"], dy = f.d("y"), dnorm = f.d("norm"), dproj = f.d("proj");
  for (const auto& gradient : {dnorm, dproj})
    if (gradient) gradient.fill(0);
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    std::vector<T> along;
    T mean = 0;
    for (std::int64_t i = 0; i <= op.blocks; ++i) {
      const auto v = f[stream_name(i)];
      T dot = 0;
      for (std::int64_t c = 0; c < op.hidden; ++c) dot += dy(t, c) * v(t, c);
      along.push_back(dot);
      mean += mix(t, i) * dot;
    }
    for (std::int64_t i = 0; i <= op.blocks; ++i) {
      const auto v = f[stream_name(i)], dv = f.d(stream_name(i));
      const T ds = mix(t, i) * (along[static_cast<std::size_t>(i)] - mean), r = inverse_rms(t, i);
      const T projected = weighted(op, v, norm, proj, t) / static_cast<T>(op.hidden);
      for (std::int64_t c = 0; c < op.hidden; ++c) {
        if (dv) dv(t, c) = mix(t, i) * dy(t, c) + ds * r * (norm[c] * proj[c] - v(t, c) * r * r * projected);
        if (dnorm) dnorm[c] += ds * r * v(t, c) * proj[c];
        if (dproj) dproj[c] += ds * r * v(t, c) * norm[c];
      }
    }
  }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(AttentionResidual)
