#pragma once
/// Launches one configuration of the grouped product; included by the translation units that instantiate it.

#include "kernels/grouped_linear/gemm_kernel.cuh"

namespace moeplan::kernels::grouped_linear {

template <typename C>
void launch(const Maps& maps, const Problem& problem, const std::string& shape, cudaStream_t stream) {
    const auto kernel = grouped_gemm<C>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          "grouped_linear [" + shape + "]: reserve " + std::to_string(shared_bytes) + " bytes of shared memory");
    cudaLaunchConfig_t config{};
    const int blocks = device_facts().multiprocessors / C::cluster * C::cluster;
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kernel_threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = C::cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check(cudaLaunchKernelEx(&config, kernel, maps, problem), "grouped_linear [" + shape + "]");
}

} // namespace moeplan::kernels::grouped_linear
