/// `router` as the catalogue calls it, with biases, groups, hash routing, identity experts and the balancing loss.
/// A group's rank is the sum of its two best s + score_bias (DeepSeek-V3), its best s where there is no score_bias (DeepSeek-V2).
///   w_j = scale s_j (/ sum of the chosen s):  ds_j = scale (dw_j - sum_i dw_i s_i / S) / S
///   softmax dz = s (ds - sum ds s);  sigmoid dz = ds s (1 - s);  sqrt(softplus) dz = ds (1 - e^(-s^2)) / (2 s)
///   dx = dz W,  dW = dz^T x,  db = sum dz.

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/reference_math.hpp"
#include "kernels/reference_ragged.hpp"
#include "kernels/router/op.hpp"
#include "kernels/router/sparse_mixer.hpp"

namespace moeplan::reference {
namespace {

template <class T>
void score(RouterScore form, T* z, std::int64_t n) {
  if (form == RouterScore::softmax || form == RouterScore::sparse_mixer) {
    const T most = *std::max_element(z, z + n);
    T sum = 0;
    for (std::int64_t e = 0; e < n; ++e) sum += z[e] = std::exp(z[e] - most);
    for (std::int64_t e = 0; e < n; ++e) z[e] /= sum;
    return;
  }
  for (std::int64_t e = 0; e < n; ++e) z[e] = form == RouterScore::sigmoid ? sigmoid(z[e]) : std::sqrt(softplus(z[e]));
}

/// Indices of the `count` largest, best first, ties to the lower index.
template <class T>
std::vector<std::int64_t> largest(const std::vector<T>& values, std::int64_t count) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)]; });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

template <class T>
std::vector<std::int64_t> choose(const op::Router& op, const T* scores, const View<T>& bias) {
  const std::int64_t all = op.experts + op.zero_experts;
  std::vector<T> selection(scores, scores + all);
  for (std::int64_t e = 0; bias && e < all; ++e) selection[static_cast<std::size_t>(e)] += bias[e];
  if (op.groups > 1) {
    const auto size = static_cast<std::ptrdiff_t>(op.experts / op.groups);
    std::vector<T> rank;
    for (std::ptrdiff_t g = 0; g < op.groups; ++g) {
      std::vector<T> mine(selection.begin() + g * size, selection.begin() + (g + 1) * size);
      std::sort(mine.begin(), mine.end(), std::greater<>());
      rank.push_back(mine[0] + (op.score_bias && size > 1 ? mine[1] : T(0)));
    }
    std::vector<bool> kept(static_cast<std::size_t>(op.groups), false);
    for (const auto g : largest(rank, op.top_groups)) kept[static_cast<std::size_t>(g)] = true;
    for (std::int64_t e = 0; e < op.experts; ++e)
      if (!kept[static_cast<std::size_t>(e / size)]) selection[static_cast<std::size_t>(e)] = -std::numeric_limits<T>::infinity();
  }
  return largest(selection, op.top_k);
}

}  // namespace

template <class T>
void forward(const op::Router& op, const Frame<T>& f) {
  const auto scores = f["scores"], weights = f["weights"], zero = f["zero_weight"], indices = f["indices"], counts = f["counts"], ids = f["ids"], table = f["table"], logits = f["logits"];
  const std::int64_t all = op.experts + op.zero_experts;
  auto z = matrix(scores);
  z.noalias() = matrix(f["x"]) * matrix(f["w"]).transpose();
  if (op.bias) z.rowwise() += row_vector(f["b"]);
  counts.fill(0);
  if (logits) matrix(logits) = z;
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    T* s = scores.row(t);
    score(op.score, s, all);
    std::vector<std::int64_t> chosen;
    if (logits) {
      chosen.resize(static_cast<std::size_t>(op.top_k));
      std::vector<T> w(chosen.size());
      choose_sparse_mixer<T>({logits.row(t), static_cast<std::size_t>(all)}, op.jitter, chosen, w);
      for (std::int64_t j = 0; j < op.top_k; ++j) {
        weights(t, j) = static_cast<T>(op.route_scale) * w[static_cast<std::size_t>(j)];
        indices(t, j) = static_cast<T>(chosen[static_cast<std::size_t>(j)]);
        counts[chosen[static_cast<std::size_t>(j)]] += 1;
      }
      continue;
    }
    if (op.hash_vocabulary)
      for (std::int64_t j = 0; j < op.top_k; ++j) chosen.push_back(static_cast<std::int64_t>(table(static_cast<std::int64_t>(ids[t]), j)));
    else chosen = choose(op, s, f["score_bias"]);
    T sum = 0;
    for (const auto e : chosen) sum += s[e];
    if (zero) zero[t] = 0;
    for (std::int64_t j = 0; j < op.top_k; ++j) {
      const std::int64_t e = chosen[static_cast<std::size_t>(j)];
      const T w = static_cast<T>(op.route_scale) * (op.normalise ? s[e] / sum : s[e]);
      if (e >= op.experts) zero[t] += w;
      weights(t, j) = e < op.experts ? w : T(0);
      indices(t, j) = static_cast<T>(e);
      counts[e] += 1;
    }
  }
}

template <class T>
void backward(const op::Router& op, const Frame<T>& f, const Ragged& ragged) {
  const auto scores = f["scores"], indices = f["indices"], dweights = f.d("weights"), dzero = f.d("zero_weight"), logits = f["logits"];
  const std::int64_t all = op.experts + op.zero_experts;
  const T scale = static_cast<T>(op.route_scale);
  std::vector<T> share(static_cast<std::size_t>(all), T(0));   // a E f_e / t
  const T each = static_cast<T>(ragged.auxiliary) * static_cast<T>(all) / (static_cast<T>(op.tokens) * static_cast<T>(op.tokens) * static_cast<T>(op.top_k));
  if (ragged.auxiliary > 0 && !ragged.rows_of_expert.empty())   // the choices of other ranks' tokens too
    for (std::size_t e = 0; e < share.size(); ++e) share[e] = each * static_cast<T>(ragged.rows_of_expert[e]);
  else if (ragged.auxiliary > 0)
    for (std::int64_t i = 0; i < op.tokens * op.top_k; ++i) share[static_cast<std::size_t>(indices[i])] += each;
  Matrix<T> dz = Matrix<T>::Zero(op.tokens, all);
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    const T* s = scores.row(t);
    T* ds = dz.data() + t * all;
    T sum = 0, mean = 0;
    const auto arriving = [&](std::int64_t j) {
      const auto e = static_cast<std::int64_t>(indices(t, j));
      return e < op.experts ? (dweights ? dweights(t, j) : T(0)) : (dzero ? dzero[t] : T(0));
    };
    for (std::int64_t j = 0; !logits && j < op.top_k; ++j) sum += s[static_cast<std::int64_t>(indices(t, j))];
    for (std::int64_t j = 0; !logits && op.normalise && j < op.top_k; ++j) mean += arriving(j) * s[static_cast<std::int64_t>(indices(t, j))] / sum;
    for (std::int64_t j = 0; !logits && j < op.top_k; ++j) ds[static_cast<std::int64_t>(indices(t, j))] += scale * (op.normalise ? (arriving(j) - mean) / sum : arriving(j));
    if (ragged.auxiliary > 0) {
      T total = 0, inner = 0;
      for (std::int64_t e = 0; e < all; ++e) total += s[e];
      for (std::int64_t e = 0; e < all; ++e) inner += share[static_cast<std::size_t>(e)] * s[e] / total;
      for (std::int64_t e = 0; e < all; ++e) ds[e] += (share[static_cast<std::size_t>(e)] - inner) / total;
    }
    T inner = 0;
    for (std::int64_t e = 0; e < all; ++e) inner += ds[e] * s[e];
    for (std::int64_t e = 0; e < all; ++e) {
      if (op.score == RouterScore::softmax || logits) ds[e] = s[e] * (ds[e] - inner);
      else if (op.score == RouterScore::sigmoid) ds[e] *= s[e] * (1 - s[e]);
      else ds[e] *= s[e] > 0 ? -std::expm1(-s[e] * s[e]) / (2 * s[e]) : T(0);
    }
    if (logits && dweights) {
      std::vector<std::int64_t> chosen;
      std::vector<T> dw;
      for (std::int64_t j = 0; j < op.top_k; ++j) chosen.push_back(static_cast<std::int64_t>(indices(t, j))), dw.push_back(scale * dweights(t, j));
      sparse_mixer_gradient<T>({logits.row(t), static_cast<std::size_t>(all)}, op.jitter, chosen, dw, ds);
    }
  }
  if (f.d("x")) matrix(f.d("x")).noalias() = dz * matrix(f["w"]);
  if (f.d("w")) matrix(f.d("w")).noalias() = dz.transpose() * matrix(f["x"]);
  if (f.d("b")) row_vector(f.d("b")) = dz.colwise().sum();
}

template <class T>
void backward(const op::Router& op, const Frame<T>& f) { backward(op, f, Ragged{}); }

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Router)
template void moeplan::reference::backward(const moeplan::op::Router&, const moeplan::reference::Frame<float>&, const moeplan::reference::Ragged&);
template void moeplan::reference::backward(const moeplan::op::Router&, const moeplan::reference::Frame<double>&, const moeplan::reference::Ragged&);
