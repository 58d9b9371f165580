/// Softmax attention over the window's plain keys and the compressed keys whose runs are complete (all, or those that the indices
/// name). A key is also its value. Formulas as in `attention`.

#include "kernels/compressed_attention/op.hpp"
#include "kernels/reference_attend.hpp"

namespace moeplan::reference {
namespace {

template <class T>
std::vector<Key<T>> visible(const op::CompressedAttention& op, const Frame<T>& f, std::int64_t t) {
  const std::int64_t d = op.head_dim, begin = t / op.sequence_length * op.sequence_length;
  std::vector<Key<T>> keys;
  const auto add = [&](const View<T>& from, const View<T>& gradient, std::int64_t j) {
    T* const dkey = gradient ? gradient.data + j * d : nullptr;
    keys.push_back({from.data + j * d, from.data + j * d, dkey, dkey});
  };
  for (std::int64_t j = std::max(begin, t + 1 - op.window); j <= t; ++j) add(f["kv"], f.d("kv"), j);
  if (!op.ratio) return keys;
  if (op.topk) {
    for (std::int64_t i = 0; i < op.topk; ++i)
      if (const auto j = static_cast<std::int64_t>(f["indices"](t, i)); j >= 0) add(f["kv_compressed"], f.d("kv_compressed"), j);
  } else {
    for (std::int64_t j = 0; j < (t - begin + 1) / op.ratio; ++j) add(f["kv_compressed"], f.d("kv_compressed"), begin / op.ratio + j);
  }
  return keys;
}

template <class T>
T scale_of(const op::CompressedAttention& op) { return static_cast<T>(op.scale > 0 ? op.scale : 1 / std::sqrt(static_cast<double>(op.head_dim))); }

}  // namespace

template <class T>
void forward(const op::CompressedAttention& op, const Frame<T>& f) {
  const std::int64_t d = op.head_dim;
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    const auto keys = visible(op, f, t);
    for (std::int64_t head = 0; head < op.heads; ++head)
      f["lse"](t, head) = attend<T>({f["q"].row(t) + head * d, d, d, scale_of<T>(op), &f["sinks"][head]}, keys, f["y"].row(t) + head * d);
  }
}

template <class T>
void backward(const op::CompressedAttention& op, const Frame<T>& f) {
  const std::int64_t d = op.head_dim;
  const auto dq = f.d("q"), dsinks = f.d("sinks"), lse = f["lse"];
  for (const auto& gradient : {dq, f.d("kv"), f.d("kv_compressed"), dsinks})
    if (gradient) gradient.fill(0);
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t head = 0; head < op.heads; ++head) {
      const T* dout = f.d("y").row(t) + head * d;
      const T delta = dot(dout, f["y"].row(t) + head * d, d);
      if (dsinks) dsinks[head] -= std::exp(f["sinks"][head] - lse(t, head)) * delta;
      if (dq) attend_backward<T>({f["q"].row(t) + head * d, d, d, scale_of<T>(op)}, visible(op, f, t), dout, lse(t, head), delta, dq.row(t) + head * d);
    }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(CompressedAttention)
