#include "executor/calibrate/machine.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/spec/profile_keys.hpp"

namespace moeplan {
namespace {

constexpr std::int64_t kRow = 4096, kRun = 128;   ///< columns of a row, and of a run of them
constexpr std::array<std::int64_t, 5> kCopied{1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20};
/// Of the matrices that keep a device busy: 4096 is 0.2 ms of an H200; smaller ones where one product would take longer than is wanted and than a millisecond.
constexpr std::int64_t kSide = 4096, kLeastSide = 256;
constexpr double kLeastLength = 1e-3;
constexpr int kQueued = 256;
constexpr double kLeastLaunch = 1e-7;

struct Times {
  double median = 0, spread = 0;
  std::int64_t count = 0;
};

Times times(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const auto at = [&](double q) { return v[static_cast<std::size_t>(std::lround(q * static_cast<double>(v.size() - 1)))]; };
  return {at(0.5), (at(0.95) - at(0.05)) / 2, static_cast<std::int64_t>(v.size())};
}

ProfileSample sample(std::string key, double seconds, const Times& of) {
  return {.key = std::move(key), .median = {seconds}, .spread = std::min(10.0, of.spread / seconds), .count = of.count};
}

/// x + y of `rows` x `columns`, bf16, over memory of its own.
struct Sum {
  std::vector<Backend::Memory> memory;
  std::vector<std::int32_t> runs;   ///< columns of x in a base twice as wide
  std::vector<TensorView> dense, spread;
  OpCall call;
  Backend& backend;

  Sum(Backend& b, std::int64_t rows, std::int64_t columns) : call{op::Add{.tokens = rows, .hidden = columns}, Pass::forward, {}}, backend(b) {
    const Operands list = operands(call.op);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::int64_t wide = i == 0 ? 2 : 1;
      memory.push_back(b.allocate({wide * 2 * rows * columns}, "copies of columns"));
      const TensorView all{memory.back().get(), DType::bf16, {wide * rows * columns}};
      b.fill_normal(all, i + 1, 0.3f);
      dense.push_back({all.data, DType::bf16, list[i].shape});
    }
    for (std::int64_t c = 0; c < columns; ++c) runs.push_back(static_cast<std::int32_t>(c / kRun * 2 * kRun + c % kRun));
    spread = dense;
    spread[0].columns = &runs, spread[0].base_columns = 2 * columns;
  }
  void run(const std::vector<TensorView>& views) const { backend.call(call, views, std::vector<TensorView>(views.size()), {}); }
  [[nodiscard]] Times alone(const std::vector<TensorView>& views, const Surroundings& around, int samples) const {
    run(views);
    std::vector<double> out;
    for (int i = 0; i < samples; ++i) {
      backend.clear(around.flush);
      out.push_back(backend.time([&] { run(views); }).value - around.bare.value);
    }
    return times(std::move(out));
  }
};

}  // namespace

Seconds bare_seconds(Backend& backend) {
  std::vector<double> out;
  for (int i = 0; i < 21; ++i) out.push_back(backend.time([] {}).value);
  return {times(std::move(out)).median};
}

Busy::Busy(Backend& backend, Seconds length) : backend_(backend) {
  if (length.value <= 0) return;
  double once = 0;
  times_ = 1;
  for (side_ = kLeastSide;; side_ *= 2) {
    operands_.clear(), memory_.clear();
    for (const Operand& o : operands(Op{square()})) {
      memory_.push_back(backend.allocate({2 * o.shape.elements()}, "matrices that keep the device busy"));
      operands_.push_back({memory_.back().get(), DType::bf16, o.shape});
      backend.fill_normal(operands_.back(), operands_.size(), 0.3f);
    }
    work()();
    once = backend.time(work()).value;
    if (side_ == kSide || 8 * once > std::max(length.value, kLeastLength)) break;
  }
  times_ = std::max<std::int64_t>(1, std::llround(length.value / std::max(once, 1e-6)));
}

std::function<void()> Busy::work() const {
  if (times_ == 0) return {};
  return [this] {
    const OpCall call{square(), Pass::forward, {}};
    for (std::int64_t i = 0; i < times_; ++i) backend_.call(call, operands_, std::vector<TensorView>(operands_.size()), {});
  };
}

std::vector<ProfileSample> machine_samples(Backend& backend, const Surroundings& around) {
  std::vector<ProfileSample> out;
  const Sum tiny(backend, 1, 64);
  const Times alone = tiny.alone(tiny.dense, around, 41);
  const Backend::Recording row = backend.record([&] {
    for (int i = 0; i < kQueued; ++i) tiny.run(tiny.dense);
  });
  if (!row) return out;   // calls are done when they return: nothing is queued
  row();
  std::vector<double> queued;
  for (int i = 0; i < 21; ++i) queued.push_back(backend.time(row).value / kQueued);
  const Times each = times(std::move(queued));
  out.push_back(sample(std::string(kLaunchKey), std::max(kLeastLaunch, each.median - alone.median), each));
  for (const std::int64_t bytes : kCopied) {
    const Sum sum(backend, bytes / 2 / kRow, kRow);
    const Times dense = sum.alone(sum.dense, around, 15), copied = sum.alone(sum.spread, around, 15);
    out.push_back(sample(bytes_key(kCopyColumnsKey, bytes), std::max(kLeastLaunch, copied.median - dense.median), copied));
  }
  return out;
}

}  // namespace moeplan
