/// Each column of a row of y mixes the entries of its run (with `overlap` also the first-half columns of the run before):
/// y = sum_i p_i kv_i,  p = softmax(gate_i + ape_i);  dkv_i = p_i dy,  dgate_i = dape_i = p_i dy (kv_i - y). Without gates p is uniform.

#include <algorithm>
#include <cmath>

#include "kernels/compress/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {
namespace {

/// A token's entry in a mix: its row, its column, and its place in its run.
struct Entry {
  std::int64_t token, column, place;
};

/// Calls f(row of y, column of y, entries).
template <class T, class F>
void for_each_mix(const op::Compress& op, F&& f) {
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length);
  std::int64_t row = 0;
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t run = 0; run < (bounds[s + 1] - bounds[s]) / op.ratio; ++run, ++row)
      for (std::int64_t c = 0; c < op.width; ++c) {
        std::vector<Entry> entries;
        const std::int64_t begin = bounds[s] + run * op.ratio;
        for (std::int64_t i = 0; i < op.ratio; ++i) {
          if (op.overlap && run > 0) entries.push_back({begin - op.ratio + i, c, i});
          entries.push_back({begin + i, op.overlap ? op.width + c : c, i});
        }
        f(row, c, entries);
      }
}

template <class T>
std::vector<T> weights(const op::Compress& op, const Frame<T>& f, const std::vector<Entry>& entries) {
  std::vector<T> p(entries.size(), T(1));
  T most = 0, sum = 0;
  if (op.gated) {
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = f["gate"](entries[i].token, entries[i].column) + f["ape"](entries[i].place, entries[i].column);
    most = *std::max_element(p.begin(), p.end());
    for (T& each : p) each = std::exp(each - most);
  }
  for (const T each : p) sum += each;
  for (T& each : p) each /= sum;
  return p;
}

}  // namespace

template <class T>
void forward(const op::Compress& op, const Frame<T>& f) {
  const auto kv = f["kv"], y = f["y"];
  for_each_mix<T>(op, [&](std::int64_t row, std::int64_t c, const std::vector<Entry>& entries) {
    const auto p = weights(op, f, entries);
    y(row, c) = 0;
    for (std::size_t i = 0; i < p.size(); ++i) y(row, c) += p[i] * kv(entries[i].token, entries[i].column);
  });
}

template <class T>
void backward(const op::Compress& op, const Frame<T>& f) {
  const auto kv = f["kv"], dy = f.d("y"), dkv = f.d("kv"), dgate = f.d("gate"), dape = f.d("ape");
  for (const auto& gradient : {dkv, dgate, dape})
    if (gradient) gradient.fill(0);
  for_each_mix<T>(op, [&](std::int64_t row, std::int64_t c, const std::vector<Entry>& entries) {
    const auto p = weights(op, f, entries);
    T y = 0;
    for (std::size_t i = 0; op.gated && i < p.size(); ++i) y += p[i] * kv(entries[i].token, entries[i].column);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const Entry& e = entries[i];
      if (dkv) dkv(e.token, e.column) += p[i] * dy(row, c);
      if (!op.gated) continue;
      const T d = p[i] * dy(row, c) * (kv(e.token, e.column) - y);
      if (dgate) dgate(e.token, e.column) += d;
      if (dape) dape(e.place, e.column) += d;
    }
  });
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Compress)
