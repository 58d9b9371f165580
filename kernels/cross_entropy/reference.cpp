/// One token's logits at a time: z_v = scale (x . W_v + b_v + s (A x) . B_v), softcapped to z'.
///   loss = 1/n sum over labelled tokens of (1 - eps) (lse - z'_y) + eps (lse - mean z') + zeta lse^2
///   dz' = 1/n ((1 + 2 zeta lse) e^(z' - lse) - (1 - eps) [v = y] - eps / V),  dz = scale (1 - (z' / c)^2) dz'
///   dx = dz W + s (dz B) A,  dW = dz^T x,  db = sum dz,  dB = s dz^T (x A^T),  dA = s (dz B)^T x.
/// A negative label is ignored; with no label at all the loss and every gradient are zero. A label beyond the vocabulary is one of another part
/// of it: the token counts, and its z_y is 0 here (the sum over the parts then needs the log-sum-exp of all: see the executor's merge).

#include <cmath>

#include "kernels/cross_entropy/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

template <class T>
class Head {
 public:
  Head(const op::CrossEntropy& op, const Frame<T>& f) : op_(op), x_(f["x"]), labels_(f["labels"]), w_(f["w"]), b_(f["b"]), a_(f["a"]), b_lora_(f["b_lora"]) {
    for (std::int64_t t = 0; t < op.tokens; ++t) labelled_ += label(t) >= 0;
  }
  [[nodiscard]] std::int64_t label(std::int64_t t) const { return static_cast<std::int64_t>(labels_[t]); }
  [[nodiscard]] T share() const { return labelled_ ? T(1) / static_cast<T>(labelled_) : T(0); }
  /// A x, empty without a pair.
  [[nodiscard]] std::vector<T> low_rank(std::int64_t t) const {
    std::vector<T> out(static_cast<std::size_t>(op_.lora_rank));
    for (std::int64_t r = 0; r < op_.lora_rank; ++r)
      for (std::int64_t c = 0; c < op_.hidden; ++c) out[static_cast<std::size_t>(r)] += a_(r, c) * x_(t, c);
    return out;
  }
  [[nodiscard]] std::vector<T> logits(std::int64_t t) const {
    const auto low = low_rank(t);
    std::vector<T> z;
    for (std::int64_t v = 0; v < op_.vocabulary; ++v) {
      T dot = op_.bias ? b_[v] : T(0);
      for (std::int64_t c = 0; c < op_.hidden; ++c) dot += x_(t, c) * w_(v, c);
      for (std::int64_t r = 0; r < op_.lora_rank; ++r) dot += static_cast<T>(op_.lora_scale) * low[static_cast<std::size_t>(r)] * b_lora_(v, r);
      dot *= static_cast<T>(op_.logit_scale);
      const T cap = static_cast<T>(op_.softcap);
      z.push_back(cap > 0 ? cap * std::tanh(dot / cap) : dot);
    }
    return z;
  }
  [[nodiscard]] static T log_sum(const std::vector<T>& z) {
    T most = z.front(), sum = 0;
    for (const T each : z) most = std::max(most, each);
    for (const T each : z) sum += std::exp(each - most);
    return most + std::log(sum);
  }
  [[nodiscard]] T loss(std::int64_t t, const std::vector<T>& z, T lse) const {
    T mean = 0;
    for (const T each : z) mean += each / static_cast<T>(z.size());
    const T eps = static_cast<T>(op_.label_smoothing);
    const T chosen = label(t) < op_.vocabulary ? z[static_cast<std::size_t>(label(t))] : T(0);
    return (1 - eps) * (lse - chosen) + eps * (lse - mean) + static_cast<T>(op_.z_loss) * lse * lse;
  }
  /// Turns a token's logits into the gradient of x . W_v, for a loss whose own gradient is `dloss`.
  void to_gradient(std::int64_t t, std::vector<T>& z, T lse, T dloss) const {
    const T eps = static_cast<T>(op_.label_smoothing), cap = static_cast<T>(op_.softcap), g = dloss * share();
    for (std::size_t v = 0; v < z.size(); ++v) {
      const T dz = g * ((1 + 2 * static_cast<T>(op_.z_loss) * lse) * std::exp(z[v] - lse) - eps / static_cast<T>(z.size()) -
                        (static_cast<std::int64_t>(v) == label(t) ? 1 - eps : T(0)));
      z[v] = static_cast<T>(op_.logit_scale) * dz * (cap > 0 ? 1 - z[v] / cap * (z[v] / cap) : T(1));
    }
  }
  /// dz B, empty without a pair.
  [[nodiscard]] std::vector<T> through_pair(const std::vector<T>& dz) const {
    std::vector<T> out(static_cast<std::size_t>(op_.lora_rank));
    for (std::int64_t r = 0; r < op_.lora_rank; ++r)
      for (std::int64_t v = 0; v < op_.vocabulary; ++v) out[static_cast<std::size_t>(r)] += dz[static_cast<std::size_t>(v)] * b_lora_(v, r);
    return out;
  }
  void input_gradient(const std::vector<T>& dz, T* dx) const {
    const auto low = through_pair(dz);
    for (std::int64_t c = 0; c < op_.hidden; ++c) {
      T sum = 0;
      for (std::int64_t v = 0; v < op_.vocabulary; ++v) sum += dz[static_cast<std::size_t>(v)] * w_(v, c);
      for (std::int64_t r = 0; r < op_.lora_rank; ++r) sum += static_cast<T>(op_.lora_scale) * low[static_cast<std::size_t>(r)] * a_(r, c);
      dx[c] = sum;
    }
  }

 private:
  const op::CrossEntropy& op_;
  View<T> x_, labels_, w_, b_, a_, b_lora_;
  std::int64_t labelled_ = 0;
};

}  // namespace

template <class T>
void forward(const op::CrossEntropy& op, const Frame<T>& f) {
  const Head<T> head(op, f);
  const auto lse = f["lse"], dx = f["dx"];
  T sum = 0;
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    auto z = head.logits(t);
    const T log_sum = head.log_sum(z);
    const bool labelled = head.label(t) >= 0;
    if (labelled) sum += head.loss(t, z, log_sum);
    if (!op.fused()) {
      lse[t] = log_sum;
    } else if (labelled) {
      head.to_gradient(t, z, log_sum, T(1));
      head.input_gradient(z, dx.row(t));
    } else {
      std::fill(dx.row(t), dx.row(t) + op.hidden, T(0));
    }
  }
  f["loss"][0] = sum * head.share();
}

template <class T>
void backward(const op::CrossEntropy& op, const Frame<T>& f) {
  const T dloss = f.d("loss")[0];
  const auto dx = f.d("x"), dw = f.d("w"), db = f.d("b"), da = f.d("a"), db_lora = f.d("b_lora"), x = f["x"];
  if (op.fused()) {
    for (std::int64_t i = 0; dx && i < dx.size(); ++i) dx[i] = dloss * f["dx"][i];
    return;
  }
  for (const auto& gradient : {dx, dw, db, da, db_lora})
    if (gradient) gradient.fill(0);
  if (!dx && !dw && !db && !da && !db_lora) return;
  const Head<T> head(op, f);
  const T s = static_cast<T>(op.lora_scale);
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    if (head.label(t) < 0) continue;
    auto z = head.logits(t);
    head.to_gradient(t, z, f["lse"][t], dloss);
    if (dx) head.input_gradient(z, dx.row(t));
    const auto low = head.low_rank(t), back = head.through_pair(z);
    for (std::int64_t v = 0; v < op.vocabulary; ++v) {
      const T dz = z[static_cast<std::size_t>(v)];
      if (db) db[v] += dz;
      for (std::int64_t c = 0; dw && c < op.hidden; ++c) dw(v, c) += dz * x(t, c);
      for (std::int64_t r = 0; db_lora && r < op.lora_rank; ++r) db_lora(v, r) += s * dz * low[static_cast<std::size_t>(r)];
    }
    for (std::int64_t r = 0; da && r < op.lora_rank; ++r)
      for (std::int64_t c = 0; c < op.hidden; ++c) da(r, c) += s * back[static_cast<std::size_t>(r)] * x(t, c);
  }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(CrossEntropy)
