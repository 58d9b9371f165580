#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "executor/calibrate/calibrate.hpp"
#include "executor/calibrate/stage.hpp"

namespace moeplan {
namespace {

/// The CPU's, remembering the most that it cleared at once.
class Watched : public Backend {
 public:
  Bytes cleared{};
  int summed = 0;   ///< times that shares were added up
  std::vector<std::string> calls;   ///< operators, sums, and clearing of 64 elements

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] std::string refusal(const Op& op) const override { return inner_->refusal(op); }
  [[nodiscard]] DType held(DType planned) const override { return inner_->held(planned); }
  [[nodiscard]] Memory allocate(Bytes bytes, const std::string& what) override { return inner_->allocate(bytes, what); }
  void write(const TensorView& to, std::span<const float> from) override { inner_->write(to, from); }
  void read(const TensorView& from, std::span<float> to) override { inner_->read(from, to); }
  void write_stored(const TensorView& to, std::span<const std::byte> from) override { inner_->write_stored(to, from); }
  void clear(const TensorView& to) override {
    cleared = std::max(cleared, Bytes{4 * to.shape.elements()});
    if (to.shape.elements() == 64) calls.emplace_back("clear");
    inner_->clear(to);
  }
  void fill_normal(const TensorView& to, std::uint64_t state, float deviation) override { inner_->fill_normal(to, state, deviation); }
  void add(const TensorView& from, const TensorView& to, float scale) override {
    calls.emplace_back("add");
    inner_->add(from, to, scale);
  }
  void copy(const TensorView& from, const TensorView& to) override { inner_->copy(from, to); }
  void call(const OpCall& call, std::span<const TensorView> operands, std::span<const TensorView> gradients, const CallContext& context) override {
    calls.emplace_back(kind(call.op));
    inner_->call(call, operands, gradients, context);
  }
  void sum_shares(const TensorView& from, const TensorView& to) override {
    ++summed;
    inner_->sum_shares(from, to);
  }
  void wait() override { inner_->wait(); }

 private:
  std::unique_ptr<Backend> inner_ = cpu_backend(CpuStorage::as_planned);
};

Bytes cleared_where_a_step_touches(Bytes touched) {
  Watched backend;
  const OpCall add{op::Add{.tokens = 4, .hidden = 8}, Pass::forward, {}};
  const Calibration c = calibrate(backend, {{key(add.op, add.pass, add.wants), add}}, {}, {.least = 1, .most = 2, .touched = touched}, [](auto&&...) {});
  EXPECT_FALSE(c.samples.empty());
  return backend.cleared;
}

TEST(Timing, ClearsWhatAStepTouchesAndNoMoreThanTheLargestCache) {
  EXPECT_EQ(cleared_where_a_step_touches({1 << 20}).value, 1 << 20);
  EXPECT_EQ(cleared_where_a_step_touches({std::int64_t{100} << 30}), kMostCleared);
}

ProfileSample three_samples(Backend& backend, const OpCall& call) {
  const Backend::Memory memory = backend.allocate({64}, "cache flush");
  return time_call(backend, call, {.least = 3, .most = 3, .noise = 0}, {.flush = {memory.get(), DType::f32, {16}}});
}

TEST(Timing, ARoutersForwardHoldsWhatAStepKeepsOfItsChoice) {
  const op::Router router{.tokens = 4, .hidden = 8, .experts = 4, .top_k = 2};
  const auto summed = [&](Pass pass) {
    Watched backend;
    const OpCall call{router, pass, {.input_grad = pass == Pass::backward}};
    EXPECT_EQ(three_samples(backend, call).count, 3);
    return backend.summed;
  };
  EXPECT_EQ(summed(Pass::forward), 7) << "once before the samples, and before and in each";
  EXPECT_EQ(summed(Pass::backward), 0);
}

/// Addresses of the first operand of the calls between two clearings of the caches.
TEST(Timing, AHostPerformsTheCallOnOtherOperandsBeforeEachSample) {
  class Addresses : public Watched {
   public:
    std::vector<const std::byte*> at;
    void call(const OpCall& call, std::span<const TensorView> operands, std::span<const TensorView> gradients, const CallContext& context) override {
      at.push_back(operands.front().data);
      Watched::call(call, operands, gradients, context);
    }
  } backend;
  EXPECT_EQ(three_samples(backend, {op::Add{.tokens = 4, .hidden = 8}, Pass::forward, {}}).count, 3);
  ASSERT_EQ(backend.at.size(), 7u);
  for (std::size_t i = 1; i < 7; ++i) EXPECT_EQ(backend.at[i] == backend.at[0], i % 2 == 0) << i;
}

TEST(Timing, OperandsLargerThanAnyCacheAreNotThereTwice) {
  class Held : public Watched {
   public:
    std::int64_t bytes = 0;
    int added = 0;
    [[nodiscard]] Memory allocate(Bytes size, const std::string& what) override {
      bytes += size.value;
      return Watched::allocate(size, what);
    }
    void call(const OpCall&, std::span<const TensorView>, std::span<const TensorView>, const CallContext&) override { ++added; }
  } backend;
  const std::int64_t elements = kMostCleared.value / 2;   // three operands of as many bytes and more
  EXPECT_EQ(three_samples(backend, {op::Add{.tokens = elements / 4096, .hidden = 4096}, Pass::forward, {}}).count, 3);
  EXPECT_EQ(backend.added, 7) << "before each sample all the same";
  EXPECT_LT(backend.bytes, 6 * 4 * elements);
  EXPECT_GE(backend.bytes, 3 * 2 * elements);
}

TEST(Timing, WhatAHostDoesBeforeASampleCountsAgainstTheLimit) {
  class Slow : public Watched {
   public:
    int called = 0;
    void call(const OpCall&, std::span<const TensorView>, std::span<const TensorView>, const CallContext&) override {
      if (++called % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));   // those before samples
    }
  } backend;
  const Backend::Memory memory = backend.allocate({64}, "cache flush");
  const ProfileSample s = time_call(backend, {op::Add{.tokens = 4, .hidden = 8}, Pass::forward, {}}, {.least = 2, .most = 1000, .noise = 0, .limit = {0.05}}, {.flush = {memory.get(), DType::f32, {16}}});
  EXPECT_LT(s.count, 10);
}

TEST(Timing, EveryTokenHasALabel) {
  const std::unique_ptr<Backend> backend = cpu_backend(CpuStorage::as_planned);
  const Op loss = op::CrossEntropy{.tokens = 16, .hidden = 8, .vocabulary = 32};
  const Stage stage(*backend, {loss, Pass::forward, {}});
  const Operands contract = operands(loss);
  const auto labels = std::find_if(contract.begin(), contract.end(), [](const Operand& o) { return o.name == "labels"; });
  std::vector<float> values(16);
  backend->read(stage.values[static_cast<std::size_t>(labels - contract.begin())], values);
  for (const float each : values) EXPECT_TRUE(each >= 0 && each < 32) << each;
}

TEST(CpuBackend, SubnormalNumbersAreZeroInItsCallsAlone) {
  const std::unique_ptr<Backend> backend = cpu_backend(CpuStorage::wide);
  const Op sum = op::Add{.tokens = 1, .hidden = 2};
  const std::array<float, 2> x{1e-39f, 2.0f}, y{0.0f, 1e-39f};
  std::vector<Backend::Memory> memory;
  std::vector<TensorView> views;
  for (const Operand& o : operands(sum)) memory.push_back(backend->allocate({8}, "row")), views.push_back({memory.back().get(), backend->held(o.dtype), o.shape});
  backend->write(views[0], x), backend->write(views[1], y);
  backend->call({sum, Pass::forward, {}}, views, std::vector<TensorView>(views.size()), {});
  std::array<float, 2> out{};
  backend->read(views[2], out);
  EXPECT_EQ(out, (std::array{0.0f, 2.0f}));
  volatile float small = 1e-39f;
  EXPECT_GT(small + 0.0f, 0.0f) << "as before, elsewhere";
}

TEST(Timing, AnUpdateIsTimedWithTheOtherPassesOverGradients) {
  Watched backend;
  const OpCall update{op::AdamW{.elements = 64}, Pass::forward, {}};
  EXPECT_EQ(three_samples(backend, update).key, "adamw elements=64 forward");
  ASSERT_EQ(backend.calls.size(), 2u * 2 + 4 * 7) << "moments cleared, then once before the samples, and before and in each";
  EXPECT_EQ(std::vector<std::string>(backend.calls.end() - 4, backend.calls.end()), (std::vector<std::string>{"clear", "add", "grad_norm", "adamw"}));
}

}  // namespace
}  // namespace moeplan
