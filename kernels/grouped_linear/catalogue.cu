/// `grouped_linear` as the catalogue calls it, on the kernels of cuda.hpp (bf16 weights), mxfp4_cuda.hpp and fp8_cuda.hpp (arranged): offsets
/// from the routing's counts, the low-rank rows s x A^T and s dy B made once and added inside the base product (beside MXFP4 in a product of
/// their own), weights' gradients in bf16 from fp32 sums, zeros in the rows behind the last expert's. Weights stored otherwise (int8 and the
/// like) are read back to bf16 in waves of experts that fit scratch.hpp's bound, 5 bytes moved a weight instead of 1; besides that and dW nothing
/// the size of a weight is formed.

#include <algorithm>

#include "kernels/arranged.hpp"
#include "kernels/base/ragged.cuh"
#include "kernels/cuda.hpp"
#include "kernels/dequantise/rows.hpp"
#include "kernels/grouped_linear/cuda.hpp"
#include "kernels/grouped_linear/fp8.hpp"
#include "kernels/grouped_linear/fp8_cuda.hpp"
#include "kernels/grouped_linear/mxfp4.hpp"
#include "kernels/grouped_linear/mxfp4_cuda.hpp"
#include "kernels/grouped_linear/op.hpp"
#include "kernels/grouped_linear/scratch.hpp"

namespace moeplan::cuda {
namespace {

namespace grouped = kernels::grouped_linear;

std::string shape(const op::GroupedLinear& op) {
  return "experts=" + std::to_string(op.experts) + " rows=" + std::to_string(op.rows) + " in=" + std::to_string(op.in) + " out=" + std::to_string(op.out);
}

using grouped::Scratch;
using grouped::scratch_of;

struct Added {
  static constexpr int unroll = 2;
  const bf16* more;
  bf16* to;
  template <int V>
  struct Piece {
    Pack<bf16, V> a, b;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(to + i), cuda::load<V>(more + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    float v[V];
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = p.a[j] + p.b[j];
    cuda::store<V>(to + i, v);
  }
};

/// ends = {0, offsets[experts]}: all experts as one, for a shared pair.
__global__ void join_experts(const int* offsets, int experts, int* ends) {
  ends[0] = 0;
  ends[1] = offsets[experts];
}

/// out[e, c] = sum of dy over the expert's rows: 32 columns a block, 8 parts of the rows, both in a fixed order.
__global__ void __launch_bounds__(256) sum_rows(const int* offsets, i64 columns, const bf16* dy, bf16* out) {
  __shared__ float parts[8][32];
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const i64 e = blockIdx.y, c = static_cast<i64>(blockIdx.x) * 32 + lane, end = offsets[e + 1];
  float sum = 0;
  if (c < columns)
#pragma unroll 4
    for (i64 row = offsets[e] + part; row < end; row += 8) sum += widened(dy[row * columns + c]);
  parts[part][lane] = sum;
  __syncthreads();
  if (part != 0 || c >= columns) return;
#pragma unroll
  for (int i = 1; i < 8; ++i) sum += parts[i][lane];
  out[e * columns + c] = narrowed<bf16>(sum);
}

/// What both passes work with.
struct Call {
  const op::GroupedLinear& op;
  const Frame& f;
  Pass pass;
  grouped::Dims dims;
  Scratch at;
  char* scratch;

  Call(const op::GroupedLinear& o, const Frame& frame, Pass p, Wants wants)
      : op(o), f(frame), pass(p), dims{static_cast<int>(o.experts), static_cast<int>(o.rows), static_cast<int>(o.in), static_cast<int>(o.out)}, at(scratch_of(o, p, wants, !portable())), scratch(frame.scratch<char>()) {
    offsets_of(f.ragged().rows_of_expert, dims.experts, dims.rows, offsets(), f.stream(), {next(), 1});
    if (!op.shared_adapter || op.lora_rank == 0) return;
    join_experts<<<1, 1, 0, f.stream()>>>(offsets(), dims.experts, ends());
    kernels::check_launch("grouped_linear: rows of all experts", shape(op));
  }
  [[nodiscard]] int* offsets() const { return reinterpret_cast<int*>(scratch + at.offsets); }
  [[nodiscard]] int* ends() const { return reinterpret_cast<int*>(scratch + at.ends); }
  [[nodiscard]] int* next() const { return ends() + 2; }
  [[nodiscard]] bf16* low() const { return reinterpret_cast<bf16*>(scratch + at.low); }
  [[nodiscard]] bf16* beside() const { return reinterpret_cast<bf16*>(scratch + at.beside); }
  /// Whether the product reads the weight as it is stored, in this type.
  [[nodiscard]] bool packed(DType type) const { return op.weight == type && grouped::expands_inside(op, pass, !portable()); }
  /// f(first expert, their bf16 weights, their sizes): all at once, or wave by wave.
  template <class F>
  void over_experts(const F& each) const {
    if (op.weight == DType::bf16) return each(i64{0}, f["w"].as<bf16>(), dims);
    auto* const plain = reinterpret_cast<bf16*>(scratch + at.plain);
    const i64 wave = grouped::wave_experts(op);
    for (i64 e = 0; e < op.experts; e += wave) {
      grouped::Dims some = dims;
      some.experts = static_cast<int>(std::min(wave, op.experts - e));
      if (grouped::reads_packed(op)) {   // FP8, in the order of its kernels
        const grouped::fp8::Weights w = eight_bits();
        grouped::fp8::read_back(w.codes + e * op.out * op.in, w.scales + e * (op.out / 128) * ((op.in + 127) / 128), some.experts * op.out, op.in, plain, f.stream());
      } else {
        dequantise_rows(op.weight, op.experts * op.out, op.in, e * op.out, some.experts * op.out, f["w"].data, plain, f.stream());
      }
      each(e, static_cast<const bf16*>(plain), some);
    }
  }
  /// The adapter's products see a shared pair as one expert that has all rows.
  [[nodiscard]] int pairs() const { return op.shared_adapter ? 1 : dims.experts; }
  [[nodiscard]] const int* pair_offsets() const { return op.shared_adapter ? ends() : offsets(); }
  [[nodiscard]] grouped::Dims pair_dims(i64 in, i64 out) const { return {pairs(), dims.rows, static_cast<int>(in), static_cast<int>(out)}; }

  /// The products, in the form that the device runs.
  void product(grouped::Forward a) const { a.portable = portable(), a.next = next(), grouped::forward(a, f.stream()); }
  void product(grouped::InputGradient a) const { a.portable = portable(), a.next = next(), grouped::input_gradient(a, f.stream()); }
  void product(grouped::SlotProduct a) const { a.portable = portable(), a.next = next(), grouped::slot_product(a, f.stream()); }
  /// The low-rank rows; without Hopper's form they are products of the base's kind.
  void low_rows(grouped::LowRows a) const {
    a.next = next();
    if (!portable()) return grouped::low_rows(a, f.stream());
    if (a.gradient) return product(grouped::InputGradient{.dims = {a.factors, a.rows, a.rank, a.width}, .dy = a.from, .dy_rows = a.rows, .weight = a.factor, .offsets = a.offsets, .dx = a.low, .alpha = a.alpha});
    const grouped::Dims dims{a.factors, a.rows, a.width, a.rank};
    product(grouped::Forward{.dims = dims, .x = a.from, .x_rows = a.rows, .weight = a.factor, .offsets = a.offsets, .y = a.low, .alpha = a.alpha});
    if (a.scaled != nullptr) product(grouped::Forward{.dims = dims, .x = a.from, .x_rows = a.rows, .weight = a.factor, .offsets = a.offsets, .y = a.scaled, .alpha = a.alpha * a.scale});
  }
  [[nodiscard]] bool portable() const { return f.device().compute_capability != 90; }

  /// The scales as the MXFP4 kernels read them, 3 % of the weights' bytes read and written.
  [[nodiscard]] grouped::mxfp4::Weights prepared() const {
    const auto* stored = static_cast<const std::uint8_t*>(f["w"].data);
    auto* scales = reinterpret_cast<std::uint8_t*>(scratch + at.scales);
    grouped::mxfp4::prepare_scales(dims, grouped::GateLayout::halves, stored + op.experts * op.out * (op.in / 2), scales, f.stream());
    return {stored, scales};
  }
  [[nodiscard]] grouped::fp8::Weights eight_bits() const {
    const auto* stored = static_cast<const std::uint8_t*>(f["w"].data);
    return {stored, reinterpret_cast<const float*>(stored + op.experts * op.out * op.in)};
  }
  void add(const bf16* more, bf16* to, i64 elements) const { pointwise(elements, true, Added{more, to}, f.stream(), "grouped_linear: low-rank rows"); }
};

}  // namespace

void forward(const op::GroupedLinear& op, const Frame& f) {
  const bf16 *x = f["x"].as<bf16>(), *b_lora = f["b_lora"].as<bf16>(), *a = f["a"].as<bf16>();
  bf16 *y = f["y"].as<bf16>(), *x_a = f["x_a"].as<bf16>();
  require_aligned(op.kind, {x, f["w"].data, a, b_lora, y, x_a});
  if (op.rows == 0) return;
  const Call call(op, f, Pass::forward, {});
  grouped::LowRank adapter{};
  if (op.lora_rank > 0) {
    const int rank = static_cast<int>(op.lora_rank);
    bf16* const scaled = op.lora_scale == 1 ? nullptr : call.low();
    call.low_rows({.factors = call.pairs(), .rows = call.dims.rows, .width = call.dims.in, .rank = rank, .from = x, .factor = a, .offsets = call.pair_offsets(), .low = x_a,
                   .scaled = scaled, .scale = static_cast<float>(op.lora_scale)});
    clear_rows_from(call.offsets() + op.experts, op.rows, op.lora_rank, x_a, f.stream());
    adapter = {.rank = rank, .shared = op.shared_adapter, .low = scaled == nullptr ? x_a : scaled, .factor = b_lora};
  }
  if (call.packed(DType::mxfp4)) {
    grouped::mxfp4::forward({.dims = call.dims, .x = x, .weights = call.prepared(), .bias = f["b"].as<bf16>(), .offsets = call.offsets(), .y = y, .next = call.next()}, f.stream());
    if (adapter.rank > 0) {
      call.product(grouped::Forward{.dims = call.pair_dims(op.lora_rank, op.out), .x = adapter.low, .x_rows = call.dims.rows, .weight = b_lora, .offsets = call.pair_offsets(), .y = call.beside()});
      call.add(call.beside(), y, op.rows * op.out);
    }
  } else if (call.packed(DType::fp8)) {
    grouped::fp8::forward({.dims = call.dims, .x = x, .weights = call.eight_bits(), .bias = f["b"].as<bf16>(), .offsets = call.offsets(), .y = y, .next = call.next(), .adapter = adapter}, f.stream());
  } else {
    const bf16* const bias = f["b"].as<bf16>();
    call.over_experts([&](i64 e, const bf16* weight, const grouped::Dims& dims) {
      grouped::LowRank mine = adapter;
      if (mine.rank > 0 && !mine.shared) mine.factor += e * op.out * op.lora_rank;
      call.product(grouped::Forward{.dims = dims, .x = x, .x_rows = dims.rows, .weight = weight, .bias = bias == nullptr ? nullptr : bias + e * op.out, .offsets = call.offsets() + e, .y = y, .adapter = mine});
    });
  }
  clear_rows_from(call.offsets() + op.experts, op.rows, op.out, y, f.stream());
}

void backward(const op::GroupedLinear& op, const Frame& f) {
  const bf16 *x = f["x"].as<bf16>(), *x_a = f["x_a"].as<bf16>(), *dy = f.d("y").as<bf16>(), *a = f["a"].as<bf16>(), *b_lora = f["b_lora"].as<bf16>();
  bf16 *dx = f.d("x").as<bf16>(), *dw = f.d("w").as<bf16>(), *db = f.d("b").as<bf16>(), *da = f.d("a").as<bf16>(), *db_lora = f.d("b_lora").as<bf16>();
  require_aligned(op.kind, {x, x_a, dy, a, b_lora, dx, dw, da, db_lora, f["w"].data});
  const Call call(op, f, Pass::backward, {dx != nullptr, dw != nullptr || db != nullptr || da != nullptr || db_lora != nullptr});
  const int rows = call.dims.rows, rank = static_cast<int>(op.lora_rank), in = call.dims.in, out = call.dims.out;
  const auto scale = static_cast<float>(op.lora_scale);
  grouped::LowRank adapter{};
  if (op.lora_rank > 0 && (dx != nullptr || da != nullptr)) {
    call.low_rows({.factors = call.pairs(), .rows = rows, .width = out, .rank = rank, .gradient = true, .from = dy, .factor = b_lora, .offsets = call.pair_offsets(), .low = call.low(), .alpha = scale});
    adapter = {.rank = rank, .shared = op.shared_adapter, .low = call.low(), .factor = a};
  }
  if (dx != nullptr && op.rows > 0) {
    if (call.packed(DType::mxfp4)) {
      grouped::mxfp4::input_gradient({.dims = call.dims, .dy = dy, .weights = call.prepared(), .offsets = call.offsets(), .dx = dx, .next = call.next()}, f.stream());
      if (adapter.rank > 0) {
        call.product(grouped::InputGradient{.dims = call.pair_dims(op.in, op.lora_rank), .dy = adapter.low, .dy_rows = rows, .weight = a, .offsets = call.pair_offsets(), .dx = call.beside()});
        call.add(call.beside(), dx, op.rows * op.in);
      }
    } else if (call.packed(DType::fp8)) {
      grouped::fp8::input_gradient({.dims = call.dims, .dy = dy, .weights = call.eight_bits(), .offsets = call.offsets(), .dx = dx, .next = call.next(), .adapter = adapter}, f.stream());
    } else {
      call.over_experts([&](i64 e, const bf16* weight, const grouped::Dims& dims) {
        grouped::LowRank mine = adapter;
        if (mine.rank > 0 && !mine.shared) mine.factor += e * op.lora_rank * op.in;
        call.product(grouped::InputGradient{.dims = dims, .dy = dy, .dy_rows = rows, .weight = weight, .offsets = call.offsets() + e, .dx = dx, .adapter = mine});
      });
    }
    clear_rows_from(call.offsets() + op.experts, op.rows, op.in, dx, f.stream());
  }
  if (dw != nullptr) call.product(grouped::SlotProduct{.experts = call.dims.experts, .rows = rows, .a_width = out, .b_width = in, .a = dy, .b = x, .offsets = call.offsets(), .narrow = dw});
  if (db != nullptr) {
    sum_rows<<<dim3(static_cast<unsigned>((op.out + 31) / 32), static_cast<unsigned>(op.experts)), 256, 0, f.stream()>>>(call.offsets(), op.out, dy, db);
    kernels::check_launch("grouped_linear: gradient of the bias", shape(op));
  }
  if (da != nullptr)
    call.product(grouped::SlotProduct{.experts = call.pairs(), .rows = rows, .a_width = in, .b_width = rank, .transposed = true, .a = x, .b = call.low(), .offsets = call.pair_offsets(), .narrow = da});
  if (db_lora != nullptr)
    call.product(grouped::SlotProduct{.experts = call.pairs(), .rows = rows, .a_width = out, .b_width = rank, .a = dy, .b = x_a, .offsets = call.pair_offsets(), .narrow = db_lora, .scale = scale});
}

std::string refusal(const op::GroupedLinear& op) {
  const auto number = [](i64 n) { return std::to_string(n); };
  const bool plain = op.weight == DType::bf16;
  if (!plain && op.training == Training::full) return "trained weights stored as " + std::string(name_of(op.weight)) + "; train them in bf16";
  if (!plain && !grouped::reads_packed(op))
    if (const std::string why = refusal(op::Dequantise{op.experts * op.out, op.in, op.weight}); !why.empty()) return "its weights' reader " + why;
  if (op.weight == DType::fp8 && op.out % 128 != 0) return "an fp8 expert of " + number(op.out) + " rows; blocks of 128 would span two experts: dequantise it first";
  if (op.experts > 1024) return number(op.experts) + " experts; its CUDA kernels take up to 1024 in one call";
  if (op.in % 8 != 0 || op.out % 8 != 0) return "an expert of " + number(op.out) + " x " + number(op.in) + "; its CUDA kernels read packs of 16 bytes: widths in multiples of 8";
  if (op.lora_rank % 8 != 0) return "LoRA pairs of rank " + number(op.lora_rank) + "; its CUDA kernels take multiples of 8: pad the pair with zeros";
  if (std::max({op.rows, op.in, op.out, op.lora_rank}) > (i64{1} << 30)) return "sizes of " + shape(op) + "; they are counted in 31 bits: use more micro-batches";
  return {};
}
std::int64_t scratch(const op::GroupedLinear& op, Pass pass, Wants wants) { return scratch_of(op, pass, wants).bytes; }

bool reads_arranged(const Op& op) {
  const auto* grouped = std::get_if<op::GroupedLinear>(&op);
  return grouped != nullptr && grouped::reads_packed(*grouped);
}
void arrange(DType type, std::byte* payload, std::int64_t count, cudaStream_t stream) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(payload);
  type == DType::fp8 ? grouped::fp8::arrange_weights(bytes, count, stream) : grouped::mxfp4::arrange_weights(bytes, count, stream);
}
void restore(DType type, std::span<std::byte> payload) {
  if (type == DType::fp8) return grouped::fp8::restore(payload);
  grouped::mxfp4::restore({reinterpret_cast<std::uint32_t*>(payload.data()), payload.size() / 4});
}

}  // namespace moeplan::cuda
