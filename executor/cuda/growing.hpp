#pragma once
/// Scratch of the CUDA backend: memory that is made again where a call needs more than it has.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/cuda.hpp"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {

/// Device memory that only grows. What it held is lost when it does. Recordings have addresses: what one may use is kept.
class Growing {
 public:
  std::byte* at_least(std::int64_t bytes) {
    if (bytes > 0 && static_cast<std::size_t>(bytes) > buffer_.bytes()) {
      if (kept_ && buffer_.bytes() > 0) before_.push_back(std::move(buffer_));
      buffer_ = kernels::DeviceBuffer(0);
      buffer_ = kernels::DeviceBuffer(static_cast<std::size_t>(aligned_bytes(bytes + bytes / 8)));
    }
    return bytes > 0 ? buffer_.get<std::byte>() : nullptr;
  }
  void keep() { kept_ = true; }
  [[nodiscard]] std::int64_t bytes() const {
    std::size_t sum = buffer_.bytes();
    for (const kernels::DeviceBuffer& b : before_) sum += b.bytes();
    return static_cast<std::int64_t>(sum);
  }

 private:
  bool kept_ = false;
  kernels::DeviceBuffer buffer_{0};
  std::vector<kernels::DeviceBuffer> before_;
};

}  // namespace moeplan::cuda
