#include "kernels/attention/backward.cuh"
#include "kernels/attention/launch.cuh"

namespace moeplan::cuda::attention {

void backward_tiles_k(const Problem& p, cudaStream_t stream) {
  const int tiles = slots(p.keys, p.sequences, key_rows);
  const std::int64_t blocks = static_cast<std::int64_t>(tiles) * p.kv_heads;
  const Problem ordered = in_sections(p, p.kv_heads, tiles, query_bytes(p));
  with_head_size(p.d_qk, p.d_v, [&]<class Size>(Size) {
    const auto run = [&](auto kernel) {
      launch(kernel, blocks, tile_threads, backward_k_bytes<Size>, stream, "attention backward of keys and values",
             shape(p), ordered);
    };
    const auto with_cap = [&]<bool capped>() {
      const bool keys = p.dk != nullptr || p.shared_parts != nullptr, values = p.dv != nullptr;
      constexpr bool together = Size::qk + Size::v <= 256;
      if (together && keys && values) {
        if constexpr (together) run(attend_backward_k<Size, capped, true, true>);
        return;
      }
      if (keys) run(attend_backward_k<Size, capped, true, false>);
      if (values) run(attend_backward_k<Size, capped, false, true>);
    };
    if (p.cap > 0)
      with_cap.template operator()<true>();
    else
      with_cap.template operator()<false>();
  });
}

}  // namespace moeplan::cuda::attention
