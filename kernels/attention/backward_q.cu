#include "kernels/attention/backward.cuh"
#include "kernels/attention/launch.cuh"

namespace moeplan::cuda::attention {

void backward_tiles_q(const Problem& p, cudaStream_t stream) {
  const int tiles = slots(p.queries, p.sequences, query_rows);
  const std::int64_t blocks = static_cast<std::int64_t>(tiles) * p.heads;
  const Problem ordered = in_sections(p, p.heads, tiles, key_bytes(p));
  with_head_size(p.d_qk, p.d_v, [&]<class Size>(Size) {
    const auto run = [&](auto kernel) {
      launch(kernel, blocks, tile_threads, backward_q_bytes<Size>, stream, "attention backward of queries", shape(p),
             ordered);
    };
    if (p.cap > 0)
      run(attend_backward_q<Size, true>);
    else
      run(attend_backward_q<Size, false>);
  });
}

}  // namespace moeplan::cuda::attention
