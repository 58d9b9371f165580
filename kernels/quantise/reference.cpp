/// y = what the stored type makes of x, as plain numbers (nf4 blocks run over the whole tensor, the others end with a row).

#include "kernels/quantise/op.hpp"
#include "kernels/quantise/rounding.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Quantise& op, const Frame<T>& f) {
  const auto x = f["x"], y = f["y"];
  const bool flat = op.to == DType::nf4;
  const std::int64_t rows = flat ? 1 : op.rows, columns = flat ? op.rows * op.columns : op.columns;
  const std::int64_t tall = op.to == DType::fp8 ? 128 : 1, wide = block_columns(op.to, op.columns);
  for (std::int64_t r0 = 0; r0 < rows; r0 += tall)
    for (std::int64_t c0 = 0; c0 < columns; c0 += wide) {
      const auto for_each = [&](auto&& g) {
        for (std::int64_t r = r0; r < std::min(r0 + tall, rows); ++r)
          for (std::int64_t c = c0; c < std::min(c0 + wide, columns); ++c) g(r * columns + c);
      };
      double most = 0;
      for_each([&](std::int64_t i) { most = std::max(most, std::abs(static_cast<double>(x[i]))); });
      for_each([&](std::int64_t i) { y[i] = static_cast<T>(quantised(op.to, static_cast<double>(x[i]), most)); });
    }
}

template <class T>
void backward(const op::Quantise&, const Frame<T>&) {}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Quantise)
