/// One typed test over the whole catalogue: a reference's backward is the derivative of its forward (central differences in double),
/// reads nothing that the contract does not list for the wanted gradients, and float agrees with double.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/call_data.hpp"

namespace moeplan {
namespace {

using test::CallData;
using test::random_inputs;

template <class T>
void run_forward(const Op& op, CallData<T>& data) { reference::forward<T>(op, data.views); }

bool differentiable(const Op& op) {
  for (const Operand& o : operands(op))
    if (o.role == Role::output) return true;
  return false;
}

bool wanted(const Operand& o, Wants wants) {
  return (o.role == Role::input && wants.input_grad) || (o.role == Role::weight && o.trained && wants.weight_grad);
}

/// Gradients of sum <direction, outputs>, from a frame in which everything that is not needed is absent.
template <class T>
CallData<T> run_backward(const Op& op, const CallData<T>& data, const CallData<T>& direction, Wants wants) {
  const Operands list = operands(op);
  CallData<T> gradients(list, std::numeric_limits<T>::quiet_NaN());
  std::vector<reference::View<T>> values = data.views, d = gradients.views;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!needed(list[i].need, wants)) values[i].data = nullptr;
    if (list[i].role == Role::output) d[i].data = const_cast<T*>(direction.buffers[i].data());
    else if (!wanted(list[i], wants)) d[i].data = nullptr;
  }
  reference::backward<T>(op, values, d);
  return gradients;
}

CallData<double> random_direction(const Operands& list) {
  CallData<double> out(list);
  std::mt19937_64 random(11);
  for (auto& buffer : out.buffers)
    for (double& v : buffer) v = std::uniform_real_distribution<double>(-1, 1)(random);
  return out;
}

double projected(const Op& op, CallData<double>& data, const CallData<double>& direction) {
  run_forward(op, data);
  const Operands list = operands(op);
  double sum = 0;
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].role == Role::output)
      for (std::size_t e = 0; e < static_cast<std::size_t>(list[i].shape.elements()); ++e) sum += data.buffers[i][e] * direction.buffers[i][e];
  return sum;
}

std::vector<Op> cases_with_reference() {
  std::vector<Op> out;
  for (const Op& op : all_cases())
    if (backends(kind(op)).reference) out.push_back(op);
  return out;
}

std::string case_name(const testing::TestParamInfo<Op>& info) { return std::string(kind(info.param)) + "_" + std::to_string(info.index); }

class Reference : public testing::TestWithParam<Op> {};

TEST_P(Reference, BackwardIsTheDerivativeOfForward) {
  const Op& op = GetParam();
  if (!differentiable(op)) return;
  const Operands list = operands(op);
  auto data = random_inputs(op, 7);
  const auto direction = random_direction(list);
  run_forward(op, data);
  for (const Wants asked : {Wants{true, true}, Wants{true, false}, Wants{false, true}}) {
    const Wants wants = possible(op, asked);
    if (wants == Wants{false, false}) continue;
    const auto gradients = run_backward(op, data, direction, wants);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!wanted(list[i], wants)) continue;
      // Every element of a small tensor, some 60 spread over a large one.
      const auto elements = static_cast<std::size_t>(list[i].shape.elements());
      for (std::size_t e = 0; e < elements; e += 1 + elements / 61) {
        const double step = 1e-5, at = data.buffers[i][e];
        data.buffers[i][e] = at + step;
        const double above = projected(op, data, direction);
        data.buffers[i][e] = at - step;
        const double below = projected(op, data, direction);
        data.buffers[i][e] = at;
        const double numeric = (above - below) / (2 * step), analytic = gradients.buffers[i][e];
        ASSERT_NEAR(analytic, numeric, 2e-7 * (1 + std::abs(numeric))) << key(op, Pass::backward, wants) << ": d" << list[i].name << "[" << e << "]";
      }
    }
    run_forward(op, data);
  }
}

TEST_P(Reference, FloatAgreesWithDouble) {
  const Op& op = GetParam();
  const Operands list = operands(op);
  auto data = random_inputs(op, 7);
  auto single = test::converted<float>(list, data);
  run_forward(op, data);
  run_forward(op, single);
  const auto compare = [&](const CallData<double>& a, const CallData<float>& b, auto&& chosen, const char* what) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!chosen(list[i])) continue;
      for (std::size_t e = 0; e < static_cast<std::size_t>(list[i].shape.elements()); ++e)
        ASSERT_NEAR(a.buffers[i][e], static_cast<double>(b.buffers[i][e]), 5e-5 * (1 + std::abs(a.buffers[i][e]))) << what << list[i].name << "[" << e << "]";
    }
  };
  compare(data, single, [](const Operand& o) { return o.role == Role::output || o.role == Role::aux; }, "");
  const Wants wants = possible(op, {true, true});
  if (!differentiable(op) || wants == Wants{false, false}) return;
  const auto direction = random_direction(list);
  compare(run_backward(op, data, direction, wants), run_backward(op, single, test::converted<float>(list, direction), wants),
          [&](const Operand& o) { return wanted(o, wants); }, "d");
}

INSTANTIATE_TEST_SUITE_P(Catalogue, Reference, testing::ValuesIn(cases_with_reference()), case_name);

class WithoutReference : public testing::TestWithParam<Op> {};

TEST_P(WithoutReference, IsRefusedByName) {
  const Op& op = GetParam();
  if (backends(kind(op)).reference) return;
  CallData<double> data(operands(op));
  try {
    run_forward(op, data);
    FAIL() << "ran";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find(kind(op)), std::string::npos) << e.what();
  }
  GTEST_SKIP() << kind(op) << " has no reference here";
}

INSTANTIATE_TEST_SUITE_P(Catalogue, WithoutReference, testing::ValuesIn(examples()), case_name);

}  // namespace
}  // namespace moeplan
