#include "kernels/cuda.hpp"

#include <type_traits>

namespace moeplan::cuda {
namespace {

template <class Operator>
constexpr bool has_cuda = false;
#define MOEPLAN_CUDA_OPERATOR(Operator) \
  template <>                           \
  constexpr bool has_cuda<op::Operator> = true;
#include "kernels/cuda_list.inc"
#undef MOEPLAN_CUDA_OPERATOR

[[noreturn]] void refuse(std::string_view kind, const std::string& why) {
  throw InputError(std::string(kind), why, "the CPU reference runs it; `moeplan ops` lists what each operator has");
}

void* at(std::span<void* const> pointers, std::size_t i) { return i < pointers.size() ? pointers[i] : nullptr; }

/// What the gradients that are not null ask for.
Wants asked_of(const Operands& list, std::span<void* const> gradients) {
  Wants wants{false, false};
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (at(gradients, i) == nullptr) continue;
    if (list[i].role == Role::input) wants.input_grad = true;
    if (list[i].role == Role::weight && list[i].trained) wants.weight_grad = true;
  }
  return wants;
}

void check_present(std::string_view kind, const Operands& list, std::span<void* const> values, Pass pass, Wants wants) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if ((pass == Pass::forward || needed(list[i].need, wants)) && at(values, i) == nullptr && list[i].shape.elements() > 0)
      throw InputError(std::string(kind) + "." + std::string(list[i].name), "is needed and has no memory", "pass its device pointer");
}

void run(const Op& op, Pass pass, std::span<void* const> values, std::span<void* const> gradients, void* scratch_memory, cudaStream_t stream, Products* products, const Ragged& ragged) {
  std::visit([&]<class Operator>(const Operator& o) {
    if constexpr (has_cuda<Operator>) {
      if (const std::string why = refusal(o); !why.empty()) refuse(Operator::kind, why);
      const Operands list = o.operands();
      const Wants wants = asked_of(list, gradients);
      if (pass == Pass::backward && wants == Wants{false, false}) return;
      check_present(Operator::kind, list, values, pass, wants);
      if (scratch(o, pass, wants) > 0 && scratch_memory == nullptr)
        throw InputError(std::string(Operator::kind), "needs " + std::to_string(scratch(o, pass, wants)) + " bytes of scratch and has none", "pass cuda::workspace bytes");
      const Frame frame(list, values, gradients, scratch_memory, stream, products, ragged);
      try {
        if (pass == Pass::forward) forward(o, frame);
        else backward(o, frame);
      } catch (const kernels::UnsupportedShape& e) {   // of a kernel with an interface of its own, on this device
        refuse(Operator::kind, e.what());
      }
    } else {
      refuse(Operator::kind, "has no CUDA kernel in the catalogue's backend");
    }
  }, op);
}

}  // namespace

std::string refusal(const Op& op) {
  return std::visit([]<class Operator>(const Operator& o) -> std::string {
    if constexpr (has_cuda<Operator>) return refusal(o);
    else return std::string(Operator::kind) + " has no CUDA kernel in the catalogue's backend";
  }, op);
}

Bytes workspace(const Op& op, Pass pass, Wants wants) {
  if (pass == Pass::backward) wants = possible(op, wants);
  return std::visit([&]<class Operator>(const Operator& o) -> Bytes {
    if constexpr (has_cuda<Operator>) return {scratch(o, pass, wants)};
    else return {0};
  }, op);
}

void forward(const Op& op, std::span<void* const> values, void* workspace, cudaStream_t stream, Products* products, const Ragged& ragged) {
  run(op, Pass::forward, values, {}, workspace, stream, products, ragged);
}
void backward(const Op& op, std::span<void* const> values, std::span<void* const> gradients, void* workspace, cudaStream_t stream, Products* products, const Ragged& ragged) {
  run(op, Pass::backward, values, gradients, workspace, stream, products, ragged);
}

}  // namespace moeplan::cuda
