/// \file
/// grouped_linear at real model shapes: sampled correctness against fp64, then cold-cache medians.
/// Usage: grouped_linear_bench check | time [experts] | dealt [experts]
/// dealt: tiles divided beforehand and dealt out, taken in turn, alone and beside a kernel that holds 24 multiprocessors.
/// One line per point; prints FAIL and returns 1 where an error is too large.
#include "bench/bench_support.cuh"
#include "kernels/grouped_linear/cuda.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>

using namespace moeplan;
using namespace moeplan::bench;
namespace gl = moeplan::kernels::grouped_linear;

namespace {

enum Kind { plain, gated, gradient };

struct Case {
    gl::Dims dims;
    Kind kind = plain;
    bool gathered = false;
    gl::GateLayout layout = gl::GateLayout::halves;
    kernels::GatedActivation activation = kernels::GatedActivation::swiglu;
    gl::Clusters clusters = gl::Clusters::automatic;
    bool extras = false; // bias, scale, pre
    bool dealt = true;
};

struct Buffers {
    DeviceBuffer x, weight, bias, offsets, gather, scale, y, pre, next;
};

__device__ double weight_dot(const Case& c, const bf16* x, const bf16* w, std::int64_t row, int expert, int r) {
    const int in = c.dims.in;
    double sum = 0;
    for (int k = 0; k < in; ++k)
        sum += static_cast<double>(__bfloat162float(x[row * in + k])) *
               __bfloat162float(w[(static_cast<std::int64_t>(expert) * c.dims.out + r) * in + k]);
    return sum;
}

__global__ void compare(Case c, const bf16* x, const bf16* w, const bf16* bias, const int* offsets, const int* gather,
                        const float* scale, const bf16* y, const bf16* pre, std::int64_t samples, bool all,
                        double* sums) {
    const int columns = c.kind == gated ? c.dims.out / 2 : c.kind == gradient ? c.dims.in : c.dims.out;
    const int total = offsets[c.dims.experts];
    double difference = 0, size = 0;
    for (std::int64_t s = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; s < samples;
         s += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
        const std::int64_t at =
            all ? s : static_cast<std::int64_t>((noise(99, s) * 0.5 + 0.5) * 0.999999 * total * columns);
        const int slot = at / columns, column = at % columns;
        int expert = 0;
        while (slot >= offsets[expert + 1]) ++expert;
        const std::int64_t row = c.gathered ? gather[slot] : slot;
        double want = 0;
        if (c.kind == gradient) {
            const bool inter = c.layout == gl::GateLayout::interleaved;
            for (int n = 0; n < c.dims.out; ++n) {
                const int r = !inter ? n : n < c.dims.out / 2 ? 2 * n : 2 * (n - c.dims.out / 2) + 1;
                want += static_cast<double>(__bfloat162float(x[row * c.dims.out + n])) *
                        __bfloat162float(w[(static_cast<std::int64_t>(expert) * c.dims.out + r) * c.dims.in + column]);
            }
        } else if (c.kind == plain) {
            want = weight_dot(c, x, w, row, expert, column);
            if (bias != nullptr) want += __bfloat162float(bias[expert * c.dims.out + column]);
        } else {
            const bool inter = c.layout == gl::GateLayout::interleaved;
            const int ra = inter ? 2 * column : column, rb = inter ? 2 * column + 1 : columns + column;
            double a = weight_dot(c, x, w, row, expert, ra), b = weight_dot(c, x, w, row, expert, rb);
            if (bias != nullptr) {
                a += __bfloat162float(bias[expert * c.dims.out + ra]);
                b += __bfloat162float(bias[expert * c.dims.out + rb]);
            }
            if (pre != nullptr) {
                const std::int64_t p = static_cast<std::int64_t>(slot) * c.dims.out;
                const double da = a - static_cast<double>(__bfloat162float(pre[p + column]));
                const double db = b - static_cast<double>(__bfloat162float(pre[p + columns + column]));
                difference += da * da + db * db;
                size += a * a + b * b;
            }
            want = kernels::gated_activation<double>(c.activation, a, b);
        }
        if (scale != nullptr) want *= scale[slot];
        const double d = want - static_cast<double>(__bfloat162float(y[at]));
        difference += d * d;
        size += want * want;
    }
    atomicAdd(&sums[0], difference);
    atomicAdd(&sums[1], size);
}

Buffers make(const Case& c, const std::vector<int>& counts) {
    Buffers b;
    const auto& d = c.dims;
    const int x_width = c.kind == gradient ? d.out : d.in;
    const int columns = c.kind == gated ? d.out / 2 : c.kind == gradient ? d.in : d.out;
    b.x = random_buffer<bf16>(static_cast<std::size_t>(d.rows) * x_width, 1, 1.0f);
    b.weight = random_buffer<bf16>(static_cast<std::size_t>(d.experts) * d.out * d.in, 2,
                                   2.0f / std::sqrt(static_cast<float>(x_width)));
    std::vector<int> offsets(1, 0), gather(d.rows);
    for (int n : counts) offsets.push_back(offsets.back() + n);
    for (int i = 0; i < d.rows; ++i) gather[i] = static_cast<int>((static_cast<std::int64_t>(i) * 7919 + 13) % d.rows);
    b.offsets = DeviceBuffer::of(offsets);
    if (c.gathered) b.gather = DeviceBuffer::of(gather);
    if (c.extras && c.kind != gradient)
        b.bias = random_buffer<bf16>(static_cast<std::size_t>(d.experts) * d.out, 3, 1.0f);
    if (c.extras && c.kind != gated) b.scale = random_buffer<float>(d.rows, 4, 1.0f);
    if (c.kind == gated && c.extras) b.pre = DeviceBuffer(static_cast<std::size_t>(d.rows) * d.out * 2);
    b.y = DeviceBuffer(static_cast<std::size_t>(d.rows) * columns * 2);
    b.y.fill(0xff);
    b.pre.fill(0xff);
    b.next = DeviceBuffer::of(std::vector<int>{0});
    return b;
}

void call(const Case& c, const Buffers& b) {
    int* const next = c.dealt ? b.next.get<int>() : nullptr;
    if (c.kind == plain)
        gl::forward({.dims = c.dims, .x = b.x.get<bf16>(), .x_rows = c.dims.rows, .gather = b.gather.get<int>(),
                     .weight = b.weight.get<bf16>(), .bias = b.bias.get<bf16>(), .offsets = b.offsets.get<int>(),
                     .row_scale = b.scale.get<float>(), .y = b.y.get<bf16>(), .clusters = c.clusters, .next = next},
                    nullptr);
    else if (c.kind == gated)
        gl::gated_forward({.dims = c.dims, .x = b.x.get<bf16>(), .x_rows = c.dims.rows, .gather = b.gather.get<int>(),
                           .weight = b.weight.get<bf16>(), .bias = b.bias.get<bf16>(),
                           .offsets = b.offsets.get<int>(), .layout = c.layout, .activation = c.activation,
                           .y = b.y.get<bf16>(), .pre = b.pre.get<bf16>(), .clusters = c.clusters, .next = next},
                          nullptr);
    else
        gl::input_gradient({.dims = c.dims, .dy = b.x.get<bf16>(), .dy_rows = c.dims.rows,
                            .gather = b.gather.get<int>(), .weight = b.weight.get<bf16>(),
                            .offsets = b.offsets.get<int>(), .row_scale = b.scale.get<float>(), .layout = c.layout,
                            .dx = b.y.get<bf16>(), .clusters = c.clusters, .next = next},
                           nullptr);
}

double error(const Case& c, const Buffers& b, int total) {
    const int columns = c.kind == gated ? c.dims.out / 2 : c.kind == gradient ? c.dims.in : c.dims.out;
    const std::int64_t outputs = static_cast<std::int64_t>(total) * columns;
    const bool all = outputs < (2 << 20);
    DeviceBuffer sums(16);
    sums.fill(0);
    compare<<<528, 256>>>(c, b.x.get<bf16>(), b.weight.get<bf16>(), b.bias.get<bf16>(), b.offsets.get<int>(),
                          b.gather.get<int>(), b.scale.get<float>(), b.y.get<bf16>(), b.pre.get<bf16>(),
                          all ? outputs : 135168, all, sums.get<double>());
    kernels::check_launch("compare", "");
    const auto s = sums.download<double>();
    return total == 0 ? 0 : std::sqrt(s[0] / s[1]);
}

int failures = 0;

void check_case(const char* name, Case c, const std::vector<int>& counts) {
    const int total = std::accumulate(counts.begin(), counts.end(), 0);
    c.dims.experts = static_cast<int>(counts.size());
    c.dims.rows = total + 5; // the buffers are larger than what the counts use
    for (const auto clusters : {gl::Clusters::single, gl::Clusters::pairs}) {
        c.clusters = clusters;
        const Buffers b = make(c, counts);
        call(c, b);
        const double e = error(c, b, total);
        const auto y = b.y.download<std::uint16_t>();
        const std::size_t columns = y.size() / c.dims.rows;
        bool spill = false; // rows past the counts stay poisoned
        for (std::size_t i = columns * total; i < y.size(); ++i) spill = spill || y[i] != 0xffff;
        const bool good = e < 5e-3 && !spill;
        failures += !good;
        std::printf("%s %s cl%d kind%d g%d %dx%d E%d rows%d err %.2e%s\n", good ? "ok" : "FAIL", name,
                    static_cast<int>(clusters), c.kind, c.gathered, c.dims.in, c.dims.out, c.dims.experts, total, e,
                    spill ? " wrote past the counts" : "");
        std::fflush(stdout);
    }
}

void check_all() {
    const std::vector<int> mixed{0, 1, 7, 127, 128, 129, 0, 300, 16, 33, 640, 0};
    const std::vector<int> one{0, 0, 2500, 0}, none{0, 0, 0};
    for (const bool gathered : {false, true})
        for (const Kind kind : {plain, gated, gradient}) {
            const Case c{.dims = {.in = 512, .out = 768}, .kind = kind, .gathered = gathered};
            Case extras = c;
            extras.extras = true;
            Case odd{.dims = {.in = 2880, .out = 5760}, .kind = kind, .gathered = gathered,
                     .layout = gl::GateLayout::interleaved, .activation = kernels::GatedActivation::swiglu_clamped,
                     .extras = true};
            Case small{.dims = {.in = 72, .out = 144}, .kind = kind, .gathered = gathered};
            Case situ = extras;
            situ.activation = kernels::GatedActivation::situ;
            check_case("mixed", c, mixed);
            check_case("extras", extras, mixed);
            check_case("situ", situ, {130, 5});
            check_case("gpt-oss", odd, {0, 1, 7, 127, 260, 50});
            check_case("narrow", small, mixed);
            check_case("one", c, one);
            check_case("none", c, none);
        }
}

void time_all(int experts) {
    const struct { const char* name; int in, out; } shapes[] = {
        {"up7168x4096", 7168, 4096}, {"dn2048x7168", 2048, 7168}, {"up2304x2048", 2304, 2048}, {"dn1024x2304", 1024, 2304}};
    for (const auto& s : shapes)
        for (const int t : {16, 64, 128, 256, 1024}) {
            const std::vector<int> counts(experts, t);
            for (const Kind kind : {plain, gradient, gated}) {
                if (kind == gated && s.name[0] == 'd') continue;
                Case c{.dims = {.experts = experts, .rows = t * experts, .in = s.in, .out = s.out}, .kind = kind};
                const Buffers b = make(c, counts);
                std::printf("%s E%d t%d %s:", s.name, experts, t, kind == plain ? "fwd" : kind == gated ? "glu" : "dX");
                for (const auto clusters : {gl::Clusters::single, gl::Clusters::pairs}) {
                    c.clusters = clusters;
                    const float ms = cold_median([&] { call(c, b); });
                    std::printf(" cl%d %.4f", static_cast<int>(clusters), ms);
                }
                const double e = error(c, b, t * experts);
                std::printf(" err %.1e\n", e);
                if (!(e < 5e-3)) ++failures;
                std::fflush(stdout);
            }
        }
}

/// Blocks that fill a multiprocessor each until told to stop, as those of a collective do.
__global__ void hold(const volatile int* stop) {
    while (*stop == 0) __nanosleep(200);
}

class Held {
public:
    explicit Held(int blocks) {
        const int shared = static_cast<int>(kernels::device_facts().shared_bytes_block);
        kernels::check(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "shared memory");
        kernels::check(cudaDeviceSynchronize(), "earlier work");
        hold<<<blocks, 32, shared, stream_.get()>>>(stop_.get<int>());
        kernels::check_launch("hold", "");
    }
    ~Held() {
        (void)cudaMemsetAsync(stop_.get(), 1, sizeof(int), other_.get());
        stream_.synchronize();
    }
    Held(const Held&) = delete;

private:
    DeviceBuffer stop_ = DeviceBuffer::of(std::vector<int>{0});
    kernels::Stream stream_, other_;
};

void time_dealt(int experts) {
    constexpr int held = 24; // NCCL's channels in one node (sim/cost/channels.hpp)
    const struct { const char* name; int in, out; } shapes[] = {
        {"up7168x4096", 7168, 4096}, {"dn2048x7168", 2048, 7168}, {"up2304x2048", 2304, 2048}, {"dn1024x2304", 1024, 2304}};
    for (const auto& s : shapes)
        for (const int t : {16, 64, 128, 256, 1024})
            for (const Kind kind : {plain, gradient}) {
                Case before{.dims = {.experts = experts, .rows = t * experts, .in = s.in, .out = s.out}, .kind = kind, .dealt = false};
                const Buffers b = make(before, std::vector<int>(experts, t));
                Case dealt = before, single = before, single_dealt = before;
                single.clusters = single_dealt.clusters = gl::Clusters::single;
                dealt.dealt = single_dealt.dealt = true;
                std::vector<std::function<void()>> works;
                for (const Case* c : {&before, &dealt, &single, &single_dealt}) works.push_back([c, &b] { call(*c, b); });
                if (t != 256) works.resize(2); // pairs of blocks at 256 alone
                const auto alone = cold_medians(works);
                std::vector<float> beside;
                {
                    const Held holds(held);
                    beside = cold_medians(works);
                }
                std::printf("%s E%d t%d %s:", s.name, experts, t, kind == plain ? "fwd" : "dX");
                for (std::size_t i = 0; i < works.size(); i += 2)
                    std::printf("%s divided %.4f dealt %.4f (%+.1f %%), beside %d held: %.4f (%+.0f %%) and %.4f (%+.0f %%)", i == 0 ? "" : " | single blocks:", alone[i], alone[i + 1],
                                100 * (alone[i + 1] / alone[i] - 1), held, beside[i], 100 * (beside[i] / alone[i] - 1), beside[i + 1], 100 * (beside[i + 1] / alone[i + 1] - 1));
                std::printf("\n");
                std::fflush(stdout);
            }
}

} // namespace

int main(int argc, char** argv) {
    if (kernels::device_count() == 0) {
        std::printf("SKIPPED grouped_linear: no CUDA device\n");
        return 0;
    }
    const int experts = argc > 2 ? std::atoi(argv[2]) : 64;
    if (argc > 1 && std::strcmp(argv[1], "time") == 0)
        time_all(experts);
    else if (argc > 1 && std::strcmp(argv[1], "dealt") == 0)
        time_dealt(experts);
    else
        check_all();
    kernels::check(cudaDeviceSynchronize(), "the last kernel");
    return failures != 0;
}
