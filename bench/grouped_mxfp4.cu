/// \file
/// MXFP4 and FP8 grouped layers beside the bf16 kernels of the same run, at real shapes: cold-cache medians taken in turn.
/// "read back": all FP8 weights to bf16, as for the most rows an expert.
#include "bench/bench_support.cuh"
#include "kernels/grouped_linear/fp8_cuda.hpp"
#include "kernels/grouped_linear/mxfp4_cuda.hpp"

#include <cmath>
#include <cstdio>

using namespace moeplan;
using namespace moeplan::bench;
namespace gl = moeplan::kernels::grouped_linear;

int main(int argc, char** argv) {
    if (kernels::device_count() == 0) {
        std::printf("SKIPPED grouped_mxfp4: no CUDA device\n");
        return 0;
    }
    const int experts = argc > 1 ? std::atoi(argv[1]) : 64;
    const struct { const char* name; int in, out; } shapes[] = {
        {"up7168x4096", 7168, 4096}, {"dn2048x7168", 2048, 7168}, {"up3584x4096", 3584, 4096}, {"gpt-oss 2880x5760", 2880, 5760}};
    for (const auto& s : shapes) {
        const std::size_t values = static_cast<std::size_t>(experts) * s.in * s.out;
        const auto weight = random_buffer<bf16>(values, 1, 2.0f / std::sqrt(s.in));
        DeviceBuffer packed(values / 2), scales(values / 32), prepared(values / 32);
        fill_bytes<<<1056, 256>>>(packed.get<std::uint8_t>(), values / 2, 2, 0, 256);
        fill_bytes<<<1056, 256>>>(scales.get<std::uint8_t>(), values / 32, 3, 117, 4);
        gl::mxfp4::arrange_weights(packed.get<std::uint8_t>(), static_cast<std::int64_t>(values / 2), nullptr);
        const std::int64_t tall = static_cast<std::int64_t>(experts) * s.out, blocks = (tall / 128) * ((s.in + 127) / 128);
        DeviceBuffer codes(values + static_cast<std::size_t>(blocks) * 4), plain(values * 2);
        fill_bytes<<<1056, 256>>>(codes.get<std::uint8_t>(), values, 6, 0, 127);
        fill_noise<<<1056, 256>>>(reinterpret_cast<float*>(codes.get<std::uint8_t>() + values), blocks, 7, 1e-4f);
        const gl::fp8::Weights eight{codes.get<std::uint8_t>(), reinterpret_cast<const float*>(codes.get<std::uint8_t>() + values)};
        const float read_back = cold_median([&] { gl::fp8::read_back(eight.codes, eight.scales, tall, s.in, plain.get<bf16>(), nullptr); });
        for (const int t : {16, 64, 128, 256, 1024}) {
            const gl::Dims d{.experts = experts, .rows = t * experts, .in = s.in, .out = s.out};
            const auto x = random_buffer<bf16>(static_cast<std::size_t>(d.rows) * s.in, 4, 1.0f);
            const auto dy = random_buffer<bf16>(static_cast<std::size_t>(d.rows) * s.out, 5, 1.0f);
            std::vector<int> offsets;
            for (int e = 0; e <= experts; ++e) offsets.push_back(e * t);
            const auto o = DeviceBuffer::of(offsets), counter = DeviceBuffer::of(std::vector<int>{0});
            int* const next = counter.get<int>();
            DeviceBuffer y(dy.bytes()), dx(x.bytes());
            gl::mxfp4::prepare_scales(d, gl::GateLayout::halves, scales.get<std::uint8_t>(),
                                      prepared.get<std::uint8_t>(), nullptr);
            const gl::mxfp4::Weights w{packed.get<std::uint8_t>(), prepared.get<std::uint8_t>()};
            const auto forward = [&] {
                gl::forward({.dims = d, .x = x.get<bf16>(), .x_rows = d.rows, .weight = weight.get<bf16>(),
                             .offsets = o.get<int>(), .y = y.get<bf16>(), .next = next},
                            nullptr);
            };
            const auto forward_4 = [&] {
                gl::mxfp4::forward({.dims = d, .x = x.get<bf16>(), .weights = w, .offsets = o.get<int>(), .y = y.get<bf16>(), .next = next}, nullptr);
            };
            const auto forward_8 = [&] {
                gl::fp8::forward({.dims = d, .x = x.get<bf16>(), .weights = eight, .offsets = o.get<int>(), .y = y.get<bf16>(), .next = next}, nullptr);
            };
            const auto backward = [&] {
                gl::input_gradient({.dims = d, .dy = dy.get<bf16>(), .dy_rows = d.rows, .weight = weight.get<bf16>(),
                                    .offsets = o.get<int>(), .dx = dx.get<bf16>(), .next = next},
                                   nullptr);
            };
            const auto backward_4 = [&] {
                gl::mxfp4::input_gradient({.dims = d, .dy = dy.get<bf16>(), .weights = w, .offsets = o.get<int>(), .dx = dx.get<bf16>(), .next = next}, nullptr);
            };
            const auto backward_8 = [&] {
                gl::fp8::input_gradient({.dims = d, .dy = dy.get<bf16>(), .weights = eight, .offsets = o.get<int>(), .dx = dx.get<bf16>(), .next = next}, nullptr);
            };
            const auto forward_4_divided = [&] {
                gl::mxfp4::forward({.dims = d, .x = x.get<bf16>(), .weights = w, .offsets = o.get<int>(), .y = y.get<bf16>()}, nullptr);
            };
            const auto backward_4_divided = [&] {
                gl::mxfp4::input_gradient({.dims = d, .dy = dy.get<bf16>(), .weights = w, .offsets = o.get<int>(), .dx = dx.get<bf16>()}, nullptr);
            };
            const auto m = cold_medians({forward, forward_4, forward_8, backward, backward_4, backward_8, forward_4_divided, backward_4_divided});
            std::printf("%s E%d t%d: fwd bf16 %.4f mxfp4 %.4f (%.2fx) fp8 %.4f (%.2fx)  dX bf16 %.4f mxfp4 %.4f (%.2fx) fp8 %.4f (%.2fx)  fp8 read back %.4f; mxfp4 with tiles divided beforehand %.4f and %.4f\n",
                        s.name, experts, t, m[0], m[1], m[0] / m[1], m[2], m[0] / m[2], m[3], m[4], m[3] / m[4], m[5], m[3] / m[5], read_back, m[6], m[7]);
            std::fflush(stdout);
        }
    }
    kernels::check(cudaDeviceSynchronize(), "the last kernel");
}
