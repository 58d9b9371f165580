/// \file
/// The CPU reference of KDA: derivatives against central differences in double, chunked form against the recurrence,
/// packing, state passing and saturated gates.
#include "kernels/kda/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace moeplan::kernels::kda::reference {
namespace {

using Values = std::vector<double>;

Values random_values(std::size_t count, double mean, double spread, std::mt19937_64& random) {
  std::normal_distribution<double> normal(mean, spread);
  Values values(count);
  for (auto& x : values) x = normal(random);
  return values;
}

Inputs<double> random_inputs(std::vector<std::int64_t> cu, int heads, int d, Gate gate, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  const std::size_t tokens = cu.back(), rows = tokens * heads, sequences = cu.size() - 1;
  Inputs<double> in{.cu_seqlens = std::move(cu),
                    .heads = heads,
                    .head_dim = d,
                    .gate_form = gate,
                    .scale = 1 / std::sqrt(double(d)),
                    .q = random_values(rows * d, 0, 1, random),
                    .k = random_values(rows * d, 0, 1, random),
                    .v = random_values(rows * d, 0, 1, random),
                    .gate = random_values(rows * d, -1, 1, random),
                    .beta = random_values(rows, 0, 1, random),
                    .a_log = random_values(heads, 0, 0.5, random),
                    .dt_bias = random_values(heads * d, 0, 0.5, random),
                    .initial_state = random_values(sequences * heads * d * d, 0, 0.3, random)};
  for (auto& b : in.beta) b = 1 / (1 + std::exp(-b));
  return in;
}

double relative_error(const Values& a, const Values& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference) / (std::sqrt(norm) + 1e-300);
}

void expect_close(const Gradients<double>& a, const Gradients<double>& b, double tolerance) {
  EXPECT_LT(relative_error(a.q, b.q), tolerance);
  EXPECT_LT(relative_error(a.k, b.k), tolerance);
  EXPECT_LT(relative_error(a.v, b.v), tolerance);
  EXPECT_LT(relative_error(a.gate, b.gate), tolerance);
  EXPECT_LT(relative_error(a.beta, b.beta), tolerance);
  EXPECT_LT(relative_error(a.a_log, b.a_log), tolerance);
  EXPECT_LT(relative_error(a.dt_bias, b.dt_bias), tolerance);
  EXPECT_LT(relative_error(a.initial_state, b.initial_state), tolerance);
}

double loss(const Inputs<double>& in, const Values& d_out, const Values& d_final) {
  const auto result = recurrent_forward(in);
  double sum = 0;
  for (std::size_t i = 0; i < d_out.size(); ++i) sum += d_out[i] * result.out[i];
  for (std::size_t i = 0; i < d_final.size(); ++i) sum += d_final[i] * result.final_state[i];
  return sum;
}

class BothGates : public testing::TestWithParam<GateForm> {};

TEST_P(BothGates, gradients_of_the_recurrence_equal_central_differences) {
  const auto in = random_inputs({0, 5, 8}, 2, 3, {.form = GetParam()});
  std::mt19937_64 random(7);
  const auto d_out = random_values(in.v.size(), 0, 1, random);
  const auto d_final = random_values(in.initial_state.size(), 0, 1, random);
  const auto gradients = recurrent_backward(in, d_out, d_final);
  const auto check = [&](Values Inputs<double>::*field, const Values& analytic) {
    Values numeric(analytic.size());
    for (std::size_t i = 0; i < numeric.size(); ++i) {
      auto up = in, down = in;
      (up.*field)[i] += 1e-5, (down.*field)[i] -= 1e-5;
      numeric[i] = (loss(up, d_out, d_final) - loss(down, d_out, d_final)) / 2e-5;
    }
    EXPECT_LT(relative_error(analytic, numeric), 1e-7);
  };
  check(&Inputs<double>::q, gradients.q);
  check(&Inputs<double>::k, gradients.k);
  check(&Inputs<double>::v, gradients.v);
  check(&Inputs<double>::gate, gradients.gate);
  check(&Inputs<double>::beta, gradients.beta);
  check(&Inputs<double>::a_log, gradients.a_log);
  check(&Inputs<double>::dt_bias, gradients.dt_bias);
  check(&Inputs<double>::initial_state, gradients.initial_state);
}

TEST_P(BothGates, chunks_of_any_size_give_the_recurrence) {
  const auto in = random_inputs({0, 1, 18, 18, 40}, 2, 8, {.form = GetParam()});
  std::mt19937_64 random(7);
  const auto d_out = random_values(in.v.size(), 0, 1, random);
  const auto d_final = random_values(in.initial_state.size(), 0, 1, random);
  const auto expected = recurrent_forward(in);
  const auto expected_gradients = recurrent_backward(in, d_out, d_final);
  for (const int chunk : {1, 4, 16, 64}) {
    const auto result = chunked_forward(in, chunk);
    EXPECT_LT(relative_error(result.out, expected.out), 1e-12);
    EXPECT_LT(relative_error(result.final_state, expected.final_state), 1e-12);
    expect_close(chunked_backward(in, d_out, d_final, chunk), expected_gradients, 1e-11);
  }
}

TEST_P(BothGates, a_sequence_cut_in_two_and_joined_by_its_state_equals_the_uncut_one) {
  const auto whole = random_inputs({0, 20}, 1, 4, {.form = GetParam()});
  const auto expected = recurrent_forward(whole);
  Values out, state = whole.initial_state;
  for (const auto& [begin, end] : {std::pair{0, 7}, {7, 20}}) {
    auto part = whole;
    const auto rows = [&](const Values& x, int width) {
      return Values(x.begin() + begin * width, x.begin() + end * width);
    };
    part.cu_seqlens = {0, end - begin};
    part.q = rows(whole.q, 4), part.k = rows(whole.k, 4), part.v = rows(whole.v, 4), part.gate = rows(whole.gate, 4);
    part.beta = rows(whole.beta, 1);
    part.initial_state = state;
    const auto result = recurrent_forward(part);
    out.insert(out.end(), result.out.begin(), result.out.end());
    state = result.final_state;
  }
  EXPECT_LT(relative_error(out, expected.out), 1e-14);
  EXPECT_LT(relative_error(state, expected.final_state), 1e-14);
}

INSTANTIATE_TEST_SUITE_P(kda, BothGates, testing::Values(GateForm::softplus, GateForm::bounded));

TEST(KdaGate, golden_values_tell_the_bounded_form_from_a_clamped_softplus) {
  // softplus(0) = ln 2; sigmoid(0) = 1/2.
  EXPECT_NEAR(decay<double>({.form = GateForm::softplus}, std::log(2.0), 0).g, -2 * std::log(2.0), 1e-15);
  EXPECT_NEAR(decay<double>({.form = GateForm::bounded, .lower_bound = -5}, std::log(2.0), 0).g, -2.5, 1e-15);
  EXPECT_NEAR(decay<double>({.form = GateForm::bounded, .lower_bound = -5}, 0.0, std::log(3.0)).g, -3.75, 1e-14);
}

TEST(KdaGate, saturated_gates_have_finite_values_and_zero_slope) {
  for (const double z : {-8.0, 0.0, 8.0}) {
    const auto gate = decay<double>({.form = GateForm::bounded, .lower_bound = -5}, 800.0, z);
    EXPECT_TRUE(std::isfinite(gate.g));
    EXPECT_TRUE(std::isfinite(gate.dg_da_log));
    if (z != 0) {
      EXPECT_EQ(gate.dg_dz, 0);
    }
  }
  EXPECT_EQ(decay<double>({}, 0.0, -1000.0).g, 0);
  EXPECT_EQ(decay<double>({}, 0.0, 1000.0).g, -1000);
}

}  // namespace
}  // namespace moeplan::kernels::kda::reference
