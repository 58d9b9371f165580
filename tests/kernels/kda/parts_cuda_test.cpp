/// \file
/// KDA on the GPU at the lengths that are trained on, with many heads, and cut into parts in every way. Skipped by name
/// where there is no Hopper GPU.
#include "kernels/kda/scratch.hpp"
#include "tests/kernels/kda/cuda_case.hpp"

namespace moeplan::kernels::kda {
namespace {

using namespace test;

constexpr Gate softplus{.form = GateForm::softplus}, bounded{.form = GateForm::bounded, .lower_bound = -5};
constexpr std::int64_t no_segments = std::int64_t{1} << 20;

/// 0 to 63 tokens past a chunk's edge, empty sequences among them, and a long one.
std::vector<std::int64_t> remainders() {
  std::vector<std::int64_t> lengths;
  for (int n = 0; n < 64; ++n) lengths.push_back(n % 5 == 0 ? 64 + n : n);
  lengths.insert(lengths.begin() + 20, {1500, 0});
  lengths.insert(lengths.end(), {700, 0, 1});
  return lengths;
}

std::size_t room_for(int heads, const std::vector<std::int64_t>& lengths, const Options& options, int head_dim = 128) {
  Dims dims{.heads = heads, .head_dim = head_dim, .sequences = static_cast<std::int64_t>(lengths.size())};
  for (const auto n : lengths) dims.tokens += n;
  return workspace_bytes(dims, options, Pass::backward);
}

class KdaCudaLong : public testing::TestWithParam<Case> {};
class KdaCudaParts : public testing::TestWithParam<Case> {};

TEST_P(KdaCudaLong, equals_the_fp64_recurrence) {
  if (no_device()) GTEST_SKIP() << skipped;
  expect_the_recurrence(GetParam());
}
TEST_P(KdaCudaParts, equals_the_fp64_recurrence) {
  if (no_device()) GTEST_SKIP() << skipped;
  expect_the_recurrence(GetParam());
}

std::vector<Case> long_cases() {
  std::vector<Case> list{
      {.name = "T4096", .lengths = {4096}, .gate = bounded},
      {.name = "T4096 softplus", .lengths = {4096}, .gate = softplus, .z_mean = -4},
      {.name = "T16384", .lengths = {16384}, .heads = 1, .gate = bounded},
      {.name = "T16384 little decay", .lengths = {16384}, .heads = 1, .gate = softplus, .z_mean = -7},
      {.name = "T16384 unsegmented",
       .lengths = {16384},
       .heads = 1,
       .gate = bounded,
       .options = {.segment_chunks = no_segments}},
      {.name = "a tail of one token", .lengths = {8191, 1}, .heads = 3, .gate = bounded},
      {.name = "96 heads", .lengths = {70, 33}, .heads = 96, .gate = bounded},
      {.name = "128 heads", .lengths = {129}, .heads = 128, .gate = softplus, .z_mean = -3}};
  std::vector<std::int64_t> every;
  for (int n = 1; n <= 257; ++n) every.push_back(n);
  list.push_back({.name = "packed 1 to 257", .lengths = every, .heads = 1, .gate = bounded});
  return list;
}

std::vector<Case> part_cases() {
  const std::vector<std::int64_t> few{700, 100, 1, 0, 191, 64, 65};
  std::vector<Case> list;
  for (const int d : {64, 128}) {
    const std::string width = " D" + std::to_string(d);
    list.push_back({.name = "segments in groups of 2 and 3 heads" + width,
                    .lengths = few,
                    .heads = 5,
                    .head_dim = d,
                    .gate = softplus,
                    .z_mean = -3,
                    .options = {.workspace_limit = room_for(3, few, {.segment_chunks = 2}, d), .segment_chunks = 2}});
    list.push_back({.name = "segments a head at a time" + width,
                    .lengths = few,
                    .heads = 3,
                    .head_dim = d,
                    .gate = bounded,
                    .options = {.workspace_limit = 1, .segment_chunks = 3}});
    list.push_back(
        {.name = "slabs and packed remainders" + width,
         .lengths = remainders(),
         .heads = 2,
         .head_dim = d,
         .gate = softplus,
         .z_mean = -3,
         .options = {.workspace_limit = std::size_t{static_cast<unsigned>(d)} << 15, .segment_chunks = no_segments}});
    list.push_back({.name = "slabs a head at a time" + width,
                    .lengths = remainders(),
                    .heads = 2,
                    .head_dim = d,
                    .gate = bounded,
                    .options = {.workspace_limit = 1, .segment_chunks = no_segments},
                    .states = false});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(shapes, KdaCudaLong, testing::ValuesIn(long_cases()), test_name);
INSTANTIATE_TEST_SUITE_P(cuts, KdaCudaParts, testing::ValuesIn(part_cases()), test_name);

TEST(KdaCudaSlabs, give_the_bits_of_all_chunks_at_once) {
  if (no_device()) GTEST_SKIP() << skipped;
  Case c{.name = "slabs",
         .lengths = remainders(),
         .heads = 3,
         .gate = softplus,
         .z_mean = -3,
         .options = {.segment_chunks = no_segments}};
  const auto in = make_inputs(c);
  const std::vector<double> zero_out(in.v.size()), zero_state(in.initial_state.size());
  const auto whole = run_cuda(c, in, zero_out, zero_state).outputs;
  c.options.workspace_limit = std::size_t{6} << 20;
  const Cut cut =
      cut_of({.tokens = in.cu_seqlens.back(), .heads = 3, .sequences = static_cast<std::int64_t>(c.lengths.size())},
             c.options, Pass::forward);
  ASSERT_GT(cut.slabs, 2);
  const auto slabs = run_cuda(c, in, zero_out, zero_state).outputs;
  EXPECT_EQ(slabs.out, whole.out);
  EXPECT_EQ(slabs.final_state, whole.final_state);
}

}  // namespace
}  // namespace moeplan::kernels::kda
