/// The CPU backend: every call converts its operands to float, runs the reference, and stores what the contract writes. Subnormal numbers count as zero.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/error.hpp"
#include "executor/backend/backend.hpp"
#include "executor/backend/convert.hpp"
#include "executor/backend/stored.hpp"
#include "executor/backend/subnormals.hpp"
#include "kernels/reference.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kAlignment = 64;

/// Rows of a view's base.
std::int64_t view_rows(const TensorView& t) { return t.columns->empty() ? 0 : t.shape.elements() / static_cast<std::int64_t>(t.columns->size()); }

void gather(const TensorView& t, std::span<float> to) {
  if (plain_bytes(t.dtype) == 0) return decode_stored(t.dtype, t.shape, t.data, to);
  if (!t.columns) return to_floats(t.dtype, t.data, to);
  std::vector<float> row(static_cast<std::size_t>(t.base_columns));
  std::size_t at = 0;
  for (std::int64_t r = 0, n = view_rows(t); r < n; ++r) {
    to_floats(t.dtype, t.data + r * t.base_columns * plain_bytes(t.dtype), row);
    for (const std::int32_t c : *t.columns) to[at++] = row[static_cast<std::size_t>(c)];
  }
}

void scatter(const TensorView& t, std::span<const float> from) {
  if (plain_bytes(t.dtype) == 0) return encode_stored(t.dtype, t.shape, from, t.data);
  if (!t.columns) return from_floats(t.dtype, from, t.data);
  std::size_t at = 0;
  const std::int64_t width = plain_bytes(t.dtype);
  for (std::int64_t r = 0, n = view_rows(t); r < n; ++r)
    for (const std::int32_t c : *t.columns) from_floats(t.dtype, from.subspan(at++, 1), t.data + (r * t.base_columns + c) * width);
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(CpuStorage storage) : storage_(storage) {}

  std::string_view name() const override { return "cpu"; }
  std::string refusal(const Op& op) const override { return backends(kind(op)).reference ? "" : "there is no reference"; }
  DType held(DType planned) const override {
    switch (planned) {
      case DType::i32: case DType::i64: case DType::u8: case DType::f32: return planned;
      case DType::bf16: case DType::f16: return storage_ == CpuStorage::wide ? DType::f32 : planned;
      default: return storage_ == CpuStorage::wide ? DType::f32 : DType::bf16;
    }
  }
  WeightForm held_weight(const Op&, DType planned) const override { return {storage_ == CpuStorage::as_planned && can_be_held_stored(planned) ? planned : held(planned)}; }

  Memory allocate(Bytes bytes, const std::string& what) override {
    const std::size_t size = (static_cast<std::size_t>(bytes.value) + kAlignment) / kAlignment * kAlignment;
    auto* at = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
    if (!at) throw OutOfMemory(what, fmt::format("{} bytes cannot be had on this machine", bytes.value), "a smaller micro-batch, sequence or rank needs less");
    std::memset(at, 0, size);
    return {at, [](std::byte* p) { std::free(p); }};
  }

  void write(const TensorView& to, std::span<const float> from) override {
    working();
    scatter(to, from);
  }
  void read(const TensorView& from, std::span<float> to) override {
    working();
    gather(from, to);
  }
  void write_stored(const TensorView& to, std::span<const std::byte> from) override {
    working();
    std::memcpy(to.data, from.data(), from.size());
  }

  void clear(const TensorView& to) override {
    if (to.columns) scatter(to, std::vector<float>(static_cast<std::size_t>(to.shape.elements()), 0.0f));
    else std::memset(to.data, 0, static_cast<std::size_t>(stored_bytes(to.dtype, to.shape).value));
  }

  void fill_normal(const TensorView& to, std::uint64_t state, float deviation) override {
    working();
    std::vector<float> v(static_cast<std::size_t>(to.shape.elements()));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(nearly_normal(state, i)) * (deviation / kNearlyNormalDeviation);
    scatter(to, v);
  }

  void add(const TensorView& from, const TensorView& to, float scale) override {
    working();
    const SubnormalsAsZero scope;
    const auto n = static_cast<std::size_t>(to.shape.elements());
    std::vector<float> a(n), b(n);
    gather(from, a);
    gather(to, b);
    for (std::size_t i = 0; i < n; ++i) b[i] += scale * a[i];
    scatter(to, b);
  }

  void copy(const TensorView& from, const TensorView& to) override {
    working();
    if (from.dtype == to.dtype && !from.columns && !to.columns) {
      std::memmove(to.data, from.data, static_cast<std::size_t>(stored_bytes(to.dtype, to.shape).value));
      return;
    }
    std::vector<float> a(static_cast<std::size_t>(to.shape.elements()));
    gather(from, a);
    scatter(to, a);
  }

  void call(const OpCall& call, std::span<const TensorView> operands, std::span<const TensorView> gradients, const CallContext& context) override {
    working(flops(call.op, call.pass, call.wants));
    const SubnormalsAsZero scope;
    const Operands contract = moeplan::operands(call.op);
    const std::size_t n = contract.size();
    std::vector<std::vector<float>> floats(2 * n);
    std::vector<reference::View<float>> values(n), d(n);
    // A float operand is worked on where it lies, everything else, and what has fewer rows than the contract, by way of a copy.
    const auto elements = [](const TensorView& t) { return static_cast<std::size_t>(t.shape.elements()); };
    const auto open = [&](const TensorView& t, std::size_t at, bool reads) -> reference::View<float> {
      if (!t.present()) return {};
      const auto wanted = static_cast<std::size_t>(contract[at % n].shape.elements());
      if (t.dtype == DType::f32 && !t.columns && elements(t) >= wanted) return {reinterpret_cast<float*>(t.data), t.shape};
      floats[at].resize(std::max(wanted, elements(t)));
      if (reads) gather(t, std::span(floats[at]).first(elements(t)));
      return {floats[at].data(), t.shape};
    };
    const auto is_result = [](Role role) { return role == Role::output || role == Role::aux; };
    const bool forward = call.pass == Pass::forward;
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = open(operands[i], i, !forward || !is_result(contract[i].role));
      if (!forward) d[i] = open(gradients[i], n + i, is_result(contract[i].role));
    }
    std::vector<std::int64_t> rows(context.rows_of_expert.begin(), context.rows_of_expert.end());
    if (context.expert_rows.present()) {
      std::vector<float> counts(static_cast<std::size_t>(context.expert_rows.shape.elements()));
      gather(context.expert_rows, counts);
      rows.assign(counts.begin(), counts.end());
    }
    const reference::Ragged ragged{.rows_of_expert = rows, .capacity = context.capacity, .auxiliary = context.auxiliary};
    if (forward) reference::forward<float>(call.op, values, ragged);
    else reference::backward<float>(call.op, values, d, ragged);
    for (std::size_t i = 0; i < n; ++i) {
      if (forward && is_result(contract[i].role) && !floats[i].empty()) scatter(operands[i], std::span(floats[i]).first(elements(operands[i])));
      if (!forward && !is_result(contract[i].role) && !floats[n + i].empty()) scatter(gradients[i], std::span(floats[n + i]).first(elements(gradients[i])));
    }
  }

  void wait() override {}

 private:
  CpuStorage storage_;
};

class NullBackend final : public Backend {
 public:
  std::string_view name() const override { return "null"; }
  std::string refusal(const Op&) const override { return {}; }
  DType held(DType planned) const override { return planned; }
  Memory allocate(Bytes, const std::string&) override { return {new std::byte[1]{}, std::default_delete<std::byte[]>()}; }
  void write(const TensorView&, std::span<const float>) override {}
  void read(const TensorView&, std::span<float> to) override { std::fill(to.begin(), to.end(), 0.0f); }
  void write_stored(const TensorView&, std::span<const std::byte>) override {}
  void clear(const TensorView&) override {}
  void fill_normal(const TensorView&, std::uint64_t, float) override {}
  void add(const TensorView&, const TensorView&, float) override {}
  void copy(const TensorView&, const TensorView&) override {}
  void call(const OpCall&, std::span<const TensorView>, std::span<const TensorView>, const CallContext&) override {}
  void sum_shares(const TensorView&, const TensorView&) override {}
  CopyPoint copy_beside(const std::byte*, std::byte*, Bytes, CopyLane) override { return nullptr; }
  void wait() override {}
};

}  // namespace

void Backend::copy_rows(const TensorView& together, const TensorView& apart, std::span<const RowRun> runs, bool gather) {
  const std::int64_t width = together.shape[together.shape.rank - 1];
  const auto rows = [&](const TensorView& t, std::int64_t from, std::int64_t count) { return TensorView{t.data + from * width * plain_bytes(t.dtype), t.dtype, {count, width}}; };
  std::int64_t at = 0;
  for (const RowRun& run : runs) {
    const TensorView here = rows(together, at, run.count), there = rows(apart, run.from, run.count);
    gather ? copy(there, here) : copy(here, there);
    at += run.count;
  }
}

void Backend::sum_shares(const TensorView& from, const TensorView& to) {
  const auto columns = static_cast<std::size_t>(to.shape.elements());
  std::vector<float> values(static_cast<std::size_t>(from.shape.elements())), out(columns);
  wait();
  read(from, values);
  std::vector<double> sums(columns, 0.0);
  for (std::size_t row = 0; row < values.size(); row += columns) {
    double sum = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += static_cast<double>(values[row + c]);
    for (std::size_t c = 0; sum > 0 && c < columns; ++c) sums[c] += static_cast<double>(values[row + c]) / sum;
  }
  for (std::size_t c = 0; c < columns; ++c) out[c] = static_cast<float>(sums[c]);
  write(to, out);
}

namespace {
double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace

Seconds Backend::time(const std::function<void()>& work) {
  wait();
  const double begin = seconds_now();
  work();
  wait();
  return {seconds_now() - begin};
}

void Backend::stamp() {
  wait();
  stamps_.push_back(seconds_now());
}

Backend::CopyPoint Backend::copy_beside(const std::byte* from, std::byte* to, Bytes bytes, CopyLane lane) {
  auto& list = waiting_[static_cast<std::size_t>(lane)];
  list.push_back(std::make_shared<LaneCopy>(LaneCopy{.from = from, .to = to, .bytes = static_cast<std::size_t>(bytes.value), .timed = times_copies_}));
  if (times_copies_) timed_.push_back(list.back());
  return list.back();
}

void Backend::await(const CopyPoint& point) {
  const auto* until = static_cast<const LaneCopy*>(point.get());
  if (!until || until->done) return;
  for (auto& list : waiting_) {
    const auto last = std::find_if(list.begin(), list.end(), [&](const auto& copy) { return copy.get() == until; });
    if (last == list.end()) continue;
    for (auto it = list.begin(); it != last + 1; ++it) {
      LaneCopy& copy = **it;
      if (copy.timed) copy.span.begin = seconds_now();
      std::memcpy(copy.to, copy.from, copy.bytes);
      if (copy.timed) copy.span.end = seconds_now();
      copy.done = true;
    }
    list.erase(list.begin(), last + 1);
    return;
  }
}

std::vector<CopySpan> Backend::copy_times() {
  std::vector<CopySpan> out;
  for (const auto& copy : std::exchange(timed_, {})) out.push_back({copy->span.begin - stamps_.front(), copy->span.end - stamps_.front()});
  return out;
}

std::vector<double> Backend::stamps() {
  std::vector<double> out = std::exchange(stamps_, {});
  for (std::size_t i = out.size(); i-- > 0;) out[i] -= out.front();
  return out;
}

std::unique_ptr<Backend> cpu_backend(CpuStorage storage) { return std::make_unique<CpuBackend>(storage); }
std::unique_ptr<Backend> null_backend() { return std::make_unique<NullBackend>(); }

}  // namespace moeplan
