#include "kernels/attention/hopper_backward.cuh"
#include "kernels/attention/launch.cuh"

namespace moeplan::cuda::attention {

void backward_hopper_q(const Problem& p, cudaStream_t stream) {
  const int tiles = slots(p.queries, p.sequences, block_rows);
  const std::int64_t blocks = static_cast<std::int64_t>(tiles) * p.heads;
  const Problem ordered = in_sections(p, p.heads, tiles, key_bytes(p));
  const auto run = [&]<class Tile>(Tile) {
    Maps maps{};
    maps.q = head_map(p.q, p.queries, p.heads, p.d_qk, block_rows, "attention.q"),
    maps.dy = head_map(p.dy, p.queries, p.heads, p.d_v, block_rows, "attention.dy");
    maps.k = head_map(p.k, p.keys, p.kv_heads, p.own, Tile::keys, "attention.k"),
    maps.v = head_map(p.v, p.keys, p.kv_heads, p.d_v, Tile::keys, "attention.v");
    if (p.shared != 0) maps.k_shared = head_map(p.k_shared, p.keys, 1, p.shared, Tile::keys, "attention.k_shared");
    launch(hopper_backward_q<Tile>, blocks, hopper_threads, Tile::shared_bytes, stream,
           "attention backward of queries (Hopper)", shape(p), maps, ordered);
  };
  with_head_size(p.d_qk, p.d_v, [&]<class Size>(Size) {
    if constexpr (Size::qk == 64)
      run(BackwardQTile<64, 64, 96, 4, true, true>{});
    else if constexpr (Size::qk == 128)
      run(BackwardQTile<128, 128, 64, 4, true, true>{});
    else if constexpr (Size::qk == 192)
      run(BackwardQTile<192, 128, 64, 3, false, true>{});
    else
      run(BackwardQTile<256, 256, 48, 2>{});
  });
}

void backward_hopper_k(const Problem& p, cudaStream_t stream) {
  const int tiles = slots(p.keys, p.sequences, block_rows);
  const std::int64_t blocks = static_cast<std::int64_t>(tiles) * p.kv_heads;
  const Problem ordered = in_sections(p, p.kv_heads, tiles, query_bytes(p));
  const auto run = [&]<class Tile>(Tile) {
    Maps maps{};
    maps.q = head_map(p.q, p.queries, p.heads, p.d_qk, Tile::queries, "attention.q"),
    maps.dy = head_map(p.dy, p.queries, p.heads, p.d_v, Tile::queries, "attention.dy");
    maps.k = head_map(p.k, p.keys, p.kv_heads, p.own, block_rows, "attention.k"),
    maps.v = head_map(p.v, p.keys, p.kv_heads, p.d_v, block_rows, "attention.v");
    if (p.shared != 0) maps.k_shared = head_map(p.k_shared, p.keys, 1, p.shared, block_rows, "attention.k_shared");
    launch(hopper_backward_k<Tile>, blocks, hopper_threads, Tile::shared_bytes, stream,
           "attention backward of keys and values (Hopper)", shape(p), maps, ordered);
  };
  with_head_size(p.d_qk, p.d_v, [&]<class Size>(Size) {
    // Nothing held at 64: ptxas 13.0 gives the held rows and the packed weights the same registers there, and dk and dv
    // come out wrong.
    if constexpr (Size::qk == 64)
      run(BackwardKTile<64, 64, 96, 4>{});
    else if constexpr (Size::qk == 128)
      run(BackwardKTile<128, 128, 48, 4, true, true, true>{});
    else if constexpr (Size::qk == 192)
      run(BackwardKTile<192, 128, 48, 3>{});
    else {
      if (p.dk != nullptr || p.shared_parts != nullptr) run(BackwardKTile<256, 256, 48, 2, true, false>{});
      if (p.dv != nullptr) run(BackwardKTile<256, 256, 48, 2, false, true>{});
    }
  });
}

}  // namespace moeplan::cuda::attention
