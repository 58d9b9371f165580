/// Copies the pieces out of every group, and their gradients back: here the views are tensors of their own.

#include <algorithm>
#include <utility>

#include "kernels/split/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {
namespace {

/// Calls f(name, first column in a group, columns) for each piece.
template <class F>
void for_each_piece(const op::Split& op, F&& f) {
  std::int64_t begin = 0;
  for (const auto& [name, width] : {std::pair{"first", op.first}, std::pair{"second", op.second}, std::pair{"third", op.third}, std::pair{"fourth", op.fourth}}) {
    if (width) f(name, begin, width);
    begin += width;
  }
}

}  // namespace

template <class T>
void forward(const op::Split& op, const Frame<T>& f) {
  const auto x = f["x"];
  const std::int64_t group = x.columns() / op.groups;
  for_each_piece(op, [&](const char* name, std::int64_t begin, std::int64_t width) {
    for (std::int64_t t = 0; t < op.tokens; ++t)
      for (std::int64_t g = 0; g < op.groups; ++g) std::copy_n(x.row(t) + g * group + begin, width, f[name].row(t) + g * width);
  });
}

template <class T>
void backward(const op::Split& op, const Frame<T>& f) {
  const auto dx = f.d("x");
  if (!dx) return;
  dx.fill(0);
  const std::int64_t group = dx.columns() / op.groups;
  for_each_piece(op, [&](const char* name, std::int64_t begin, std::int64_t width) {
    const auto piece = f.d(name);
    for (std::int64_t t = 0; piece && t < op.tokens; ++t)
      for (std::int64_t g = 0; g < op.groups; ++g) std::copy_n(piece.row(t) + g * width, width, dx.row(t) + g * group + begin);
  });
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Split)
