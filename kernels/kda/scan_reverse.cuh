#pragma once
/// Reverse scan: the gradient of the state, from the last chunk of a segment to the first. Per chunk and 64 value
/// columns:
///
///     dN^T = dO^T P + dS^T k_end^T        dS^T = dS^T gamma + dO^T q_up + dN^T (-W)
///
/// dO comes with cp.async (rows past the sequence are zeros) and enters as A fragments, transposed by ldmatrix.

#include "kernels/kda/scan.cuh"

namespace moeplan::kernels::kda {
template <int D, int groups>
struct ReverseStage {
  static constexpr int tile = Record<D>::tile;
  static constexpr int w = 0, k_end = tile, q_up = 2 * tile, p = 3 * tile, gamma = p + panel_bytes,
                       d_out = gamma + 1024, bytes = d_out + groups * panel_bytes;
  static constexpr int stages = groups == 2 ? 2 : 3;
  static constexpr int images = stages * bytes, shared = images + groups * tile + 128;
  static constexpr std::uint32_t copied = Record<D>::forward_bytes - Record<D>::w;
};

template <int D, int groups, bool keep>
__device__ __forceinline__ void reverse_scan(const Launch& launch, const ScanStates& states, unsigned index) {
  using S = ReverseStage<D, groups>;
  using R = Record<D>;
  constexpr int blocks = D / 64 / groups;
  extern __shared__ __align__(1024) char shared[];
  auto& pipe = *reinterpret_cast<Pipeline<S::stages>*>(shared + S::images + groups * R::tile);

  const int slice_block = index % blocks, item = index / blocks;
  const int group_head = item % launch.group_heads, segment_index = item / launch.group_heads;
  const Segment segment = uniform(launch.segments[segment_index]);
  if (segment.sequence < 0) return;
  const int first_slice = slice_block * groups, lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::stages; ++s)
      ptx::barrier_init(&pipe.full[s], 33), ptx::barrier_init(&pipe.empty[s], groups * 128);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const std::uint32_t base = ptx::shared_address(shared);

  if (uniform(threadIdx.x >> 5) >= groups * 4) {  // producer
    if constexpr (groups == 2) ptx::registers_release<40>();
    if (threadIdx.x >= groups * 128 + 32) return;
    ptx::RingPosition<S::stages> ring;
    for (int c = segment.chunks - 1; c >= 0; --c, ring.advance()) {
      const Chunk chunk = launch.chunks[segment.first_chunk + c];
      ptx::barrier_wait(&pipe.empty[ring.stage], ring.parity ^ 1);
      auto* full = &pipe.full[ring.stage];
      if (lane == 0) {
        const char* record =
            launch.records + record_index(launch, segment.first_chunk + c, group_head) * launch.record_bytes;
        ptx::barrier_arrive_expect(full, S::copied);
        ptx::bulk_load(shared + ring.stage * S::bytes + S::w, record + R::w, S::copied, full);
      }
      const std::uint32_t tile = base + ring.stage * S::bytes + S::d_out;
      const std::int64_t stride = static_cast<std::int64_t>(launch.heads) * D;
      const Bf16* from = launch.d_out + chunk.begin * stride + (launch.first_head + group_head) * D + 64 * first_slice;
      for (int task = lane; task < 64 * 8 * groups; task += 32) {
        const int row = task / (8 * groups), c8 = 8 * (task % (8 * groups));
        const bool valid = row < chunk.rows;
        ptx::copy_16(tile + image_offset(row, c8), from + (valid ? row : 0) * stride + c8, valid);
      }
      ptx::barrier_arrive_after_async_copies(full);
    }
    return;
  }

  if constexpr (groups == 2) ptx::registers_acquire<232>();
  const int group = threadIdx.x >> 7, thread = threadIdx.x & 127, warp = thread >> 5, m = lane >> 3, r = lane & 7;
  const int slice = first_slice + group, first_value = 64 * slice;
  float s[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) s[i] = 0.0f;
  if (states.begin != nullptr)
    move_state<D, true>(
        s, states.begin + state_offset<D>(launch, states.by_sequence_in, segment_index, segment.sequence, group_head),
        first_value);
  std::uint32_t a[D / 16][4], n_fragments[4][4], d_out[4][4];
  float n[32];
  ptx::RingPosition<S::stages> ring;
  for (int c = segment.chunks - 1; c >= 0; --c) {
    const std::uint32_t stage = base + ring.stage * S::bytes, tile = stage + S::d_out + group * panel_bytes;
    const std::int64_t record = record_index(launch, segment.first_chunk + c, group_head);
    ptx::barrier_wait(&pipe.full[ring.stage], ring.parity);
#pragma unroll
    for (int x = 0; x < 4; ++x)
      ptx::load_matrix_x4_transposed(d_out[x], tile + image_offset(16 * x + (m >> 1) * 8 + r, 16 * warp + (m & 1) * 8));
    to_fragments(a, s);
#pragma unroll
    for (int x = 0; x < 32; ++x) n[x] = 0.0f;
    const auto p = ptx::wgmma_descriptor(stage + S::p, 1024, 8192), k_end = ptx::wgmma_descriptor(stage + S::k_end);
    ptx::wgmma_touch(n);
    keep_alive(a);
    keep_alive(d_out);
    ptx::wgmma_begin();
#pragma unroll
    for (int x = 0; x < 4; ++x) ptx::Wgmma<64>::rs<ptx::Major::mn>(n, d_out[x], ptx::wgmma_advance(p, 2048 * x), true);
#pragma unroll
    for (int x = 0; x < D / 16; ++x)
      ptx::Wgmma<64>::rs<ptx::Major::k>(n, a[x], ptx::wgmma_advance(k_end, (x >> 2) * panel_bytes + (x & 3) * 32),
                                        true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // see scan_forward.cu
    ptx::wgmma_touch(s);
    decay_state<D>(s, reinterpret_cast<const float*>(shared + ring.stage * S::bytes + S::gamma));
    ptx::wgmma_touch(s);
    if constexpr (keep) {
      if (thread == 0) ptx::bulk_wait_read<0>();
      ptx::named_barrier(1 + group, 128);
      store_state<D>(base + S::images + group * R::tile, a);
      ptx::fence_async_shared();
      ptx::named_barrier(1 + group, 128);
      if (thread == 0) {
        char* out = launch.d_states + record * (2 * D * D) + slice * panel_bytes;
        for (int panel = 0; panel < D / 64; ++panel)
          ptx::bulk_store(out + panel * (D * 128), shared + S::images + group * R::tile + panel * panel_bytes,
                          panel_bytes);
        ptx::bulk_commit();
      }
    }
    // Nothing else is in flight here: ptxas serialises every wgmma of a kernel in which accumulators are touched by
    // ordinary instructions between two batches in flight.
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(n);
    to_fragments(n_fragments, n);
    keep_alive(n_fragments);
    const auto w = ptx::wgmma_descriptor(stage + S::w), q_up = ptx::wgmma_descriptor(stage + S::q_up, 1024, 8192);
    ptx::wgmma_begin();
#pragma unroll
    for (int x = 0; x < 4; ++x)
      ptx::Wgmma<D>::template rs<ptx::Major::mn>(s, d_out[x], ptx::wgmma_advance(q_up, 2048 * x), true);
#pragma unroll
    for (int x = 0; x < 4; ++x)
      ptx::Wgmma<D>::template rs<ptx::Major::k>(s, n_fragments[x], ptx::wgmma_advance(w, 32 * x), true);
    ptx::wgmma_commit();
    if constexpr (keep) {
      __syncwarp();
      store_transposed(tile, n_fragments);  // over the columns of dO that this warp alone has read
      ptx::fence_async_shared();
      ptx::named_barrier(1 + group, 128);
      if (thread == 0) {
        ptx::bulk_store(launch.d_n + record * R::tile + slice * panel_bytes,
                        shared + ring.stage * S::bytes + S::d_out + group * panel_bytes, panel_bytes);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
      }
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(s);
    keep_alive(a);
    keep_alive(n_fragments);
    keep_alive(d_out);
    ptx::barrier_arrive(&pipe.empty[ring.stage]);
    ring.advance();
  }
  if (states.end != nullptr && (!states.by_sequence_out || (segment.position & 1)))
    move_state<D, false>(
        s, states.end + state_offset<D>(launch, states.by_sequence_out, segment_index, segment.sequence, group_head),
        first_value);
  if constexpr (keep)
    if (thread == 0) ptx::bulk_wait<0>();
}

}  // namespace moeplan::kernels::kda
