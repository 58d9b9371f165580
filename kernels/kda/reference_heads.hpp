#pragma once
/// What the recurrence and the chunked form of the reference share: one head of one sequence after normalisation and
/// gate activation, and the way back from its gradients to those of the inputs.

#include "kernels/kda/reference.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan::kernels::kda::reference {

/// One head of one sequence after normalisation and gate activation: rows of D, then what backward sends back.
template <class Real>
struct HeadInputs {
  std::int64_t tokens;
  int d;
  std::vector<Real> q, k, v, g;  ///< normalised and scaled q, normalised k, log decay; [tokens, D]
  std::vector<Real> beta;
  std::vector<Real> state;  ///< [D, D]
};

template <class Real>
struct HeadGradients {
  std::vector<Real> q, k, v, g, beta, state;
  HeadGradients(std::int64_t tokens, int d)
      : q(tokens * d), k(tokens * d), v(tokens * d), g(tokens * d), beta(tokens), state(d * d) {}
};

template <class Real>
Real inverse_norm(const Real* x, int d) {
  Real sum = 0;
  for (int i = 0; i < d; ++i) sum += x[i] * x[i];
  return 1 / std::sqrt(sum + Real(1e-6));
}

template <class Real>
HeadInputs<Real> head_inputs(const Inputs<Real>& in, std::int64_t sequence, int head) {
  const int d = in.head_dim;
  const std::int64_t begin = in.cu_seqlens[sequence], tokens = in.cu_seqlens[sequence + 1] - begin;
  HeadInputs<Real> x{.tokens = tokens, .d = d, .q = {}, .k = {}, .v = {}, .g = {}, .beta = {}, .state = {}};
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t row = ((begin + t) * in.heads + head) * d;
    const Real nq = inverse_norm(&in.q[row], d) * in.scale, nk = inverse_norm(&in.k[row], d);
    for (int i = 0; i < d; ++i) {
      x.q.push_back(in.q[row + i] * nq);
      x.k.push_back(in.k[row + i] * nk);
      x.v.push_back(in.v[row + i]);
      x.g.push_back(decay(in.gate_form, in.a_log[head], in.gate[row + i] + in.dt_bias[head * d + i]).g);
    }
    x.beta.push_back(in.beta[(begin + t) * in.heads + head]);
  }
  const auto state = in.initial_state.begin() + (sequence * in.heads + head) * d * d;
  x.state.assign(state, state + d * d);
  return x;
}

/// d(x / |x|) : (dy - y (y . dy)) / |x| with y the unit vector.
template <class Real>
void normalise_backward(const Real* x, const Real* dy, Real scale, int d, Real* dx) {
  const Real n = inverse_norm(x, d);
  Real dot = 0;
  for (int i = 0; i < d; ++i) dot += x[i] * n * dy[i];
  for (int i = 0; i < d; ++i) dx[i] = scale * n * (dy[i] - x[i] * n * dot);
}

/// Carries the gradients of one head through normalisation and gate, and adds the parameter gradients.
template <class Real>
void head_backward(const Inputs<Real>& in, std::int64_t sequence, int head, const HeadGradients<Real>& dx,
                   Gradients<Real>& d_in) {
  const int d = in.head_dim;
  const std::int64_t begin = in.cu_seqlens[sequence], tokens = in.cu_seqlens[sequence + 1] - begin;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t row = ((begin + t) * in.heads + head) * d;
    normalise_backward(&in.q[row], &dx.q[t * d], in.scale, d, &d_in.q[row]);
    normalise_backward(&in.k[row], &dx.k[t * d], Real(1), d, &d_in.k[row]);
    for (int i = 0; i < d; ++i) {
      const auto gate = decay(in.gate_form, in.a_log[head], in.gate[row + i] + in.dt_bias[head * d + i]);
      d_in.v[row + i] = dx.v[t * d + i];
      d_in.gate[row + i] = dx.g[t * d + i] * gate.dg_dz;
      d_in.dt_bias[head * d + i] += dx.g[t * d + i] * gate.dg_dz;
      d_in.a_log[head] += dx.g[t * d + i] * gate.dg_da_log;
    }
    d_in.beta[(begin + t) * in.heads + head] = dx.beta[t];
  }
  std::copy(dx.state.begin(), dx.state.end(), d_in.initial_state.begin() + (sequence * in.heads + head) * d * d);
}

template <class Real>
Gradients<Real> zero_gradients(const Inputs<Real>& in) {
  const auto zeros = [](const std::vector<Real>& like) { return std::vector<Real>(like.size()); };
  return {.q = zeros(in.q),
          .k = zeros(in.k),
          .v = zeros(in.v),
          .gate = zeros(in.gate),
          .beta = zeros(in.beta),
          .a_log = zeros(in.a_log),
          .dt_bias = zeros(in.dt_bias),
          .initial_state = zeros(in.initial_state)};
}

}  // namespace moeplan::kernels::kda::reference
