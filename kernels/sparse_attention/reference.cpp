/// Softmax attention over the selected keys: an index names `block` keys, of which a query sees those up to itself. In the latent form
/// the value is the key's first d_v columns and its gradient joins the key's. Formulas as in `attention`.

#include "kernels/sparse_attention/op.hpp"
#include "kernels/reference_attend.hpp"

namespace moeplan::reference {
namespace {

template <class T>
std::vector<Key<T>> selected(const op::SparseAttention& op, const Frame<T>& f, std::int64_t t, std::int64_t head) {
  const auto kv = f["kv"], v = f["v"], indices = f["indices"], dkv = f.d("kv"), dv = f.d("v");
  const std::int64_t own = t + (op.kv_tokens ? op.kv_tokens - op.tokens : 0), group = head / (op.heads / op.kv_heads);
  std::vector<Key<T>> keys;
  for (std::int64_t i = 0; i < op.topk; ++i) {
    const auto index = static_cast<std::int64_t>(indices(t, i));
    for (std::int64_t j = index * op.block; index >= 0 && j < std::min((index + 1) * op.block, own + 1); ++j) {
      const T* key = kv.row(j) + group * op.d_qk;
      T* dkey = dkv ? dkv.row(j) + group * op.d_qk : nullptr;
      if (op.latent) keys.push_back({key, key, dkey, dkey});
      else keys.push_back({key, v.row(j) + group * op.d_v, dkey, dv ? dv.row(j) + group * op.d_v : nullptr});
    }
  }
  return keys;
}

template <class T>
Query<T> query(const op::SparseAttention& op, const Frame<T>& f, std::int64_t t, std::int64_t head) {
  const T scale = static_cast<T>(op.scale > 0 ? op.scale : 1 / std::sqrt(static_cast<double>(op.d_qk)));
  return {f["q"].row(t) + head * op.d_qk, op.d_qk, op.d_v, scale, op.sinks ? &f["sinks"][head] : nullptr};
}

}  // namespace

template <class T>
void forward(const op::SparseAttention& op, const Frame<T>& f) {
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t head = 0; head < op.heads; ++head)
      f["lse"](t, head) = attend(query(op, f, t, head), selected(op, f, t, head), f["y"].row(t) + head * op.d_v);
}

template <class T>
void backward(const op::SparseAttention& op, const Frame<T>& f) {
  const auto dq = f.d("q"), dsinks = f.d("sinks"), lse = f["lse"];
  for (const auto& gradient : {dq, f.d("kv"), f.d("v"), dsinks})
    if (gradient) gradient.fill(0);
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t head = 0; head < op.heads; ++head) {
      const T* dout = f.d("y").row(t) + head * op.d_v;
      const T delta = dot(dout, f["y"].row(t) + head * op.d_v, op.d_v);
      if (dsinks) dsinks[head] -= std::exp(f["sinks"][head] - lse(t, head)) * delta;
      if (dq) attend_backward({f["q"].row(t) + head * op.d_qk, op.d_qk, op.d_v, query(op, f, t, head).scale}, selected(op, f, t, head), dout, lse(t, head), delta, dq.row(t) + head * op.d_qk);
    }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(SparseAttention)
