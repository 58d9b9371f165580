/// \file
/// Attention on CUDA where the typed test over the catalogue does not reach: rows that no sequence has, boundaries that
/// make no sense, sinks that dwarf the logits, offsets beyond 2^31, long replays, refusals.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/attention/op.hpp"
#include "tests/kernels/device_call.hpp"

namespace moeplan {
namespace {

using op::Attention;
using test::Guarded;
using test::Raw;

class AttentionCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::device_count() == 0) GTEST_SKIP() << "attention: no CUDA device on this machine";
  }
};

/// A call with random operands; `shift` values behind the alignment that the fast kernels want.
struct Call {
  Attention op;
  Operands list;
  std::vector<std::unique_ptr<Guarded>> values, gradients;

  explicit Call(const Attention& o, std::size_t shift = 0, const std::vector<std::int32_t>& starts = {}, float sink = 0)
      : op(o), list(o.operands()) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (const Operand& each : list) {
      const std::size_t count = static_cast<std::size_t>(each.shape.elements());
      std::vector<double> numbers(count);
      for (std::size_t i = 0; i < count; ++i)
        numbers[i] = each.name == "starts"  ? starts.at(i)
                     : each.name == "sinks" ? static_cast<double>(sink)
                                            : normal(random);
      const Raw raw = test::stored(each.dtype, numbers, count);
      values.push_back(std::make_unique<Guarded>(raw.size(), shift * test::unit_bytes(each.dtype)));
      if (each.role != Role::output && each.role != Role::aux) values.back()->upload(raw);
      gradients.push_back(std::make_unique<Guarded>(raw.size(), shift * test::unit_bytes(each.dtype)));
      if (each.role == Role::output) gradients.back()->upload(raw);
    }
  }
  static std::vector<void*> pointers(const std::vector<std::unique_ptr<Guarded>>& all) {
    std::vector<void*> out;
    for (const auto& each : all) out.push_back(each->data());
    return out;
  }
  void run() {
    const Wants wants = possible(Op(op), {true, true});
    const kernels::DeviceBuffer scratch(static_cast<std::size_t>(cuda::workspace(op, Pass::backward, wants).value));
    std::vector<void*> d = pointers(gradients);
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].role == Role::aux || list[i].role == Role::index ||
          (list[i].role == Role::weight && !list[i].trained))
        d[i] = nullptr;
    cuda::forward(op, pointers(values), nullptr, nullptr);
    cuda::backward(op, pointers(values), d, scratch.get(), nullptr);
    kernels::check(cudaDeviceSynchronize(), "attention");
    for (std::size_t i = 0; i < list.size(); ++i)
      EXPECT_TRUE(values[i]->untouched_around() && gradients[i]->untouched_around()) << list[i].name;
  }
  [[nodiscard]] std::size_t at(std::string_view name) const {
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].name == name) return i;
    throw std::out_of_range(std::string(name));
  }
  [[nodiscard]] std::vector<double> value(std::string_view name) const {
    return test::numbers(list[at(name)].dtype, values[at(name)]->download());
  }
  [[nodiscard]] std::vector<double> gradient(std::string_view name) const {
    return test::numbers(list[at(name)].dtype, gradients[at(name)]->download());
  }
  [[nodiscard]] std::vector<Raw> results() const {
    std::vector<Raw> out;
    for (const auto& each : values) out.push_back(each->download());
    for (const auto& each : gradients) out.push_back(each->download());
    return out;
  }
};

bool finite(const std::vector<double>& v) {
  return std::all_of(v.begin(), v.end(), [](double x) { return std::isfinite(x); });
}

TEST_F(AttentionCuda, RowsThatNoSequenceHasAreZero) {
  for (const std::size_t shift : {0u, 1u}) {
    Call call({.tokens = 200,
               .sequence_length = 80,
               .heads = 4,
               .kv_heads = 2,
               .d_qk = 128,
               .d_v = 128,
               .packed_sequences = 2},
              shift, {3, 70, 150});
    call.run();
    for (const auto& [name, gradient] : std::vector<std::pair<const char*, bool>>{
             {"y", false}, {"lse", false}, {"q", true}, {"k", true}, {"v", true}}) {
      const auto v = gradient ? call.gradient(name) : call.value(name);
      const std::size_t width = v.size() / 200;
      for (std::size_t i = 0; i < v.size(); ++i) {
        const bool outside = i / width < 3 || i / width >= 150;
        ASSERT_TRUE(outside ? v[i] == 0 : std::isfinite(v[i])) << name << " row " << i / width << " " << v[i];
      }
    }
  }
}

TEST_F(AttentionCuda, BoundariesThatMakeNoSenseWriteNothingOutside) {
  for (const auto& starts : std::vector<std::vector<std::int32_t>>{
           {50, -7, 1000, 20}, {0, 1 << 30, -(1 << 30), 90}, {90, 90, 90, 90}, {-5, -4, -3, -2}})
    for (const std::size_t shift : {0u, 1u})
      Call({.tokens = 90,
            .sequence_length = 30,
            .heads = 2,
            .kv_heads = 1,
            .d_qk = 128,
            .d_v = 128,
            .packed_sequences = 3},
           shift, starts)
          .run();
}

TEST_F(AttentionCuda, ASinkThatDwarfsTheLogitsTakesAllAndOneFarBelowTakesNothing) {
  for (const std::size_t shift : {0u, 1u}) {
    Attention op{.tokens = 130,
                 .sequence_length = 130,
                 .heads = 2,
                 .kv_heads = 1,
                 .d_qk = 128,
                 .d_v = 128,
                 .sinks = true,
                 .training = Training::full};
    Call high(op, shift, {}, 300), low(op, shift, {}, -1e4f);
    high.run(), low.run();
    for (const double y : high.value("y")) ASSERT_EQ(y, 0);
    for (const double lse : high.value("lse")) ASSERT_NEAR(lse, 300, 1e-3);
    ASSERT_TRUE(finite(high.gradient("q")) && finite(high.gradient("sinks")));
    for (const double d : low.gradient("sinks")) ASSERT_EQ(d, 0);
    op.sinks = false;
    Call none(op, shift);
    none.run();
    const auto a = low.value("y"), b = none.value("y");  // the same numbers were drawn for q, k and v
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << i;
  }
}

TEST_F(AttentionCuda, FiftyReplaysOfALongPackedCallAreEqualToTheBit) {
  for (const std::int64_t d_qk : {128, 192}) {
    Call call({.tokens = 3000,
               .sequence_length = 1000,
               .heads = 8,
               .kv_heads = d_qk == 192 ? 8 : 2,
               .d_qk = d_qk,
               .d_v = 128,
               .shared_key = d_qk - 128,
               .packed_sequences = 3},
              0, {0, 15, 1999, 3000});
    call.run();
    const auto first = call.results();
    for (int replay = 0; replay < test::replays(); ++replay) {
      call.run();
      ASSERT_EQ(call.results(), first) << replay;
    }
  }
}

TEST_F(AttentionCuda, ReachesBeyond2To31Elements) {
  // 131200 tokens of 128 heads of 128 in sequences of 64 that hold the same numbers, so every sequence has the first
  // one's results.
  const Attention op{.tokens = 131200, .sequence_length = 64, .heads = 128, .kv_heads = 128, .d_qk = 128, .d_v = 128};
  const std::size_t piece = 64 * 128 * 128, count = static_cast<std::size_t>(op.tokens) * 128 * 128;
  ASSERT_GT(count, std::size_t{1} << 31);
  std::mt19937 random(9);
  std::vector<kernels::DeviceBuffer> memory;
  const auto tensor = [&](bool filled) {
    memory.emplace_back(2 * count);
    if (!filled) return memory.back().get();
    std::vector<double> numbers(piece);
    for (double& x : numbers) x = static_cast<double>(random() % 2001) / 1000 - 1;
    const Raw raw = test::stored(DType::bf16, numbers, piece);
    auto* to = memory.back().get<std::uint8_t>();
    kernels::check(cudaMemcpy(to, raw.data(), raw.size(), cudaMemcpyHostToDevice), "fill");
    for (std::size_t done = raw.size(); done < 2 * count; done *= 2)
      kernels::check(cudaMemcpy(to + done, to, std::min(done, 2 * count - done), cudaMemcpyDeviceToDevice), "repeat");
    return memory.back().get();
  };
  const kernels::DeviceBuffer lse(static_cast<std::size_t>(op.tokens) * 128 * 4),
      scratch(static_cast<std::size_t>(cuda::workspace(op, Pass::backward, {true, false}).value));
  const std::vector<void*> values{tensor(true), tensor(true), tensor(true), tensor(false), lse.get()};
  const std::vector<void*> gradients{tensor(false), tensor(false), tensor(false), tensor(true), nullptr};
  cuda::forward(op, values, nullptr, nullptr);
  cuda::backward(op, values, gradients, scratch.get(), nullptr);
  kernels::check(cudaDeviceSynchronize(), "attention beyond 2^31");
  const auto block = [&](void* tensor_memory, std::size_t first) {
    Raw raw(2 * piece);
    kernels::check(cudaMemcpy(raw.data(), static_cast<std::uint8_t*>(tensor_memory) + 2 * first, raw.size(),
                              cudaMemcpyDeviceToHost),
                   "read back");
    return raw;
  };
  for (void* result : {values[3], gradients[0], gradients[1], gradients[2]}) {
    const Raw first = block(result, 0);
    EXPECT_TRUE(finite(test::numbers(DType::bf16, first)));
    EXPECT_EQ(block(result, count - piece), first);
    EXPECT_EQ(block(result, count / 2 / piece * piece), first);
  }
}

TEST(AttentionCudaRefusal, NamesTheNumbers) {
  EXPECT_NE(
      cuda::refusal(Attention{.tokens = 8, .sequence_length = 8, .heads = 1, .kv_heads = 1, .d_qk = 520, .d_v = 512})
          .find("520"),
      std::string::npos);
  EXPECT_NE(
      cuda::refusal(Attention{.tokens = 8, .sequence_length = 8, .heads = 3, .kv_heads = 2, .d_qk = 64, .d_v = 64})
          .find("3 query heads"),
      std::string::npos);
  EXPECT_NE(
      cuda::refusal(
          Attention{
              .tokens = 8, .sequence_length = 4, .heads = 2, .kv_heads = 2, .d_qk = 64, .d_v = 64, .kv_tokens = 4})
          .find("only 4 keys"),
      std::string::npos);
  EXPECT_NE(
      cuda::refusal(
          Attention{
              .tokens = 4, .sequence_length = 4, .heads = 2, .kv_heads = 2, .d_qk = 64, .d_v = 64, .kv_tokens = 7})
          .find("do not divide"),
      std::string::npos);
  EXPECT_EQ(
      cuda::refusal(Attention{.tokens = 8, .sequence_length = 8, .heads = 2, .kv_heads = 2, .d_qk = 64, .d_v = 64}),
      "");
}

}  // namespace
}  // namespace moeplan
