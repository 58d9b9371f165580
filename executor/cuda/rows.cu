#include "executor/cuda/rows.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "kernels/base/cuda.hpp"
#include "kernels/base/pack.cuh"
#include "kernels/row_runs.hpp"

namespace moeplan::cuda {
namespace {

constexpr int most_runs = kRowRuns;
constexpr int threads = 256, in_flight = 4;

struct Runs {
  std::uint32_t begin[most_runs + 1];   ///< rows of `together` before the run
  std::uint32_t apart[most_runs];       ///< its first row there
  int count;
};

/// A block takes `per_block` elements of T that lie together. `row`: elements of a row.
template <class T, bool gather>
__global__ void __launch_bounds__(threads) moved_rows(T* together, T* apart, std::uint32_t row, i64 per_block, __grid_constant__ const Runs runs) {
  const i64 all = static_cast<i64>(runs.begin[runs.count]) * row, first = blockIdx.x * per_block, end = first + per_block < all ? first + per_block : all;
  const auto first_row = static_cast<std::uint32_t>(first / row);
  const i64 row_begin = static_cast<i64>(first_row) * row;   // what is left of numbers fits 32 bits
  int run = 0;
  for (int step = 512; step > 0; step /= 2)
    if (run + step < runs.count && runs.begin[run + step] <= first_row) run += step;
  for (i64 base = first + threadIdx.x; base < end; base += threads * in_flight) {
    T held[in_flight];
    i64 to[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const i64 i = base + k * threads;
      if (i >= end) break;
      const auto inside = static_cast<std::uint32_t>(i - row_begin), rows = inside / row, r = first_row + rows;
      while (r >= runs.begin[run + 1]) ++run;
      const i64 other = static_cast<i64>(runs.apart[run] + (r - runs.begin[run])) * row + (inside - rows * row);
      held[k] = gather ? apart[other] : together[i];
      to[k] = gather ? i : other;
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k)
      if (base + k * threads < end) (gather ? together : apart)[to[k]] = held[k];
  }
}

template <class T>
void launch(std::byte* together, std::byte* apart, i64 bytes, const Runs& runs, bool gather, cudaStream_t stream) {
  const i64 row = bytes / static_cast<i64>(sizeof(T)), all = runs.begin[runs.count] * row;
  // Enough blocks to fill a device several times over, each with something to do.
  const i64 per_block = std::max<i64>(threads * in_flight, (all + 2047) / 2048);
  const auto kernel = gather ? moved_rows<T, true> : moved_rows<T, false>;
  kernel<<<static_cast<unsigned>((all + per_block - 1) / per_block), threads, 0, stream>>>(reinterpret_cast<T*>(together), reinterpret_cast<T*>(apart), static_cast<std::uint32_t>(row), per_block, runs);
}

}  // namespace

void copy_rows(std::byte* together, std::byte* apart, i64 bytes, std::span<const RowRun> runs, bool gather, cudaStream_t stream) {
  if (bytes == 0) return;
  const auto aligned = (reinterpret_cast<std::uintptr_t>(together) | reinterpret_cast<std::uintptr_t>(apart) | static_cast<std::uintptr_t>(bytes));
  for (std::size_t at = 0; at < runs.size();) {
    Runs part;
    i64 rows = 0;
    for (part.count = 0; at < runs.size() && part.count < most_runs; ++at) {
      if (runs[at].count == 0) continue;
      if (runs[at].from + runs[at].count > std::numeric_limits<std::uint32_t>::max() || rows + runs[at].count > std::numeric_limits<std::uint32_t>::max())
        throw InputError("CUDA backend", "rows up to " + std::to_string(runs[at].from + runs[at].count) + " of an exchange", "rows are numbered by 32 bits");
      part.begin[part.count] = static_cast<std::uint32_t>(rows);
      part.apart[part.count++] = static_cast<std::uint32_t>(runs[at].from);
      rows += runs[at].count;
    }
    if (rows == 0) continue;
    part.begin[part.count] = static_cast<std::uint32_t>(rows);
    if (aligned % 16 == 0) launch<uint4>(together, apart, bytes, part, gather, stream);
    else if (aligned % 4 == 0) launch<std::uint32_t>(together, apart, bytes, part, gather, stream);
    else if (aligned % 2 == 0) launch<std::uint16_t>(together, apart, bytes, part, gather, stream);
    else launch<std::uint8_t>(together, apart, bytes, part, gather, stream);
    kernels::check_launch("rows in order", "rows=" + std::to_string(rows) + " bytes=" + std::to_string(bytes) + " runs=" + std::to_string(part.count));
    together += rows * bytes;
  }
}

}  // namespace moeplan::cuda
