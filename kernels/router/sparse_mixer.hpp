#pragma once
/// The routing of Phi-3.5-MoE (SparseMixer-v2, arXiv 2409.12136, as it is evaluated: nothing is drawn at random). With z the logits of one token:
///     e_j = the largest z that no choice before has taken, ties to the lower expert
///     K_j = the experts left whose (z_ej - z_e) / max(|z_e|, z_ej) is at most 2 x jitter
///     w_j = exp(z_ej) / sum over K_j of exp(z_e)          and so  dz_e = sum_j dw_j w_j ([e = e_j] - exp(z_e) / sum over K_j) on K_j

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace moeplan::reference {

/// Calls near(e, p) for the experts of K_j and their shares of its softmax; `taken`: earlier choices.
template <class T, class Near>
void near_choice(std::span<const T> z, std::span<const std::int64_t> taken, std::int64_t chosen, double jitter, Near&& near) {
  const T most = z[static_cast<std::size_t>(chosen)];
  std::vector<std::size_t> members;
  T sum = 0;
  for (std::size_t e = 0; e < z.size(); ++e) {
    if (std::find(taken.begin(), taken.end(), static_cast<std::int64_t>(e)) != taken.end()) continue;
    if ((most - z[e]) / std::max(std::abs(z[e]), most) > static_cast<T>(2 * jitter)) continue;   // 0 / 0 is near
    members.push_back(e);
    sum += std::exp(z[e] - most);
  }
  for (const std::size_t e : members) near(e, std::exp(z[e] - most) / sum);
}

/// The choices of one token and their weights, [top_k] each.
template <class T>
void choose_sparse_mixer(std::span<const T> z, double jitter, std::span<std::int64_t> chosen, std::span<T> weights) {
  for (std::size_t j = 0; j < chosen.size(); ++j) {
    const auto taken = std::span<const std::int64_t>(chosen).first(j);
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < static_cast<std::int64_t>(z.size()); ++e)
      if (std::find(taken.begin(), taken.end(), e) == taken.end() && (best < 0 || z[static_cast<std::size_t>(e)] > z[static_cast<std::size_t>(best)])) best = e;
    chosen[j] = best;
    near_choice(z, taken, best, jitter, [&](std::size_t e, T p) {
      if (static_cast<std::int64_t>(e) == best) weights[j] = p;
    });
  }
}

/// Adds the gradient of the weights to dz [experts].
template <class T>
void sparse_mixer_gradient(std::span<const T> z, double jitter, std::span<const std::int64_t> chosen, std::span<const T> dweights, T* dz) {
  for (std::size_t j = 0; j < chosen.size(); ++j) {
    T w = 0;
    const auto each = [&](auto&& f) { near_choice(z, chosen.first(j), chosen[j], jitter, f); };
    each([&](std::size_t e, T p) { if (static_cast<std::int64_t>(e) == chosen[j]) w = p; });
    each([&](std::size_t e, T p) { dz[e] += dweights[j] * w * ((static_cast<std::int64_t>(e) == chosen[j] ? T(1) : T(0)) - p); });
  }
}

}  // namespace moeplan::reference
