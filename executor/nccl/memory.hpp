#pragma once
/// Device memory that NCCL can use without a copy of its own.

#include <cstddef>
#include <cstdint>
#include <memory>

namespace moeplan {

/// Zeroed memory of the current device, made of pages that other processes' devices and NICs can be given: what NCCL asks of memory that it registers. As
/// ncclMemAlloc, but the size is rounded up to a page and not to what multicast takes. Null where the driver has no such pages, or none are left.
[[nodiscard]] std::shared_ptr<std::byte> shareable_memory(std::int64_t bytes);

}  // namespace moeplan
