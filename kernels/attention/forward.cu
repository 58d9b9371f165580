#include "kernels/attention/forward.cuh"
#include "kernels/attention/launch.cuh"

namespace moeplan::cuda::attention {

void forward_tiles(const Problem& p, cudaStream_t stream) {
  const int tiles = slots(p.queries, p.sequences, query_rows);
  const std::int64_t blocks = static_cast<std::int64_t>(tiles) * p.heads;
  const Problem ordered = in_sections(p, p.heads, tiles, key_bytes(p));
  with_head_size(p.d_qk, p.d_v, [&]<class Size>(Size) {
    const auto run = [&](auto kernel) {
      launch(kernel, blocks, tile_threads, forward_bytes<Size>, stream, "attention forward", shape(p), ordered);
    };
    if (p.cap > 0)
      run(attend_forward<Size, true>);
    else
      run(attend_forward<Size, false>);
  });
}

}  // namespace moeplan::cuda::attention
