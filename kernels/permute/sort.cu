/// \file
/// Stable counting sort of the choices by (copy, token). Tokens come in chunks of 256; a chunk keeps, per copy, a
/// 256-bit set of the tokens that chose it, so a choice's rank inside the chunk is a population count and no order
/// depends on timing. Kernel 1 writes counts [chunk, copy]; kernel 2 sums the chunks before its own and scans the
/// copies (every block for itself: 4 bytes x chunks x copies from L2), then places its choices.
#include "kernels/permute/cuda.hpp"

namespace moeplan::kernels::permute {
namespace {

constexpr int chunk_tokens = 256;
constexpr int words = chunk_tokens / 32;
constexpr int max_copies = 1024;
constexpr int threads = 1024;

__device__ __forceinline__ int copy_of(const int* first_copy, int token, int expert) {
    if (first_copy == nullptr) return expert;
    const int first = first_copy[expert];
    return first + token % (first_copy[expert + 1] - first);
}

/// Fills sets[copy][word] for this block's chunk; all threads take part.
__device__ __forceinline__ void build_sets(const Sort& a, unsigned* sets) {
    const int k = a.dims.top_k;
    for (int i = threadIdx.x; i < a.dims.copies * words; i += threads) sets[i] = 0;
    __syncthreads();
    const int token0 = blockIdx.x * chunk_tokens;
    const int choices = min(chunk_tokens, a.dims.tokens - token0) * k;
    for (int i = threadIdx.x; i < choices; i += threads) {
        const int local = i / k, expert = a.experts[static_cast<std::int64_t>(token0) * k + i];
        if (expert < 0) continue;
        const int copy = copy_of(a.first_copy, token0 + local, expert);
        atomicOr(&sets[copy * words + local / 32], 1u << (local % 32));
    }
    __syncthreads();
}

__global__ void __launch_bounds__(threads) count_chunk(Sort a, int* counts) {
    extern __shared__ unsigned sets[];
    build_sets(a, sets);
    for (int c = threadIdx.x; c < a.dims.copies; c += threads) {
        int n = 0;
        for (int w = 0; w < words; ++w) n += __popc(sets[c * words + w]);
        counts[static_cast<std::int64_t>(blockIdx.x) * a.dims.copies + c] = n;
    }
}

__global__ void __launch_bounds__(threads) place_chunk(Sort a, const int* counts, int chunks) {
    extern __shared__ unsigned sets[];
    __shared__ int before[max_copies], start[max_copies], totals[threads];
    const int copies = a.dims.copies, k = a.dims.top_k, capacity = a.dims.capacity, c = threadIdx.x;
    build_sets(a, sets);
    int total = 0;
    if (c < copies) {
        int mine = 0;
#pragma unroll 8
        for (int b = 0; b < chunks; ++b) {
            const int n = counts[static_cast<std::int64_t>(b) * copies + c];
            total += n;
            if (b < blockIdx.x) mine += n;
        }
        before[c] = mine;
        if (capacity > 0) total = min(total, capacity);
    }
    totals[c] = total;
    __syncthreads();
    for (int d = 1; d < threads; d *= 2) { // inclusive scan
        const int other = c >= d ? totals[c - d] : 0;
        __syncthreads();
        totals[c] += other;
        __syncthreads();
    }
    if (c < copies) {
        start[c] = totals[c] - total;
        if (blockIdx.x == 0) {
            a.offsets[c + 1] = totals[c];
            if (c == 0) a.offsets[0] = 0;
        }
    }
    __syncthreads();
    const int token0 = blockIdx.x * chunk_tokens;
    const int choices = min(chunk_tokens, a.dims.tokens - token0) * k;
    for (int i = threadIdx.x; i < choices; i += threads) {
        const int local = i / k, token = token0 + local;
        const std::int64_t at = static_cast<std::int64_t>(token0) * k + i;
        if (a.experts[at] < 0) {
            a.row_of[at] = -1;
            continue;
        }
        const int copy = copy_of(a.first_copy, token, a.experts[at]);
        int place = before[copy];
        for (int w = 0; w < local / 32; ++w) place += __popc(sets[copy * words + w]);
        place += __popc(sets[copy * words + local / 32] & ((1u << (local % 32)) - 1));
        const bool kept = capacity == 0 || place < capacity;
        const int row = start[copy] + place;
        a.row_of[at] = kept ? row : -1;
        if (kept) a.token_of[row] = token;
    }
}

int chunk_count(const Dims& d) { return (d.tokens + chunk_tokens - 1) / chunk_tokens; }

} // namespace

std::size_t workspace_bytes(const Dims& d) {
    return sizeof(int) * static_cast<std::size_t>(chunk_count(d)) * static_cast<std::size_t>(d.copies);
}

void sort(const Sort& a, cudaStream_t stream) {
    const Dims& d = a.dims;
    const std::string shape = "sort [tokens=" + std::to_string(d.tokens) + " top_k=" + std::to_string(d.top_k) +
                              " copies=" + std::to_string(d.copies) + "]";
    if (d.copies < 1 || d.copies > max_copies)
        throw UnsupportedShape(shape + ": 1 to 1024 copies in one call; split the experts over ranks or calls");
    if (d.tokens < 0 || d.top_k < 1 || static_cast<std::int64_t>(d.tokens) * d.top_k > 0x7fffffff)
        throw UnsupportedShape(shape + ": tokens x top_k must fit 31 bits; use more micro-batches");
    if (a.first_copy == nullptr && d.copies != d.experts)
        throw UnsupportedShape(shape + ": " + std::to_string(d.experts) +
                               " experts need a copy table when they have other than one copy each");
    if (d.tokens == 0) {
        check(cudaMemsetAsync(a.offsets, 0, sizeof(int) * (d.copies + 1), stream), shape);
        return;
    }
    const std::size_t shared = sizeof(unsigned) * words * d.copies; // at most 32 KB
    int* counts = static_cast<int*>(a.workspace);
    count_chunk<<<chunk_count(d), threads, shared, stream>>>(a, counts);
    check_launch("sort: count", shape);
    place_chunk<<<chunk_count(d), threads, shared, stream>>>(a, counts, chunk_count(d));
    check_launch("sort: place", shape);
}

} // namespace moeplan::kernels::permute
