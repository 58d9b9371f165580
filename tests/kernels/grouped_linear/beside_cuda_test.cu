#include "kernels/grouped_linear/cuda.hpp"
#include "tests/kernels/moe_cuda_support.hpp"

namespace gl = moeplan::kernels::grouped_linear;
using namespace moeplan::tests;

namespace {

/// Sits on a multiprocessor for `cycles`, as a collective's kernel does.
__global__ void hold(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
}

} // namespace

TEST(GroupedLinearCuda, beside_kernels_that_hold_multiprocessors_every_tile_is_computed_once) {
    MOEPLAN_NEEDS_GPU();
    const int experts = 64, each = 130, in = 256, out = 1024, rows = experts * each;
    const gl::Dims dims{.experts = experts, .rows = rows, .in = in, .out = out};
    std::vector<int> counts;
    for (int e = 0; e <= experts; ++e) counts.push_back(e * each);
    const auto offsets = DeviceBuffer::of(counts), next = DeviceBuffer::of(std::vector<int>{0});
    const auto x = upload_bf16(bf16_values(static_cast<std::size_t>(rows) * in, 1)), weight = upload_bf16(bf16_values(static_cast<std::size_t>(experts) * in * out, 2, 0.1));
    const moeplan::kernels::Stream beside, stream;
    const int shared = static_cast<int>(moeplan::kernels::device_facts().shared_bytes_block); // nothing else fits beside it
    moeplan::kernels::check(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "reserve shared memory");
    for (const auto clusters : {gl::Clusters::single, gl::Clusters::pairs}) {
        std::vector<std::uint16_t> want;
        for (const int held : {0, 1, 24, 100}) {
            DeviceBuffer y = poisoned(static_cast<std::size_t>(rows) * out * 2);
            moeplan::kernels::check(cudaDeviceSynchronize(), "poison");
            if (held > 0) hold<<<held, 32, shared, beside.get()>>>(2'000'000);
            moeplan::kernels::check_launch("hold", "");
            gl::forward({.dims = dims, .x = x.get<bf16>(), .x_rows = rows, .weight = weight.get<bf16>(), .offsets = offsets.get<int>(), .y = y.get<bf16>(), .clusters = clusters,
                         .next = next.get<int>()},
                        stream.get());
            stream.synchronize();
            const auto got = y.download<std::uint16_t>();
            if (held == 0) want = got;
            ASSERT_EQ(got, want) << held;
            ASSERT_EQ(next.download<int>()[0], 0) << held;
            beside.synchronize();
        }
    }
}
