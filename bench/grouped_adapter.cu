/// \file
/// What adapters cost beside the frozen layer: forward, input gradient, dA and dB against forward and input gradient
/// alone, cold-cache medians taken in turn; and the gradient of a trained weight. Gradients of adapters are written in
/// bf16, as the catalogue does.
#include "bench/bench_support.cuh"
#include "kernels/grouped_linear/cuda.hpp"

#include <cmath>
#include <cstdio>

using namespace moeplan;
using namespace moeplan::bench;
namespace gl = moeplan::kernels::grouped_linear;

int main() {
    if (kernels::device_count() == 0) {
        std::printf("SKIPPED grouped_adapter: no CUDA device\n");
        return 0;
    }
    const struct { const char* name; int experts, in, out, t; } shapes[] = {
        {"up7168x4096", 64, 7168, 4096, 256}, {"up7168x4096", 64, 7168, 4096, 1024}, {"up2304x2048", 256, 2304, 2048, 256}};
    for (const auto& s : shapes) {
        const gl::Dims d{.experts = s.experts, .rows = s.t * s.experts, .in = s.in, .out = s.out};
        const auto x = random_buffer<bf16>(static_cast<std::size_t>(d.rows) * s.in, 1, 1.0f);
        const auto dy = random_buffer<bf16>(static_cast<std::size_t>(d.rows) * s.out, 2, 1.0f);
        const auto w = random_buffer<bf16>(static_cast<std::size_t>(s.experts) * s.in * s.out, 3, 2.0f / std::sqrt(s.in));
        DeviceBuffer y(dy.bytes()), dx(x.bytes()), dw(w.bytes() * 2);
        std::vector<int> offsets;
        for (int e = 0; e <= s.experts; ++e) offsets.push_back(e * s.t);
        const auto o = DeviceBuffer::of(offsets), counter = DeviceBuffer::of(std::vector<int>{0});
        int* const next = counter.get<int>();
        const auto forward = [&](const gl::LowRank& adapter) {
            gl::forward({.dims = d, .x = x.get<bf16>(), .x_rows = d.rows, .weight = w.get<bf16>(), .offsets = o.get<int>(),
                         .y = y.get<bf16>(), .next = next, .adapter = adapter}, nullptr);
        };
        const auto backward = [&](const gl::LowRank& adapter) {
            gl::input_gradient({.dims = d, .dy = dy.get<bf16>(), .dy_rows = d.rows, .weight = w.get<bf16>(),
                                .offsets = o.get<int>(), .dx = dx.get<bf16>(), .next = next, .adapter = adapter}, nullptr);
        };
        const float trained = cold_median([&] {
            gl::slot_product({.experts = s.experts, .rows = d.rows, .a_width = s.out, .b_width = s.in, .a = dy.get<bf16>(),
                              .b = x.get<bf16>(), .offsets = o.get<int>(), .out = dw.get<float>(), .next = next}, nullptr);
        });
        std::printf("%s E%d t%d: dW %.4f\n", s.name, s.experts, s.t, trained);
        for (const int rank : {16, 32, 64}) {
            const auto a = random_buffer<bf16>(static_cast<std::size_t>(s.experts) * rank * s.in, 4, 0.02f);
            const auto b = random_buffer<bf16>(static_cast<std::size_t>(s.experts) * rank * s.out, 5, 0.02f);
            DeviceBuffer low(static_cast<std::size_t>(d.rows) * rank * 2), back(low.bytes()), da(a.bytes()), db(b.bytes());
            const auto down = [&] {
                gl::low_rows({.factors = s.experts, .rows = d.rows, .width = s.in, .rank = rank, .from = x.get<bf16>(),
                              .factor = a.get<bf16>(), .offsets = o.get<int>(), .low = low.get<bf16>(), .next = next}, nullptr);
            };
            const auto up = [&] {
                gl::low_rows({.factors = s.experts, .rows = d.rows, .width = s.out, .rank = rank, .gradient = true,
                              .from = dy.get<bf16>(), .factor = b.get<bf16>(), .offsets = o.get<int>(),
                              .low = back.get<bf16>(), .next = next}, nullptr);
            };
            const auto grad_a = [&] {
                gl::slot_product({.experts = s.experts, .rows = d.rows, .a_width = s.in, .b_width = rank, .transposed = true,
                                  .a = x.get<bf16>(), .b = back.get<bf16>(), .offsets = o.get<int>(),
                                  .narrow = da.get<bf16>(), .next = next}, nullptr);
            };
            const auto grad_b = [&] {
                gl::slot_product({.experts = s.experts, .rows = d.rows, .a_width = s.out, .b_width = rank, .a = dy.get<bf16>(),
                                  .b = low.get<bf16>(), .offsets = o.get<int>(), .narrow = db.get<bf16>(), .next = next}, nullptr);
            };
            const auto forward_pair = [&] { forward({.rank = rank, .low = low.get<bf16>(), .factor = b.get<bf16>()}); };
            const auto backward_pair = [&] { backward({.rank = rank, .low = back.get<bf16>(), .factor = a.get<bf16>()}); };
            const auto m = cold_medians({[&] { forward({}), backward({}); },
                                         [&] { down(), forward_pair(), up(), backward_pair(), grad_a(), grad_b(); },
                                         [&] { forward({}); }, forward_pair, [&] { backward({}); }, backward_pair, down, up, grad_a, grad_b});
            const double share = 150.0 * rank * (s.in + s.out) / (static_cast<double>(s.in) * s.out);
            std::printf("  r%d: frozen %.4f all %.4f (+%.1f %%, must %.1f + 8 %%); forward %.4f with the pair %.4f, dX %.4f with the pair %.4f, "
                        "x A %.4f dy B %.4f dA %.4f dB %.4f\n",
                        rank, m[0], m[1], 100 * (m[1] / m[0] - 1), share, m[2], m[3], m[4], m[5], m[6], m[7], m[8], m[9]);
            std::fflush(stdout);
        }
    }
    kernels::check(cudaDeviceSynchronize(), "the last kernel");
}
