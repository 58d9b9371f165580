/// `kda` as the catalogue calls it: the token recurrence of kernels/kda/reference.cpp, queries scaled by head_dim^-1/2, zero initial states.

#include <cmath>

#include "kernels/kda/op.hpp"
#include "kernels/kda/reference.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {
namespace {

namespace recurrence = kernels::kda::reference;

template <class T>
std::vector<T> copied(const View<T>& v) { return {v.data, v.data + v.size()}; }

template <class T>
recurrence::Inputs<T> inputs(const op::Kda& op, const Frame<T>& f) {
  recurrence::Inputs<T> in;
  in.cu_seqlens = sequence_bounds(op.tokens, op.sequence_length, f["starts"]);
  in.heads = static_cast<int>(op.heads);
  in.head_dim = static_cast<int>(op.head_dim);
  in.gate_form = {op.bounded ? kernels::kda::GateForm::bounded : kernels::kda::GateForm::softplus, static_cast<float>(op.lower_bound)};
  in.scale = 1 / std::sqrt(static_cast<T>(op.head_dim));
  in.q = copied(f["q"]), in.k = copied(f["k"]), in.v = copied(f["v"]), in.gate = copied(f["gate"]), in.beta = copied(f["beta"]);
  in.a_log = copied(f["a_log"]), in.dt_bias = copied(f["dt_bias"]);
  in.initial_state.assign((in.cu_seqlens.size() - 1) * static_cast<std::size_t>(op.heads * op.head_dim * op.head_dim), T(0));
  return in;
}

}  // namespace

template <class T>
void forward(const op::Kda& op, const Frame<T>& f) {
  const auto out = recurrence::recurrent_forward(inputs(op, f));
  std::copy(out.out.begin(), out.out.end(), f["y"].data);
}

template <class T>
void backward(const op::Kda& op, const Frame<T>& f) {
  const auto in = inputs(op, f);
  const auto d = recurrence::recurrent_backward(in, copied(f.d("y")), std::vector<T>(in.initial_state.size(), T(0)));
  const auto write = [](const std::vector<T>& from, const View<T>& to) {
    if (to) std::copy(from.begin(), from.end(), to.data);
  };
  write(d.q, f.d("q")), write(d.k, f.d("k")), write(d.v, f.d("v")), write(d.gate, f.d("gate")), write(d.beta, f.d("beta"));
  write(d.a_log, f.d("a_log")), write(d.dt_bias, f.d("dt_bias"));
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Kda)
