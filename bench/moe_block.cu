/// \file
/// Router, sort, permute, combine and a whole frozen expert block, forward and backward, at real shapes: cold-cache
/// medians. Block: routed weights and sorted tables -> gathered gate-up with SwiGLU -> down -> combine; backward
/// recomputes nothing but the activation.
#include "bench/bench_support.cuh"
#include "kernels/combine/cuda.hpp"
#include "kernels/grouped_linear/cuda.hpp"
#include "kernels/permute/cuda.hpp"
#include "kernels/router/cuda.hpp"

#include <cmath>
#include <cstdio>

using namespace moeplan;
using namespace moeplan::bench;
namespace gl = moeplan::kernels::grouped_linear;

namespace {

void block(int tokens, int experts, int k, int h, int i, bool with_layers) {
    const kernels::router::Dims rd{.tokens = tokens, .experts = experts, .top_k = k};
    const kernels::permute::Dims pd{.tokens = tokens, .top_k = k, .experts = experts, .copies = experts};
    const int rows = tokens * k;
    const auto logits = random_buffer<float>(static_cast<std::size_t>(tokens) * experts, 1, 2.0f);
    DeviceBuffer chosen(rows * 4), weights(rows * 4), counts(experts * 4), offsets((experts + 1) * 4),
        token_of(rows * 4), row_of(rows * 4), scratch(kernels::permute::workspace_bytes(pd)), dweights(rows * 4),
        dlogits(logits.bytes());
    const auto x = random_buffer<bf16>(static_cast<std::size_t>(tokens) * h, 2, 1.0f);
    const auto dout = random_buffer<bf16>(static_cast<std::size_t>(tokens) * h, 3, 1.0f);
    DeviceBuffer y(static_cast<std::size_t>(rows) * h * 2), out(x.bytes()), dx(x.bytes());
    const auto route = [&] {
        kernels::router::forward({.dims = rd, .logits = logits.get<float>(), .experts = chosen.get<int>(),
                                  .weights = weights.get<float>(), .counts = counts.get<int>()},
                                 nullptr);
    };
    const auto sort = [&] {
        kernels::permute::sort({.dims = pd, .experts = chosen.get<int>(), .offsets = offsets.get<int>(),
                                .token_of = token_of.get<int>(), .row_of = row_of.get<int>(),
                                .workspace = scratch.get()},
                               nullptr);
    };
    route();
    sort();
    const auto combine = [&] {
        kernels::combine::forward(pd, h, row_of.get<int>(), weights.get<float>(), y.get<bf16>(), out.get<bf16>(), nullptr);
    };
    std::printf("T%d E%d k%d h%d: router %.4f", tokens, experts, k, h, cold_median(route));
    std::printf(" sort %.4f", cold_median(sort));
    std::printf(" router+sort %.4f", cold_median([&] { route(); sort(); }));
    std::printf(" permute %.4f", cold_median([&] {
                    kernels::permute::forward(pd, h, row_of.get<int>(), x.get<bf16>(), y.get<bf16>(), nullptr);
                }));
    std::printf(" combine %.4f", cold_median(combine));
    std::printf(" router backward %.4f\n", cold_median([&] {
                    kernels::router::backward({.dims = rd, .logits = logits.get<float>(), .experts = chosen.get<int>(),
                                               .dweights = weights.get<float>(), .dlogits = dlogits.get<float>()},
                                              nullptr);
                }));
    if (!with_layers) return;
    const gl::Dims up{.experts = experts, .rows = rows, .in = h, .out = 2 * i}, down{.experts = experts, .rows = rows, .in = i, .out = h};
    const auto w_up = random_buffer<bf16>(static_cast<std::size_t>(experts) * 2 * i * h, 4, 2.0f / std::sqrt(h));
    const auto w_down = random_buffer<bf16>(static_cast<std::size_t>(experts) * i * h, 5, 2.0f / std::sqrt(i));
    const auto counter = DeviceBuffer::of(std::vector<int>{0});
    int* const next = counter.get<int>();
    DeviceBuffer pre(static_cast<std::size_t>(rows) * i * 4), act(static_cast<std::size_t>(rows) * i * 2),
        g(act.bytes()), dpre(pre.bytes());
    const auto gate_up = [&] {
        gl::gated_forward({.dims = up, .x = x.get<bf16>(), .x_rows = tokens, .gather = token_of.get<int>(),
                           .weight = w_up.get<bf16>(), .offsets = offsets.get<int>(), .y = act.get<bf16>(),
                           .pre = pre.get<bf16>(), .next = next},
                          nullptr);
    };
    const auto down_forward = [&] {
        gl::forward({.dims = down, .x = act.get<bf16>(), .x_rows = rows, .weight = w_down.get<bf16>(),
                     .offsets = offsets.get<int>(), .y = y.get<bf16>(), .next = next},
                    nullptr);
    };
    const auto down_backward = [&] {
        gl::input_gradient({.dims = down, .dy = dout.get<bf16>(), .dy_rows = tokens, .gather = token_of.get<int>(),
                            .weight = w_down.get<bf16>(), .offsets = offsets.get<int>(), .dx = g.get<bf16>(), .next = next},
                           nullptr);
    };
    const auto activation = [&] {
        gl::gated_backward({.choices = rows, .width = i, .row_of = row_of.get<int>(), .weights = weights.get<float>(),
                            .pre = pre.get<bf16>(), .g = g.get<bf16>(), .dpre = dpre.get<bf16>(),
                            .dweights = dweights.get<float>()},
                           nullptr);
    };
    const auto up_backward = [&] {
        gl::input_gradient({.dims = up, .dy = dpre.get<bf16>(), .dy_rows = rows, .weight = w_up.get<bf16>(),
                            .offsets = offsets.get<int>(), .dx = y.get<bf16>(), .next = next},
                           nullptr);
        kernels::permute::backward(pd, h, row_of.get<int>(), y.get<bf16>(), dx.get<bf16>(), nullptr);
    };
    const auto forward = [&] { sort(); gate_up(); down_forward(); combine(); };
    const auto both = [&] { forward(); down_backward(); activation(); up_backward(); };
    // The products without their fusions, as plans call them and as torch's chain of bench/anchors/moe_torch.py.
    const auto up_forward = [&](const bf16* from, int from_rows, const int* gather) {
        gl::forward({.dims = up, .x = from, .x_rows = from_rows, .gather = gather, .weight = w_up.get<bf16>(),
                     .offsets = offsets.get<int>(), .y = pre.get<bf16>(), .next = next},
                    nullptr);
    };
    const auto permuted = [&] {
        kernels::permute::forward(pd, h, row_of.get<int>(), x.get<bf16>(), y.get<bf16>(), nullptr);
        up_forward(y.get<bf16>(), rows, nullptr);
    };
    const auto chains = cold_medians({permuted, [&] { up_forward(y.get<bf16>(), rows, nullptr); },
                                      [&] { up_forward(x.get<bf16>(), tokens, token_of.get<int>()); },
                                      [&] { down_forward(), combine(); }, down_forward});
    std::printf("chain T%d E%d k%d %d/%d: permute+up %.4f up alone %.4f up gathered %.4f down+combine %.4f down alone %.4f\n", tokens,
                experts, k, h, i, chains[0], chains[1], chains[2], chains[3], chains[4]);
    std::printf("block T%d E%d k%d %d/%d: gate-up gathered %.4f down %.4f down+combine %.4f", tokens, experts, k, h, i,
                cold_median(gate_up), cold_median(down_forward), cold_median([&] { down_forward(); combine(); }));
    std::printf(" dX down gathered %.4f activation %.4f dX up+sum %.4f\n", cold_median(down_backward),
                cold_median(activation), cold_median(up_backward));
    std::printf("block T%d E%d k%d %d/%d: forward %.4f forward+backward %.4f\n", tokens, experts, k, h, i,
                cold_median(forward), cold_median(both));
}

} // namespace

int main() {
    if (kernels::device_count() == 0) {
        std::printf("SKIPPED moe_block: no CUDA device\n");
        return 0;
    }
    block(8192, 64, 8, 2304, 1024, true);
    block(8192, 256, 8, 7168, 2048, true);
    block(8192, 256, 16, 7168, 2048, false);
    block(16384, 896, 16, 3584, 2048, false);
    kernels::check(cudaDeviceSynchronize(), "the last kernel");
}
