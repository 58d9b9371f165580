/// Each pair (a, b) turns by its angle: (a cos - b sin, a sin + b cos). The gradient turns the other way.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference_frame.hpp"
#include "kernels/rope/frequencies.hpp"

namespace moeplan::reference {
namespace {

template <class T>
void turn(const op::Rope& op, const View<T>& positions, const View<T>& from, const View<T>& to, double direction) {
  const std::vector<double> frequency = op::frequencies(op);
  const std::int64_t half = op.rotary_dim / 2, first = op.trailing ? op.head_dim - op.rotary_dim : 0;
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    const double position = positions ? static_cast<double>(positions[t]) : static_cast<double>(t % op.sequence_length);
    for (std::int64_t head = 0; head < op.heads; ++head) {
      const T* in = from.row(t) + head * op.head_dim;
      T* out = to.row(t) + head * op.head_dim;
      std::copy(in, in + op.head_dim, out);
      for (std::int64_t j = 0; j < half; ++j) {
        const double angle = direction * position * frequency[static_cast<std::size_t>(j)];
        const T c = static_cast<T>(op.magnitude * std::cos(angle)), s = static_cast<T>(op.magnitude * std::sin(angle));
        const std::int64_t a = first + (op.interleaved ? 2 * j : j), b = first + (op.interleaved ? 2 * j + 1 : j + half);
        out[a] = in[a] * c - in[b] * s;
        out[b] = in[a] * s + in[b] * c;
      }
    }
  }
}

}  // namespace

template <class T>
void forward(const op::Rope& op, const Frame<T>& f) { turn(op, f["positions"], f["x"], f["y"], op.inverse ? -1 : 1); }

template <class T>
void backward(const op::Rope& op, const Frame<T>& f) {
  if (f.d("x")) turn(op, f["positions"], f.d("y"), f.d("x"), op.inverse ? 1 : -1);
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Rope)
