#include "kernels/reference.hpp"

#include <type_traits>

#include "core/error.hpp"

namespace moeplan::reference {
namespace {

template <class Operator>
constexpr bool has_reference = false;
#define MOEPLAN_REFERENCE(Operator) \
  template <>                       \
  constexpr bool has_reference<op::Operator> = true;
#include "kernels/reference_list.inc"
#undef MOEPLAN_REFERENCE

template <class T>
void run(const Op& op, Pass pass, std::span<const View<T>> values, std::span<const View<T>> gradients, const Ragged& ragged) {
  std::visit([&]<class Operator>(const Operator& o) {
    if constexpr (has_reference<Operator>) {
      const Operands list = o.operands();
      const Frame<T> frame(list, values, gradients);
      if (pass == Pass::forward) {
        if constexpr (std::is_same_v<Operator, op::GroupedLinear> || std::is_same_v<Operator, op::Permute>) forward<T>(o, frame, ragged);
        else forward<T>(o, frame);
      } else if constexpr (std::is_same_v<Operator, op::GroupedLinear> || std::is_same_v<Operator, op::Router>) {
        backward<T>(o, frame, ragged);
      } else {
        backward<T>(o, frame);
      }
    } else {
      throw InputError(std::string(Operator::kind), "has no CPU reference", "`moeplan ops` lists what each operator has");
    }
  }, op);
}

}  // namespace

template <class T>
void forward(const Op& op, std::span<const View<T>> values, const Ragged& ragged) { run<T>(op, Pass::forward, values, {}, ragged); }
template <class T>
void backward(const Op& op, std::span<const View<T>> values, std::span<const View<T>> gradients, const Ragged& ragged) { run<T>(op, Pass::backward, values, gradients, ragged); }

template void forward<float>(const Op&, std::span<const View<float>>, const Ragged&);
template void forward<double>(const Op&, std::span<const View<double>>, const Ragged&);
template void backward<float>(const Op&, std::span<const View<float>>, std::span<const View<float>>, const Ragged&);
template void backward<double>(const Op&, std::span<const View<double>>, std::span<const View<double>>, const Ragged&);

}  // namespace moeplan::reference
