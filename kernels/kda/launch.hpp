#pragma once
/// The kernels of KDA as host functions, in the order in which a pass calls them. All queue on `stream`.

#include "kernels/base/cuda.hpp"
#include "kernels/kda/layout.cuh"

namespace moeplan::kernels::kda {

/// "heads=32 chunks=256": the shape for error messages.
[[nodiscard]] std::string describe(const Launch& launch);

/// Chunk and segment tables of the packed sequences.
struct Tables {
  Chunk* chunks;
  Segment* segments;
  int *chunk_offsets, *segment_offsets;
};
void make_tables(const Tables& tables, const std::int64_t* cu_seqlens, const Dims& dims, std::int64_t segment_chunks,
                 int max_chunks, int max_segments, cudaStream_t stream);

/// `to`: what lies of each of the `count` segments in the chunks [first, first + chunks), counted from `first`;
/// sequences without tokens lie in the first chunks.
void clip_segments(const Segment* from, Segment* to, int count, int first, int chunks, cudaStream_t stream);

/// Writes the records; with `keep_t` also T.
void prepare(const Launch& launch, int head_dim, bool keep_t, cudaStream_t stream);

/// What a scan over the chunks of every (segment, head) leaves behind.
enum class ScanKind {
  output,  ///< `out`, and the state after the segment
  states,  ///< S_0^T of every chunk and N (over `u`)
  affine,  ///< the map S -> M S + B of the segment: B in `ends`, M in `maps`
};

struct ScanStates {
  const float* begin = nullptr;  ///< state before each segment [segments, group heads, D, D]; null: zeros
  float* end = nullptr;          ///< state after it; may be null
  float* map = nullptr;          ///< M of each segment, for ScanKind::affine
  bool by_sequence_in = false, by_sequence_out = false;  ///< indexed [sequences, heads] (whole tensors) instead
  // Of the sequence that began before these chunks, and of the one that goes on after them [group heads, D, D]; output
  // scan, null: none.
  const float* carried_in = nullptr;
  float* carried_out = nullptr;
};

/// ScanKind::output or affine; the other two run in scan_both_ways.
void scan_forward(const Launch& launch, int head_dim, ScanKind kind, const ScanStates& states, cudaStream_t stream);

/// From the last chunk to the first: only the gradient of the state before the segment, in `states.end`, from that of
/// the state after it in `states.begin`.
void scan_reverse(const Launch& launch, int head_dim, const ScanStates& states, cudaStream_t stream);

/// Beside each other: the forward scan that keeps S_0^T and N of every chunk (`up`), and the reverse scan that keeps
/// dS_C^T and dN of every chunk (`down`).
void scan_both_ways(const Launch& launch, int head_dim, const ScanStates& up, const ScanStates& down,
                    cudaStream_t stream);

/// Walks the segments of each sequence: begin[s + 1] = map[s] begin[s] + end[s], from `initial` ([sequences, heads],
/// null: zeros). Reversed: begin[s - 1] = map[s]^T begin[s] + end[s].
void join_segments(const Launch& launch, int head_dim, bool reversed, const float* map, const float* end,
                   const float* initial, float* begin, std::int64_t sequences, cudaStream_t stream);

/// All gradients of every chunk but those of the states.
void backward_chunks(const Launch& launch, int head_dim, cudaStream_t stream);

/// Sums the partials of dt_bias and A_log over chunks, in a fixed order.
void reduce_parameters(const Launch& launch, int head_dim, float* d_a_log, float* d_dt_bias, cudaStream_t stream);

}  // namespace moeplan::kernels::kda
