#include "executor/cuda/power_meter.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

namespace moeplan {
namespace {

constexpr const char* kName = "libnvidia-ml.so.1";
constexpr int kMultiprocessorClock = 1;   ///< NVML_CLOCK_SM

/// As NVML declares them; 0 is success.
struct Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus)(const char*, void**) = nullptr;
  int (*energy)(void*, unsigned long long*) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*limit)(void*, unsigned*) = nullptr;
  bool open = false;

  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (open) (void)shutdown();
    if (library != nullptr) (void)::dlclose(library);
  }
};

template <class Call>
bool find(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(library, name));
  return call != nullptr;
}

}  // namespace

FoundMeter cuda_power_meter(int device) {
  const auto none = [](std::string why) { return FoundMeter{std::nullopt, std::move(why)}; };
  const auto nvml = std::make_shared<Nvml>();
  nvml->library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (nvml->library == nullptr) return none(fmt::format("{} cannot be loaded", kName));
  if (!find(nvml->library, "nvmlInit_v2", nvml->init) || !find(nvml->library, "nvmlShutdown", nvml->shutdown) || !find(nvml->library, "nvmlDeviceGetHandleByPciBusId_v2", nvml->by_bus) ||
      !find(nvml->library, "nvmlDeviceGetTotalEnergyConsumption", nvml->energy) || !find(nvml->library, "nvmlDeviceGetClockInfo", nvml->clock) ||
      !find(nvml->library, "nvmlDeviceGetEnforcedPowerLimit", nvml->limit))
    return none(fmt::format("{} lacks a function", kName));
  if (const int e = nvml->init(); e != 0) return none(fmt::format("nvmlInit says {}", e));
  nvml->open = true;
  char bus[32] = {};
  void* handle = nullptr;
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess || nvml->by_bus(bus, &handle) != 0) return none("NVML does not know the device");
  unsigned long long millijoules = 0;
  unsigned milliwatts = 0, megahertz = 0;
  if (nvml->energy(handle, &millijoules) != 0 || nvml->clock(handle, kMultiprocessorClock, &megahertz) != 0 || nvml->limit(handle, &milliwatts) != 0)
    return none("the device counts no energy");
  return {PowerMeter{.joules = [nvml, handle]() -> std::optional<double> {
                       unsigned long long now = 0;
                       if (nvml->energy(handle, &now) != 0) return std::nullopt;
                       return static_cast<double>(now) * 1e-3;
                     },
                     .clock = [nvml, handle]() -> std::optional<double> {
                       unsigned now = 0;
                       if (nvml->clock(handle, kMultiprocessorClock, &now) != 0) return std::nullopt;
                       return static_cast<double>(now);
                     },
                     .limit = static_cast<double>(milliwatts) * 1e-3},
          {}};
}

}  // namespace moeplan
