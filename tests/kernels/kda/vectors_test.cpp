/// \file
/// The CPU reference of KDA against vectors made with a public implementation (tests/vectors/make_kda_vectors.py).
#include "kernels/kda/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace moeplan::kernels::kda::reference {
namespace {

using Tensors = std::map<std::string, std::vector<double>>;

Tensors read(const std::string& name) {
  std::ifstream file(std::filesystem::path(MOEPLAN_SOURCE) / "tests/vectors" / name);
  EXPECT_TRUE(file.good()) << name;
  Tensors tensors;
  std::string key;
  std::size_t count = 0;
  while (file >> key >> count) {
    auto& values = tensors[key];
    values.resize(count);
    for (auto& x : values) file >> x;
  }
  return tensors;
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference / norm);
}

void check_vectors(const std::string& name, Gate gate) {
  auto t = read(name);
  const int width = 8, heads = 2;
  const Inputs<double> in{.cu_seqlens = {0, std::int64_t(t["beta"].size()) / heads},
                          .heads = heads,
                          .head_dim = width,
                          .gate_form = gate,
                          .scale = 1 / std::sqrt(double(width)),
                          .q = t["q"],
                          .k = t["k"],
                          .v = t["v"],
                          .gate = t["gate"],
                          .beta = t["beta"],
                          .a_log = t["a_log"],
                          .dt_bias = t["dt_bias"],
                          .initial_state = t["initial_state"]};
  const auto outputs = chunked_forward(in, 16);
  const auto g = chunked_backward(in, t["d_out"], t["d_final_state"], 16);
  EXPECT_LT(relative_error(outputs.out, t["out"]), 1e-5);
  EXPECT_LT(relative_error(outputs.final_state, t["final_state"]), 1e-5);
  EXPECT_LT(relative_error(g.q, t["dq"]), 1e-5);
  EXPECT_LT(relative_error(g.k, t["dk"]), 1e-5);
  EXPECT_LT(relative_error(g.v, t["dv"]), 1e-5);
  EXPECT_LT(relative_error(g.gate, t["dgate"]), 1e-5);
  EXPECT_LT(relative_error(g.beta, t["dbeta"]), 1e-5);
  EXPECT_LT(relative_error(g.a_log, t["da_log"]), 1e-5);
  EXPECT_LT(relative_error(g.dt_bias, t["ddt_bias"]), 1e-5);
  EXPECT_LT(relative_error(g.initial_state, t["dinitial_state"]), 1e-5);
}

TEST(KdaVectors, the_softplus_gate_equals_the_public_implementation) {
  check_vectors("kda_softplus.txt", {.form = GateForm::softplus});
}
TEST(KdaVectors, the_bounded_gate_equals_the_public_implementation) {
  check_vectors("kda_bounded.txt", {.form = GateForm::bounded, .lower_bound = -5});
}

}  // namespace
}  // namespace moeplan::kernels::kda::reference
