/// `permute` as the catalogue calls it: rows in the order of (expert, token, copy). Backward: dx_i = sum_j drows[row_map_ij].

#include <algorithm>
#include <vector>

#include "kernels/permute/op.hpp"
#include "kernels/permute/reference.hpp"
#include "kernels/reference_ragged.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Permute& op, const Frame<T>& f, const Ragged& ragged) {
  const auto x = f["x"], indices = f["indices"], rows = f["rows"], row_map = f["row_map"];
  const kernels::permute::Dims dims{static_cast<int>(op.tokens), static_cast<int>(op.top_k), static_cast<int>(op.experts), static_cast<int>(op.experts), static_cast<int>(ragged.capacity)};
  const auto copies = static_cast<std::size_t>(op.tokens * op.top_k);
  std::vector<int> experts(copies), offsets(static_cast<std::size_t>(op.experts) + 1), token_of(copies), row_of(copies);
  for (std::size_t i = 0; i < copies; ++i) experts[i] = static_cast<int>(indices[static_cast<std::int64_t>(i)]);
  kernels::permute::reference::sort(dims, experts, {}, {offsets, token_of, row_of});
  rows.fill(0);
  for (std::int64_t r = 0; r < offsets.back(); ++r) std::copy_n(x.row(token_of[static_cast<std::size_t>(r)]), op.width, rows.row(r));
  for (std::size_t i = 0; i < copies; ++i) row_map[static_cast<std::int64_t>(i)] = static_cast<T>(row_of[i]);
}

template <class T>
void forward(const op::Permute& op, const Frame<T>& f) { forward(op, f, Ragged{}); }

template <class T>
void backward(const op::Permute& op, const Frame<T>& f) {
  const auto dx = f.d("x"), drows = f.d("rows"), row_map = f["row_map"];
  if (!dx) return;
  dx.fill(0);
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t j = 0; j < op.top_k; ++j) {
      const auto row = static_cast<std::int64_t>(row_map(t, j));
      for (std::int64_t c = 0; row >= 0 && c < op.width; ++c) dx(t, c) += drows(row, c);
    }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Permute)
template void moeplan::reference::forward(const moeplan::op::Permute&, const moeplan::reference::Frame<float>&, const moeplan::reference::Ragged&);
template void moeplan::reference::forward(const moeplan::op::Permute&, const moeplan::reference::Frame<double>&, const moeplan::reference::Ragged&);
