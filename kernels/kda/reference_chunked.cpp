/// \file
/// The chunked form, as the kernels compute it. For a chunk of C tokens with G_i the inclusive sum of log decays from
/// its first token and E_ij = exp(G_i - G_j) per channel:
///
///     L_ij = b_i sum k_i k_j E_ij (j < i)    P_ij = sum q_i k_j E_ij (j <= i)    T = (I + L)^-1
///     N = T (b (V - (k exp(G)) S_0))         O = (q exp(G)) S_0 + P N            S_C = exp(G_C) S_0 + (k exp(G_C -
///     G))^T N
///
/// Backward, with Z = T^T dN: since (I + L) N is what T was applied to, dL = -stril(Z N^T) and the gradient of
/// b (V - (k exp(G)) S_0) is Z itself; neither T V nor T (k exp(G)) is needed.
#include "kernels/kda/reference_heads.hpp"

namespace moeplan::kernels::kda::reference {
namespace {

template <class Real>
struct Chunk {
  int rows;
  std::vector<Real> sum;   ///< G, [rows, D]
  std::vector<Real> l, p;  ///< [rows, rows], L without its beta
  std::vector<Real> n;     ///< N, [rows, D]
};

template <class Real>
Chunk<Real> make_chunk(const HeadInputs<Real>& x, std::int64_t begin, int rows, const std::vector<Real>& state) {
  const int d = x.d;
  Chunk<Real> c{.rows = rows,
                .sum = std::vector<Real>(rows * d),
                .l = std::vector<Real>(rows * rows),
                .p = std::vector<Real>(rows * rows),
                .n = std::vector<Real>(rows * d)};
  for (int i = 0; i < rows; ++i)
    for (int m = 0; m < d; ++m) c.sum[i * d + m] = (i > 0 ? c.sum[(i - 1) * d + m] : 0) + x.g[(begin + i) * d + m];
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j <= i; ++j)
      for (int m = 0; m < d; ++m) {
        const Real e = std::exp(c.sum[i * d + m] - c.sum[j * d + m]) * x.k[(begin + j) * d + m];
        c.p[i * rows + j] += x.q[(begin + i) * d + m] * e;
        if (j < i) c.l[i * rows + j] += x.k[(begin + i) * d + m] * e;
      }
  for (int i = 0; i < rows; ++i)  // forward substitution applies T
    for (int v = 0; v < d; ++v) {
      Real value = x.v[(begin + i) * d + v];
      for (int m = 0; m < d; ++m) value -= x.k[(begin + i) * d + m] * std::exp(c.sum[i * d + m]) * state[m * d + v];
      for (int j = 0; j < i; ++j) value -= c.l[i * rows + j] * c.n[j * d + v];
      c.n[i * d + v] = x.beta[begin + i] * value;
    }
  return c;
}

template <class Real>
void next_state(const HeadInputs<Real>& x, std::int64_t begin, const Chunk<Real>& c, std::vector<Real>& state) {
  const int d = x.d, last = c.rows - 1;
  for (int m = 0; m < d; ++m)
    for (int v = 0; v < d; ++v) {
      Real value = std::exp(c.sum[last * d + m]) * state[m * d + v];
      for (int i = 0; i < c.rows; ++i)
        value += x.k[(begin + i) * d + m] * std::exp(c.sum[last * d + m] - c.sum[i * d + m]) * c.n[i * d + v];
      state[m * d + v] = value;
    }
}

/// Adds the gradients of one chunk to `dx`; `ds` enters as the gradient of S_C and leaves as that of S_0.
template <class Real>
void chunk_backward(const HeadInputs<Real>& x, std::int64_t begin, const Chunk<Real>& c, const std::vector<Real>& s,
                    const std::vector<Real>& dout, std::vector<Real>& ds, HeadGradients<Real>& dx) {
  const int d = x.d, rows = c.rows, last = rows - 1;
  const auto q = [&](int i, int m) { return x.q[(begin + i) * d + m]; };
  const auto k = [&](int i, int m) { return x.k[(begin + i) * d + m]; };
  const auto from_start = [&](int i, int m) { return std::exp(c.sum[i * d + m]); };
  const auto to_end = [&](int i, int m) { return std::exp(c.sum[last * d + m] - c.sum[i * d + m]); };
  const auto beta = [&](int i) { return x.beta[begin + i]; };
  std::vector<Real> z(rows * d);
  for (int i = last; i >= 0; --i)  // dN, then back substitution applies T^T
    for (int v = 0; v < d; ++v) {
      Real value = 0;
      for (int r = i; r < rows; ++r) value += c.p[r * rows + i] * dout[(begin + r) * d + v];
      for (int m = 0; m < d; ++m) value += k(i, m) * to_end(i, m) * ds[m * d + v];
      for (int r = i + 1; r < rows; ++r) value -= beta(r) * c.l[r * rows + i] * z[r * d + v];
      z[i * d + v] = value;
    }
  std::vector<Real> dg(rows * d);  // by G
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < d; ++v) {
      dx.v[(begin + i) * d + v] = beta(i) * z[i * d + v];
      dx.beta[begin + i] += z[i * d + v] * x.v[(begin + i) * d + v];
    }
    for (int m = 0; m < d; ++m) {
      Real rq = 0, rk = 0, ck = 0, ek = 0;  // q rows, k rows (without beta), k columns, k to the chunk's end
      for (int v = 0; v < d; ++v) {
        rq += dout[(begin + i) * d + v] * s[m * d + v];
        rk -= z[i * d + v] * s[m * d + v];
        ek += c.n[i * d + v] * ds[m * d + v];
      }
      rq *= from_start(i, m), rk *= from_start(i, m), ek *= to_end(i, m);
      for (int j = 0; j < rows; ++j) {
        Real dp = 0, dl = 0;  // dP and dL of the pair (later, earlier), the latter without beta
        const int later = std::max(i, j), earlier = std::min(i, j);
        for (int v = 0; v < d; ++v) {
          dp += dout[(begin + later) * d + v] * c.n[earlier * d + v];
          dl -= z[later * d + v] * c.n[earlier * d + v];
        }
        const Real e = std::exp(c.sum[later * d + m] - c.sum[earlier * d + m]);
        if (j <= i) rq += dp * k(j, m) * e;
        if (j < i) rk += dl * k(j, m) * e;
        if (j >= i) ck += dp * q(j, m) * e;
        if (j > i) ck += beta(j) * dl * k(j, m) * e;
      }
      dx.q[(begin + i) * d + m] = rq;
      dx.k[(begin + i) * d + m] = beta(i) * rk + ck + ek;
      dx.beta[begin + i] += k(i, m) * rk;
      dg[i * d + m] += q(i, m) * rq + k(i, m) * (beta(i) * rk - ck - ek);
      dg[last * d + m] += k(i, m) * ek;
    }
  }
  for (int m = 0; m < d; ++m)
    for (int v = 0; v < d; ++v) {
      const Real decayed = from_start(last, m) * ds[m * d + v];
      dg[last * d + m] += decayed * s[m * d + v];
      ds[m * d + v] = decayed;
      for (int i = 0; i < rows; ++i)
        ds[m * d + v] += from_start(i, m) * (q(i, m) * dout[(begin + i) * d + v] - beta(i) * k(i, m) * z[i * d + v]);
    }
  for (int m = 0; m < d; ++m) {
    Real sum = 0;
    for (int i = last; i >= 0; --i) dx.g[(begin + i) * d + m] = sum += dg[i * d + m];
  }
}

}  // namespace

template <class Real>
Outputs<Real> chunked_forward(const Inputs<Real>& in, int chunk) {
  const int d = in.head_dim;
  Outputs<Real> result{.out = std::vector<Real>(in.v.size()), .final_state = in.initial_state};
  for (std::int64_t n = 0; n + 1 < std::int64_t(in.cu_seqlens.size()); ++n)
    for (int h = 0; h < in.heads; ++h) {
      const auto x = head_inputs(in, n, h);
      auto state = x.state;
      for (std::int64_t begin = 0; begin < x.tokens; begin += chunk) {
        const auto c = make_chunk(x, begin, int(std::min<std::int64_t>(chunk, x.tokens - begin)), state);
        for (int i = 0; i < c.rows; ++i) {
          Real* out = &result.out[((in.cu_seqlens[n] + begin + i) * in.heads + h) * d];
          for (int v = 0; v < d; ++v) {
            for (int m = 0; m < d; ++m)
              out[v] += x.q[(begin + i) * d + m] * std::exp(c.sum[i * d + m]) * state[m * d + v];
            for (int j = 0; j <= i; ++j) out[v] += c.p[i * c.rows + j] * c.n[j * d + v];
          }
        }
        next_state(x, begin, c, state);
      }
      std::copy(state.begin(), state.end(), result.final_state.begin() + (n * in.heads + h) * d * d);
    }
  return result;
}

template <class Real>
Gradients<Real> chunked_backward(const Inputs<Real>& in, const std::vector<Real>& d_out,
                                 const std::vector<Real>& d_final_state, int chunk) {
  const int d = in.head_dim;
  auto result = zero_gradients(in);
  for (std::int64_t n = 0; n + 1 < std::int64_t(in.cu_seqlens.size()); ++n)
    for (int h = 0; h < in.heads; ++h) {
      const auto x = head_inputs(in, n, h);
      std::vector<std::vector<Real>> states{x.state};
      std::vector<Chunk<Real>> chunks;
      for (std::int64_t begin = 0; begin < x.tokens; begin += chunk) {
        chunks.push_back(make_chunk(x, begin, int(std::min<std::int64_t>(chunk, x.tokens - begin)), states.back()));
        states.push_back(states.back());
        next_state(x, begin, chunks.back(), states.back());
      }
      HeadGradients<Real> dx(x.tokens, d);
      std::vector<Real> dout;
      for (std::int64_t t = 0; t < x.tokens; ++t) {
        const auto row = d_out.begin() + ((in.cu_seqlens[n] + t) * in.heads + h) * d;
        dout.insert(dout.end(), row, row + d);
      }
      const auto ds = d_final_state.begin() + (n * in.heads + h) * d * d;
      dx.state.assign(ds, ds + d * d);
      for (std::int64_t c = std::int64_t(chunks.size()) - 1; c >= 0; --c)
        chunk_backward(x, c * chunk, chunks[c], states[c], dout, dx.state, dx);
      head_backward(in, n, h, dx, result);
    }
  return result;
}

#define MOEPLAN_INSTANTIATE(Real)                                                                                    \
  template Outputs<Real> chunked_forward(const Inputs<Real>&, int);                                                  \
  template Gradients<Real> chunked_backward(const Inputs<Real>&, const std::vector<Real>&, const std::vector<Real>&, \
                                            int);
MOEPLAN_INSTANTIATE(float)
MOEPLAN_INSTANTIATE(double)
#undef MOEPLAN_INSTANTIATE

}  // namespace moeplan::kernels::kda::reference
