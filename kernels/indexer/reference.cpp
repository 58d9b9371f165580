/// I_ts = sum_h w_th relu(q_th . k_s) for the keys that are complete when the query comes; the k largest, ties to the lower key,
/// in ascending order, -1 where there are fewer.

#include <algorithm>

#include "kernels/indexer/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Indexer& op, const Frame<T>& f) {
  const auto q = f["q"], k = f["k"], weights = f["head_weights"], indices = f["indices"];
  const std::int64_t missing = op.kv_tokens ? op.kv_tokens - op.tokens : 0;   // queries are the last tokens
  const auto bounds = sequence_bounds<T>(op.tokens + missing, op.sequence_length, f["starts"]);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t at = std::max(bounds[s], missing); at < bounds[s + 1]; ++at) {
      const std::int64_t t = at - missing, base = bounds[s] / op.key_ratio, visible = (at - bounds[s] + 1) / op.key_ratio;
      std::vector<std::pair<T, std::int64_t>> scored;
      for (std::int64_t j = base; j < base + visible; ++j) {
        T score = 0;
        for (std::int64_t h = 0; h < op.heads; ++h) {
          T dot = 0;
          for (std::int64_t c = 0; c < op.dim; ++c) dot += q(t, h * op.dim + c) * k(j, c);
          score += weights(t, h) * std::max(dot, T(0));
        }
        scored.emplace_back(score, j);
      }
      std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
      scored.resize(std::min(scored.size(), static_cast<std::size_t>(op.topk)));
      std::sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
      for (std::int64_t i = 0; i < op.topk; ++i)
        indices(t, i) = i < static_cast<std::int64_t>(scored.size()) ? static_cast<T>(scored[static_cast<std::size_t>(i)].second) : T(-1);
    }
}

template <class T>
void backward(const op::Indexer&, const Frame<T>&) {}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Indexer)
