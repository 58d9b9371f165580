#include "executor/cuda/host_link.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include "core/spec/profile_keys.hpp"
#include "kernels/base/cuda.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr int kSamples = 9;

ProfileSample sampled(std::string_view name, const std::function<double()>& seconds) {
  (void)seconds();
  std::vector<double> v;
  for (int i = 0; i < kSamples; ++i) v.push_back(seconds());
  std::sort(v.begin(), v.end());
  const double median = v[v.size() / 2];
  return {.key = bytes_key(name, static_cast<std::int64_t>(kBytes)), .median = {median}, .spread = std::min(10.0, (v.back() - v.front()) / 2 / median), .count = kSamples};
}

}  // namespace

std::vector<ProfileSample> cuda_host_link(int device) {
  kernels::check(cudaSetDevice(device), "use a device");
  void* pinned = nullptr;
  kernels::check(cudaMallocHost(&pinned, kBytes), "pinned host memory");
  const std::unique_ptr<void, void (*)(void*)> host(pinned, [](void* p) { (void)cudaFreeHost(p); });
  const kernels::DeviceBuffer there(kBytes);
  kernels::Stream stream;
  kernels::Event begin, end;
  const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
    begin.record(stream.get());
    kernels::check(cudaMemcpyAsync(to, from, kBytes, kind, stream.get()), "copy over the host link");
    end.record(stream.get());
    end.synchronize();
    return static_cast<double>(end.milliseconds_since(begin)) * 1e-3;
  };
  std::vector<ProfileSample> out;
  out.push_back(sampled(kToDeviceKey, [&] { return copy(there.get<std::byte>(), pinned, cudaMemcpyHostToDevice); }));
  out.push_back(sampled(kToHostKey, [&] { return copy(pinned, there.get<std::byte>(), cudaMemcpyDeviceToHost); }));
  out.push_back(sampled(kAllocateKey, [&] {
    const auto start = std::chrono::steady_clock::now();
    void* more = nullptr;
    kernels::check(cudaMalloc(&more, kBytes), "an allocation");
    kernels::check(cudaFree(more), "its release");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }));
  return out;
}

}  // namespace moeplan
