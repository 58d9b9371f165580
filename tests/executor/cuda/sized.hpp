#pragma once
/// Shipped structures in widths that the device's kernels take, and that the CPU runs in seconds.

#include "tests/executor/run/tiny.hpp"

namespace moeplan::test {

struct Grow {
  void operator()(GqaAttention& a) const { a.head_dim = a.v_head_dim = 64, a.rope.rotary_dim = a.rope.rotary_dim > 0 ? 64 : 0, a.window = a.window ? std::optional<std::int64_t>(20) : a.window; }
  void operator()(MlaAttention& a) const {
    a.heads = 4, a.q_lora = a.q_lora > 0 ? 64 : 0, a.kv_lora = 64, a.nope = 64, a.v = 64, a.rope_dim = a.rope_dim > 0 ? 32 : 0;
    if (a.indexer) a.indexer->heads = 4, a.indexer->dim = 64, a.indexer->topk = 24;   // of up to 48 keys
  }
  void operator()(GdnAttention& a) const { a.k_heads = 2, a.v_heads = 4, a.k_dim = a.v_dim = 64; }
  void operator()(CompressedAttention& a) const {
    a.heads = 4, a.head_dim = 64, a.q_lora = 64, a.rope_dim = 32, a.o_groups = 2, a.o_lora = 64, a.window = 16;
    if (a.index_topk > 0) a.index_heads = 4, a.index_dim = 64, a.index_topk = 8;
  }
  void operator()(Mamba2Mixer& a) const { a.heads = 4, a.head_dim = 64, a.groups = a.groups > 1 ? 2 : 1, a.state = 64; }
  void operator()(Mamba1Mixer& a) const { a.inner = 256, a.state = 16, a.dt_rank = 16; }
  void operator()(LightningAttention& a) const { a.heads = 4, a.head_dim = 64; }
  void operator()(KdaAttention& a) const { a.heads = 4, a.head_dim = 64, a.stored_a_log = 0; }
  void operator()(DenseFfn& f) const { f.intermediate = 256; }
  void operator()(MoeFfn& f) const { f.intermediate = 128, f.latent = f.latent > 0 ? 128 : 0, f.shared_intermediate = f.shared_intermediate > 0 ? 128 : 0; }
  template <class Other>
  void operator()(Other&) const {}
};

/// The structure of a shipped model with widths that the device's kernels take. `stored`: its experts as they are published (MXFP4, FP8 blocks).
inline ModelSpec device_sized(const std::string& file, bool stored = false) {
  const ModelSpec whole = shipped(file);
  ModelSpec m = shrunk(whole);
  if (stored) m.stored = whole.stored;
  m.hidden = 256, m.vocabulary = 1000;
  for (LayerSpec& layer : m.layers)
    for (Sublayer& s : layer.sublayers) std::visit(Grow{}, s.mixer);
  return m;
}

}  // namespace moeplan::test
