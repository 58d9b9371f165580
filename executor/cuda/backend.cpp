#include "executor/cuda/backend.hpp"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <utility>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/backend/stored.hpp"
#include "executor/cuda/copy_lanes.hpp"
#include "executor/cuda/elements.hpp"
#include "executor/cuda/growing.hpp"
#include "executor/cuda/rows.hpp"
#include "kernels/arranged.hpp"
#include "kernels/cuda.hpp"
#include "kernels/cuda_workspace.hpp"

namespace moeplan {
namespace {

using cuda::aligned_bytes;

/// The call with its block-quantised weight in bf16.
Op in_bf16(Op op) {
  std::visit([](auto& o) {
    if constexpr (requires { o.weight = DType::bf16; o.lora_rank; })
      if (plain_bytes(o.weight) == 0) o.weight = DType::bf16;
  }, op);
  return op;
}
constexpr const char* kLess = "a smaller micro-batch, sequence or rank needs less";
/// splitmix64's step: what a counter of `nearly_normal` advances by.
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, const CudaLimits& limits) : device_(used(device)), facts_(kernels::device_facts()) {
    if (limits.compute_capability > 0) facts_.compute_capability = std::min(facts_.compute_capability, limits.compute_capability);
    if (limits.shared_bytes_block > 0) facts_.shared_bytes_block = std::min(facts_.shared_bytes_block, limits.shared_bytes_block);
  }

  std::string_view name() const override { return "cuda"; }
  std::string refusal(const Op& op) const override { return cuda::refusal(as_held(op), facts_); }
  DType held(DType planned) const override { return plain_bytes(planned) == 0 ? DType::bf16 : planned; }
  WeightForm held_weight(const Op& op, DType planned) const override {
    if (!can_be_held_stored(planned) || !cuda::refusal(op, facts_).empty()) return {held(planned)};
    return {planned, cuda::reads_arranged(op)};
  }
  bool wants_dense() const override { return true; }
  void lend(const TensorView& workspace) override { lent_ = workspace; }

  Memory allocate(Bytes bytes, const std::string& what) override {
    const auto size = static_cast<std::size_t>(aligned_bytes(bytes.value + 1));
    void* at = nullptr;
    if (cudaMalloc(&at, size) != cudaSuccess) {
      (void)cudaGetLastError();
      throw OutOfMemory(what, fmt::format("{} bytes cannot be had on CUDA device {}, {} are free", bytes.value, device_, cuda_free_memory(device_).value), kLess);
    }
    kernels::check(cudaMemsetAsync(at, 0, size, stream_.get()), "clear " + what);
    return {static_cast<std::byte*>(at), [](std::byte* p) { (void)cudaFree(p); }};
  }

  Memory allocate_host(Bytes bytes, const std::string& what) override { return cuda::page_locked(bytes, what); }
  CopyPoint copy_beside(const std::byte* from, std::byte* to, Bytes bytes, CopyLane lane) override { return copies_.copy(stream_.get(), from, to, bytes, lane, recording_); }
  void await(const CopyPoint& point) override { cuda::await_copy(stream_.get(), point); }
  void* copy_queue() override { return copies_.stream(CopyLane::main); }
  void time_copies(bool on) override { copies_.time(on); }
  std::vector<CopySpan> copy_times() override {
    stream_.synchronize();   // a recording runs there, its copies too
    return copies_.times(stamps_.front());
  }

  void write(const TensorView& to, std::span<const float> from) override {
    working();
    if (plain_bytes(to.dtype) == 0) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(stored_bytes(to.dtype, to.shape).value));
      encode_stored(to.dtype, to.shape, from, bytes.data());
      return write_stored(to, bytes);
    }
    if (!to.columns && (to.dtype == DType::bf16 || to.dtype == DType::f16)) return write_narrow(to, from);
    staging_.resize(from.size() * static_cast<std::size_t>(plain_bytes(to.dtype)));
    from_floats(to.dtype, from, staging_.data());
    std::byte* const at = to.columns ? passing(static_cast<std::int64_t>(staging_.size())) : to.data;
    kernels::check(cudaMemcpyAsync(at, staging_.data(), staging_.size(), cudaMemcpyDefault, stream_.get()), "copy to the device");
    if (to.columns) scatter(at, to);
    stream_.synchronize();   // the staging memory is used again
  }

  void write_stored(const TensorView& to, std::span<const std::byte> from) override {
    kernels::check(cudaMemcpyAsync(to.data, from.data(), from.size(), cudaMemcpyDefault, stream_.get()), "copy stored weights to the device");
    if (to.arranged) cuda::arrange(to.dtype, to.data, payload_bytes(to.dtype, to.shape), stream_.get());
    stream_.synchronize();   // the bytes are the caller's
  }

  void read(const TensorView& from, std::span<float> to) override {
    working();
    if (plain_bytes(from.dtype) == 0) {
      staging_.resize(static_cast<std::size_t>(stored_bytes(from.dtype, from.shape).value));
      kernels::check(cudaMemcpyAsync(staging_.data(), from.data, staging_.size(), cudaMemcpyDefault, stream_.get()), "copy stored weights from the device");
      stream_.synchronize();
      if (from.arranged) cuda::restore(from.dtype, std::span(staging_).first(static_cast<std::size_t>(payload_bytes(from.dtype, from.shape))));
      return decode_stored(from.dtype, from.shape, staging_.data(), to);
    }
    staging_.resize(to.size() * static_cast<std::size_t>(plain_bytes(from.dtype)));
    const std::byte* at = from.data;
    if (from.columns) at = gather(from, passing(static_cast<std::int64_t>(staging_.size())));
    kernels::check(cudaMemcpyAsync(staging_.data(), at, staging_.size(), cudaMemcpyDefault, stream_.get()), "copy from the device");
    stream_.synchronize();
    to_floats(from.dtype, staging_.data(), to);
  }

  void clear(const TensorView& to) override {
    const std::int64_t bytes = stored_bytes(to.dtype, to.shape).value;
    std::byte* const at = to.columns ? passing(bytes) : to.data;
    kernels::check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(bytes), stream_.get()), "clear a tensor");
    if (to.columns) scatter(at, to);
  }

  void fill_normal(const TensorView& to, std::uint64_t state, float deviation) override {
    if (to.columns) throw InputError("CUDA backend", "cannot fill a view of columns with random numbers", "fill its base");
    if (plain_bytes(to.dtype) == 0) return fill_stored(to, state, deviation);
    cuda::fill_normal(to.data, to.dtype, to.shape.elements(), state, deviation, stream_.get());
  }

  void add(const TensorView& from, const TensorView& to, float scale) override { combine(from, to, scale, true); }
  void copy(const TensorView& from, const TensorView& to) override { combine(from, to, 1, false); }
  void copy_rows(const TensorView& together, const TensorView& apart, std::span<const RowRun> runs, bool gather) override {
    cuda::copy_rows(together.data, apart.data, together.shape[together.shape.rank - 1] * plain_bytes(together.dtype), runs, gather, stream_.get());
  }
  void wait() override { stream_.synchronize(); }
  Bytes workspace(const OpCall& call) const override { return cuda::workspace(as_held(call.op), call.pass, call.wants, facts_); }
  void sum_shares(const TensorView& from, const TensorView& to) override {
    const std::int64_t columns = to.shape.elements();
    auto* const parts = reinterpret_cast<float*>(temporaries_.at_least(cuda::share_scratch(columns)));
    cuda::sum_shares(reinterpret_cast<const float*>(from.data), reinterpret_cast<float*>(to.data), columns ? from.shape.elements() / columns : 0, columns, parts, stream_.get());
  }

  Recording record(const std::function<void()>& work) override {
    scratch_.keep(), temporaries_.keep();
    kernels::check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed), "begin to record a step");
    recording_ = true;
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      recording_ = false;
      (void)cudaStreamEndCapture(stream_.get(), &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      (void)cudaGetLastError();
      throw;
    }
    recording_ = false;
    kernels::check(cudaStreamEndCapture(stream_.get(), &graph), "record a step");
    cudaGraphExec_t exec = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    if (made == cudaErrorMemoryAllocation) none_left("the recorded step", "make a recorded step ready");
    kernels::check(made, "make a recorded step ready");
    const std::shared_ptr<CUgraphExec_st> owned(exec, [](cudaGraphExec_t g) { (void)cudaGraphExecDestroy(g); });
    return [owned, stream = stream_.get()] { kernels::check(cudaGraphLaunch(owned.get(), stream), "queue a recorded step"); };
  }

  void stamp() override {
    if (stamped_ == stamps_.size()) stamps_.emplace_back();
    cuda::note_time(stamps_[stamped_++], stream_.get(), recording_);
  }
  std::vector<double> stamps() override {
    stream_.synchronize();
    std::vector<double> out;
    for (std::size_t i = 0; i < stamped_; ++i) out.push_back(static_cast<double>(stamps_[i].milliseconds_since(stamps_.front())) * 1e-3);
    stamped_ = 0;
    return out;
  }

  Bytes device_memory() const override {
    std::size_t free = 0, total = 0;
    kernels::check(cudaMemGetInfo(&free, &total), "free memory of a device");
    return {static_cast<std::int64_t>(total - free)};
  }
  Bytes beside() const override { return {scratch_.bytes() + temporaries_.bytes() + static_cast<std::int64_t>(cuda::Products::workspace_bytes)}; }
  void* queue() override { return stream_.get(); }
  Seconds time(const std::function<void()>& work) override {
    kernels::Event begin, end;
    begin.record(stream_.get());
    work();
    end.record(stream_.get());
    end.synchronize();
    return {static_cast<double>(end.milliseconds_since(begin)) * 1e-3};
  }

  void call(const OpCall& call, std::span<const TensorView> operands, std::span<const TensorView> gradients, const CallContext& context) override {
    try {
      perform(call, operands, gradients, context);
    } catch (const kernels::CudaError& e) {
      if (e.code != cudaErrorMemoryAllocation) throw;
      none_left("scratch of " + key(call.op, call.pass, call.wants), e.what());
    }
  }

 private:
  /// The call over its weight as it is held: stored as planned where the kernels read that.
  [[nodiscard]] Op as_held(const Op& op) const { return cuda::refusal(op, facts_).empty() ? op : in_bf16(op); }
  /// The call over these operands: a rank that cuts its weights over others holds them in bf16.
  [[nodiscard]] Op over(const Op& op, std::span<const TensorView> operands) const {
    const Operands contract = moeplan::operands(op);
    for (std::size_t i = 0; i < contract.size(); ++i)
      if (plain_bytes(contract[i].dtype) == 0 && operands[i].present() && plain_bytes(operands[i].dtype) != 0) return in_bf16(op);
    return as_held(op);
  }

  [[noreturn]] void none_left(const std::string& buffer, const char* doing) {
    (void)cudaGetLastError();
    throw OutOfMemory(buffer, fmt::format("cannot be had on CUDA device {}, {} bytes are free ({})", device_, cuda_free_memory(device_).value, doing), kLess);
  }

  void perform(const OpCall& call, std::span<const TensorView> operands, std::span<const TensorView> gradients, const CallContext& context) {
    const Op op = over(call.op, operands);
    const Operands contract = moeplan::operands(op);
    for (std::size_t i = 0; i < contract.size(); ++i)
      if (plain_bytes(contract[i].dtype) == 0 && contract[i].role == Role::weight && operands[i].arranged != cuda::reads_arranged(op))
        throw std::logic_error(fmt::format("{}: {} is not in the order that its kernels read", key(call.op, call.pass, call.wants), contract[i].name));
    const bool forward = call.pass == Pass::forward;
    const auto is_result = [&](std::size_t i) { return contract[i].role == Role::output || contract[i].role == Role::aux; };
    const std::size_t n = contract.size();
    // Kernels read and write the contract's types, dense; a view of columns, or of another type, passes through memory of its own.
    // Kernels may want 16-byte packs, which what lies behind an odd number of small tensors does not start on.
    const auto shifted = [](const TensorView& t) { return !t.columns && reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0; };
    const auto dense_bytes = [&](const TensorView& t) { return t.columns || shifted(t) ? aligned_bytes(t.shape.elements() * plain_bytes(t.dtype)) : 0; };
    const auto typed_bytes = [&](const TensorView& t, DType type) { return t.dtype != type ? aligned_bytes(t.shape.elements() * plain_bytes(type)) : 0; };
    const std::int64_t rows_bytes = aligned_bytes(static_cast<std::int64_t>(context.rows_of_expert.size()) * 4);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < n; ++i)
      for (const TensorView* t : {&operands[i], i < gradients.size() ? &gradients[i] : nullptr})
        if (t != nullptr && t->present()) bytes += dense_bytes(*t) + typed_bytes(*t, contract[i].dtype);
    Wants wants{false, false};
    for (std::size_t i = 0; i < n; ++i) {
      if (forward || is_result(i) || i >= gradients.size() || !gradients[i].present()) continue;
      (contract[i].role == Role::weight ? wants.weight_grad : wants.input_grad) = true;
    }
    const std::int64_t needed = cuda::workspace(op, call.pass, wants, facts_).value, given = context.workspace.present() ? context.workspace.shape.elements() : 0;
    // Copies and scratch lie in the workspace where both fit, else the scratch alone.
    const bool both = given >= bytes + needed;
    std::byte* next = both ? context.workspace.data : temporaries_.at_least(bytes + rows_bytes);
    void* const scratch = both ? context.workspace.data + bytes : given >= needed ? context.workspace.data : scratch_.at_least(needed);
    const auto take = [&](std::int64_t size) { return std::exchange(next, next + size); };
    struct Result {
      std::byte *typed, *dense;
      DType type;
      const TensorView* view;
    };
    std::vector<Result> results;
    const auto open = [&](const TensorView& t, DType type, bool reads, bool writes) -> void* {
      if (!t.present()) return nullptr;
      const bool moved = t.columns || shifted(t);
      std::byte* const dense = moved ? take(dense_bytes(t)) : t.data;
      if (t.columns && reads) gather(t, dense);
      else if (moved && reads) move(t.data, dense, t);
      if (t.dtype == type) {
        if (moved && writes) results.push_back({dense, dense, type, &t});
        return dense;
      }
      std::byte* const typed = take(typed_bytes(t, type));
      if (reads) cuda::combine(dense, t.dtype, typed, type, t.shape.elements(), 1, false, stream_.get());
      if (writes) results.push_back({typed, dense, type, &t});
      return typed;
    };
    std::vector<void*> values(n), d(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = open(operands[i], contract[i].dtype, !forward || !is_result(i), forward && is_result(i));
      if (!forward) d[i] = open(gradients[i], contract[i].dtype, is_result(i), !is_result(i));
    }
    cuda::Ragged ragged{.capacity = context.capacity, .auxiliary = context.auxiliary};
    for (std::size_t i = 0; i < n; ++i)
      for (const TensorView* t : {&operands[i], i < gradients.size() ? &gradients[i] : nullptr})
        if (t != nullptr && t->present() && contract[i].ragged && t->shape[0] < contract[i].shape[0]) ragged.rows = t->shape[0];
    if (context.expert_rows.present()) {
      ragged.rows_of_expert = reinterpret_cast<const std::int32_t*>(context.expert_rows.data);
    } else if (!context.rows_of_expert.empty()) {
      const std::vector<std::int32_t> rows(context.rows_of_expert.begin(), context.rows_of_expert.end());
      std::byte* const at = both ? temporaries_.at_least(rows_bytes) : next;
      kernels::check(cudaMemcpyAsync(at, rows.data(), 4 * rows.size(), cudaMemcpyHostToDevice, stream_.get()), "copy the rows of the experts");   // pageable: staged before it returns
      ragged.rows_of_expert = reinterpret_cast<const std::int32_t*>(at);
    }
    if (forward) cuda::forward(op, values, scratch, stream_.get(), &products_, ragged);
    else cuda::backward(op, values, d, scratch, stream_.get(), &products_, ragged);
    for (const Result& r : results) {
      if (r.typed != r.dense) cuda::combine(r.typed, r.type, r.dense, r.view->dtype, r.view->shape.elements(), 1, false, stream_.get());
      if (r.view->columns) scatter(r.dense, *r.view);
      else if (r.dense != r.view->data) move(r.dense, r.view->data, *r.view);
    }
  }

  void move(const std::byte* from, std::byte* to, const TensorView& t) {
    kernels::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(t.shape.elements() * plain_bytes(t.dtype)), cudaMemcpyDefault, stream_.get()), "copy a tensor");
  }

  /// Memory for a copy: what is lent, else its own.
  std::byte* passing(std::int64_t bytes) {
    return lent_.present() && lent_.shape.elements() >= bytes ? lent_.data : temporaries_.at_least(bytes);
  }

  /// Random numbers are made and stored some rows at a time: the whole in floats would be eight times what it is to be.
  void fill_stored(const TensorView& to, std::uint64_t state, float deviation) {
    const std::int64_t columns = to.shape[to.shape.rank - 1], rows = to.shape.elements() / columns, matrix = to.shape.rank > 1 ? to.shape[to.shape.rank - 2] : 1;
    const bool tiles = to.dtype == DType::fp8;
    // A tile of 128 rows is whole in a piece, and belongs to one matrix.
    const std::int64_t unit = tiles ? (matrix % 128 == 0 ? 128 : matrix) : 1, most = std::max(unit, (std::int64_t{4} << 20) / columns / unit * unit);
    const std::int64_t floats = aligned_bytes(4 * most * columns);
    std::byte* const wide = temporaries_.at_least(floats + stored_bytes(to.dtype, {most, columns}).value);
    std::byte* const scales = to.data + payload_bytes(to.dtype, to.shape);
    for (std::int64_t row = 0; row < rows; row += most) {
      const Shape piece{std::min(most, rows - row), columns};
      cuda::fill_normal(wide, DType::f32, piece.elements(), state + kStep * static_cast<std::uint64_t>(row * columns), deviation, stream_.get());
      for (std::int64_t first = 0; first < piece[0]; first += tiles && matrix % 128 != 0 ? matrix : piece[0]) {
        const Shape part{tiles && matrix % 128 != 0 ? matrix : piece[0], columns};
        const std::int64_t bytes = payload_bytes(to.dtype, part), behind = stored_bytes(to.dtype, part).value - bytes;
        cuda::forward(op::Quantise{part[0], columns, DType::f32, to.dtype}, std::vector<void*>{wide + 4 * first * columns, wide + floats}, nullptr, stream_.get());
        const std::int64_t at = row + first, scale_at = tiles ? (matrix % 128 == 0 ? at / 128 : at / matrix * ((matrix + 127) / 128)) * ((columns + 127) / 128) * 4 : at * ((columns + 31) / 32);
        kernels::check(cudaMemcpyAsync(to.data + payload_bytes(to.dtype, {at, columns}), wide + floats, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_.get()), "store weights");
        kernels::check(cudaMemcpyAsync(scales + scale_at, wide + floats + bytes, static_cast<std::size_t>(behind), cudaMemcpyDefault, stream_.get()), "store scales");
      }
    }
    if (to.arranged) cuda::arrange(to.dtype, to.data, payload_bytes(to.dtype, to.shape), stream_.get());
  }

  /// Floats go over in pieces and are rounded there: a model of a hundred gigabytes does not wait for one core here.
  void write_narrow(const TensorView& to, std::span<const float> from) {
    constexpr std::size_t piece = std::size_t{16} << 20;
    auto* const wide = reinterpret_cast<float*>(temporaries_.at_least(static_cast<std::int64_t>(4 * std::min(piece, from.size()))));
    for (std::size_t at = 0; at < from.size(); at += piece) {
      const std::size_t n = std::min(piece, from.size() - at);
      kernels::check(cudaMemcpyAsync(wide, from.data() + at, 4 * n, cudaMemcpyDefault, stream_.get()), "copy to the device");
      cuda::combine(wide, DType::f32, to.data + at * static_cast<std::size_t>(plain_bytes(to.dtype)), to.dtype, static_cast<std::int64_t>(n), 1, false, stream_.get());
    }
    stream_.synchronize();
  }

  /// The view's columns on the device. They stay there as long as the backend; the list is compared, for its address may be another's later.
  cuda::Columns columns(const TensorView& t) {
    Cached& c = columns_[t.columns];
    if (c.list != *t.columns) {
      c.list = *t.columns;
      c.device = kernels::DeviceBuffer(4 * std::max<std::size_t>(1, c.list.size()));
      // On the stream: a plain copy of pageable memory returns before it has arrived, and what is queued next would not wait for it.
      kernels::check(cudaMemcpyAsync(c.device.get<std::int32_t>(), c.list.data(), 4 * c.list.size(), cudaMemcpyHostToDevice, stream_.get()), "copy a view's columns");
      stream_.synchronize();
    }
    return {c.device.get<std::int32_t>(), static_cast<std::int64_t>(c.list.size()), t.base_columns};
  }
  std::byte* gather(const TensorView& from, std::byte* to) {
    const cuda::Columns c = columns(from);
    cuda::gather_columns(from.data, to, c.count ? from.shape.elements() / c.count : 0, c, plain_bytes(from.dtype), stream_.get());
    return to;
  }
  void scatter(const std::byte* from, const TensorView& to) {
    const cuda::Columns c = columns(to);
    cuda::scatter_columns(from, to.data, c.count ? to.shape.elements() / c.count : 0, c, plain_bytes(to.dtype), stream_.get());
  }
  void combine(const TensorView& from, const TensorView& to, float scale, bool sum) {
    const std::int64_t n = to.shape.elements(), source = from.columns ? aligned_bytes(n * plain_bytes(from.dtype)) : 0;
    std::byte* const temporary = passing(source + (to.columns ? n * plain_bytes(to.dtype) : 0));
    const std::byte* const a = from.columns ? gather(from, temporary) : from.data;
    std::byte* const b = to.columns ? temporary + source : to.data;
    if (to.columns && sum) gather(to, b);
    cuda::combine(a, from.dtype, b, to.dtype, n, scale, sum, stream_.get());
    if (to.columns) scatter(b, to);
  }

  struct Cached {
    std::vector<std::int32_t> list;
    kernels::DeviceBuffer device{0};
  };
  /// What is made next is of `device`: a stream made before would open a context on device 0, 0.5 GiB for every rank of the machine.
  static int used(int device) {
    kernels::check(cudaSetDevice(device), fmt::format("use CUDA device {}", device));
    return device;
  }

  int device_;   ///< before all that lies on it
  kernels::DeviceFacts facts_;
  kernels::Stream stream_;
  cuda::Products products_;
  cuda::Growing scratch_, temporaries_;
  TensorView lent_{};
  bool recording_ = false;
  std::vector<kernels::Event> stamps_;
  std::size_t stamped_ = 0;
  cuda::CopyLanes copies_;
  std::vector<std::byte> staging_;
  std::map<const std::vector<std::int32_t>*, Cached> columns_;
};

}  // namespace

int cuda_devices() { return kernels::device_count(); }

std::string cuda_device_name(int device) {
  cudaDeviceProp properties{};
  int driver = 0;
  kernels::check(cudaGetDeviceProperties(&properties, device), "name of a device");
  kernels::check(cudaDriverGetVersion(&driver), "version of the driver");
  return fmt::format("{}, CUDA {}.{}", properties.name, driver / 1000, driver % 1000 / 10);
}

Bytes cuda_free_memory(int device) {
  std::size_t free = 0, total = 0;
  kernels::check(cudaSetDevice(device), "use a device");
  kernels::check(cudaMemGetInfo(&free, &total), "free memory of a device");
  return {static_cast<std::int64_t>(free)};
}

std::unique_ptr<Backend> cuda_backend(int device, const CudaLimits& limits) {
  const int count = kernels::device_count();
  if (device < 0 || device >= count) throw InputError("CUDA device", fmt::format("{} is asked for, {} are there", device, count), count == 0 ? "--backend cpu" : fmt::format("0 to {}", count - 1));
  return std::make_unique<CudaBackend>(device, limits);
}

}  // namespace moeplan
