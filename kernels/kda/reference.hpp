#pragma once
/// The CPU truth for KDA: the token recurrence and the chunked form, forward and all gradients, in float or double.
/// Shapes as in kda.hpp, everything a plain vector of `Real`. The gradients of the two forms are derived separately
/// (by hand from the recurrence; by the UT factors of a chunk), so that their agreement means something.

#include "kernels/kda/kda.hpp"

#include <cstdint>
#include <vector>

namespace moeplan::kernels::kda::reference {

template <class Real>
struct Inputs {
  std::vector<std::int64_t> cu_seqlens;  ///< sequences + 1 offsets
  int heads = 1;
  int head_dim = 1;
  Gate gate_form;
  Real scale = 1;
  std::vector<Real> q, k, v, gate;  ///< [tokens, heads, D]
  std::vector<Real> beta;           ///< [tokens, heads]
  std::vector<Real> a_log;          ///< [heads]
  std::vector<Real> dt_bias;        ///< [heads, D]
  std::vector<Real> initial_state;  ///< [sequences, heads, D, D]
};

template <class Real>
struct Outputs {
  std::vector<Real> out;          ///< [tokens, heads, D]
  std::vector<Real> final_state;  ///< [sequences, heads, D, D]
};

template <class Real>
struct Gradients {
  std::vector<Real> q, k, v, gate, beta, a_log, dt_bias, initial_state;
};

/// Log decay of one channel and its derivatives by the pre-activation z (bias included) and by A_log.
/// Finite for any z and A_log: saturated gates give zero derivatives, never NaN.
template <class Real>
struct Decay {
  Real g, dg_dz, dg_da_log;
};
template <class Real>
[[nodiscard]] Decay<Real> decay(const Gate& gate, Real a_log, Real z);

template <class Real>
[[nodiscard]] Outputs<Real> recurrent_forward(const Inputs<Real>& in);

/// Gradients of sum(out * d_out) + sum(final_state * d_final_state).
template <class Real>
[[nodiscard]] Gradients<Real> recurrent_backward(const Inputs<Real>& in, const std::vector<Real>& d_out,
                                                 const std::vector<Real>& d_final_state);

template <class Real>
[[nodiscard]] Outputs<Real> chunked_forward(const Inputs<Real>& in, int chunk);

template <class Real>
[[nodiscard]] Gradients<Real> chunked_backward(const Inputs<Real>& in, const std::vector<Real>& d_out,
                                               const std::vector<Real>& d_final_state, int chunk);

}  // namespace moeplan::kernels::kda::reference
