/// \file
/// Small kernels around the scans: chunk and segment tables from the packed offsets, the affine join of segments, and
/// the sums over chunks of the parameter gradients. None is on the roofline; all are deterministic.
#include "kernels/kda/launch.hpp"

namespace moeplan::kernels::kda {
namespace {

__device__ std::int64_t sequence_begin(const std::int64_t* cu, std::int64_t tokens, std::int64_t sequences,
                                       std::int64_t n) {
  return cu != nullptr ? cu[n] : tokens / sequences * n;
}

/// One block: exclusive sums over sequences of their chunks and segments.
__global__ void __launch_bounds__(1024) count_chunks(Tables tables, const std::int64_t* cu, std::int64_t tokens,
                                                     std::int64_t sequences, std::int64_t segment_chunks) {
  __shared__ int sums[2][1024];
  int carry[2] = {0, 0};
  for (std::int64_t first = 0; first < sequences; first += 1024) {
    const std::int64_t n = first + threadIdx.x;
    int own[2] = {0, 0};
    if (n < sequences) {
      const std::int64_t length =
          sequence_begin(cu, tokens, sequences, n + 1) - sequence_begin(cu, tokens, sequences, n);
      own[0] = static_cast<int>((length + chunk_tokens - 1) / chunk_tokens);
      own[1] = own[0] == 0 ? 1 : static_cast<int>((own[0] + segment_chunks - 1) / segment_chunks);
    }
    for (int x = 0; x < 2; ++x) sums[x][threadIdx.x] = own[x];
    __syncthreads();
    for (int step = 1; step < 1024; step *= 2) {
      int add[2] = {0, 0};
      if (threadIdx.x >= step)
        for (int x = 0; x < 2; ++x) add[x] = sums[x][threadIdx.x - step];
      __syncthreads();
      for (int x = 0; x < 2; ++x) sums[x][threadIdx.x] += add[x];
      __syncthreads();
    }
    if (n < sequences) {
      tables.chunk_offsets[n] = carry[0] + sums[0][threadIdx.x] - own[0];
      tables.segment_offsets[n] = carry[1] + sums[1][threadIdx.x] - own[1];
    }
    for (int x = 0; x < 2; ++x) carry[x] += sums[x][1023];
    __syncthreads();
  }
  if (threadIdx.x == 0) tables.chunk_offsets[sequences] = carry[0], tables.segment_offsets[sequences] = carry[1];
}

/// Last n with offsets[n] <= index.
__device__ std::int64_t find(const int* offsets, std::int64_t sequences, int index) {
  std::int64_t low = 0, high = sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (offsets[middle] <= index ? low : high) = middle;
  }
  return low;
}

__global__ void fill_tables(Tables tables, const std::int64_t* cu, std::int64_t tokens, std::int64_t sequences,
                            std::int64_t segment_chunks, int max_chunks, int max_segments) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index < max_chunks) {
    Chunk chunk{0, 0, 0};
    if (index < tables.chunk_offsets[sequences]) {
      // Empty sequences share their offset with the next one; the last of them owns the chunk.
      const std::int64_t n = find(tables.chunk_offsets, sequences, index);
      const std::int64_t begin = sequence_begin(cu, tokens, sequences, n) +
                                 static_cast<std::int64_t>(index - tables.chunk_offsets[n]) * chunk_tokens;
      const std::int64_t left = sequence_begin(cu, tokens, sequences, n + 1) - begin;
      chunk = {begin, static_cast<int>(left < chunk_tokens ? left : chunk_tokens), static_cast<int>(n)};
    }
    tables.chunks[index] = chunk;
  }
  if (index < max_segments) {
    Segment segment{0, 0, -1, 0};
    if (index < tables.segment_offsets[sequences]) {
      const std::int64_t n = find(tables.segment_offsets, sequences, index);
      const int chunks = tables.chunk_offsets[n + 1] - tables.chunk_offsets[n];
      const std::int64_t skip = (index - tables.segment_offsets[n]) * segment_chunks, left = chunks - skip;
      segment = {tables.chunk_offsets[n] + static_cast<int>(skip),
                 static_cast<int>(left < segment_chunks ? left : segment_chunks), static_cast<int>(n),
                 (index == tables.segment_offsets[n] ? 1 : 0) | (index + 1 == tables.segment_offsets[n + 1] ? 2 : 0)};
    }
    tables.segments[index] = segment;
  }
}

__global__ void clip(const Segment* from, Segment* to, int count, int first, int chunks) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index >= count) return;
  Segment segment = from[index];
  if (segment.chunks > 0) {
    const int end = segment.first_chunk + segment.chunks, begin_here = max(segment.first_chunk, first),
              end_here = min(end, first + chunks);
    segment.position = (begin_here == segment.first_chunk ? 1 : 0) | (end_here == end ? 2 : 0);
    segment.first_chunk = begin_here - first, segment.chunks = end_here - begin_here;
    if (segment.chunks <= 0) segment.sequence = -1;
  } else if (first > 0) {
    segment.sequence = -1;
  }
  to[index] = segment;
}

constexpr int join_threads = 512;
template <int D>
constexpr int join_stride =
    D + 4;  ///< floats per row of the map in shared memory: rows on different banks, 16-byte aligned
template <int D>
constexpr int join_shared = D* join_stride<D> * 4;

/// Block (sequence, head, 16 value columns). The map of a segment passes through shared memory; the 16 state columns
/// stay there. Serial over segments: a few microseconds each.
template <int D, bool reversed>
__global__ void __launch_bounds__(join_threads)
    join(const Launch launch, const float* map, const float* end, const float* initial, float* begin) {
  extern __shared__ __align__(16) float map_tile[];
  __shared__ float state[D][17];
  constexpr int slices = D / 16, rows_apart = join_threads / 16, own_rows = D / rows_apart;
  const int slice = blockIdx.x % slices, head = blockIdx.x / slices % launch.group_heads;
  const std::int64_t sequence = blockIdx.x / slices / launch.group_heads;
  const int first = launch.segment_offsets[sequence], last = launch.segment_offsets[sequence + 1] - 1;
  const int column = threadIdx.x & 15, row0 = threadIdx.x >> 4;
  const auto offset = [&](int segment) {
    return (static_cast<std::int64_t>(segment) * launch.group_heads + head) * D * D;
  };
  const std::int64_t start = (sequence * launch.heads + launch.first_head + head) * D * D;
  for (int row = row0; row < D; row += rows_apart)
    state[row][column] = initial != nullptr ? initial[start + row * D + 16 * slice + column] : 0.0f;
  for (int n = 0; n <= last - first; ++n) {
    const int segment = reversed ? last - n : first + n;
    for (int x = threadIdx.x; x < D * D / 4; x += join_threads)
      *reinterpret_cast<float4*>(map_tile + 4 * x / D * join_stride<D> + 4 * x % D) =
          *reinterpret_cast<const float4*>(map + offset(segment) + 4 * x);
    float sums[own_rows];
#pragma unroll
    for (int x = 0; x < own_rows; ++x)
      sums[x] = end[offset(segment) + (row0 + rows_apart * x) * D + 16 * slice + column];
    __syncthreads();
#pragma unroll
    for (int x = 0; x < own_rows; ++x)
      begin[offset(segment) + (row0 + rows_apart * x) * D + 16 * slice + column] = state[row0 + rows_apart * x][column];
#pragma unroll 8
    for (int j = 0; j < D; ++j) {
      const float before = state[j][column];
#pragma unroll
      for (int x = 0; x < own_rows; ++x) {
        const int row = row0 + rows_apart * x;
        sums[x] += (reversed ? map_tile[j * join_stride<D> + row] : map_tile[row * join_stride<D> + j]) * before;
      }
    }
    __syncthreads();
#pragma unroll
    for (int x = 0; x < own_rows; ++x) state[row0 + rows_apart * x][column] = sums[x];
  }
}

template <int D>
void launch_join(const Launch& launch, bool reversed, const float* map, const float* end, const float* initial,
                 float* begin, std::int64_t sequences, cudaStream_t stream) {
  const auto kernel = reversed ? join<D, true> : join<D, false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, join_shared<D>),
        "shared memory of kda join");
  kernel<<<static_cast<unsigned>(sequences * launch.group_heads * (D / 16)), join_threads, join_shared<D>, stream>>>(
      launch, map, end, initial, begin);
  check_launch("kda join segments", describe(launch));
}

/// Sum over the chunks `lane`, `lane` + lanes, ... of column `column` of the partials, compensated.
template <int D>
__device__ float sum_chunks(const Launch& launch, int head, int column, int lane, int lanes) {
  float sum = 0, lost = 0;
#pragma unroll 4
  for (int chunk = lane; chunk < launch.max_chunks; chunk += lanes) {
    const bool used = launch.chunks[chunk].rows != 0;
    const float x = used ? launch.parameter_partials[record_index(launch, chunk, head) * 2 * D + column] : 0.0f;
    const float y = x - lost, t = sum + y;
    lost = (t - sum) - y;
    sum = t;
  }
  return sum;
}

/// Blocks (head, part): parts below D / 32 sum 32 channels of dt_bias, the last one A_log over all channels.
template <int D>
__global__ void __launch_bounds__(1024) reduce(const Launch launch, float* d_a_log, float* d_dt_bias) {
  __shared__ float partial[1024];
  constexpr int parts = D / 32 + 1;
  const int head = blockIdx.x / parts, part = blockIdx.x % parts;
  const bool is_bias = part < D / 32;
  const int width = is_bias ? 32 : D, column = threadIdx.x % width, lane = threadIdx.x / width, lanes = 1024 / width;
  partial[threadIdx.x] = sum_chunks<D>(launch, head, is_bias ? 32 * part + column : D + column, lane, lanes);
  __syncthreads();
  float sum = 0;
  if (threadIdx.x < width) {
    for (int x = 0; x < lanes; ++x) sum += partial[x * width + threadIdx.x];
    if (is_bias && d_dt_bias != nullptr) d_dt_bias[(launch.first_head + head) * D + 32 * part + threadIdx.x] = sum;
  }
  if (is_bias || d_a_log == nullptr) return;
  __syncthreads();
  if (threadIdx.x < width) partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int c = 0; c < D; ++c) total += partial[c];
    d_a_log[launch.first_head + head] = total;
  }
}

}  // namespace

std::string describe(const Launch& launch) {
  return "heads=" + std::to_string(launch.group_heads) + " of " + std::to_string(launch.heads) +
         " chunks<=" + std::to_string(launch.max_chunks) + " segments<=" + std::to_string(launch.max_segments);
}

void make_tables(const Tables& tables, const std::int64_t* cu_seqlens, const Dims& dims, std::int64_t segment_chunks,
                 int max_chunks, int max_segments, cudaStream_t stream) {
  count_chunks<<<1, 1024, 0, stream>>>(tables, cu_seqlens, dims.tokens, dims.sequences, segment_chunks);
  check_launch("kda count chunks", "sequences=" + std::to_string(dims.sequences));
  const int most = max_chunks > max_segments ? max_chunks : max_segments;
  fill_tables<<<(most + 255) / 256, 256, 0, stream>>>(tables, cu_seqlens, dims.tokens, dims.sequences, segment_chunks,
                                                      max_chunks, max_segments);
  check_launch("kda fill tables", "chunks<=" + std::to_string(max_chunks));
}

void clip_segments(const Segment* from, Segment* to, int count, int first, int chunks, cudaStream_t stream) {
  clip<<<(count + 255) / 256, 256, 0, stream>>>(from, to, count, first, chunks);
  check_launch("kda clip segments", "chunks from " + std::to_string(first));
}

void join_segments(const Launch& launch, int head_dim, bool reversed, const float* map, const float* end,
                   const float* initial, float* begin, std::int64_t sequences, cudaStream_t stream) {
  head_dim == 128 ? launch_join<128>(launch, reversed, map, end, initial, begin, sequences, stream)
                  : launch_join<64>(launch, reversed, map, end, initial, begin, sequences, stream);
}

void reduce_parameters(const Launch& launch, int head_dim, float* d_a_log, float* d_dt_bias, cudaStream_t stream) {
  (head_dim == 128 ? reduce<128> : reduce<64>)<<<launch.group_heads*(head_dim / 32 + 1), 1024, 0, stream>>>(
      launch, d_a_log, d_dt_bias);
  check_launch("kda reduce parameters", describe(launch));
}

}  // namespace moeplan::kernels::kda
