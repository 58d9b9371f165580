/// Every stream is x;  dx is the sum of the streams' gradients.

#include "kernels/hyper_expand/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::HyperExpand& op, const Frame<T>& f) {
  const auto x = f["x"], streams = f["streams"];
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t c = 0; c < streams.columns(); ++c) streams(t, c) = x(t, c % op.hidden);
}

template <class T>
void backward(const op::HyperExpand& op, const Frame<T>& f) {
  const auto dx = f.d("x"), dstreams = f.d("streams");
  if (!dx) return;
  dx.fill(0);
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t c = 0; c < dstreams.columns(); ++c) dx(t, c % op.hidden) += dstreams(t, c);
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(HyperExpand)
