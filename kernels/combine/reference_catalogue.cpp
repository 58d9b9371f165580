/// `combine` as the catalogue calls it. Rows that no copy points at (dropped, or of an identity expert) get no gradient.

#include "kernels/combine/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Combine& op, const Frame<T>& f) {
  const auto rows = f["rows"], weights = f["weights"], row_map = f["row_map"], y = f["y"];
  y.fill(0);
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t j = 0; j < op.top_k; ++j) {
      const auto row = static_cast<std::int64_t>(row_map(t, j));
      for (std::int64_t c = 0; row >= 0 && c < op.width; ++c) y(t, c) += weights(t, j) * rows(row, c);
    }
}

template <class T>
void backward(const op::Combine& op, const Frame<T>& f) {
  const auto rows = f["rows"], weights = f["weights"], row_map = f["row_map"], dy = f.d("y"), drows = f.d("rows"), dweights = f.d("weights");
  if (drows) drows.fill(0);
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t j = 0; j < op.top_k; ++j) {
      const auto row = static_cast<std::int64_t>(row_map(t, j));
      T dot = 0;
      for (std::int64_t c = 0; row >= 0 && c < op.width; ++c) {
        if (drows) drows(row, c) = weights(t, j) * dy(t, c);
        if (dweights) dot += dy(t, c) * rows(row, c);
      }
      if (dweights) dweights(t, j) = dot;
    }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Combine)
