/// Within each group the first tensor's columns come before the second's.

#include <algorithm>

#include "kernels/join/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Join& op, const Frame<T>& f) {
  const auto a = f["first"], b = f["second"], y = f["y"];
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t g = 0; g < op.groups; ++g) {
      T* out = std::copy_n(a.row(t) + g * op.first, op.first, y.row(t) + g * (op.first + op.second));
      std::copy_n(b.row(t) + g * op.second, op.second, out);
    }
}

template <class T>
void backward(const op::Join& op, const Frame<T>& f) {
  const auto da = f.d("first"), db = f.d("second"), dy = f.d("y");
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t g = 0; g < op.groups; ++g) {
      const T* in = dy.row(t) + g * (op.first + op.second);
      if (da) std::copy_n(in, op.first, da.row(t) + g * op.first);
      if (db) std::copy_n(in + op.first, op.second, db.row(t) + g * op.second);
    }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Join)
