#pragma once
/// Dense matrix products on the GPU by cuBLASLt, in row-major terms.

#include <cstddef>
#include <cstdint>
#include <memory>

#include <cuda_runtime.h>

#include "core/dtype.hpp"

namespace moeplan::cuda {

/// A row-major matrix in device memory, bf16 or f32. `transposed`: the product takes its transpose.
struct Factor {
  const void* data = nullptr;
  std::int64_t rows = 0, columns = 0;   ///< as stored
  bool transposed = false;
  DType dtype = DType::bf16;
  std::int64_t stride = 0;              ///< elements between rows; 0: `columns`
};

/// A cuBLASLt handle, its workspace, and the algorithm chosen for each shape met so far. One for each device and stream; calls are queued,
/// nothing waits. Sums are fp32 and of one order: the schemes that add into the result in any order are left out.
class Products {
 public:
  /// Loads the library. Throws InputError where the machine has none, CudaError if it cannot start on the current device.
  Products();
  ~Products();
  Products(Products&&) noexcept;
  Products& operator=(Products&&) noexcept;

  /// What it holds on the device besides its operands.
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  /// c = alpha op(a) op(b) + beta c (+ bias on every row). c is [rows of op(a), columns of op(b)], its rows `c_stride` elements apart (0: close
  /// together); bias is bf16 [columns of c] or null. Where the inner extent is 0 the product is 0. Throws InputError on extents that do not
  /// meet, CudaError naming the shape where the library refuses.
  void multiply(const Factor& a, const Factor& b, void* c, DType c_type, float alpha, float beta, cudaStream_t stream, std::int64_t c_stride = 0, const void* bias = nullptr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moeplan::cuda
