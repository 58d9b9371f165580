/// \file
/// The CUDA kernels of KDA against the fp64 recurrence: every output and every gradient, by relative L2 error. Skipped
/// by name where there is no Hopper GPU.
#include "kernels/kda/scratch.hpp"
#include "tests/kernels/kda/cuda_case.hpp"

namespace moeplan::kernels::kda {
namespace {

using namespace test;

class KdaCuda : public testing::TestWithParam<Case> {};

TEST_P(KdaCuda, equals_the_fp64_recurrence) {
  if (no_device()) GTEST_SKIP() << skipped;
  expect_the_recurrence(GetParam());
}

std::vector<Case> cases() {
  const Gate softplus{.form = GateForm::softplus}, bounded{.form = GateForm::bounded, .lower_bound = -5};
  std::vector<Case> list;
  for (const int t : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 200, 257})
    list.push_back({.name = "T" + std::to_string(t), .lengths = {t}, .gate = bounded});
  for (const int t : {1, 64, 257})
    list.push_back({.name = "D64 T" + std::to_string(t),
                    .lengths = {t},
                    .heads = 3,
                    .head_dim = 64,
                    .gate = softplus,
                    .z_mean = -2});
  std::vector<std::int64_t> remainders;
  for (int n = 0; n < 64; ++n) remainders.push_back(n % 5 == 0 ? 64 + n : n);
  list.push_back({.name = "packed 0..63", .lengths = remainders, .heads = 1, .gate = softplus, .z_mean = -2});
  list.push_back({.name = "packed ends", .lengths = {63, 65, 1, 1, 0, 191, 1}, .gate = bounded, .a_log = 2});
  list.push_back(
      {.name = "no states", .lengths = {150, 90}, .heads = 3, .gate = softplus, .z_mean = -3, .states = false});
  // softplus gates of about -0.001, -0.1, -1, -5.5, -12, -20 nats per token
  for (const auto& [mean, a_log] : {std::pair{-7.0, 0.0}, {-2.3, 0.0}, {0.5, 0.0}, {5.0, 0.1}, {6.0, 0.7}, {10.0, 0.7}})
    list.push_back({.name = "softplus " + std::to_string(mean) + " a " + std::to_string(a_log),
                    .lengths = {130, 67},
                    .gate = softplus,
                    .z_mean = mean,
                    .a_log = a_log});
  // A decay that leaves nothing, and none at all (softplus(-1000) is 0): report 5 of docs/fault_reports.md.
  list.push_back({.name = "softplus minus 1000", .lengths = {130, 67}, .gate = softplus, .z_mean = 1000, .z_spread = 4});
  list.push_back({.name = "softplus without decay", .lengths = {130, 67}, .gate = softplus, .z_mean = -1000, .z_spread = 4});
  list.push_back({.name = "sequences of one", .lengths = std::vector<std::int64_t>(200, 1), .heads = 3, .gate = bounded});
  list.push_back({.name = "mixed gates", .lengths = {200}, .gate = softplus, .z_mean = 0, .z_spread = 6, .a_log = 0.5});
  list.push_back({.name = "bounded at its bound", .lengths = {200}, .gate = bounded, .z_mean = 9});
  list.push_back({.name = "bounded saturated", .lengths = {200}, .gate = bounded, .a_log = 5});
  list.push_back(
      {.name = "bounded A_log 90", .lengths = {200}, .gate = bounded, .z_mean = 4, .z_spread = 0.5, .a_log = 90});
  list.push_back({.name = "segments of 2",
                  .lengths = {700, 100},
                  .gate = softplus,
                  .z_mean = -3,
                  .options = {.segment_chunks = 2}});
  list.push_back({.name = "segments of 3 D64",
                  .lengths = {1000},
                  .heads = 1,
                  .head_dim = 64,
                  .gate = softplus,
                  .z_mean = -4,
                  .options = {.segment_chunks = 3}});
  list.push_back({.name = "one head at a time",
                  .lengths = {100, 100},
                  .heads = 5,
                  .gate = softplus,
                  .z_mean = -3,
                  .options = {.workspace_limit = 1}});
  list.push_back({.name = "many blocks", .lengths = {100, 70}, .heads = 80, .gate = softplus, .z_mean = -3});
  return list;
}

INSTANTIATE_TEST_SUITE_P(shapes, KdaCuda, testing::ValuesIn(cases()), test_name);

/// Rank r of a context-parallel group holds tokens [r T / ranks, (r + 1) T / ranks): states go up, their gradients
/// down.
TEST(KdaCudaContextParallel, a_sequence_cut_over_2_4_and_8_ranks_gives_the_bits_of_the_uncut_one) {
  if (no_device()) GTEST_SKIP() << skipped;
  Case c{.name = "context parallel", .lengths = {1024}, .heads = 2, .gate = {.form = GateForm::softplus}, .z_mean = -3};
  c.options.segment_chunks = 1 << 20;
  const auto in = make_inputs(c);
  std::mt19937_64 random(7);
  const auto d_out = rounded(in.v.size(), 0, 1, random), d_final = rounded(in.initial_state.size(), 0, 0.3, random);
  const auto whole = run_cuda(c, in, d_out, d_final);
  for (const std::int64_t ranks : {2, 4, 8}) {
    const std::int64_t tokens = 1024 / ranks, row = c.heads * c.head_dim;
    Case part_case = c;
    part_case.lengths = {tokens};
    const auto rows = [&](const std::vector<double>& x, std::int64_t rank, std::int64_t width) {
      return std::vector<double>(x.begin() + rank * tokens * width, x.begin() + (rank + 1) * tokens * width);
    };
    std::vector<reference::Inputs<double>> parts;
    auto state = in.initial_state;
    for (std::int64_t r = 0; r < ranks; ++r) {
      auto part = in;
      part.cu_seqlens = {0, tokens};
      part.q = rows(in.q, r, row), part.k = rows(in.k, r, row), part.v = rows(in.v, r, row),
      part.gate = rows(in.gate, r, row);
      part.beta = rows(in.beta, r, c.heads);
      part.initial_state = state;
      parts.push_back(part);
      const auto result = run_cuda(part_case, part, rows(d_out, r, row), d_final);
      EXPECT_EQ(result.outputs.out, rows(whole.outputs.out, r, row)) << ranks << " ranks, rank " << r;
      state = result.outputs.final_state;
    }
    EXPECT_EQ(state, whole.outputs.final_state);
    auto d_state = d_final;
    std::vector<double> d_a_log(c.heads);
    for (std::int64_t r = ranks - 1; r >= 0; --r) {
      const auto g = run_cuda(part_case, parts[r], rows(d_out, r, row), d_state).gradients;
      EXPECT_EQ(g.q, rows(whole.gradients.q, r, row));
      EXPECT_EQ(g.k, rows(whole.gradients.k, r, row));
      EXPECT_EQ(g.v, rows(whole.gradients.v, r, row));
      EXPECT_EQ(g.gate, rows(whole.gradients.gate, r, row));
      EXPECT_EQ(g.beta, rows(whole.gradients.beta, r, c.heads));
      for (int h = 0; h < c.heads; ++h) d_a_log[h] += g.a_log[h];
      d_state = g.initial_state;
    }
    EXPECT_EQ(d_state, whole.gradients.initial_state);
    EXPECT_LT(relative_error(d_a_log, whole.gradients.a_log), 1e-4);
  }
}

TEST(KdaCudaPacking, five_thousand_sequences_of_32_heads_give_the_bits_of_each_alone) {
  if (no_device()) GTEST_SKIP() << skipped;
  constexpr int heads = 32, d = 128, sequences = 5000;
  std::mt19937_64 random(3);
  std::vector<std::int64_t> cu{0};
  for (int n = 0; n < sequences; ++n) cu.push_back(cu.back() + (n % 97 == 0 ? 130 : 1 + std::int64_t(random() % 9)));
  const std::int64_t tokens = cu.back(), row = heads * d;
  std::vector<Bf16> block(1 << 20);
  std::normal_distribution<float> normal;
  for (auto& x : block) x = to_bf16(normal(random));
  const auto fill = [&](std::size_t shift) {
    std::vector<Bf16> x(tokens * row);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = block[(i + shift) % block.size()];
    return DeviceBuffer::of(x);
  };
  const auto q = fill(0), k = fill(12345), v = fill(777), gate = fill(99999), dout = fill(31);
  const auto beta = DeviceBuffer::of(std::vector<float>(tokens * heads, 0.6f)),
             a_log = DeviceBuffer::of(std::vector<float>(heads, 0.2f));
  const auto run = [&](std::int64_t begin, std::int64_t count, std::int64_t n, const std::int64_t* offsets) {
    const Dims dims{.tokens = count, .heads = heads, .head_dim = d, .sequences = n};
    const auto scratch = poisoned(workspace_bytes(dims, {}, Pass::backward));
    std::vector<DeviceBuffer> outs;  // out, dq, dk, dv, dgate
    for (int i = 0; i < 5; ++i) outs.push_back(poisoned(count * row * 2));
    const auto dbeta = poisoned(count * heads * 4), da = poisoned(heads * 4);
    Forward call;
    call.dims = dims;
    call.q = q.get<Bf16>() + begin * row, call.k = k.get<Bf16>() + begin * row, call.v = v.get<Bf16>() + begin * row;
    call.gate = gate.get<Bf16>() + begin * row, call.beta = beta.get<float>() + begin * heads,
    call.a_log = a_log.get<float>();
    call.cu_seqlens = offsets, call.out = outs[0].get<Bf16>(), call.workspace = scratch.get();
    forward(call, nullptr);
    Backward back{.forward = call};
    back.d_out = dout.get<Bf16>() + begin * row;
    back.d_q = outs[1].get<Bf16>(), back.d_k = outs[2].get<Bf16>(), back.d_v = outs[3].get<Bf16>(),
    back.d_gate = outs[4].get<Bf16>();
    back.d_beta = dbeta.get<float>(), back.d_a_log = da.get<float>();
    backward(back, nullptr);
    check(cudaDeviceSynchronize(), "kda packed");
    std::vector<std::vector<Bf16>> results;
    for (const auto& x : outs) results.push_back(x.download<Bf16>());
    return results;
  };
  const auto offsets = DeviceBuffer::of(cu);
  const auto packed = run(0, tokens, sequences, offsets.get<std::int64_t>());
  for (const int n : {0, 1, 2, 96, 97, 98, 2500, 4998, 4999}) {
    const auto alone = run(cu[n], cu[n + 1] - cu[n], 1, nullptr);
    for (std::size_t x = 0; x < alone.size(); ++x)
      EXPECT_TRUE(std::equal(alone[x].begin(), alone[x].end(), packed[x].begin() + cu[n] * row))
          << "sequence " << n << " tensor " << x;
  }
}

TEST(KdaContract, shapes_outside_it_are_refused_with_their_numbers) {
  const auto message = [](const Dims& dims) -> std::string {
    try {
      (void)workspace_bytes(dims, {}, Pass::forward);
    } catch (const UnsupportedShape& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({.tokens = 1, .heads = 1, .head_dim = 96}), "kda: head_dim=96; kernels exist for 64 and 128");
  EXPECT_EQ(message({.tokens = 1, .heads = 129}), "kda: heads=129; 1 to 128 are supported");
  EXPECT_EQ(message({.tokens = 1 << 20, .heads = 128}), "");
}

TEST(KdaContract, a_workspace_limit_is_honoured_by_working_on_fewer_heads_at_a_time) {
  const Dims dims{.tokens = 4096, .heads = 32};
  const auto all = workspace_bytes(dims, {}, Pass::backward);
  const auto half = workspace_bytes(dims, {.workspace_limit = all / 2 + (1 << 16)}, Pass::backward);
  EXPECT_LE(half, all / 2 + (1 << 16));
  EXPECT_GT(half, all / 3);
}

}  // namespace
}  // namespace moeplan::kernels::kda
