#pragma once
/// Calls of the CUDA kernels of KDA with poisoned outputs and scratch, and what they are judged by: the fp64
/// recurrence.
#include "kernels/base/cuda.hpp"
#include "kernels/kda/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>

namespace moeplan::kernels::kda::test {

struct Case {
  std::string name;
  std::vector<std::int64_t> lengths;
  int heads = 2, head_dim = 128;
  Gate gate{.form = GateForm::bounded};
  double z_mean = 0, z_spread = 1, a_log = 0;  ///< pre-activations; A_log is a_log for every head
  Options options{};
  bool states = true;  ///< with initial and final states
};

inline float from_bf16(Bf16 x) {
  const std::uint32_t bits = std::uint32_t{x} << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
inline Bf16 to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return Bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline std::vector<double> rounded(std::size_t count, double mean, double spread, std::mt19937_64& random) {
  std::normal_distribution<double> normal(mean, spread);
  std::vector<double> x(count);
  for (auto& y : x) y = from_bf16(to_bf16(float(normal(random))));
  return x;
}

inline reference::Inputs<double> make_inputs(const Case& c) {
  std::mt19937_64 random(42);
  reference::Inputs<double> in;
  in.cu_seqlens = {0};
  for (const auto n : c.lengths) in.cu_seqlens.push_back(in.cu_seqlens.back() + n);
  const std::size_t rows = in.cu_seqlens.back() * c.heads, d = c.head_dim;
  in.heads = c.heads, in.head_dim = c.head_dim, in.gate_form = c.gate;
  in.scale = 1 / std::sqrt(double(d));
  in.q = rounded(rows * d, 0, 1, random), in.k = rounded(rows * d, 0, 1, random),
  in.v = rounded(rows * d, 0, 1, random);
  in.gate = rounded(rows * d, c.z_mean, c.z_spread, random);
  in.beta = rounded(rows, 0, 1, random);
  for (auto& b : in.beta) b = float(1 / (1 + std::exp(-b)));
  in.a_log.assign(c.heads, c.a_log);
  in.dt_bias = rounded(c.heads * d, 0, 0.25, random);
  in.initial_state.assign(c.lengths.size() * c.heads * d * d, 0.0);
  if (c.states) in.initial_state = rounded(in.initial_state.size(), 0, 0.3, random);
  return in;
}

inline DeviceBuffer upload_bf16(const std::vector<double>& x) {
  std::vector<Bf16> y;
  for (const double v : x) y.push_back(to_bf16(float(v)));
  return DeviceBuffer::of(y);
}
inline DeviceBuffer upload_float(const std::vector<double>& x) {
  return DeviceBuffer::of(std::vector<float>(x.begin(), x.end()));
}
inline DeviceBuffer poisoned(std::size_t bytes) {
  DeviceBuffer buffer(bytes);
  buffer.fill(0xff);
  return buffer;
}
inline std::vector<double> download_bf16(const DeviceBuffer& x) {
  std::vector<double> y;
  for (const Bf16 v : x.download<Bf16>()) y.push_back(from_bf16(v));
  return y;
}
inline std::vector<double> download_float(const DeviceBuffer& x) {
  const auto y = x.download<float>();
  return {y.begin(), y.end()};
}

struct Results {
  reference::Outputs<double> outputs;
  reference::Gradients<double> gradients;
};

inline Results run_cuda(const Case& c, const reference::Inputs<double>& in, const std::vector<double>& d_out,
                        const std::vector<double>& d_final) {
  const auto q = upload_bf16(in.q), k = upload_bf16(in.k), v = upload_bf16(in.v), gate = upload_bf16(in.gate),
             dout = upload_bf16(d_out);
  const auto beta = upload_float(in.beta), a_log = upload_float(in.a_log), bias = upload_float(in.dt_bias),
             state = upload_float(in.initial_state), dfinal = upload_float(d_final);
  const auto cu = DeviceBuffer::of(in.cu_seqlens);
  const auto out = poisoned(q.bytes()), final_state = poisoned(state.bytes());
  const auto dq = poisoned(q.bytes()), dk = poisoned(q.bytes()), dv = poisoned(q.bytes()), dg = poisoned(q.bytes());
  const auto dbeta = poisoned(beta.bytes()), da = poisoned(a_log.bytes()), dbias = poisoned(bias.bytes()),
             dstate = poisoned(state.bytes());
  const Dims dims{.tokens = in.cu_seqlens.back(),
                  .heads = c.heads,
                  .head_dim = c.head_dim,
                  .sequences = std::int64_t(c.lengths.size())};
  const auto scratch_forward = poisoned(workspace_bytes(dims, c.options, Pass::forward));
  const auto scratch_backward = poisoned(workspace_bytes(dims, c.options, Pass::backward));
  Forward call{.dims = dims, .gate_form = c.gate, .options = c.options};
  call.q = q.get<Bf16>(), call.k = k.get<Bf16>(), call.v = v.get<Bf16>(), call.gate = gate.get<Bf16>();
  call.beta = beta.get<float>(), call.a_log = a_log.get<float>(), call.dt_bias = bias.get<float>();
  call.cu_seqlens = cu.get<std::int64_t>();
  call.initial_state = c.states ? state.get<float>() : nullptr;
  call.out = out.get<Bf16>(), call.final_state = final_state.get<float>(), call.workspace = scratch_forward.get();
  forward(call, nullptr);
  Backward back{.forward = call};
  back.forward.workspace = scratch_backward.get();
  back.d_out = dout.get<Bf16>(), back.d_final_state = c.states ? dfinal.get<float>() : nullptr;
  back.d_q = dq.get<Bf16>(), back.d_k = dk.get<Bf16>(), back.d_v = dv.get<Bf16>(), back.d_gate = dg.get<Bf16>();
  back.d_beta = dbeta.get<float>(), back.d_a_log = da.get<float>(), back.d_dt_bias = dbias.get<float>();
  back.d_initial_state = dstate.get<float>();
  backward(back, nullptr);
  check(cudaDeviceSynchronize(), "kda " + c.name);
  return {.outputs = {.out = download_bf16(out), .final_state = download_float(final_state)},
          .gradients = {.q = download_bf16(dq),
                        .k = download_bf16(dk),
                        .v = download_bf16(dv),
                        .gate = download_bf16(dg),
                        .beta = download_float(dbeta),
                        .a_log = download_float(da),
                        .dt_bias = download_float(dbias),
                        .initial_state = download_float(dstate)}};
}

/// Relative L2 error. `floor` is a root mean square below which a tensor counts as zero.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b, double floor = 0) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference / std::max(norm + 1e-30, floor * floor * double(a.size())));
}

/// No Hopper GPU here: the caller skips by name.
inline bool no_device() { return device_count() == 0 || device_facts().compute_capability != 90; }
inline constexpr const char* skipped = "SKIPPED kda cuda: needs a Hopper GPU";

/// A case's name as a test's.
inline std::string test_name(const testing::TestParamInfo<Case>& which) {
  std::string name;
  for (const char x : which.param.name) name += std::isalnum(static_cast<unsigned char>(x)) ? x : '_';
  return name;
}

/// Every output and every gradient of a case, by relative L2 error.
inline void expect_the_recurrence(const Case& c) {
  const auto in = make_inputs(c);
  std::mt19937_64 random(7);
  const auto d_out = rounded(in.v.size(), 0, 1, random);
  auto d_final = rounded(in.initial_state.size(), 0, 0.3, random);
  if (!c.states) d_final.assign(d_final.size(), 0.0);
  Results expected;
  std::thread truth([&] {
    expected.outputs = reference::recurrent_forward(in);
    expected.gradients = reference::recurrent_backward(in, d_out, d_final);
  });
  Results actual;
  try {
    actual = run_cuda(c, in, d_out, d_final);
  } catch (...) {
    truth.join();
    throw;
  }
  truth.join();
  const auto &a = actual.gradients, &b = expected.gradients;
  struct Check {
    const char* name;
    double error, limit;
  };
  // Storage alone (bf16 in and out) costs 2e-3 to 3e-3. At -20 nats per token the gate's gradient is exp(-20) of the
  // terms it is made of: below 1e-6 of those it counts as zero.
  const Check checks[] = {{"out", relative_error(actual.outputs.out, expected.outputs.out), 8e-3},
                          {"state", relative_error(actual.outputs.final_state, expected.outputs.final_state), 8e-3},
                          {"dq", relative_error(a.q, b.q), 1e-2},
                          {"dk", relative_error(a.k, b.k), 1e-2},
                          {"dv", relative_error(a.v, b.v), 1e-2},
                          {"dgate", relative_error(a.gate, b.gate, 1e-6), 1e-2},
                          {"dbeta", relative_error(a.beta, b.beta), 1e-2},
                          {"da_log", relative_error(a.a_log, b.a_log, 1e-3), 5e-2},
                          {"dbias", relative_error(a.dt_bias, b.dt_bias, 1e-4), 2e-2},
                          {"dstate", relative_error(a.initial_state, b.initial_state), 1e-2}};
  if (!c.states) {   // a sequence's first decay multiplies a state of zeros: what cancels there leaves rounding alone
    double squares = 0, first = 0;
    for (const double g : a.gate) squares += g * g / double(a.gate.size());
    for (std::size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s)
      for (int i = 0; i < c.heads * c.head_dim && in.cu_seqlens[s] < in.cu_seqlens[s + 1]; ++i)
        first = std::max(first, std::abs(a.gate[in.cu_seqlens[s] * c.heads * c.head_dim + i]));
    EXPECT_LT(first, 5e-2 * std::sqrt(squares)) << c.name << " gradient of a first decay";
  }
  std::string line = c.name + ":";
  for (const auto& check : checks) {
    char text[64];
    std::snprintf(text, sizeof text, " %s %.1e%s", check.name, check.error, check.error < check.limit ? "" : " !!");
    line += text;
    EXPECT_LT(check.error, check.limit) << c.name << ' ' << check.name;
  }
  std::puts(line.c_str());
  std::fflush(stdout);
}

}  // namespace moeplan::kernels::kda::test
