/// sum_i g_i^2.

#include "kernels/grad_norm/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::GradNorm& op, const Frame<T>& f) {
  const auto g = f["gradient"];
  double sum = 0;   // millions of them
  for (std::int64_t i = 0; i < op.elements; ++i) sum += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  f["sum_of_squares"][0] = static_cast<T>(sum);
}

template <class T>
void backward(const op::GradNorm&, const Frame<T>&) {}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(GradNorm)
