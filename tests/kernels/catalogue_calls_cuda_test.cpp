/// \file
/// Single calls of the CUDA backend beside the typed test: more elements than 31 bits count, stored weights against their dequantised form,
/// and what is refused on the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/arranged.hpp"
#include "kernels/grouped_linear/scratch.hpp"
#include "tests/kernels/device_call.hpp"

namespace moeplan {
namespace {

using test::Raw;

/// Device memory that holds `byte` everywhere: two results that are compared begin with different bytes, so that what neither writes is seen.
kernels::DeviceBuffer filled(std::int64_t bytes, int byte) {
  kernels::DeviceBuffer out(static_cast<std::size_t>(bytes));
  out.fill(byte);
  return out;
}
constexpr int ours = 0xff, theirs = 0xee;

Raw bytes_of(const kernels::DeviceBuffer& from) { return from.download<std::uint8_t>(); }

TEST(CudaBackend, AddsMoreThanTwoToThe31Elements) {
  if (kernels::device_count() == 0) GTEST_SKIP() << "add: no CUDA device on this machine";
  const op::Add add{262145, 8192};   // 2^31 + 8192 elements
  const std::size_t n = static_cast<std::size_t>(add.tokens * add.hidden), row = static_cast<std::size_t>(add.hidden);
  kernels::DeviceBuffer a(2 * n), b(2 * n), y(2 * n);
  a.fill(0x3e), b.fill(0x3e), y.fill(0xff);   // 0.1856 each
  std::vector<double> last(row);
  for (std::size_t i = 0; i < row; ++i) last[i] = static_cast<double>(i % 113);
  const Raw raw = test::stored(DType::bf16, last, row);
  kernels::check(cudaMemcpy(a.get<std::uint8_t>() + 2 * (n - row), raw.data(), raw.size(), cudaMemcpyHostToDevice), "copy the last row");
  const std::vector<void*> pointers{a.get(), b.get(), y.get()};
  cuda::forward(add, pointers, nullptr, nullptr);
  const double each = test::numbers(DType::bf16, Raw{0x3e, 0x3e})[0];
  const auto row_at = [&](std::size_t first) {
    Raw out(2 * row);
    kernels::check(cudaMemcpy(out.data(), y.get<std::uint8_t>() + 2 * first, out.size(), cudaMemcpyDeviceToHost), "copy a row back");
    return test::numbers(DType::bf16, out);
  };
  for (const std::size_t first : {std::size_t{0}, n / 2, n - 2 * row})
    for (const double v : row_at(first)) ASSERT_EQ(v, 2 * each) << "row at " << first;
  const auto end = row_at(n - row);
  for (std::size_t i = 0; i < row; ++i) ASSERT_NEAR(end[i], last[i] + each, 4e-3 * (1 + last[i])) << i;
}

TEST(CudaBackend, ALinearLayerReadsAStoredWeightAsItsDequantisedForm) {
  if (kernels::device_count() == 0) GTEST_SKIP() << "linear: no CUDA device on this machine";
  cuda::Products products;
  constexpr std::int64_t tokens = 33, in = 256, out = 96;
  const auto upload = [](kernels::DeviceBuffer& to, std::int64_t n, unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<double> values(static_cast<std::size_t>(n));
    for (double& v : values) v = std::uniform_real_distribution<double>(-1, 1)(random);
    const Raw raw = test::stored(DType::bf16, values, values.size());
    kernels::check(cudaMemcpy(to.get<std::uint8_t>(), raw.data(), raw.size(), cudaMemcpyHostToDevice), "copy");
  };
  auto x = filled(2 * tokens * in, ours), w = filled(2 * in * out, ours);
  upload(x, tokens * in, 1), upload(w, in * out, 2);
  for (const DType type : {DType::fp8, DType::mxfp4, DType::int4}) {
    if (!cuda::refusal(op::Quantise{out, in, DType::bf16, type}).empty()) continue;
    auto stored = filled(stored_bytes(type, Shape{out, in}).value, ours), plain = filled(2 * in * out, ours);
    auto y = filled(2 * tokens * out, ours), want = filled(2 * tokens * out, theirs), dx = filled(2 * tokens * in, ours), want_dx = filled(2 * tokens * in, theirs);
    cuda::forward(op::Quantise{out, in, DType::bf16, type}, std::vector<void*>{w.get(), stored.get()}, nullptr, nullptr);
    cuda::forward(op::Dequantise{out, in, type}, std::vector<void*>{stored.get(), plain.get()}, nullptr, nullptr);
    const op::Linear reads{.tokens = tokens, .in = in, .out = out, .weight = type}, bf16{.tokens = tokens, .in = in, .out = out};
    const auto scratch = filled(std::max(cuda::workspace(reads, Pass::forward).value, cuda::workspace(reads, Pass::backward, {true, false}).value), ours);
    cuda::forward(reads, std::vector<void*>{x.get(), stored.get(), y.get()}, scratch.get(), nullptr, &products);
    cuda::forward(bf16, std::vector<void*>{x.get(), plain.get(), want.get()}, nullptr, nullptr, &products);
    cuda::backward(reads, std::vector<void*>{nullptr, stored.get(), nullptr}, std::vector<void*>{dx.get(), nullptr, y.get()}, scratch.get(), nullptr, &products);
    cuda::backward(bf16, std::vector<void*>{nullptr, plain.get(), nullptr}, std::vector<void*>{want_dx.get(), nullptr, want.get()}, nullptr, nullptr, &products);
    EXPECT_EQ(bytes_of(y), bytes_of(want)) << name_of(type);
    EXPECT_EQ(bytes_of(dx), bytes_of(want_dx)) << name_of(type);
  }
}

/// Stored weights of a call of `rows` rows, which reads them back in waves of experts, against their dequantised form.
void expect_read_in_waves(DType type, std::int64_t rows) {
  constexpr std::int64_t experts = 5, width = 8192, block = std::int64_t{1} << 24;
  const op::GroupedLinear reads{.rows = rows, .experts = experts, .in = width, .out = width, .weight = type}, bf16{.rows = rows, .experts = experts, .in = width, .out = width};
  ASSERT_LT(kernels::grouped_linear::wave_experts(reads), experts);
  std::mt19937_64 random(7);
  std::vector<double> values(static_cast<std::size_t>(block));
  for (double& v : values) v = static_cast<double>(random() % 2048) / 1024 - 1;
  const Raw raw = test::stored(DType::bf16, values, values.size());
  const auto upload = [&](kernels::DeviceBuffer& to, std::int64_t elements) {
    for (std::int64_t at = 0; at < elements; at += block)
      kernels::check(cudaMemcpy(to.get<std::uint8_t>() + 2 * at, raw.data(), static_cast<std::size_t>(2 * std::min(block, elements - at)), cudaMemcpyHostToDevice), "copy");
  };
  auto x = filled(2 * rows * width, ours), plain = filled(2 * experts * width * width, ours), y = filled(2 * rows * width, ours), want = filled(2 * rows * width, theirs);
  auto stored = filled(stored_bytes(type, Shape{experts, width, width}).value, ours);
  upload(x, rows * width), upload(plain, experts * width * width);
  cuda::forward(op::Quantise{experts * width, width, DType::bf16, type}, std::vector<void*>{plain.get(), stored.get()}, nullptr, nullptr);
  cuda::forward(op::Dequantise{experts * width, width, type}, std::vector<void*>{stored.get(), plain.get()}, nullptr, nullptr);
  if (cuda::reads_arranged(reads)) cuda::arrange(type, stored.get<std::byte>(), experts * width * width, nullptr);
  const auto scratch = filled(std::max(cuda::workspace(reads, Pass::forward).value, cuda::workspace(reads, Pass::backward, {true, false}).value), ours);
  cuda::forward(reads, std::vector<void*>{x.get(), stored.get(), y.get()}, scratch.get(), nullptr);
  cuda::forward(bf16, std::vector<void*>{x.get(), plain.get(), want.get()}, scratch.get(), nullptr);
  EXPECT_EQ(bytes_of(y), bytes_of(want));
  y.fill(ours), want.fill(theirs);
  cuda::backward(reads, std::vector<void*>{nullptr, stored.get(), nullptr}, std::vector<void*>{y.get(), nullptr, x.get()}, scratch.get(), nullptr);
  cuda::backward(bf16, std::vector<void*>{nullptr, plain.get(), nullptr}, std::vector<void*>{want.get(), nullptr, x.get()}, scratch.get(), nullptr);
  EXPECT_EQ(bytes_of(y), bytes_of(want));
}

TEST(CudaBackend, GroupedLayersReadStoredWeightsInWavesAsTheirDequantisedForm) {
  if (kernels::device_count() == 0) GTEST_SKIP() << "grouped_linear: no CUDA device on this machine";
  expect_read_in_waves(DType::int8, 300);
  expect_read_in_waves(DType::fp8, 5 * 800);   // so many that the product does not expand them
}

std::string refused(const Op& op, std::size_t missing = SIZE_MAX) {
  std::vector<std::uint64_t> somewhere(64);
  std::vector<void*> pointers(operands(op).size(), somewhere.data());
  if (missing < pointers.size()) pointers[missing] = nullptr;
  try {
    cuda::forward(op, pointers, somewhere.data(), nullptr);
  } catch (const InputError& e) {
    return e.what();
  }
  return "ran";
}

TEST(CudaBackend, RefusesByNameWhatItDoesNotHave) {
  for (const Op& op : examples())
    EXPECT_TRUE(cuda::refusal(op).empty() || refused(op).find(kind(op)) != std::string::npos) << refused(op);
  EXPECT_NE(refused(op::AdamW{48, OptimizerKind::muon, DType::f32, DType::bf16, 6, 8}).find("muon"), std::string::npos);
  EXPECT_NE(refused(op::Quantise{2, 128, DType::bf16, DType::nf4}).find("nf4"), std::string::npos);
  EXPECT_NE(refused(op::Embedding{5, 17, 32, Training::lora, 4}).find("LoRA"), std::string::npos);
  EXPECT_NE(refused(op::ShortConv{.tokens = 8, .sequence_length = 8, .channels = 8, .taps = 5}).find("5 taps"), std::string::npos);
  EXPECT_NE(refused(op::Rope{.tokens = 2, .heads = 1, .head_dim = 8, .rotary_dim = 3, .sequence_length = 2}).find("pairs"), std::string::npos);
}

TEST(CudaBackend, RefusesRowsThatDoNotFitABlockWithTheNumber) {
  EXPECT_NE(refused(op::RmsNorm{2, 16392}).find("16392"), std::string::npos);
  EXPECT_NE(refused(op::LayerNorm{2, 4097}).find("4097"), std::string::npos);
}

TEST(CudaBackend, NamesAnOperandThatHasNoMemory) { EXPECT_NE(refused(op::Add{3, 8}, 1).find("add.b"), std::string::npos) << refused(op::Add{3, 8}, 1); }

}  // namespace
}  // namespace moeplan
