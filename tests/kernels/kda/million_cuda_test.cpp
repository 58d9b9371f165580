/// \file
/// KDA on tensors that are made on the device: replays, and a million tokens of 32 heads. Skipped by name where there
/// is no Hopper GPU or not enough of its memory.
#include "kernels/kda/scratch.hpp"
#include "tests/kernels/kda/cuda_case.hpp"

namespace moeplan::kernels::kda {
namespace {

using namespace test;

constexpr int width = 128;

/// `count` bf16: a block of normal numbers, repeated.
DeviceBuffer random_on_device(std::size_t count, unsigned seed) {
  const std::size_t block = std::min(count, std::size_t{1} << 22);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(block);
  for (auto& x : values) x = to_bf16(normal(random));
  DeviceBuffer buffer(count * 2);
  check(cudaMemcpy(buffer.get(), values.data(), block * 2, cudaMemcpyHostToDevice), "fill inputs");
  for (std::size_t done = block; done < count; done *= 2)
    check(
        cudaMemcpy(buffer.get<Bf16>() + done, buffer.get(), std::min(done, count - done) * 2, cudaMemcpyDeviceToDevice),
        "fill inputs");
  return buffer;
}

/// Inputs, outputs and gradients of one sequence, worked on as the catalogue does.
struct Device {
  Dims dims;
  Gate gate_form;
  std::size_t elements, rows;
  DeviceBuffer q, k, v, gate, d_out, out, d_q, d_k, d_v, d_gate, beta, d_beta, a_log, bias, d_a_log, d_bias, workspace;

  Device(const Dims& shape, Gate form)
      : dims(shape),
        gate_form(form),
        elements(static_cast<std::size_t>(shape.tokens * shape.heads * width)),
        rows(static_cast<std::size_t>(shape.tokens * shape.heads)),
        q(random_on_device(elements, 1)),
        k(random_on_device(elements, 2)),
        v(random_on_device(elements, 3)),
        gate(random_on_device(elements, 4)),
        d_out(random_on_device(elements, 5)),
        out(poisoned(elements * 2)),
        d_q(poisoned(elements * 2)),
        d_k(poisoned(elements * 2)),
        d_v(poisoned(elements * 2)),
        d_gate(poisoned(elements * 2)),
        beta(rows * 4),
        d_beta(poisoned(rows * 4)),
        a_log(DeviceBuffer::of(std::vector<float>(static_cast<std::size_t>(shape.heads), 0.5f))),
        bias(DeviceBuffer::of(std::vector<float>(static_cast<std::size_t>(shape.heads) * width, -0.5f))),
        d_a_log(poisoned(a_log.bytes())),
        d_bias(poisoned(bias.bytes())),
        workspace(poisoned(std::max(bytes(Pass::forward), bytes(Pass::backward)))) {
    std::vector<float> steps(rows);
    for (std::size_t i = 0; i < rows; ++i) steps[i] = 0.05f + 0.9f * static_cast<float>(i * 2654435761u % 1000) / 1000;
    check(cudaMemcpy(beta.get(), steps.data(), rows * 4, cudaMemcpyHostToDevice), "fill beta");
  }
  [[nodiscard]] Options options() const { return {.workspace_limit = static_cast<std::size_t>(scratch_limit(dims))}; }
  [[nodiscard]] std::size_t bytes(Pass pass) const { return workspace_bytes(dims, options(), pass); }

  /// Tokens [first, first + count).
  [[nodiscard]] Forward call(std::int64_t first, std::int64_t count) const {
    const std::int64_t row = first * dims.heads, at = row * width;
    Forward f{.dims = dims, .gate_form = gate_form, .options = options()};
    f.dims.tokens = count;
    f.q = q.get<Bf16>() + at, f.k = k.get<Bf16>() + at, f.v = v.get<Bf16>() + at, f.gate = gate.get<Bf16>() + at;
    f.beta = beta.get<float>() + row, f.a_log = a_log.get<float>(), f.dt_bias = bias.get<float>(),
    f.out = out.get<Bf16>() + at;
    f.workspace = workspace.get();
    return f;
  }
  [[nodiscard]] Backward gradients(std::int64_t first, std::int64_t count) const {
    const std::int64_t row = first * dims.heads, at = row * width;
    Backward b{.forward = call(first, count)};
    b.d_out = d_out.get<Bf16>() + at, b.d_q = d_q.get<Bf16>() + at, b.d_k = d_k.get<Bf16>() + at,
    b.d_v = d_v.get<Bf16>() + at;
    b.d_gate = d_gate.get<Bf16>() + at, b.d_beta = d_beta.get<float>() + row, b.d_a_log = d_a_log.get<float>(),
    b.d_dt_bias = d_bias.get<float>();
    return b;
  }
  [[nodiscard]] std::vector<const DeviceBuffer*> wide() const { return {&out, &d_q, &d_k, &d_v, &d_gate}; }

  /// Every `step`th token of a wide tensor, all heads.
  [[nodiscard]] std::vector<double> sampled(const DeviceBuffer& x, std::int64_t step) const {
    const std::size_t row = static_cast<std::size_t>(dims.heads) * width,
                      count = static_cast<std::size_t>(dims.tokens / step);
    std::vector<Bf16> bits(row * count);
    check(cudaMemcpy2D(bits.data(), row * 2, x.get<Bf16>() + static_cast<std::size_t>(step - 1) * row,
                       row * 2 * static_cast<std::size_t>(step), row * 2, count, cudaMemcpyDeviceToHost),
          "sample rows");
    std::vector<double> values(bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) values[i] = from_bf16(bits[i]);
    return values;
  }
  /// Tokens [first, first + count) of one head.
  [[nodiscard]] std::vector<double> of_head(const DeviceBuffer& x, std::int64_t first, std::int64_t count,
                                            int head) const {
    std::vector<Bf16> bits(static_cast<std::size_t>(count) * width);
    check(cudaMemcpy2D(bits.data(), width * 2, x.get<Bf16>() + (first * dims.heads + head) * width,
                       static_cast<std::size_t>(dims.heads) * width * 2, width * 2, static_cast<std::size_t>(count),
                       cudaMemcpyDeviceToHost),
          "read a head");
    std::vector<double> values(bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) values[i] = from_bf16(bits[i]);
    return values;
  }
};

void expect_fifty_equal(const Dims& dims, Gate form) {
  const Device device(dims, form);
  std::vector<std::vector<std::uint32_t>> first;
  for (int replay = 0; replay < 50; ++replay) {
    std::vector<const DeviceBuffer*> written = device.wide();
    written.insert(written.end(), {&device.d_beta, &device.d_a_log, &device.d_bias});
    for (const auto* x : written) check(cudaMemset(x->get(), 0xff, x->bytes()), "poison");
    forward(device.call(0, dims.tokens), nullptr);
    backward(device.gradients(0, dims.tokens), nullptr);
    check(cudaDeviceSynchronize(), "replay");
    for (std::size_t i = 0; i < written.size(); ++i) {
      auto bits = written[i]->download<std::uint32_t>();
      if (replay == 0)
        first.push_back(std::move(bits));
      else
        ASSERT_EQ(bits, first[i]) << "replay " << replay << " tensor " << i;
    }
  }
}

TEST(KdaCudaReplays, fifty_give_the_same_bits_in_segments) {
  if (no_device()) GTEST_SKIP() << skipped;
  expect_fifty_equal({.tokens = 16384, .heads = 2}, {.form = GateForm::bounded});
}
TEST(KdaCudaReplays, fifty_give_the_same_bits_without_segments) {
  if (no_device()) GTEST_SKIP() << skipped;
  expect_fifty_equal({.tokens = 1500, .heads = 16}, {.form = GateForm::softplus});
}

TEST(KdaCudaMillion, a_million_tokens_of_32_heads_end_as_the_fp64_recurrence_does_from_the_state_before) {
  if (no_device()) GTEST_SKIP() << skipped;
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "free memory");
  if (free < 100'000'000'000)
    GTEST_SKIP() << "SKIPPED kda cuda: a million tokens of 32 heads take 90 GB, " << free / 1'000'000'000
                 << " GB are free";
  constexpr std::int64_t tokens = std::int64_t{1} << 20, half = tokens / 2, last = 64;
  constexpr int heads = 32;
  const Device device({.tokens = tokens, .heads = heads}, {.form = GateForm::softplus});
  const std::size_t state_bytes = std::size_t{heads} * width * width * 4;
  const auto state = poisoned(state_bytes), end = poisoned(state_bytes), end_of_halves = poisoned(state_bytes),
             d_state = poisoned(state_bytes);

  Forward whole = device.call(0, tokens);
  whole.final_state = end.get<float>();
  forward(whole, nullptr);
  backward(device.gradients(0, tokens), nullptr);
  Forward before = device.call(0, tokens - last);
  const DeviceBuffer unused(device.elements * 2);  // the outputs of the whole run stay
  before.out = unused.get<Bf16>(), before.final_state = state.get<float>();
  forward(before, nullptr);
  check(cudaDeviceSynchronize(), "kda of a million tokens");

  std::vector<std::vector<double>> rows;
  for (const auto* x : device.wide()) {
    rows.push_back(device.sampled(*x, 64));  // a token of each chunk: a NaN in a state spreads over its columns at once
    ASSERT_TRUE(std::all_of(rows.back().begin(), rows.back().end(), [](double y) { return std::isfinite(y); }))
        << "tensor " << rows.size();
  }
  for (const auto* x : {&device.d_beta, &device.d_a_log, &device.d_bias}) {
    const auto values = x->download<float>();
    ASSERT_TRUE(std::all_of(values.begin(), values.end(), [](float y) { return std::isfinite(y); }));
  }

  const auto states = download_float(state), beta = download_float(device.beta), d_beta = download_float(device.d_beta);
  for (const int head : {0, 17, 31}) {
    reference::Inputs<double> in;
    in.cu_seqlens = {0, last}, in.heads = 1, in.head_dim = width, in.gate_form = device.gate_form,
    in.scale = 1 / std::sqrt(double(width));
    in.q = device.of_head(device.q, tokens - last, last, head),
    in.k = device.of_head(device.k, tokens - last, last, head);
    in.v = device.of_head(device.v, tokens - last, last, head),
    in.gate = device.of_head(device.gate, tokens - last, last, head);
    const auto own = [&](const std::vector<double>& x) {
      std::vector<double> y;
      for (std::int64_t t = tokens - last; t < tokens; ++t) y.push_back(x[static_cast<std::size_t>(t * heads + head)]);
      return y;
    };
    in.beta = own(beta), in.a_log = {0.5}, in.dt_bias.assign(width, -0.5);
    in.initial_state.assign(states.begin() + head * width * width, states.begin() + (head + 1) * width * width);
    const auto want = reference::recurrent_forward(in);
    const auto d = reference::recurrent_backward(in, device.of_head(device.d_out, tokens - last, last, head),
                                                 std::vector<double>(width * width));
    const auto at_end = [&](const DeviceBuffer& x) { return device.of_head(x, tokens - last, last, head); };
    EXPECT_LT(relative_error(at_end(device.out), want.out), 8e-3) << "head " << head;
    EXPECT_LT(relative_error(at_end(device.d_q), d.q), 1e-2) << "head " << head;
    EXPECT_LT(relative_error(at_end(device.d_k), d.k), 1e-2) << "head " << head;
    EXPECT_LT(relative_error(at_end(device.d_v), d.v), 1e-2) << "head " << head;
    EXPECT_LT(relative_error(at_end(device.d_gate), d.gate, 1e-6), 1e-2) << "head " << head;
    EXPECT_LT(relative_error(own(d_beta), d.beta), 1e-2) << "head " << head;
    const auto ends = download_float(end);
    EXPECT_LT(relative_error({ends.begin() + head * width * width, ends.begin() + (head + 1) * width * width},
                             want.final_state),
              8e-3)
        << "head " << head;
  }

  // The two halves, the state handed up and its gradient down.
  Forward low = device.call(0, half), high = device.call(half, half);
  low.final_state = state.get<float>(), high.initial_state = state.get<float>(),
  high.final_state = end_of_halves.get<float>();
  forward(low, nullptr), forward(high, nullptr);
  Backward up = device.gradients(half, half), down = device.gradients(0, half);
  up.forward.initial_state = state.get<float>(), up.d_initial_state = d_state.get<float>(),
  down.d_final_state = d_state.get<float>();
  backward(up, nullptr), backward(down, nullptr);
  check(cudaDeviceSynchronize(), "kda of two halves");
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_LT(relative_error(device.sampled(*device.wide()[i], 64), rows[i]), 1e-2) << "tensor " << i;
  EXPECT_LT(relative_error(download_float(end_of_halves), download_float(end)), 8e-3);
}

}  // namespace
}  // namespace moeplan::kernels::kda
