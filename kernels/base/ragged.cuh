#pragma once
/// Around kernels that work on rows ordered by expert: offsets from counts on the device, zeros in the rows behind the last expert's, and the
/// refusal of views that such kernels cannot read.

#include <initializer_list>
#include <span>
#include <string>

#include "core/error.hpp"
#include "kernels/base/pack.cuh"

namespace moeplan::cuda {

/// Throws InputError unless every pointer starts on 16 bytes (null ones count).
inline void require_aligned(std::string_view where, std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0)
      throw InputError(std::string(where), "a view starts " + std::to_string(reinterpret_cast<std::uintptr_t>(p) % 16) + " bytes behind a multiple of 16",
                       "its CUDA kernel reads aligned packs of 16 bytes; copy the view, or use the CPU reference");
}

/// offsets[e] = rows of the experts before e, at most `bound`; [experts + 1], all in device memory. Without counts `bound` rows are dealt out
/// evenly, the first experts taking one more. A negative count is none. `counters`, if any, are set to zero in the same launch.
void offsets_of(const std::int32_t* rows_of_expert, int experts, int bound, int* offsets, cudaStream_t stream, std::span<int> counters = {});

/// Zeroes the rows from *first (in device memory) to `rows`, of `width` bf16 each, a multiple of 8. Nothing is written where there are none.
void clear_rows_from(const int* first, i64 rows, i64 width, bf16* data, cudaStream_t stream);

}  // namespace moeplan::cuda
