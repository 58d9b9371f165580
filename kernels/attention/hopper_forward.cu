#include "kernels/attention/hopper_forward.cuh"
#include "kernels/attention/launch.cuh"

namespace moeplan::cuda::attention {

bool hopper_takes(const Problem& p) {
  return p.hopper && p.vectors && p.cap == 0 && (p.shared == 0 || (p.own % 64 == 0 && p.shared % 64 == 0));
}

void forward_hopper(const Problem& p, cudaStream_t stream) {
  const int tiles = slots(p.queries, p.sequences, block_rows);
  const std::int64_t blocks = static_cast<std::int64_t>(tiles) * p.heads;
  const Problem ordered = in_sections(p, p.heads, tiles, key_bytes(p));
  const auto run = [&]<class Tile>(Tile) {
    Maps maps{};
    maps.q = head_map(p.q, p.queries, p.heads, p.d_qk, block_rows, "attention.q"),
    maps.k = head_map(p.k, p.keys, p.kv_heads, p.own, Tile::keys, "attention.k");
    maps.v = head_map(p.v, p.keys, p.kv_heads, p.d_v, Tile::keys, "attention.v");
    if (p.shared != 0) maps.k_shared = head_map(p.k_shared, p.keys, 1, p.shared, Tile::keys, "attention.k_shared");
    launch(hopper_forward<Tile>, blocks, hopper_threads, Tile::shared_bytes, stream, "attention forward (Hopper)",
           shape(p), maps, ordered);
  };
  with_head_size(p.d_qk, p.d_v,
                 [&]<class Size>(Size) { run(ForwardTile < Size::qk, Size::v, Size::qk == 256 ? 64 : 128 > {}); });
}

}  // namespace moeplan::cuda::attention
