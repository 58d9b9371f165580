/// sum_i g_i^2.

#include "kernels/grad_norm/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::GradNorm& op, const Frame<T>& f) {
  const auto g = f["gradient"];
  T sum = 0;
  for (std::int64_t i = 0; i < op.elements; ++i) sum += g[i] * g[i];
  f["sum_of_squares"][0] = sum;
}

template <class T>
void backward(const op::GradNorm&, const Frame<T>&) {}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(GradNorm)
