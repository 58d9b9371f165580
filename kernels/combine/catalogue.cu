/// `combine` as the catalogue calls it. Rows that no copy points at get a gradient of zero: they are found by marking those that one does.
/// Bytes forward 2 (1 + k) t w; backward 2 k t w for the rows' gradient, as many again for the weights', and 12 t k of marks.

#include "kernels/base/ragged.cuh"
#include "kernels/combine/cuda.hpp"
#include "kernels/combine/op.hpp"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {
namespace {

namespace combine = kernels::combine;

kernels::permute::Dims dims_of(const op::Combine& op) { return {.tokens = static_cast<int>(op.tokens), .top_k = static_cast<int>(op.top_k)}; }
std::string shape(const op::Combine& op) { return "tokens=" + std::to_string(op.tokens) + " top_k=" + std::to_string(op.top_k) + " width=" + std::to_string(op.width); }

__global__ void __launch_bounds__(256) mark_rows(i64 copies, const std::int32_t* row_map, std::uint8_t* marks) {
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (i < copies && row_map[i] >= 0) marks[row_map[i]] = 1;
}

/// A warp a row.
__global__ void __launch_bounds__(256) clear_unmarked(i64 rows, i64 packs, const std::uint8_t* marks, uint4* data) {
  const i64 row = static_cast<i64>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (row >= rows || marks[row] != 0) return;
  for (i64 p = threadIdx.x % 32; p < packs; p += 32) data[row * packs + p] = make_uint4(0, 0, 0, 0);
}

}  // namespace

void forward(const op::Combine& op, const Frame& f) {
  const bf16* rows = f["rows"].as<bf16>();
  bf16* y = f["y"].as<bf16>();
  require_aligned(op.kind, {rows, y});
  combine::forward(dims_of(op), static_cast<int>(op.width), f["row_map"].as<std::int32_t>(), f["weights"].as<float>(), rows, y, f.stream());
}

void backward(const op::Combine& op, const Frame& f) {
  const bf16 *rows = f["rows"].as<bf16>(), *dy = f.d("y").as<bf16>();
  bf16* drows = f.d("rows").as<bf16>();
  float* dweights = op.weights_grad ? f.d("weights").as<float>() : nullptr;
  require_aligned(op.kind, {rows, dy, drows});
  const i64 copies = op.tokens * op.top_k;
  if (copies == 0) return;
  const auto* row_map = f["row_map"].as<std::int32_t>();
  if (drows != nullptr) {
    auto* marks = f.scratch<std::uint8_t>();
    kernels::check(cudaMemsetAsync(marks, 0, static_cast<std::size_t>(copies), f.stream()), "combine backward [" + shape(op) + "]: marks");
    mark_rows<<<static_cast<unsigned>((copies + 255) / 256), 256, 0, f.stream()>>>(copies, row_map, marks);
    const i64 present = f.ragged().rows < 0 ? copies : f.ragged().rows;
    clear_unmarked<<<static_cast<unsigned>((copies + 7) / 8), 256, 0, f.stream()>>>(present, op.width / 8, marks, reinterpret_cast<uint4*>(drows));
    kernels::check_launch("combine backward: rows without a copy", shape(op));
  }
  combine::backward(dims_of(op), static_cast<int>(op.width), row_map, f["weights"].as<float>(), rows, dy, drows, dweights, f.stream());
}

std::string refusal(const op::Combine& op) {
  if (op.width % 8 != 0) return "rows of " + std::to_string(op.width) + " columns; its CUDA kernel moves packs of 16 bytes: widths in multiples of 8";
  if (op.tokens > std::numeric_limits<int>::max() / op.top_k) return std::to_string(op.tokens) + " tokens with " + std::to_string(op.top_k) + " rows each; rows are counted in 31 bits: use more micro-batches";
  if (op.width > (i64{1} << 24)) return "rows of " + std::to_string(op.width) + " columns; up to 2^24";
  return {};
}
std::int64_t scratch(const op::Combine& op, Pass pass, Wants wants) { return pass == Pass::backward && wants.input_grad ? op.tokens * op.top_k : 0; }

}  // namespace moeplan::cuda
