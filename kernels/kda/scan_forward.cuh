#pragma once
/// Forward scan. Per 64-token chunk and 64 value columns (tensor work 896 cycles, of which 512 are on the critical
/// path):
///
///     N^T = U^T + S^T (-W^T)        O^T = S^T q_up^T + N^T P^T        S^T = S^T gamma + N^T k_end
///
/// The output of a chunk is written while the next one's N is on the tensor cores.

#include "kernels/kda/scan.cuh"

namespace moeplan::kernels::kda {
template <int D, int groups, ScanKind kind>
struct ForwardStage {
  static constexpr bool out = kind == ScanKind::output;
  static constexpr int tile = Record<D>::tile;
  static constexpr int u = 0, w = groups * panel_bytes, k_end = w + tile, q_up = k_end + tile,
                       p = q_up + (out ? tile : 0), gamma = p + (out ? panel_bytes : 0), bytes = gamma + 1024;
  static constexpr int stages = 3;
  static constexpr int state_image = kind == ScanKind::states ? groups * Record<D>::tile : 0;
  static constexpr int images = stages * bytes, shared = images + state_image + 128;
  static constexpr std::uint32_t copied =
      (groups + 2 * Record<D>::panels) * panel_bytes + (out ? tile + panel_bytes : 0) + D * 4;
};

template <int D, int groups, ScanKind kind>
__device__ __forceinline__ void forward_scan(const Launch& launch, const ScanStates& states, unsigned index) {
  using S = ForwardStage<D, groups, kind>;
  using R = Record<D>;
  constexpr int slices = D / 64 * (kind == ScanKind::affine ? 2 : 1), blocks = slices / groups;
  extern __shared__ __align__(1024) char shared[];
  auto& pipe = *reinterpret_cast<Pipeline<S::stages>*>(shared + S::images + S::state_image);

  const int slice_block = index % blocks, item = index / blocks;
  const int group_head = item % launch.group_heads, segment_index = item / launch.group_heads;
  const Segment segment = uniform(launch.segments[segment_index]);
  if (segment.sequence < 0) return;
  const int first_slice = slice_block * groups;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::stages; ++s)
      ptx::barrier_init(&pipe.full[s], 1), ptx::barrier_init(&pipe.empty[s], groups * 128);
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (uniform(threadIdx.x >> 5) >= groups * 4) {  // producer
    if constexpr (groups == 2) ptx::registers_release<40>();
    if (threadIdx.x >= groups * 128 + 32) return;
    if (threadIdx.x != groups * 128) return;
    ptx::RingPosition<S::stages> ring;
    for (int c = 0; c < segment.chunks; ++c, ring.advance()) {
      ptx::barrier_wait(&pipe.empty[ring.stage], ring.parity ^ 1);
      auto* full = &pipe.full[ring.stage];
      char* stage = shared + ring.stage * S::bytes;
      const char* record =
          launch.records + record_index(launch, segment.first_chunk + c, group_head) * launch.record_bytes;
      ptx::barrier_arrive_expect(full, S::copied);
      ptx::bulk_load(stage + S::u, record + R::u + (first_slice % (D / 64)) * panel_bytes, groups * panel_bytes, full);
      if constexpr (S::out) {
        ptx::bulk_load(stage + S::w, record + R::w, R::forward_bytes - R::w, full);
      } else {
        ptx::bulk_load(stage + S::w, record + R::w, 2 * R::tile, full);
        ptx::bulk_load(stage + S::gamma, record + R::gamma, D * 4, full);
      }
    }
    return;
  }

  if constexpr (groups == 2) ptx::registers_acquire<232>();
  const int group = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = threadIdx.x & 31;
  const int slice = first_slice + group;
  const bool is_map = kind == ScanKind::affine && slice >= D / 64;  // these columns start from the identity, with U = 0
  const int first_value = 64 * (slice % (D / 64));
  const std::uint32_t base = ptx::shared_address(shared);
  float s[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) s[i] = 0.0f;
  if (is_map) {
    const int row = first_value + 16 * (thread >> 5) + (lane >> 2), column = 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < D / 2; ++i) s[i] = 8 * (i >> 2) + column + (i & 1) == row + (i & 2) * 4 ? 1.0f : 0.0f;
  } else if (S::out && states.carried_in != nullptr && (segment.position & 1) == 0) {
    move_state<D, true>(s, states.carried_in + group_head * D * D, first_value);
  } else if (kind != ScanKind::affine && states.begin != nullptr) {
    move_state<D, true>(
        s, states.begin + state_offset<D>(launch, states.by_sequence_in, segment_index, segment.sequence, group_head),
        first_value);
  }
  std::uint32_t a[D / 16][4], n_fragments[4][4];
  float n[32], o[32];
#pragma unroll
  for (int x = 0; x < 32; ++x) o[x] = 0.0f;
  ptx::RingPosition<S::stages> ring;
  Chunk previous{};
  int previous_stage = 0;

  // Writes O^T of the previous chunk through its own (consumed) U tile, then frees the stage.
  const auto finish_previous = [&] {
    if constexpr (S::out) {
      const int tile = previous_stage * S::bytes + S::u + group * panel_bytes;
      std::uint32_t packed[4][4];
      to_fragments(packed, o);
      store_transposed(base + tile, packed);
      ptx::named_barrier(1 + group, 128);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int row = 16 * x + (thread >> 3), part = thread & 7;
        if (row < previous.rows)
          *reinterpret_cast<uint4*>(
              launch.out + ((previous.begin + row) * launch.heads + launch.first_head + group_head) * D + first_value +
              8 * part) = *reinterpret_cast<const uint4*>(shared + tile + image_offset(row, 8 * part));
      }
      ptx::fence_async_shared();
    }
    ptx::barrier_arrive(&pipe.empty[previous_stage]);
  };

  for (int c = 0; c < segment.chunks; ++c) {
    const std::uint32_t stage = base + ring.stage * S::bytes;
    const std::int64_t record = record_index(launch, segment.first_chunk + c, group_head);
    ptx::barrier_wait(&pipe.full[ring.stage], ring.parity);
    to_fragments(a, s);
    const char* u = shared + ring.stage * S::bytes + S::u + group * panel_bytes + thread * 16;
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const uint4 four = *reinterpret_cast<const uint4*>(u + x * 2048);
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int y = 0; y < 4; ++y) {
        const float2 both = unpack_bf16(is_map ? 0u : words[y]);
        n[8 * x + 2 * y] = both.x, n[8 * x + 2 * y + 1] = both.y;
      }
    }
    const auto w = ptx::wgmma_descriptor(stage + S::w, 1024, 8192);
    ptx::wgmma_touch(n);
    keep_alive(a);
    ptx::wgmma_begin();
#pragma unroll
    for (int x = 0; x < D / 16; ++x) ptx::Wgmma<64>::rs<ptx::Major::mn>(n, a[x], ptx::wgmma_advance(w, 2048 * x), true);
    ptx::wgmma_commit();
    if constexpr (kind == ScanKind::states) {
      // S_0^T of this chunk, through a staging image.
      char* image = shared + S::images + group * R::tile;
      if (thread == 0) ptx::bulk_wait_read<0>();
      ptx::named_barrier(1 + group, 128);
      store_state<D>(base + S::images + group * R::tile, a);
      ptx::fence_async_shared();
      ptx::named_barrier(1 + group, 128);
      if (thread == 0) {
        char* out = launch.states + record * (2 * D * D) + slice * panel_bytes;
        for (int panel = 0; panel < D / 64; ++panel)
          ptx::bulk_store(out + panel * (D * 128), image + panel * panel_bytes, panel_bytes);
        ptx::bulk_commit();
      }
    }
    ptx::wgmma_wait<1>();  // true already; ptxas sees from it that s and o are not in flight, else it waits for n here
    if constexpr (S::out) ptx::wgmma_touch(o);
    ptx::wgmma_touch(s);
    if (c > 0)
      finish_previous();
    else if constexpr (S::out)  // all have read U before the next round writes over it; later ones wait in there
      ptx::named_barrier(1 + group, 128);
    decay_state<D>(s, reinterpret_cast<const float*>(shared + ring.stage * S::bytes + S::gamma));
    ptx::wgmma_touch(s);
    // Nothing else is in flight here: ptxas serialises every wgmma of a kernel in which accumulators are touched by
    // ordinary instructions between two batches in flight.
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(n);
    to_fragments(n_fragments, n);
    keep_alive(n_fragments);
    const auto k_end = ptx::wgmma_descriptor(stage + S::k_end, 1024, 8192);
    ptx::wgmma_begin();
#pragma unroll
    for (int x = 0; x < 4; ++x)
      ptx::Wgmma<D>::template rs<ptx::Major::mn>(s, n_fragments[x], ptx::wgmma_advance(k_end, 2048 * x), true);
    ptx::wgmma_commit();
    if constexpr (S::out) {
      const auto p = ptx::wgmma_descriptor(stage + S::p), q_up = ptx::wgmma_descriptor(stage + S::q_up);
#pragma unroll
      for (int x = 0; x < D / 16; ++x)
        ptx::Wgmma<64>::rs<ptx::Major::k>(o, a[x], ptx::wgmma_advance(q_up, (x >> 2) * panel_bytes + (x & 3) * 32),
                                          x > 0);
#pragma unroll
      for (int x = 0; x < 4; ++x)
        ptx::Wgmma<64>::rs<ptx::Major::k>(o, n_fragments[x], ptx::wgmma_advance(p, 32 * x), true);
      ptx::wgmma_commit();
    }
    if constexpr (kind == ScanKind::states) {
      // N over the consumed U tile, here and in the record.
      store_transposed(stage + S::u + group * panel_bytes, n_fragments);
      ptx::fence_async_shared();
      ptx::named_barrier(1 + group, 128);
      if (thread == 0) {
        ptx::bulk_store(launch.records + record * launch.record_bytes + R::u + slice * panel_bytes,
                        shared + ring.stage * S::bytes + S::u + group * panel_bytes, panel_bytes);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
      }
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(s);
    if constexpr (S::out) ptx::wgmma_touch(o);
    keep_alive(a);
    keep_alive(n_fragments);
    if constexpr (S::out) previous = launch.chunks[segment.first_chunk + c];
    previous_stage = ring.stage;
    ring.advance();
  }
  if (segment.chunks > 0) {
    finish_previous();
  }
  float* end = is_map ? states.map : states.end;
  if (S::out && states.carried_out != nullptr && (segment.position & 2) == 0)
    move_state<D, false>(s, states.carried_out + group_head * D * D, first_value);
  else if (end != nullptr && (!states.by_sequence_out || (segment.position & 2)))
    move_state<D, false>(
        s, end + state_offset<D>(launch, states.by_sequence_out, segment_index, segment.sequence, group_head),
        first_value);
  if constexpr (kind == ScanKind::states)
    if (thread == 0) ptx::bulk_wait<0>();
}

}  // namespace moeplan::kernels::kda
