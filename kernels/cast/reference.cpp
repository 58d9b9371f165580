/// y = x: a reference's precision is its own, not the tensor's.

#include <algorithm>

#include "kernels/cast/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Cast&, const Frame<T>& f) { std::copy_n(f["x"].data, f["x"].size(), f["y"].data); }

template <class T>
void backward(const op::Cast&, const Frame<T>& f) {
  if (f.d("x")) std::copy_n(f.d("y").data, f.d("y").size(), f.d("x").data);
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Cast)
