#pragma once
/// Tensor maps for the tensor copies of ptx/async_copy.cuh. The driver's encoder is found at run time through
/// cudaGetDriverEntryPoint, so nothing links libcuda. Pass the map to the kernel by value as a
/// `const __grid_constant__ CUtensorMap` parameter.

#include "kernels/base/cuda.hpp"

#include <cuda.h>

#include <array>
#include <cstdint>
#include <string>

namespace moeplan::kernels {

enum class TensorType : int { u8, bf16, f32 };
enum class TensorSwizzle : int { none, bytes_32, bytes_64, bytes_128 };

/// A tensor in global memory, fastest dimension first, and the tile (box) that one copy moves.
/// `strides[i]` is the distance in bytes between neighbours along dimension i + 1; multiples of 16.
/// The base is 16-byte aligned; each box side is at most 256; box[0] fits the swizzle span.
/// Elements outside the sizes read as zeros.
template <int rank>
struct TensorTile {
    TensorType type = TensorType::bf16;
    const void* base = nullptr;
    std::array<std::uint64_t, rank> sizes{};
    std::array<std::uint64_t, rank - 1> strides{};
    std::array<std::uint32_t, rank> box{};
    TensorSwizzle swizzle = TensorSwizzle::bytes_128;
};

namespace detail {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

inline EncodeTiled tensor_map_encoder() {
    static const EncodeTiled encoder = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
              "look up cuTensorMapEncodeTiled");
        if (found != cudaDriverEntryPointSuccess || function == nullptr)
            throw std::runtime_error("this driver has no cuTensorMapEncodeTiled; CUDA 12.0 or later is needed");
        return reinterpret_cast<EncodeTiled>(function);
    }();
    return encoder;
}

} // namespace detail

/// Encodes the map on the host. Throws `UnsupportedShape` with `name` and the numbers if the hardware's limits do not
/// allow the tile.
template <int rank>
[[nodiscard]] CUtensorMap make_tensor_map(const TensorTile<rank>& tile, const std::string& name) {
    const auto refuse = [&](const std::string& why) {
        throw UnsupportedShape("tensor map of " + name + ": " + why);
    };
    if (reinterpret_cast<std::uintptr_t>(tile.base) % 16 != 0) refuse("its address is not a multiple of 16 bytes");
    for (int i = 0; i + 1 < rank; ++i)
        if (tile.strides[i] % 16 != 0)
            refuse("the stride of dimension " + std::to_string(i + 1) + ", " + std::to_string(tile.strides[i]) +
                   " bytes, is not a multiple of 16");
    for (int i = 0; i < rank; ++i)
        if (tile.box[i] == 0 || tile.box[i] > 256)
            refuse("box side " + std::to_string(i) + " is " + std::to_string(tile.box[i]) + ", not 1 to 256");
    static constexpr CUtensorMapDataType types[] = {CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                                    CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
    static constexpr CUtensorMapSwizzle swizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                                      CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
    cuuint64_t sizes[rank];
    cuuint64_t strides[rank];
    cuuint32_t box[rank];
    cuuint32_t steps[rank];
    for (int i = 0; i < rank; ++i) {
        sizes[i] = tile.sizes[i] == 0 ? 1 : tile.sizes[i];
        strides[i] = i + 1 < rank ? tile.strides[i] : 0;
        box[i] = tile.box[i];
        steps[i] = 1;
    }
    CUtensorMap map;
    const CUresult result = detail::tensor_map_encoder()(
        &map, types[static_cast<int>(tile.type)], rank, const_cast<void*>(tile.base), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles[static_cast<int>(tile.swizzle)], CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        std::string numbers;
        for (int i = 0; i < rank; ++i)
            numbers += (i == 0 ? "" : " x ") + std::to_string(sizes[i]) + "/" + std::to_string(box[i]);
        refuse("the driver refused sizes/box " + numbers + " (code " + std::to_string(static_cast<int>(result)) + ")");
    }
    return map;
}

} // namespace moeplan::kernels
