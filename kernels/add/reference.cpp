/// y = a + s b;  da = dy,  db = s dy.

#include "kernels/add/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Add& op, const Frame<T>& f) {
  const auto a = f["a"], b = f["b"], y = f["y"];
  const T s = op.scaled ? static_cast<T>(op.scale) : T(1);
  for (std::int64_t i = 0; i < y.size(); ++i) y[i] = a[i] + s * b[i];
}

template <class T>
void backward(const op::Add& op, const Frame<T>& f) {
  const auto dy = f.d("y"), da = f.d("a"), db = f.d("b");
  const T s = op.scaled ? static_cast<T>(op.scale) : T(1);
  for (std::int64_t i = 0; i < dy.size(); ++i) {
    if (da) da[i] = dy[i];
    if (db) db[i] = s * dy[i];
  }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Add)
