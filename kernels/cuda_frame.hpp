#pragma once
/// What a CUDA implementation of an operator works on: device pointers of a call's operands, found by name. The counterpart of
/// `kernels/reference_frame.hpp`, but tensors hold what the contract's types say: bf16 activations, f32 statistics, i32 ids,
/// quantised payload with its scales behind it (kernels/quantise/stored.cuh).

#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/error.hpp"
#include "kernels/base/cuda.hpp"
#include "kernels/contract.hpp"
#include "kernels/cuda_product.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace moeplan::cuda {

template <class T>
constexpr bool holds(DType type) {
  if constexpr (std::is_same_v<T, float>) return type == DType::f32;
  else if constexpr (std::is_same_v<T, __nv_bfloat16>) return type == DType::bf16;
  else if constexpr (std::is_same_v<T, __half>) return type == DType::f16;
  else if constexpr (std::is_same_v<T, std::int32_t>) return type == DType::i32;
  else if constexpr (std::is_same_v<T, std::int64_t>) return type == DType::i64;
  else return sizeof(T) == 1;   // bytes: u8, and quantised storage
}

/// What a call is told besides its operands: how the routing of its layer and micro-batch turned out, and the executor's policies on it; the
/// counterpart of reference::Ragged. Without it rows are dealt out evenly, nothing is dropped, and there is no balancing loss.
struct Ragged {
  /// `grouped_linear`: rows of each local expert in order, in device memory: the router's `counts`, or what an exchange made of them. Rows past
  /// the call's bound are not read. Null: dealt out evenly.
  const std::int32_t* rows_of_expert = nullptr;
  std::int64_t capacity = 0;   ///< `permute`: most rows of one expert; later copies are dropped (row_map -1). 0: no limit
  std::int64_t rows = -1;      ///< `permute`, `combine`: rows that there are, where no copy points beyond them. -1: one for each copy
  double auxiliary = 0;        ///< `router`: weight of the balancing loss, whose gradient joins the backward
};

/// Pieces of scratch begin on 256 bytes.
[[nodiscard]] constexpr std::int64_t aligned_bytes(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// One operand in device memory.
struct Tensor {
  void* data = nullptr;
  Shape shape{};
  DType dtype = DType::bf16;

  explicit operator bool() const { return data != nullptr; }
  [[nodiscard]] std::int64_t size() const { return shape.elements(); }
  /// Its values; throws InputError where the contract's type is not T. Null if the tensor is absent.
  template <class T>
  [[nodiscard]] T* as() const {
    if (data != nullptr && !holds<T>(dtype))
      throw InputError("CUDA kernel", "a tensor of " + std::string(name_of(dtype)) + " where its kernel has another type", "cast it first");
    return static_cast<T*>(data);
  }
};

/// The operands of one call, by name.
class Frame {
 public:
  Frame(const Operands& operands, std::span<void* const> values, std::span<void* const> gradients, void* scratch, cudaStream_t stream, const kernels::DeviceFacts& device, Products* products = nullptr, const Ragged& ragged = {})
      : operands_(operands), values_(values), gradients_(gradients), scratch_(scratch), stream_(stream), device_(device), products_(products), ragged_(ragged) {}

  /// What is read under this name, else the output; absent if there is no such operand.
  [[nodiscard]] Tensor operator[](std::string_view name) const { return find(name, values_, false); }
  /// What is written under this name, where an input has the same (optimizer state).
  [[nodiscard]] Tensor written(std::string_view name) const { return find(name, values_, true); }
  /// The gradient: of an output as it arrives, of an input or trained weight to be overwritten; absent if not wanted.
  [[nodiscard]] Tensor d(std::string_view name) const { return find(name, gradients_, false); }
  /// `cuda::workspace` bytes, aligned to 256.
  template <class T>
  [[nodiscard]] T* scratch() const { return static_cast<T*>(scratch_); }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  /// Dense products; throws InputError where the caller brought none.
  [[nodiscard]] Products& products() const {
    if (products_ == nullptr) throw InputError("CUDA kernel", "needs dense products and has none", "pass cuda::Products");
    return *products_;
  }
  [[nodiscard]] const Ragged& ragged() const { return ragged_; }
  /// What the call may use of the device.
  [[nodiscard]] const kernels::DeviceFacts& device() const { return device_; }

 private:
  [[nodiscard]] Tensor find(std::string_view name, std::span<void* const> pointers, bool last) const {
    Tensor found{};
    for (std::size_t i = 0; i < operands_.size() && i < pointers.size(); ++i)
      if (operands_[i].name == name) {
        found = {pointers[i], operands_[i].shape, operands_[i].dtype};
        if (!last) break;
      }
    return found;
  }
  const Operands& operands_;
  std::span<void* const> values_, gradients_;
  void* scratch_;
  cudaStream_t stream_;
  kernels::DeviceFacts device_;
  Products* products_;
  Ragged ragged_;
};

}  // namespace moeplan::cuda

/// For an operator whose kernels take every field and no scratch; the last line inside the namespace of its file.
#define MOEPLAN_CUDA_TAKES_ALL(Operator)                    \
  std::string refusal(const op::Operator&) { return {}; }   \
  std::int64_t scratch(const op::Operator&, Pass, Wants) { return 0; }
