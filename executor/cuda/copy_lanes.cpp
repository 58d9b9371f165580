#include "executor/cuda/copy_lanes.hpp"

#include <fmt/format.h>

#include <cstring>

namespace moeplan::cuda {
namespace {

cudaEvent_t event_of(const Backend::CopyPoint& point) { return static_cast<cudaEvent_t>(point.get()); }

Backend::CopyPoint point_behind(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  kernels::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event");
  Backend::CopyPoint point(event, [](void* e) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(e)); });
  kernels::check(cudaEventRecord(event, stream), "record an event");
  return point;
}

}  // namespace

Backend::Memory page_locked(Bytes bytes, const std::string& what) {
  const auto size = static_cast<std::size_t>(bytes.value + 1);
  void* at = nullptr;
  if (cudaHostAlloc(&at, size, cudaHostAllocDefault) != cudaSuccess) {
    (void)cudaGetLastError();
    throw OutOfMemory(what, fmt::format("{} bytes of page-locked host memory cannot be had on this machine", bytes.value),
                      "a plan that keeps less in host memory");
  }
  std::memset(at, 0, size);
  return {static_cast<std::byte*>(at), [](std::byte* p) { (void)cudaFreeHost(p); }};
}

void note_time(kernels::Event& at, cudaStream_t stream, bool recording) {
  kernels::check(cudaEventRecordWithFlags(at.get(), stream, recording ? cudaEventRecordExternal : cudaEventRecordDefault),
                 "note the time");
}

cudaStream_t CopyLanes::stream(CopyLane lane) {
  std::optional<kernels::Stream>& stream = streams_[static_cast<std::size_t>(lane)];
  if (!stream) stream.emplace();
  return stream->get();
}

Backend::CopyPoint CopyLanes::copy(cudaStream_t calls, const std::byte* from, std::byte* to, Bytes bytes, CopyLane lane,
                                   bool recording) {
  const cudaStream_t beside = stream(lane);
  const auto stamp = [&] {
    if (!timed_) return;
    if (stamped_ == stamps_.size()) stamps_.emplace_back();
    note_time(stamps_[stamped_++], beside, recording);
  };
  await_copy(beside, point_behind(calls));
  stamp();
  kernels::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes.value), cudaMemcpyDefault, beside),
                 "copy between device and host memory");
  stamp();
  return point_behind(beside);
}

std::vector<CopySpan> CopyLanes::times(const kernels::Event& since) {
  for (const auto& stream : streams_)
    if (stream) stream->synchronize();
  const auto seconds = [&](const kernels::Event& at) { return static_cast<double>(at.milliseconds_since(since)) * 1e-3; };
  std::vector<CopySpan> out;
  for (std::size_t i = 0; i < stamped_; i += 2) out.push_back({seconds(stamps_[i]), seconds(stamps_[i + 1])});
  stamped_ = 0;
  return out;
}

void await_copy(cudaStream_t calls, const Backend::CopyPoint& point) {
  kernels::check(cudaStreamWaitEvent(calls, event_of(point), 0), "wait for a copy");
}

}  // namespace moeplan::cuda
