/// X'_i = sum_j M_ij X_j + post_i out (M the identity without mixing);  dX_j = sum_i M_ij dX'_i,  dout = sum_i post_i dX'_i,
/// dpost_i = dX'_i . out,  dM_ij = dX'_i . X_j.

#include "kernels/hyper_post/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::HyperPost& op, const Frame<T>& f) {
  const auto x = f["streams"], out = f["out"], post = f["post"], mixing = f["mixing"], y = f["y"];
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t i = 0; i < op.streams; ++i)
      for (std::int64_t c = 0; c < op.hidden; ++c) {
        T sum = post(t, i) * out(t, c) + (op.mixes ? T(0) : x(t, i * op.hidden + c));
        for (std::int64_t j = 0; op.mixes && j < op.streams; ++j) sum += mixing(t, i * op.streams + j) * x(t, j * op.hidden + c);
        y(t, i * op.hidden + c) = sum;
      }
}

template <class T>
void backward(const op::HyperPost& op, const Frame<T>& f) {
  const auto x = f["streams"], out = f["out"], post = f["post"], mixing = f["mixing"], dy = f.d("y");
  const auto dx = f.d("streams"), dout = f.d("out"), dpost = f.d("post"), dmixing = f.d("mixing");
  for (const auto& gradient : {dx, dout, dpost, dmixing})
    if (gradient) gradient.fill(0);
  if (!dx && !dout && !dpost && !dmixing) return;
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t i = 0; i < op.streams; ++i)
      for (std::int64_t c = 0; c < op.hidden; ++c) {
        const T g = dy(t, i * op.hidden + c);
        if (dout) dout(t, c) += post(t, i) * g;
        if (dpost) dpost(t, i) += g * out(t, c);
        if (dx && !op.mixes) dx(t, i * op.hidden + c) = g;
        for (std::int64_t j = 0; op.mixes && j < op.streams; ++j) {
          if (dx) dx(t, j * op.hidden + c) += mixing(t, i * op.streams + j) * g;
          if (dmixing) dmixing(t, i * op.streams + j) += g * x(t, j * op.hidden + c);
        }
      }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(HyperPost)
