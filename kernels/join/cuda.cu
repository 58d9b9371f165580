/// Columns side by side on the GPU: within each group the first tensor's before the second's.
/// Mapping: one copy a tensor (kernels/base/columns.cuh); 4 bytes an element each way.

#include "kernels/base/columns.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/join/op.hpp"

namespace moeplan::cuda {

void forward(const op::Join& op, const Frame& f) {
  if (op.tokens == 0) return;
  bf16* y = f["y"].as<bf16>();
  const i64 rows = op.tokens * op.groups, both = op.first + op.second;
  copy_columns(f["first"].as<bf16>(), op.first, y, both, rows, op.first, f.stream(), "join forward");
  copy_columns(f["second"].as<bf16>(), op.second, y + op.first, both, rows, op.second, f.stream(), "join forward");
}

void backward(const op::Join& op, const Frame& f) {
  if (op.tokens == 0) return;
  const bf16* dy = f.d("y").as<bf16>();
  const i64 rows = op.tokens * op.groups, both = op.first + op.second;
  copy_columns(dy, both, f.d("first").as<bf16>(), op.first, rows, op.first, f.stream(), "join backward");
  copy_columns(dy + op.first, both, f.d("second").as<bf16>(), op.second, rows, op.second, f.stream(), "join backward");
}

MOEPLAN_CUDA_TAKES_ALL(Join)

}  // namespace moeplan::cuda
