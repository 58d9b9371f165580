#pragma once
/// Test data for any operator of the catalogue: random operands of the right shapes, indices that mean something, and the plumbing to
/// run a reference forward and backward on them.

#include <cmath>
#include <random>
#include <vector>

#include "kernels/reference.hpp"

namespace moeplan::test {

/// Owned operands of one call in precision T.
template <class T>
struct CallData {
  std::vector<std::vector<T>> buffers;
  std::vector<reference::View<T>> views;

  explicit CallData(const Operands& operands, T value = 0) {
    for (const Operand& o : operands) buffers.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(o.shape.elements(), 1)), value);
    for (std::size_t i = 0; i < operands.size(); ++i) views.push_back({buffers[i].data(), operands[i].shape});
  }
  CallData(const CallData&) = delete;
  CallData(CallData&& other) noexcept = default;
};

/// Fills what the operator reads: reals in (-1, 1), whole numbers where the contract says integer.
inline CallData<double> random_inputs(const Op& op, std::uint64_t seed) {
  const Operands list = operands(op);
  CallData<double> data(list);
  std::mt19937_64 random(seed);
  const auto real = [&] { return std::uniform_real_distribution<double>(-1, 1)(random); };
  const auto below = [&](std::int64_t n) { return static_cast<double>(std::uniform_int_distribution<std::int64_t>(0, n - 1)(random)); };

  for (std::size_t i = 0; i < list.size(); ++i) {
    const Operand& o = list[i];
    if (o.role == Role::output || o.role == Role::aux) continue;
    auto& v = data.buffers[i];
    const bool integer = o.dtype == DType::i32 || o.dtype == DType::i64;
    for (std::size_t e = 0; e < v.size(); ++e) {
      if (!integer) v[e] = real();
      else if (o.name == "ids") v[e] = below(std::holds_alternative<op::Router>(op) ? std::get<op::Router>(op).hash_vocabulary : std::get<op::Embedding>(op).vocabulary);
      else if (o.name == "table") v[e] = static_cast<double>((e / static_cast<std::size_t>(o.shape[1]) + e % static_cast<std::size_t>(o.shape[1])) % static_cast<std::size_t>(std::get<op::Router>(op).experts));
      else if (o.name == "row_map") v[e] = e == 1 ? -1 : static_cast<double>(e);   // one copy dropped
      else if (o.name == "labels") v[e] = e % 3 == 2 ? -100 : below(std::get<op::CrossEntropy>(op).vocabulary);
      else if (o.name == "positions") v[e] = static_cast<double>(3 * e % 7);
    }
    if (o.name == "beta") for (double& b : v) b = (b + 1) / 2;   // an activated step size
    if (kind(op) == "adamw") {
      if (o.name == "step_size") v = {1e-2, 0.7, 3};
      else if (o.dtype == DType::u8) for (double& x : v) x = std::floor(128 + 127 * x);   // codes of a byte
      else if (o.name == "v" || o.name.ends_with("_scale")) for (double& x : v) x = std::abs(x);
    }
    if (o.name == "starts") {   // uneven pieces that end with the last token
      const std::int64_t tokens = list.front().shape[0], pieces = o.shape[0] - 1;
      for (std::int64_t p = 0; p <= pieces; ++p) v[static_cast<std::size_t>(p)] = static_cast<double>(p == pieces ? tokens : tokens * p / pieces + (p ? 1 : 0));
    }
    if (o.name == "indices" && std::holds_alternative<op::Permute>(op)) {   // distinct experts for each token
      const auto& permute = std::get<op::Permute>(op);
      for (std::size_t e = 0; e < v.size(); ++e) v[e] = static_cast<double>((e / static_cast<std::size_t>(permute.top_k) * 3 + e % static_cast<std::size_t>(permute.top_k)) % static_cast<std::size_t>(permute.experts));
    } else if (o.name == "indices") {   // for each query an ascending choice among what it sees, -1 where there are fewer
      const auto [length, unit] = std::visit([]<class O>(const O& each) -> std::pair<std::int64_t, std::int64_t> {
        if constexpr (std::is_same_v<O, op::SparseAttention>) return {each.sequence_length, each.block};
        else if constexpr (std::is_same_v<O, op::CompressedAttention>) return {each.sequence_length, -each.ratio};
        else return {1, 1};
      }, op);
      const std::int64_t tokens = o.shape[0], k = o.shape[1];
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t begin = t / length * length, at = t % length;
        const std::int64_t per = unit > 0 ? unit : -unit, visible = unit > 0 ? at / per + 1 : (at + 1) / per, base = begin / per;
        std::int64_t chosen = 0;
        for (std::int64_t c = 0; c < visible && chosen < k; ++c)
          if (visible - c <= k - chosen || real() > 0) v[static_cast<std::size_t>(t * k + chosen++)] = static_cast<double>(base + c);
        for (; chosen < k; ++chosen) v[static_cast<std::size_t>(t * k + chosen)] = -1;
      }
    }
  }
  return data;
}

template <class To, class From>
CallData<To> converted(const Operands& list, const CallData<From>& from) {
  CallData<To> to(list);
  for (std::size_t i = 0; i < list.size(); ++i)
    for (std::size_t e = 0; e < from.buffers[i].size(); ++e) to.buffers[i][e] = static_cast<To>(from.buffers[i][e]);
  return to;
}

}  // namespace moeplan::test
