#include <cmath>

#include "kernels/example_values.hpp"

namespace moeplan {
namespace {

/// Uneven pieces that end with the last token.
template <class T>
void boundaries_of(std::vector<T>& v, std::int64_t tokens) {
  const std::int64_t pieces = static_cast<std::int64_t>(v.size()) - 1;
  for (std::int64_t p = 0; p <= pieces; ++p) v[static_cast<std::size_t>(p)] = static_cast<T>(p == pieces ? tokens : tokens * p / pieces + (p ? 1 : 0));
}

/// For each query an ascending choice among the keys or blocks that it sees, -1 where there are fewer.
template <class T>
void chosen_keys(const Op& op, const Operand& o, std::vector<T>& v, std::mt19937_64& random) {
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
      if (visible - c <= k - chosen || std::uniform_real_distribution<double>(-1, 1)(random) > 0) v[static_cast<std::size_t>(t * k + chosen++)] = static_cast<T>(base + c);
    for (; chosen < k; ++chosen) v[static_cast<std::size_t>(t * k + chosen)] = T(-1);
  }
}

}  // namespace

template <class T>
std::vector<T> example_values(const Op& op, const Operands& list, std::size_t i, std::mt19937_64& random) {
  const Operand& o = list[i];
  std::vector<T> v(static_cast<std::size_t>(std::max<std::int64_t>(o.shape.elements(), 1)));
  if (o.role == Role::output || o.role == Role::aux) return v;
  const auto below = [&](std::int64_t n) { return static_cast<T>(std::uniform_int_distribution<std::int64_t>(0, n - 1)(random)); };
  if (o.dtype != DType::i32 && o.dtype != DType::i64)
    for (T& each : v) each = static_cast<T>(std::uniform_real_distribution<double>(-1, 1)(random));
  if (o.name == "beta") for (T& b : v) b = (b + 1) / 2;   // an activated step size
  if (const auto* adam = std::get_if<op::AdamW>(&op); adam != nullptr) {
    if (o.name == "step_size") v = {T(1e-2), T(0.7), T(3)};
    else if (o.dtype == DType::u8) for (T& x : v) x = std::floor(128 + 127 * x);   // codes of a byte
    else if (o.name == "v" || o.name.ends_with("_scale")) for (T& x : v) x = std::abs(x);
  }
  if (o.name == "ids") {
    const std::int64_t vocabulary = std::holds_alternative<op::Router>(op) ? std::get<op::Router>(op).hash_vocabulary : std::get<op::Embedding>(op).vocabulary;
    for (T& each : v) each = below(vocabulary);
  } else if (o.name == "table") {
    const auto k = static_cast<std::size_t>(o.shape[1]), experts = static_cast<std::size_t>(std::get<op::Router>(op).experts);
    for (std::size_t e = 0; e < v.size(); ++e) v[e] = static_cast<T>((e / k + e % k) % experts);
  } else if (o.name == "row_map") {   // a token's copies lie far apart, as after a sort by expert; one is dropped
    const auto k = static_cast<std::size_t>(o.shape[1]), tokens = static_cast<std::size_t>(o.shape[0]);
    for (std::size_t e = 0; e < v.size(); ++e) v[e] = e == 1 ? T(-1) : static_cast<T>(e % k * tokens + e / k);
  } else if (o.name == "labels") {
    for (std::size_t e = 0; e < v.size(); ++e) v[e] = e % 3 == 2 ? T(-100) : below(std::get<op::CrossEntropy>(op).vocabulary);
  } else if (o.name == "positions") {
    for (std::size_t e = 0; e < v.size(); ++e) v[e] = static_cast<T>(3 * e % 7);
  } else if (o.name == "starts") {
    boundaries_of(v, list.front().shape[0]);
  } else if (const auto* permute = std::get_if<op::Permute>(&op); permute != nullptr && o.name == "indices") {   // distinct experts for each token
    const auto k = static_cast<std::size_t>(permute->top_k);
    for (std::size_t e = 0; e < v.size(); ++e) v[e] = static_cast<T>((e / k * 3 + e % k) % static_cast<std::size_t>(permute->experts));
  } else if (o.name == "indices") {
    chosen_keys(op, o, v, random);
  }
  return v;
}

template std::vector<float> example_values(const Op&, const Operands&, std::size_t, std::mt19937_64&);
template std::vector<double> example_values(const Op&, const Operands&, std::size_t, std::mt19937_64&);

}  // namespace moeplan
