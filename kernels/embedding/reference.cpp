/// y_t = scale w[id_t] + s B a_id, with a_id the id's column of A;  dw[id_t] += scale dy_t,  dB = s sum dy_t a_id^T,  dA[:, id_t] += s B^T dy_t.
/// An id outside of the table looks up zeros and has no gradient: its row is another rank's.

#include "kernels/embedding/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Embedding& op, const Frame<T>& f) {
  const auto ids = f["ids"], w = f["w"], a = f["a"], b = f["b_lora"], x_a = f["x_a"], y = f["y"];
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    const auto id = static_cast<std::int64_t>(ids[t]);
    const bool here = id >= 0 && id < op.vocabulary;
    for (std::int64_t r = 0; r < op.lora_rank; ++r) x_a(t, r) = here ? a(r, id) : T(0);
    for (std::int64_t c = 0; c < op.hidden; ++c) {
      T sum = here ? static_cast<T>(op.scale) * w(id, c) : T(0);
      for (std::int64_t r = 0; r < op.lora_rank; ++r) sum += static_cast<T>(op.lora_scale) * b(c, r) * x_a(t, r);
      y(t, c) = sum;
    }
  }
}

template <class T>
void backward(const op::Embedding& op, const Frame<T>& f) {
  const auto ids = f["ids"], b = f["b_lora"], x_a = f["x_a"], dy = f.d("y"), dw = f.d("w"), da = f.d("a"), db = f.d("b_lora");
  for (const auto& gradient : {dw, da, db})
    if (gradient) gradient.fill(0);
  if (!dw && !da && !db) return;
  const T s = static_cast<T>(op.lora_scale);
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    const auto id = static_cast<std::int64_t>(ids[t]);
    if (id < 0 || id >= op.vocabulary) continue;
    for (std::int64_t c = 0; c < op.hidden; ++c) {
      if (dw) dw(id, c) += static_cast<T>(op.scale) * dy(t, c);
      for (std::int64_t r = 0; r < op.lora_rank; ++r) {
        if (da) da(r, id) += s * b(c, r) * dy(t, c);
        if (db) db(c, r) += s * dy(t, c) * x_a(t, r);
      }
    }
  }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Embedding)
