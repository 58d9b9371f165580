#include "cli/backends.hpp"

#include <fmt/format.h>

#include <fstream>

#include "core/error.hpp"
#ifdef MOEPLAN_CUDA_BACKEND
#include "executor/cuda/backend.hpp"
#include "executor/cuda/host_link.hpp"
#include "executor/cuda/power_meter.hpp"
#endif

namespace moeplan::cli {
namespace {

/// Bytes that this machine can still give, by the kernel's own estimate.
std::int64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string word;
  while (in >> word)
    if (std::int64_t kilobytes = 0; word == "MemAvailable:" && in >> kilobytes) return kilobytes * 1024;
  return std::int64_t{1} << 62;
}

std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line))
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

std::vector<std::string> backend_names() {
#ifdef MOEPLAN_CUDA_BACKEND
  return {"cpu", "cuda", "null"};
#else
  return {"cpu", "null"};
#endif
}

OpenBackend open_backend(const std::string& name, bool float32, int device) {
#ifdef MOEPLAN_CUDA_BACKEND
  if (name == "cuda") {
    if (float32) throw InputError("--float32", "is for the cpu backend", "leave it out");
    auto backend = cuda_backend(device);   // what it takes for itself is no longer free
    return {std::move(backend), cuda_device_name(device), cuda_free_memory(device).value, fmt::format("CUDA device {}", device), available_memory()};
  }
#endif
  (void)device;
  return {name == "null" ? null_backend() : cpu_backend(float32 ? CpuStorage::wide : CpuStorage::as_planned), processor(), name == "null" ? std::int64_t{1} << 62 : available_memory(), "this machine"};
}

std::vector<ProfileSample> host_link_samples(const std::string& backend, int device) {
#ifdef MOEPLAN_CUDA_BACKEND
  if (backend == "cuda") return cuda_host_link(device);
#endif
  (void)backend, (void)device;
  return {};
}

OpenMeter open_meter(const std::string& backend, int device) {
#ifdef MOEPLAN_CUDA_BACKEND
  if (backend == "cuda") {
    FoundMeter found = cuda_power_meter(device);
    return {std::move(found.meter), std::move(found.absent)};
  }
#endif
  (void)device;
  return {std::nullopt, "the " + backend + " backend has no meter"};
}

std::string calibration_origin(const std::string& device, const std::string& version, const std::string& backend) { return device + "; moeplan " + version + ", " + backend + " backend"; }

}  // namespace moeplan::cli
