/// \file
/// The gate and the token recurrence, forward and backward, in plain loops. The derivatives are checked in
/// tests/kernels/kda by central differences.
#include "kernels/kda/reference_heads.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan::kernels::kda::reference {
namespace {

/// One token: `state` becomes S_t, `u` = beta (v - S^-T k). Returns nothing else; the output is S_t^T q.
template <class Real>
void step(const HeadInputs<Real>& x, std::int64_t t, std::vector<Real>& state, std::vector<Real>& u) {
  const int d = x.d;
  const Real *k = &x.k[t * d], *v = &x.v[t * d], *g = &x.g[t * d];
  std::fill(u.begin(), u.end(), Real(0));
  for (int i = 0; i < d; ++i) {
    const Real keep = std::exp(g[i]);
    for (int j = 0; j < d; ++j) {
      state[i * d + j] *= keep;
      u[j] += state[i * d + j] * k[i];
    }
  }
  for (int j = 0; j < d; ++j) u[j] = x.beta[t] * (v[j] - u[j]);
  for (int i = 0; i < d; ++i)
    for (int j = 0; j < d; ++j) state[i * d + j] += k[i] * u[j];
}

}  // namespace

template <class Real>
Decay<Real> decay(const Gate& gate, Real a_log, Real z) {
  const auto sigmoid = [](Real y) { return y >= 0 ? 1 / (1 + std::exp(-y)) : std::exp(y) / (1 + std::exp(y)); };
  const Real a = std::exp(a_log);
  if (gate.form == GateForm::softplus) {
    const Real softplus = std::max(z, Real(0)) + std::log1p(std::exp(-std::abs(z)));
    const Real g = -a * softplus;
    return {.g = g, .dg_dz = -a * sigmoid(z), .dg_da_log = g};
  }
  const Real bound = Real(gate.lower_bound), y = std::clamp(z == 0 ? Real(0) : a * z, Real(-90), Real(90));
  const Real s = sigmoid(y), slope = std::abs(y) < 90 ? bound * s * sigmoid(-y) : Real(0);
  return {.g = bound * s, .dg_dz = slope == 0 ? Real(0) : slope * a, .dg_da_log = slope * y};
}

template <class Real>
Outputs<Real> recurrent_forward(const Inputs<Real>& in) {
  const int d = in.head_dim;
  Outputs<Real> result{.out = std::vector<Real>(in.v.size()), .final_state = in.initial_state};
  std::vector<Real> u(d);
  for (std::int64_t n = 0; n + 1 < std::int64_t(in.cu_seqlens.size()); ++n)
    for (int h = 0; h < in.heads; ++h) {
      const auto x = head_inputs(in, n, h);
      auto state = x.state;
      for (std::int64_t t = 0; t < x.tokens; ++t) {
        step(x, t, state, u);
        Real* out = &result.out[((in.cu_seqlens[n] + t) * in.heads + h) * d];
        for (int i = 0; i < d; ++i)
          for (int j = 0; j < d; ++j) out[j] += state[i * d + j] * x.q[t * d + i];
      }
      std::copy(state.begin(), state.end(), result.final_state.begin() + (n * in.heads + h) * d * d);
    }
  return result;
}

template <class Real>
Gradients<Real> recurrent_backward(const Inputs<Real>& in, const std::vector<Real>& d_out,
                                   const std::vector<Real>& d_final_state) {
  const int d = in.head_dim;
  auto result = zero_gradients(in);
  for (std::int64_t n = 0; n + 1 < std::int64_t(in.cu_seqlens.size()); ++n)
    for (int h = 0; h < in.heads; ++h) {
      const auto x = head_inputs(in, n, h);
      // Every state is kept: this is the reference, tokens are few.
      std::vector<std::vector<Real>> states{x.state}, steps;
      std::vector<Real> u(d);
      for (std::int64_t t = 0; t < x.tokens; ++t) {
        states.push_back(states.back());
        step(x, t, states.back(), u);
        steps.push_back(u);
      }
      HeadGradients<Real> dx(x.tokens, d);
      const auto ds_begin = d_final_state.begin() + (n * in.heads + h) * d * d;
      std::vector<Real> ds(ds_begin, ds_begin + d * d), du(d);
      for (std::int64_t t = x.tokens - 1; t >= 0; --t) {
        const auto &before = states[t], &after = states[t + 1];
        const Real *k = &x.k[t * d], *q = &x.q[t * d], *g = &x.g[t * d], *v = &x.v[t * d];
        const Real* dout = &d_out[((in.cu_seqlens[n] + t) * in.heads + h) * d];
        for (int i = 0; i < d; ++i)
          for (int j = 0; j < d; ++j) {
            dx.q[t * d + i] += after[i * d + j] * dout[j];
            ds[i * d + j] += q[i] * dout[j];
          }
        std::fill(du.begin(), du.end(), Real(0));
        std::fill(u.begin(), u.end(), Real(0));  // S^-T k
        for (int i = 0; i < d; ++i) {
          const Real keep = std::exp(g[i]);
          for (int j = 0; j < d; ++j) {
            du[j] += ds[i * d + j] * k[i];
            u[j] += keep * before[i * d + j] * k[i];
          }
        }
        for (int j = 0; j < d; ++j) {
          dx.beta[t] += du[j] * (v[j] - u[j]);
          dx.v[t * d + j] = x.beta[t] * du[j];
        }
        for (int i = 0; i < d; ++i) {
          const Real keep = std::exp(g[i]);
          for (int j = 0; j < d; ++j) {
            const Real decayed = keep * before[i * d + j];
            dx.k[t * d + i] += ds[i * d + j] * steps[t][j] - x.beta[t] * du[j] * decayed;
            const Real d_decayed = ds[i * d + j] - x.beta[t] * du[j] * k[i];
            dx.g[t * d + i] += d_decayed * decayed;
            ds[i * d + j] = d_decayed * keep;
          }
        }
      }
      dx.state = ds;
      head_backward(in, n, h, dx, result);
    }
  return result;
}

#define MOEPLAN_INSTANTIATE(Real)                                \
  template Decay<Real> decay(const Gate&, Real, Real);           \
  template Outputs<Real> recurrent_forward(const Inputs<Real>&); \
  template Gradients<Real> recurrent_backward(const Inputs<Real>&, const std::vector<Real>&, const std::vector<Real>&);
MOEPLAN_INSTANTIATE(float)
MOEPLAN_INSTANTIATE(double)
#undef MOEPLAN_INSTANTIATE

}  // namespace moeplan::kernels::kda::reference
