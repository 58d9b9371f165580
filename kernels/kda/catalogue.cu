/// `kda` as the catalogue calls it: queries scaled by head_dim^-1/2, states that begin at zero. Equal lengths whose last is short become
/// boundaries in device memory, as packed ones come.

#include <algorithm>

#include "kernels/base/ragged.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/kda/kda.hpp"
#include "kernels/kda/op.hpp"
#include "kernels/kda/scratch.hpp"

namespace moeplan::cuda {
namespace {

namespace kda = kernels::kda;

kda::Dims dims_of(const op::Kda& op) {
  const i64 sequences = op.packed_sequences ? op.packed_sequences : std::max<i64>(1, (op.tokens + op.sequence_length - 1) / op.sequence_length);
  return {.tokens = op.tokens, .heads = static_cast<int>(op.heads), .head_dim = static_cast<int>(op.head_dim), .sequences = sequences};
}
kda::Options options_of(const op::Kda& op) { return {.workspace_limit = static_cast<std::size_t>(kda::scratch_limit(dims_of(op)))}; }

bool uneven(const op::Kda& op) { return op.packed_sequences == 0 && op.tokens % op.sequence_length != 0; }
i64 boundary_bytes(const op::Kda& op) { return uneven(op) ? aligned_bytes(8 * (dims_of(op).sequences + 1)) : 0; }
i64 kernel_bytes(const op::Kda& op, Pass pass) {
  return static_cast<i64>(kda::workspace_bytes(dims_of(op), options_of(op), pass == Pass::forward ? kda::Pass::forward : kda::Pass::backward));
}

__global__ void __launch_bounds__(256) equal_boundaries(i64 tokens, i64 length, i64 sequences, i64* starts) {
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (i <= sequences) starts[i] = min(i * length, tokens);
}

kda::Forward inputs(const op::Kda& op, const Frame& f) {
  const auto bits = [&](std::string_view name) {
    const bf16* p = f[name].as<bf16>();
    require_aligned(op.kind, {p});
    return reinterpret_cast<const kda::Bf16*>(p);
  };
  kda::Forward in{.dims = dims_of(op), .gate_form = {op.bounded ? kda::GateForm::bounded : kda::GateForm::softplus, static_cast<float>(op.lower_bound)}, .options = options_of(op)};
  in.q = bits("q"), in.k = bits("k"), in.v = bits("v"), in.gate = bits("gate");
  in.beta = f["beta"].as<float>(), in.a_log = f["a_log"].as<float>(), in.dt_bias = f["dt_bias"].as<float>();
  in.cu_seqlens = op.packed_sequences ? f["starts"].as<i64>() : nullptr;
  char* scratch = f.scratch<char>();
  if (uneven(op)) {
    const i64 sequences = in.dims.sequences;
    auto* starts = reinterpret_cast<i64*>(scratch);
    equal_boundaries<<<static_cast<unsigned>(sequences / 256 + 1), 256, 0, f.stream()>>>(op.tokens, op.sequence_length, sequences, starts);
    kernels::check_launch("kda boundaries", "sequences=" + std::to_string(sequences));
    in.cu_seqlens = starts;
  }
  in.workspace = scratch + boundary_bytes(op);
  return in;
}

kda::Bf16* gradient(const op::Kda& op, const Frame& f, std::string_view name) {
  bf16* p = f.d(name).as<bf16>();
  require_aligned(op.kind, {p});
  return reinterpret_cast<kda::Bf16*>(p);
}

}  // namespace

void forward(const op::Kda& op, const Frame& f) {
  if (op.tokens == 0) return;
  require_aligned(op.kind, {f["y"].as<bf16>()});
  kda::Forward call = inputs(op, f);
  call.out = reinterpret_cast<kda::Bf16*>(f["y"].as<bf16>());
  kda::forward(call, f.stream());
}

void backward(const op::Kda& op, const Frame& f) {
  float *d_a_log = f.d("a_log").as<float>(), *d_dt_bias = f.d("dt_bias").as<float>();
  if (op.tokens == 0) {
    if (d_a_log != nullptr) kernels::check(cudaMemsetAsync(d_a_log, 0, static_cast<std::size_t>(4 * op.heads), f.stream()), "kda backward without tokens");
    if (d_dt_bias != nullptr) kernels::check(cudaMemsetAsync(d_dt_bias, 0, static_cast<std::size_t>(4 * op.heads * op.head_dim), f.stream()), "kda backward without tokens");
    return;
  }
  kda::Backward call{.d_out = gradient(op, f, "y"), .d_q = gradient(op, f, "q"), .d_k = gradient(op, f, "k"), .d_v = gradient(op, f, "v"), .d_gate = gradient(op, f, "gate"),
                     .d_beta = f.d("beta").as<float>(), .d_a_log = d_a_log, .d_dt_bias = d_dt_bias};
  call.forward = inputs(op, f);
  kda::backward(call, f.stream());
}

std::string refusal(const op::Kda& op) {
  if (op.head_dim != 64 && op.head_dim != 128) return "heads of " + std::to_string(op.head_dim) + " columns; its CUDA kernels take 64 and 128";
  if (op.heads > 128) return std::to_string(op.heads) + " heads; its CUDA kernels take up to 128: split the heads over ranks";
  if (op.bounded && op.lower_bound >= 0) return "a gate bounded by 0 decays nothing; its CUDA kernels take bounds in [-5, 0)";
  if (op.tokens > (i64{1} << 31) / op.heads || dims_of(op).sequences > (i64{1} << 27) / op.heads) return std::to_string(op.tokens) + " tokens; chunks are counted in 31 bits: use more micro-batches";
  return {};
}
std::int64_t scratch(const op::Kda& op, Pass pass, Wants wants) {
  if (op.tokens == 0 || (pass == Pass::backward && wants == Wants{false, false}) || !refusal(op).empty()) return 0;
  return boundary_bytes(op) + kernel_bytes(op, pass);
}

}  // namespace moeplan::cuda
