#pragma once
/// The CUDA backend of the executor: the catalogue's kernels on one device and one stream.

#include <memory>

#include "executor/backend/backend.hpp"

namespace moeplan {

/// How many devices there are; 0 without a driver.
[[nodiscard]] int cuda_devices();
/// The device's name and driver, "NVIDIA H200, driver 13.0".
[[nodiscard]] std::string cuda_device_name(int device);
/// Bytes that the driver gives as free on the device.
[[nodiscard]] Bytes cuda_free_memory(int device);

/// What calls may use of the device; 0: all that it has.
struct CudaLimits {
  int compute_capability = 0;   ///< 80: the forms that any device from 8.0 on runs
  std::size_t shared_bytes_block = 0;
};

/// Throws InputError where there is no such device. Tensors are held in the types of the plan, block-quantised weights as bf16 (they are
/// read back when they are loaded). What calls need besides the plan's buffers (scratch, views made dense, cuBLASLt's workspace) is held
/// beside the arena and grows to the largest call.
[[nodiscard]] std::unique_ptr<Backend> cuda_backend(int device, const CudaLimits& limits = {});

}  // namespace moeplan
