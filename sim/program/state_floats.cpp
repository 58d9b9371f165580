#include "core/checked.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

struct OfMixer {
  int tp;
  [[nodiscard]] std::int64_t here(std::int64_t n) const { return ceil_div(n, tp); }
  StateFloats operator()(const KdaAttention& a) const {
    const std::int64_t square = here(a.heads) * a.head_dim * a.head_dim;
    return {square, square};
  }
  StateFloats operator()(const GdnAttention& a) const { return {here(a.v_heads) * a.k_dim * a.v_dim, here(a.v_heads) * a.k_dim * a.k_dim}; }
  StateFloats operator()(const Mamba2Mixer& a) const { return {here(a.heads) * a.head_dim * a.state, here(a.heads)}; }
  StateFloats operator()(const Mamba1Mixer& a) const { return {here(a.inner) * a.state, here(a.inner) * a.state}; }
  StateFloats operator()(const LightningAttention& a) const { return {here(a.heads) * a.head_dim * a.head_dim, here(a.heads)}; }
  template <class Other>
  StateFloats operator()(const Other&) const { return {}; }
};

}  // namespace

StateFloats state_floats(const Mixer& mixer, int tp) { return std::visit(OfMixer{tp}, mixer); }

StateFloats largest_state(const ModelSpec& model, int tp) {
  StateFloats most;
  for (const LayerSpec& layer : model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const StateFloats f = state_floats(s.mixer, tp); f.state > most.state) most = f;
  return most;
}

}  // namespace moeplan
