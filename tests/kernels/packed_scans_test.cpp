/// Documents packed into one sequence are what each is alone, in every scan: its outputs and gradients bit for bit, the parameters' gradients their
/// sum; and numbers that are none in one document stay there.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/call_data.hpp"

namespace moeplan {
namespace {

using test::CallData;

constexpr std::int64_t kTokens = 23;
const std::vector<double> kStarts{0, 1, 9, 9, 17, kTokens};   // of one token, of eight, empty, ...

Op with(Op op, std::int64_t tokens, std::int64_t packed) {
  std::visit([&]<class O>(O& o) {
    if constexpr (requires { o.packed_sequences; o.sequence_length; }) o.tokens = o.sequence_length = tokens, o.packed_sequences = packed;
  }, op);
  return op;
}

struct Ran {
  CallData<double> values, gradients;
};
/// Forward and backward; the output's gradient is `dy`.
Ran run(const Op& op, CallData<double> values, const std::vector<double>& dy) {
  const Operands list = operands(op);
  reference::forward<double>(op, values.views);
  CallData<double> gradients(list);
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].role == Role::output) std::copy(dy.begin(), dy.end(), gradients.buffers[i].begin());
  reference::backward<double>(op, values.views, gradients.views);
  return {std::move(values), std::move(gradients)};
}

CallData<double> inputs(const Op& op) {
  CallData<double> data = test::random_inputs(op, 3);
  const Operands list = operands(op);
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].name == "starts") data.buffers[i] = kStarts, data.views[i].data = data.buffers[i].data();
  return data;
}

std::vector<double> of_rows(const std::vector<double>& all, std::int64_t width, double from, double end) {
  return {all.begin() + static_cast<std::ptrdiff_t>(from) * width, all.begin() + static_cast<std::ptrdiff_t>(end) * width};
}

class PackedScans : public testing::TestWithParam<Op> {
 protected:
  const Op op = with(GetParam(), kTokens, static_cast<std::int64_t>(kStarts.size()) - 1);
  const Operands list = operands(op);
  std::vector<double> dy() const {
    std::mt19937_64 random(5);
    std::vector<double> out;
    for (std::int64_t i = 0; i < list.back().shape.elements(); ++i) out.push_back(std::uniform_real_distribution<double>(-1, 1)(random));
    return out;
  }
};

TEST_P(PackedScans, AreTheDocumentsAlone) {
  const Ran packed = run(op, inputs(op), dy());
  std::vector<std::vector<double>> sums(list.size());
  for (std::size_t d = 0; d + 1 < kStarts.size(); ++d) {
    const double from = kStarts[d], end = kStarts[d + 1];
    if (from == end) continue;
    const Op one = with(op, static_cast<std::int64_t>(end - from), 0);
    const Operands own = operands(one);
    CallData<double> data(own);
    const CallData<double> all = inputs(op);
    const auto packed_at = [&](std::size_t i) {
      std::size_t at = 0;
      while (list[at].name != own[i].name) ++at;
      return at;
    };
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::vector<double>& from_all = all.buffers[packed_at(i)];
      data.buffers[i] = own[i].role == Role::input ? of_rows(from_all, own[i].shape[1], from, end) : own[i].role == Role::weight ? from_all : data.buffers[i];
      data.views[i].data = data.buffers[i].data();
    }
    const Ran alone = run(one, std::move(data), of_rows(dy(), list.back().shape[1], from, end));
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::size_t at = packed_at(i);
      if (own[i].role == Role::output) { EXPECT_EQ(alone.values.buffers[i], of_rows(packed.values.buffers[at], own[i].shape[1], from, end)) << own[i].name << " of document " << d; }
      if (own[i].role == Role::input) { EXPECT_EQ(alone.gradients.buffers[i], of_rows(packed.gradients.buffers[at], own[i].shape[1], from, end)) << "d " << own[i].name << " of document " << d; }
      if (own[i].role != Role::weight) continue;
      sums[at].resize(alone.gradients.buffers[i].size());
      for (std::size_t e = 0; e < sums[at].size(); ++e) sums[at][e] += alone.gradients.buffers[i][e];
    }
  }
  for (std::size_t i = 0; i < list.size(); ++i)
    for (std::size_t e = 0; e < sums[i].size(); ++e) EXPECT_NEAR(packed.gradients.buffers[i][e], sums[i][e], 1e-12 * (1 + std::abs(sums[i][e]))) << "d " << list[i].name;
}

TEST_P(PackedScans, KeepWhatIsNoNumberInItsDocument) {
  const Ran clean = run(op, inputs(op), dy());
  CallData<double> data = inputs(op);
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].role == Role::input) std::fill(data.buffers[i].begin() + list[i].shape[1], data.buffers[i].begin() + 9 * list[i].shape[1], std::numeric_limits<double>::quiet_NaN());
  const Ran spoiled = run(op, std::move(data), dy());
  for (std::size_t i = 0; i < list.size(); ++i)
    for (const auto& [from, end] : {std::pair{0.0, 1.0}, std::pair{9.0, static_cast<double>(kTokens)}}) {
      const std::int64_t width = list[i].shape[list[i].shape.rank - 1];
      if (list[i].role == Role::output) { EXPECT_EQ(of_rows(clean.values.buffers[i], width, from, end), of_rows(spoiled.values.buffers[i], width, from, end)) << list[i].name; }
      if (list[i].role == Role::input) { EXPECT_EQ(of_rows(clean.gradients.buffers[i], width, from, end), of_rows(spoiled.gradients.buffers[i], width, from, end)) << "d " << list[i].name; }
    }
}

INSTANTIATE_TEST_SUITE_P(Scans, PackedScans,
                         testing::Values(Op{op::Mamba1{.inner = 6, .state = 3, .training = Training::full}}, Op{op::Mamba2{.heads = 4, .head_dim = 3, .groups = 2, .state = 5, .training = Training::full}},
                                         Op{op::LightningAttention{.heads = 2, .head_dim = 4}}),
                         [](const auto& each) { return std::string(kind(each.param)); });

}  // namespace
}  // namespace moeplan
