/// \file
/// What is no number, or overflows, in one of several packed documents stays there, on a device: all others keep their
/// outputs and gradients bit for bit, those that share its chunks too. Skipped where there is no device.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tests/kernels/call_data.hpp"
#include "tests/kernels/device_call.hpp"

namespace moeplan {
namespace {

using test::Raw;

constexpr std::int64_t kTokens = 700;
/// One at the edge of a chunk, some that share chunks, one in the midst of one, one that is empty, one over several.
const std::vector<double> kStarts{0, 50, 128, 200, 230, 384, 384, kTokens};
constexpr std::size_t kDocuments = 7;

struct Ran {
  std::vector<Raw> values, gradients;  ///< by operand
};

/// Forward and backward; document `spoiled` has `value` in place of every input and output gradient.
Ran run(const Op& op, std::optional<std::size_t> spoiled, double value) {
  const Operands list = operands(op);
  test::CallData<double> data = test::random_inputs(op, 3);
  test::DeviceCall values, gradients;
  std::mt19937_64 random(5);
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::vector<double>& numbers = data.buffers[i];
    const bool by_token = list[i].role == Role::input || list[i].role == Role::output;
    if (list[i].name == "starts") numbers = kStarts;
    if (list[i].role == Role::output)
      for (double& x : numbers) x = std::uniform_real_distribution<double>(-1, 1)(random);
    if (spoiled && by_token) {
      const auto width = static_cast<double>(list[i].shape[1]);
      std::fill(numbers.begin() + static_cast<std::ptrdiff_t>(kStarts[*spoiled] * width),
                numbers.begin() + static_cast<std::ptrdiff_t>(kStarts[*spoiled + 1] * width), value);
    }
    values.add(list[i], true, 0), gradients.add(list[i], list[i].role != Role::index, 0);
    (list[i].role == Role::output ? gradients : values)
        .memory[i]
        ->upload(test::stored(list[i].dtype, numbers, static_cast<std::size_t>(list[i].shape.elements())));
  }
  const Wants wants = possible(op, {true, true});
  const kernels::DeviceBuffer scratch(static_cast<std::size_t>(
      std::max(cuda::workspace(op, Pass::forward, {}).value, cuda::workspace(op, Pass::backward, wants).value)));
  cuda::Products products;
  cuda::forward(op, values.pointers(), scratch.get(), nullptr, &products, {});
  cuda::backward(op, values.pointers(), gradients.pointers(), scratch.get(), nullptr, &products, {});
  kernels::check(cudaDeviceSynchronize(), "finish a call");
  Ran out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    out.values.push_back(values.memory[i]->download());
    out.gradients.push_back(gradients.memory[i] ? gradients.memory[i]->download() : Raw{});
  }
  return out;
}

Raw rows(const Raw& raw, std::size_t document) {
  const auto width = static_cast<double>(raw.size()) / static_cast<double>(kTokens);
  return {raw.begin() + static_cast<std::ptrdiff_t>(width * kStarts[document]),
          raw.begin() + static_cast<std::ptrdiff_t>(width * kStarts[document + 1])};
}

bool finite(DType type, const Raw& raw) {
  const std::vector<double> all = test::numbers(type, raw);
  return std::all_of(all.begin(), all.end(), [](double x) { return std::isfinite(x); });
}

class PackedScansCuda : public testing::TestWithParam<Op> {};

TEST_P(PackedScansCuda, KeepWhatIsNoNumberFromOtherDocuments) {
  if (kernels::device_count() == 0) GTEST_SKIP() << kind(GetParam()) << ": no CUDA device on this machine";
  const Op& op = GetParam();
  const Operands list = operands(op);
  const Ran clean = run(op, std::nullopt, 0);
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity(), 3e38})
    for (std::size_t spoiled = 0; spoiled < kDocuments; ++spoiled) {
      const Ran ran = run(op, spoiled, value);
      for (std::size_t i = 0; i < list.size(); ++i)
        for (std::size_t d = 0; d < kDocuments; ++d) {
          const std::string what = fmt::format("{} of document {} beside {} in document {}", list[i].name, d, value, spoiled);
          const auto judge = [&](const Raw& before, const Raw& now) {
            if (d != spoiled) {
              EXPECT_EQ(rows(before, d), rows(now, d)) << what;
            } else if (std::isnan(value) && kStarts[d] != kStarts[d + 1]) {
              EXPECT_FALSE(finite(list[i].dtype, rows(now, d))) << what;
            }
          };
          if (list[i].role == Role::output) judge(clean.values[i], ran.values[i]);
          if (list[i].role == Role::input) judge(clean.gradients[i], ran.gradients[i]);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Scans, PackedScansCuda,
                         testing::Values(Op{op::Mamba1{.tokens = kTokens,
                                                       .sequence_length = kTokens,
                                                       .inner = 72,
                                                       .state = 16,
                                                       .packed_sequences = kDocuments,
                                                       .training = Training::full}},
                                         Op{op::Mamba2{.tokens = kTokens,
                                                       .sequence_length = kTokens,
                                                       .heads = 6,
                                                       .head_dim = 64,
                                                       .groups = 1,
                                                       .state = 128,
                                                       .packed_sequences = kDocuments,
                                                       .training = Training::full}},
                                         Op{op::LightningAttention{.tokens = kTokens,
                                                                   .sequence_length = kTokens,
                                                                   .heads = 2,
                                                                   .head_dim = 128,
                                                                   .packed_sequences = kDocuments}}),
                         [](const auto& each) { return std::string(kind(each.param)); });

}  // namespace
}  // namespace moeplan
