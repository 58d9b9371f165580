#include "kernels/combine/cuda.hpp"
#include "kernels/combine/reference.hpp"
#include "kernels/permute/cuda.hpp"
#include "kernels/permute/reference.hpp"
#include "tests/kernels/moe_cuda_support.hpp"

#include <algorithm>
#include <numeric>

namespace permute = moeplan::kernels::permute;
namespace combine = moeplan::kernels::combine;
using namespace moeplan::tests;

namespace {

/// Random distinct choices, skewed towards low experts when `skewed`.
std::vector<int> choices(const permute::Dims& d, unsigned seed, bool skewed) {
    std::mt19937 engine(seed);
    std::vector<int> all(d.experts), result;
    for (int t = 0; t < d.tokens; ++t) {
        std::iota(all.begin(), all.end(), 0);
        if (skewed)
            std::shuffle(all.begin() + d.top_k - 1, all.end(), engine);
        else
            std::shuffle(all.begin(), all.end(), engine);
        result.insert(result.end(), all.begin(), all.begin() + d.top_k);
    }
    return result;
}

void compare(const permute::Dims& d, int h, bool skewed, const std::vector<int>& first_copy = {}, int nowhere = 0) {
    auto experts = choices(d, 3, skewed);
    for (std::size_t i = 0; nowhere > 0 && i < experts.size(); i += nowhere) experts[i] = -1;
    const std::size_t n = experts.size();
    std::vector<int> offsets(d.copies + 1), token_of(n, -1), row_of(n);
    permute::reference::sort(d, experts, first_copy, {offsets, token_of, row_of});

    const auto e = DeviceBuffer::of(experts), first = DeviceBuffer::of(first_copy);
    DeviceBuffer o = poisoned((d.copies + 1) * 4), t = poisoned(n * 4), r = poisoned(n * 4),
                 workspace = poisoned(permute::workspace_bytes(d));
    permute::sort({.dims = d, .experts = e.get<int>(), .first_copy = first.get<int>(), .offsets = o.get<int>(),
                   .token_of = t.get<int>(), .row_of = r.get<int>(), .workspace = workspace.get()},
                  nullptr);
    EXPECT_EQ(o.download<int>(), offsets);
    EXPECT_EQ(t.download<int>(), token_of);
    EXPECT_EQ(r.download<int>(), row_of);

    const std::size_t rows = offsets.back();
    const auto x = bf16_values(static_cast<std::size_t>(d.tokens) * h, 1), y = bf16_values(rows * h, 2),
               w = bf16_values(n, 4);
    const auto xd = upload_bf16(x), yd = upload_bf16(y), wd = upload_as<float>(w);
    DeviceBuffer permuted = poisoned(rows * h * 2), dx = poisoned(x.size() * 2), out = poisoned(x.size() * 2),
                 dy = poisoned(rows * h * 2), dw = poisoned(n * 4);
    permute::forward(d, h, r.get<int>(), xd.get<bf16>(), permuted.get<bf16>(), nullptr);
    permute::backward(d, h, r.get<int>(), yd.get<bf16>(), dx.get<bf16>(), nullptr);
    combine::forward(d, h, r.get<int>(), wd.get<float>(), yd.get<bf16>(), out.get<bf16>(), nullptr);
    combine::backward(d, h, r.get<int>(), wd.get<float>(), yd.get<bf16>(), xd.get<bf16>(), dy.get<bf16>(),
                      dw.get<float>(), nullptr);

    std::vector<double> want_permuted(rows * h), want_dx(x.size()), want_out(x.size()), want_dy(rows * h), want_dw(n);
    permute::reference::forward<double>(d, h, offsets, token_of, x, want_permuted);
    permute::reference::backward<double>(d, h, row_of, y, want_dx);
    combine::reference::forward<double>(d, h, row_of, w, y, want_out);
    combine::reference::backward<double>(d, h, row_of, w, y, x, want_dy, want_dw);
    EXPECT_EQ(download_bf16(permuted), want_permuted);
    EXPECT_LT(relative_error(download_bf16(dx), want_dx), 3e-3);
    EXPECT_LT(relative_error(download_bf16(out), want_out), 3e-3);
    EXPECT_LT(relative_error(download_bf16(dy), want_dy), 3e-3);
    const auto got = dw.download<float>();
    EXPECT_LT(relative_error({got.begin(), got.end()}, want_dw), 1e-5);
}

} // namespace

TEST(PermuteCuda, equals_the_reference_for_even_and_skewed_loads) {
    MOEPLAN_NEEDS_GPU();
    for (const int tokens : {1, 31, 255, 256, 257, 1000})
        for (const bool skewed : {false, true}) {
            compare({.tokens = tokens, .top_k = 4, .experts = 16, .copies = 16}, 72, skewed);
            compare({.tokens = tokens, .top_k = 1, .experts = 1, .copies = 1}, 8, skewed);
        }
    compare({.tokens = 300, .top_k = 8, .experts = 1024, .copies = 1024}, 2880, false);
    compare({.tokens = 70, .top_k = 16, .experts = 64, .copies = 64}, 7168, true);
}

TEST(PermuteCuda, drops_beyond_capacity_and_spreads_over_copies) {
    MOEPLAN_NEEDS_GPU();
    compare({.tokens = 700, .top_k = 2, .experts = 8, .copies = 8, .capacity = 100}, 64, true);
    compare({.tokens = 700, .top_k = 2, .experts = 3, .copies = 6}, 64, true, {0, 3, 4, 6});
    compare({.tokens = 700, .top_k = 2, .experts = 3, .copies = 6, .capacity = 90}, 64, true, {0, 3, 4, 6});
    compare({.tokens = 700, .top_k = 2, .experts = 8, .copies = 8}, 64, true, {}, 3); // copies that go nowhere
}

TEST(PermuteCuda, offsets_past_two_billion_elements_do_not_wrap) {
    MOEPLAN_NEEDS_GPU();
    // 38,000 x 8 rows of 7168: 2.18e9 elements; row r of the sorted buffer must hold its token's number.
    const permute::Dims d{.tokens = 38000, .top_k = 8, .experts = 8, .copies = 8};
    std::vector<int> experts(38000 * 8);
    for (std::size_t i = 0; i < experts.size(); ++i) experts[i] = static_cast<int>(i % 8);
    const auto e = DeviceBuffer::of(experts);
    DeviceBuffer o(9 * 4), t(experts.size() * 4), r(experts.size() * 4), workspace(permute::workspace_bytes(d));
    permute::sort({.dims = d, .experts = e.get<int>(), .offsets = o.get<int>(), .token_of = t.get<int>(),
                   .row_of = r.get<int>(), .workspace = workspace.get()},
                  nullptr);
    std::vector<std::uint32_t> tokens(38000ull * 3584);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i / 3584);
    const auto x = DeviceBuffer::of(tokens);
    DeviceBuffer permuted = poisoned(38000ull * 8 * 7168 * 2);
    permute::forward(d, 7168, r.get<int>(), x.get<bf16>(), permuted.get<bf16>(), nullptr);
    const std::size_t last_row = 38000ull * 8 - 1;
    std::vector<std::uint32_t> row(3584);
    moeplan::kernels::check(cudaMemcpy(row.data(), permuted.get<char>() + last_row * 7168 * 2, 7168 * 2,
                                       cudaMemcpyDeviceToHost),
                            "copy the last row");
    for (const auto v : row) ASSERT_EQ(v, 37999u);
}
