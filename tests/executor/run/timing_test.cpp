#include <gtest/gtest.h>

#include <algorithm>

#include "executor/calibrate/calibrate.hpp"

namespace moeplan {
namespace {

/// The CPU's, remembering the most that it cleared at once.
class Watched : public Backend {
 public:
  Bytes cleared{};

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] std::string refusal(const Op& op) const override { return inner_->refusal(op); }
  [[nodiscard]] DType held(DType planned) const override { return inner_->held(planned); }
  [[nodiscard]] Memory allocate(Bytes bytes, const std::string& what) override { return inner_->allocate(bytes, what); }
  void write(const TensorView& to, std::span<const float> from) override { inner_->write(to, from); }
  void read(const TensorView& from, std::span<float> to) override { inner_->read(from, to); }
  void write_stored(const TensorView& to, std::span<const std::byte> from) override { inner_->write_stored(to, from); }
  void clear(const TensorView& to) override {
    cleared = std::max(cleared, Bytes{4 * to.shape.elements()});
    inner_->clear(to);
  }
  void fill_normal(const TensorView& to, std::uint64_t state, float deviation) override { inner_->fill_normal(to, state, deviation); }
  void add(const TensorView& from, const TensorView& to, float scale) override { inner_->add(from, to, scale); }
  void copy(const TensorView& from, const TensorView& to) override { inner_->copy(from, to); }
  void call(const OpCall& call, std::span<const TensorView> operands, std::span<const TensorView> gradients, const CallContext& context) override { inner_->call(call, operands, gradients, context); }
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

}  // namespace
}  // namespace moeplan
