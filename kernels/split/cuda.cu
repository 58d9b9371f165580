/// Pieces of columns as tensors of their own on the GPU, and their gradients back into slices of dx; a piece without a gradient leaves
/// zeros. A program need not call it: the pieces may be views.
/// Mapping: one copy a piece (kernels/base/columns.cuh); 4 bytes an element each way.

#include "kernels/base/columns.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/split/op.hpp"

namespace moeplan::cuda {
namespace {

/// Calls f(name, first column in a group, columns) for each piece.
template <class F>
void for_each_piece(const op::Split& op, F&& f) {
  i64 begin = 0;
  for (const auto& [name, width] : {std::pair{"first", op.first}, std::pair{"second", op.second}, std::pair{"third", op.third}, std::pair{"fourth", op.fourth}}) {
    if (width > 0) f(name, begin, width);
    begin += width;
  }
}
i64 group_of(const op::Split& op) { return op.first + op.second + op.third + op.fourth; }

}  // namespace

void forward(const op::Split& op, const Frame& f) {
  if (op.tokens == 0) return;
  const bf16* x = f["x"].as<bf16>();
  for_each_piece(op, [&](const char* name, i64 begin, i64 width) {
    copy_columns(x + begin, group_of(op), f[name].as<bf16>(), width, op.tokens * op.groups, width, f.stream(), "split forward");
  });
}

void backward(const op::Split& op, const Frame& f) {
  bf16* dx = f.d("x").as<bf16>();
  if (dx == nullptr) return;
  for_each_piece(op, [&](const char* name, i64 begin, i64 width) {
    copy_columns(f.d(name).as<bf16>(), width, dx + begin, group_of(op), op.tokens * op.groups, width, f.stream(), "split backward");
  });
}

MOEPLAN_CUDA_TAKES_ALL(Split)

}  // namespace moeplan::cuda
