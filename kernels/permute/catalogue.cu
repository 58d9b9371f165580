/// `permute` as the catalogue calls it: sort, scatter, zeros in the rows that no copy fills (dropped ones shorten the experts, so these are the
/// last). Bytes forward 2 (1 + k) t w and 16 t k of tables; backward 2 (1 + k) t w.

#include "kernels/base/ragged.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/permute/cuda.hpp"
#include "kernels/permute/op.hpp"

namespace moeplan::cuda {
namespace {

namespace permute = kernels::permute;

permute::Dims dims_of(const op::Permute& op, i64 capacity = 0) {
  return {static_cast<int>(op.tokens), static_cast<int>(op.top_k), static_cast<int>(op.experts), static_cast<int>(op.experts),
          static_cast<int>(std::min<i64>(capacity, std::numeric_limits<int>::max()))};
}

}  // namespace

void forward(const op::Permute& op, const Frame& f) {
  const bf16* x = f["x"].as<bf16>();
  bf16* rows = f["rows"].as<bf16>();
  require_aligned(op.kind, {x, rows});
  if (op.tokens == 0) return;
  if (f.ragged().capacity < 0) throw InputError(std::string(op.kind), "a capacity of " + std::to_string(f.ragged().capacity) + " rows", "0 for no limit");
  const permute::Dims dims = dims_of(op, f.ragged().capacity);
  char* scratch = f.scratch<char>();
  permute::Sort sort{.dims = dims, .experts = f["indices"].as<std::int32_t>(), .row_of = f["row_map"].as<std::int32_t>()};
  sort.offsets = reinterpret_cast<int*>(scratch), scratch += aligned_bytes(4 * (op.experts + 1));
  sort.token_of = reinterpret_cast<int*>(scratch), scratch += aligned_bytes(4 * op.tokens * op.top_k);
  sort.workspace = scratch;
  permute::sort(sort, f.stream());
  permute::forward(dims, static_cast<int>(op.width), sort.row_of, x, rows, f.stream());
  clear_rows_from(sort.offsets + op.experts, f.ragged().rows < 0 ? op.tokens * op.top_k : f.ragged().rows, op.width, rows, f.stream());
}

void backward(const op::Permute& op, const Frame& f) {
  bf16* dx = f.d("x").as<bf16>();
  const bf16* drows = f.d("rows").as<bf16>();
  require_aligned(op.kind, {dx, drows});
  permute::backward(dims_of(op), static_cast<int>(op.width), f["row_map"].as<std::int32_t>(), drows, dx, f.stream());
}

std::string refusal(const op::Permute& op) {
  if (op.width % 8 != 0) return "rows of " + std::to_string(op.width) + " columns; its CUDA kernel moves packs of 16 bytes: widths in multiples of 8";
  if (op.experts > 1024) return std::to_string(op.experts) + " experts; its CUDA kernel sorts by up to 1024";
  if (op.tokens > std::numeric_limits<int>::max() / op.top_k) return std::to_string(op.tokens) + " tokens with " + std::to_string(op.top_k) + " copies each; rows are counted in 31 bits: use more micro-batches";
  if (op.width > (i64{1} << 24)) return "rows of " + std::to_string(op.width) + " columns; up to 2^24";
  return {};
}
std::int64_t scratch(const op::Permute& op, Pass pass, Wants) {
  if (pass == Pass::backward || op.tokens == 0) return 0;
  return aligned_bytes(4 * (op.experts + 1)) + aligned_bytes(4 * op.tokens * op.top_k) + static_cast<i64>(permute::workspace_bytes(dims_of(op)));
}

}  // namespace moeplan::cuda
