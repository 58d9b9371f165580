#include "kernels/cuda.hpp"

#include "kernels/cuda_workspace.hpp"
#include "kernels/grouped_linear/scratch.hpp"
#include "kernels/shared_memory.hpp"

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

/// Operators whose products have no form of mma.sync.
bool needs_hopper(const Op& op) {
  const auto* const experts = std::get_if<op::GroupedLinear>(&op);
  return std::holds_alternative<op::Kda>(op) || std::holds_alternative<op::GatedDeltaNet>(op) ||
         (experts != nullptr && experts->weight == DType::mxfp4 && kernels::grouped_linear::reads_packed(*experts));
}
/// Shared memory of a block of its largest kernel, where that is more than every device has.
std::size_t shared_bytes(const Op& op) {
  const auto scan = [](std::int64_t state, std::int64_t head) { return head > 64 ? shared_memory::scan_wide_heads : state > 64 ? shared_memory::scan_wide_states : 0; };
  if (const auto* o = std::get_if<op::Attention>(&op)) return o->d_qk > 256 || o->d_v > 256 ? shared_memory::wide_attention : 0;
  if (const auto* o = std::get_if<op::SparseAttention>(&op)) return o->latent ? shared_memory::latent_attention : 0;
  if (const auto* o = std::get_if<op::Mamba2>(&op)) return scan(o->state, o->head_dim);
  if (const auto* o = std::get_if<op::LightningAttention>(&op)) return scan(o->head_dim, o->head_dim);
  return std::holds_alternative<op::CompressedAttention>(op) ? shared_memory::latent_attention : 0;
}

/// Why a device cannot run what has kernels.
std::string refusal_of_device(const Op& op, const kernels::DeviceFacts& device) {
  const auto capability = [&] { return std::to_string(device.compute_capability / 10) + "." + std::to_string(device.compute_capability % 10); };
  if (device.compute_capability < 80) return "needs a device of compute capability 8.0 or later, this one has " + capability();
  if (needs_hopper(op) && device.compute_capability != 90)
    return "has kernels for Hopper alone (tensor copies and products of sm_90a: compute capability 9.0), this device has " + capability();
  if (const std::size_t bytes = shared_bytes(op); bytes > device.shared_bytes_block)
    return "needs " + std::to_string(bytes) + " bytes of shared memory a block, this device has " + std::to_string(device.shared_bytes_block);
  return {};
}

void* at(std::span<void* const> pointers, std::size_t i) { return i < pointers.size() ? pointers[i] : nullptr; }

/// Scratch of a call, on Hopper or elsewhere.
template <class Operator>
std::int64_t scratch_on(bool hopper, const Operator& op, Pass pass, Wants wants) {
  if constexpr (std::is_same_v<Operator, op::GroupedLinear>) return kernels::grouped_linear::scratch_of(op, pass, wants, hopper).bytes;
  else return scratch(op, pass, wants);
}
Bytes workspace_on(bool hopper, const Op& op, Pass pass, Wants wants) {
  if (pass == Pass::backward) wants = possible(op, wants);
  return std::visit([&]<class Operator>(const Operator& o) -> Bytes {
    if constexpr (has_cuda<Operator>) return {scratch_on(hopper, o, pass, wants)};
    else return {0};
  }, op);
}

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

void run(const Op& op, Pass pass, std::span<void* const> values, std::span<void* const> gradients, void* scratch_memory, cudaStream_t stream, Products* products, const Ragged& ragged,
         const kernels::DeviceFacts* given) {
  std::visit([&]<class Operator>(const Operator& o) {
    if constexpr (has_cuda<Operator>) {
      if (const std::string why = refusal(o); !why.empty()) refuse(Operator::kind, why);
      const Operands list = o.operands();
      const Wants wants = asked_of(list, gradients);
      if (pass == Pass::backward && wants == Wants{false, false}) return;
      check_present(Operator::kind, list, values, pass, wants);
      // Where there is no device, what the operator itself refuses is still said before the launch fails.
      const bool there = given != nullptr || kernels::device_count() > 0;
      const kernels::DeviceFacts device = given != nullptr ? *given : there ? kernels::device_facts() : kernels::DeviceFacts{};
      if (const std::int64_t bytes = scratch_on(!there || device.compute_capability == 90, o, pass, wants); bytes > 0 && scratch_memory == nullptr)
        throw InputError(std::string(Operator::kind), "needs " + std::to_string(bytes) + " bytes of scratch and has none", "pass cuda::workspace bytes");
      if (const std::string why = there ? refusal_of_device(op, device) : std::string(); !why.empty()) refuse(Operator::kind, why);
      const Frame frame(list, values, gradients, scratch_memory, stream, device, products, ragged);
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

std::string refusal(const Op& op, const kernels::DeviceFacts& device) {
  const std::string why = refusal(op);
  return why.empty() ? refusal_of_device(op, device) : why;
}

Bytes workspace(const Op& op, Pass pass, Wants wants) { return workspace_on(true, op, pass, wants); }
Bytes workspace(const Op& op, Pass pass, Wants wants, const kernels::DeviceFacts& device) { return workspace_on(device.compute_capability == 90, op, pass, wants); }

void forward(const Op& op, std::span<void* const> values, void* workspace, cudaStream_t stream, Products* products, const Ragged& ragged, const kernels::DeviceFacts* device) {
  run(op, Pass::forward, values, {}, workspace, stream, products, ragged, device);
}
void backward(const Op& op, std::span<void* const> values, std::span<void* const> gradients, void* workspace, cudaStream_t stream, Products* products, const Ragged& ragged, const kernels::DeviceFacts* device) {
  run(op, Pass::backward, values, gradients, workspace, stream, products, ragged, device);
}

}  // namespace moeplan::cuda
