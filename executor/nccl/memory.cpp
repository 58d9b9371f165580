#include "executor/nccl/memory.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/checked.hpp"

namespace moeplan {
namespace {

/// The driver's calls, found through the run time so that nothing links libcuda.
struct Driver {
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  bool complete = false;
};

template <class Call>
bool find(const char* name, Call& call) {
  constexpr unsigned version = 12000;
  void* at = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &at, version, cudaEnableDefault, &found) != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
  call = reinterpret_cast<Call>(at);
  return call != nullptr;
}

Driver find_driver() {
  Driver d;
  d.complete = find("cuDeviceGetAttribute", d.attribute) && find("cuMemGetAllocationGranularity", d.granularity) && find("cuMemCreate", d.create) && find("cuMemRelease", d.release) &&
               find("cuMemAddressReserve", d.reserve) && find("cuMemAddressFree", d.free) && find("cuMemMap", d.map) && find("cuMemUnmap", d.unmap) && find("cuMemSetAccess", d.set_access);
  return d;
}

}  // namespace

std::shared_ptr<std::byte> shareable_memory(std::int64_t bytes) {
  static const Driver driver = find_driver();
  int device = 0;
  if (!driver.complete || cudaGetDevice(&device) != cudaSuccess) return nullptr;
  const auto has = [&](CUdevice_attribute what) {
    int value = 0;
    return driver.attribute(&value, what, device) == CUDA_SUCCESS && value != 0;
  };
  if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return nullptr;
  CUmemAllocationProp pages{};
  pages.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  pages.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  pages.allocFlags.gpuDirectRDMACapable = has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  // Fabric handles, which devices of other hosts in a rack take, are not everybody's to have.
  for (const bool fabric : {true, false}) {
    if (fabric && !has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)) continue;
    pages.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | (fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0));
    std::size_t page = 0;
    CUmemGenericAllocationHandle handle{};
    if (driver.granularity(&page, &pages, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS || page == 0) continue;
    const auto size = static_cast<std::size_t>(ceil_div(bytes + 1, static_cast<std::int64_t>(page))) * page;
    if (driver.create(&handle, size, &pages, 0) != CUDA_SUCCESS) continue;
    CUdeviceptr at{};
    const bool reserved = driver.reserve(&at, size, page, 0, 0) == CUDA_SUCCESS, mapped = reserved && driver.map(at, size, 0, handle, 0) == CUDA_SUCCESS;
    (void)driver.release(handle);   // the mapping keeps the pages
    const CUmemAccessDesc access{.location = pages.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    void* const memory = reinterpret_cast<void*>(at);
    if (mapped && driver.set_access(at, size, &access, 1) == CUDA_SUCCESS && cudaMemset(memory, 0, size) == cudaSuccess && cudaStreamSynchronize(nullptr) == cudaSuccess)
      return {static_cast<std::byte*>(memory), [at, size](std::byte*) {
                (void)cudaDeviceSynchronize();   // as cudaFree does: what is queued may use it
                (void)driver.unmap(at, size);
                (void)driver.free(at, size);
              }};
    if (mapped) (void)driver.unmap(at, size);
    if (reserved) (void)driver.free(at, size);
  }
  return nullptr;
}

}  // namespace moeplan
