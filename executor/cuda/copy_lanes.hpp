#pragma once
/// Copies between device and page-locked host memory on streams of their own, beside a device's calls.

#include <array>
#include <optional>
#include <vector>

#include "executor/backend/backend.hpp"
#include "kernels/base/cuda.hpp"

namespace moeplan::cuda {

/// Page-locked host memory, zeroed. Throws OutOfMemory naming `what`.
[[nodiscard]] Backend::Memory page_locked(Bytes bytes, const std::string& what);

/// Notes a time on a stream; `recording`: whenever what is recorded is performed.
void note_time(kernels::Event& at, cudaStream_t stream, bool recording);

/// One stream a lane, made when it is first used.
class CopyLanes {
 public:
  [[nodiscard]] cudaStream_t stream(CopyLane lane);
  /// A copy behind what `calls` has now; the event behind it.
  Backend::CopyPoint copy(cudaStream_t calls, const std::byte* from, std::byte* to, Bytes bytes, CopyLane lane, bool recording);
  void time(bool on) { timed_ = on; }
  /// Waits, and forgets them.
  [[nodiscard]] std::vector<CopySpan> times(const kernels::Event& since);

 private:
  std::array<std::optional<kernels::Stream>, 2> streams_;
  std::vector<kernels::Event> stamps_;   ///< begin and end of each
  std::size_t stamped_ = 0;
  bool timed_ = false;
};

/// What is queued on `calls` from here on comes after the copy.
void await_copy(cudaStream_t calls, const Backend::CopyPoint& point);

}  // namespace moeplan::cuda
