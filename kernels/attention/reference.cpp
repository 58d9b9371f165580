/// z_ij = scale q_i . k_j (softcapped), p = softmax over the visible j and the sink, o_i = sum_j p_ij v_j, lse_i = log sum e^z.
/// With delta_i = do_i . o_i:  dz_ij = p_ij (do_i . v_j - delta_i),  dq = scale dz k,  dk = scale dz^T q,  dv = p^T do,
/// d sink = -sum_i e^(sink - lse_i) delta_i.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {
namespace {

/// Walks the (query, visible keys, head) triples: f(query, first key, end key, head).
template <class T, class F>
void for_each_query(const op::Attention& op, const View<T>& starts, F&& f) {
  const std::int64_t keys = op.kv_tokens ? op.kv_tokens : op.tokens;
  const auto bounds = sequence_bounds<T>(keys, op.sequence_length, starts);
  // With more keys than queries each sequence's queries are its last ones.
  const auto sequences = static_cast<std::int64_t>(bounds.size()) - 1;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t begin = bounds[static_cast<std::size_t>(s)], end = bounds[static_cast<std::size_t>(s) + 1];
    const std::int64_t missing = op.kv_tokens ? (keys - op.tokens) / sequences : 0;
    for (std::int64_t j = begin + missing; j < end; ++j) {
      const std::int64_t query = j - missing * (s + 1), last = op.causal ? j + 1 : end;
      const std::int64_t first = op.window ? std::max(begin, j + 1 - op.window) : begin;
      for (std::int64_t head = 0; head < op.heads; ++head) f(query, first, last, head);
    }
  }
}

/// The tensors of one call, addressed by token and head.
template <class T>
struct Heads {
  const op::Attention& op;
  View<T> q, k, shared, v;
  std::int64_t group, own;
  T scale, cap;

  Heads(const op::Attention& o, const View<T>& q_, const View<T>& k_, const View<T>& shared_, const View<T>& v_)
      : op(o), q(q_), k(k_), shared(shared_), v(v_), group(o.heads / o.kv_heads), own(o.d_qk - o.shared_key),
        scale(static_cast<T>(o.scale > 0 ? o.scale : 1 / std::sqrt(static_cast<double>(o.d_qk)))), cap(static_cast<T>(o.softcap)) {}

  T* query(std::int64_t i, std::int64_t head) const { return q.row(i) + head * op.d_qk; }
  T* key(std::int64_t j, std::int64_t head) const { return k.row(j) + head / group * own; }
  T* value(std::int64_t j, std::int64_t head) const { return v.row(j) + head / group * op.d_v; }
  T logit(std::int64_t i, std::int64_t j, std::int64_t head) const {
    T dot = 0;
    for (std::int64_t c = 0; c < own; ++c) dot += query(i, head)[c] * key(j, head)[c];
    for (std::int64_t c = own; c < op.d_qk; ++c) dot += query(i, head)[c] * shared(j, c - own);
    return cap > 0 ? cap * std::tanh(scale * dot / cap) : scale * dot;
  }
  /// Derivative of the softcap at a capped logit.
  T cap_slope(T z) const { return cap > 0 ? 1 - z / cap * (z / cap) : T(1); }
};

}  // namespace

template <class T>
void forward(const op::Attention& op, const Frame<T>& f) {
  const Heads<T> in(op, f["q"], f["k"], f["k_shared"], f["v"]);
  const auto sinks = f["sinks"], y = f["y"], lse = f["lse"];
  std::vector<T> z;
  for_each_query(op, f["starts"], [&](std::int64_t i, std::int64_t first, std::int64_t last, std::int64_t head) {
    z.clear();
    T most = op.sinks ? sinks[head] : -std::numeric_limits<T>::infinity();
    for (std::int64_t j = first; j < last; ++j) most = std::max(most, z.emplace_back(in.logit(i, j, head)));
    T sum = op.sinks ? std::exp(sinks[head] - most) : T(0);
    for (const T each : z) sum += std::exp(each - most);
    lse(i, head) = most + std::log(sum);
    T* out = y.row(i) + head * op.d_v;
    std::fill(out, out + op.d_v, T(0));
    for (std::int64_t j = first; j < last; ++j) {
      const T p = std::exp(z[static_cast<std::size_t>(j - first)] - lse(i, head));
      for (std::int64_t c = 0; c < op.d_v; ++c) out[c] += p * in.value(j, head)[c];
    }
  });
}

template <class T>
void backward(const op::Attention& op, const Frame<T>& f) {
  const Heads<T> in(op, f["q"], f["k"], f["k_shared"], f["v"]), d(op, f.d("q"), f.d("k"), f.d("k_shared"), f.d("v"));
  const auto sinks = f["sinks"], y = f["y"], lse = f["lse"], dy = f.d("y"), dsinks = f.d("sinks");
  const bool inputs = d.q && d.k && d.v;
  for (const auto& gradient : {d.q, d.k, d.shared, d.v, dsinks})
    if (gradient) gradient.fill(0);
  for_each_query(op, f["starts"], [&](std::int64_t i, std::int64_t first, std::int64_t last, std::int64_t head) {
    const T *o = y.row(i) + head * op.d_v, *g = dy.row(i) + head * op.d_v;
    T delta = 0;
    for (std::int64_t c = 0; c < op.d_v; ++c) delta += g[c] * o[c];
    if (dsinks) dsinks[head] -= std::exp(sinks[head] - lse(i, head)) * delta;
    if (!inputs) return;
    for (std::int64_t j = first; j < last; ++j) {
      const T z = in.logit(i, j, head), p = std::exp(z - lse(i, head));
      T dp = 0;
      for (std::int64_t c = 0; c < op.d_v; ++c) {
        dp += g[c] * in.value(j, head)[c];
        d.value(j, head)[c] += p * g[c];
      }
      const T dz = in.scale * in.cap_slope(z) * p * (dp - delta);
      for (std::int64_t c = 0; c < in.own; ++c) {
        d.query(i, head)[c] += dz * in.key(j, head)[c];
        d.key(j, head)[c] += dz * in.query(i, head)[c];
      }
      for (std::int64_t c = in.own; c < op.d_qk; ++c) {
        d.query(i, head)[c] += dz * in.shared(j, c - in.own);
        d.shared(j, c - in.own) += dz * in.query(i, head)[c];
      }
    }
  });
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Attention)
