/// \file
/// Router kernels. A warp owns a token: lane l holds experts l, l + 32, ... in registers. The top k are taken one by
/// one: the largest selection score over the warp (two integer warp reductions: order-preserving key, then lowest
/// index). Bytes: 4 t e read, 8 t k written; at T 8192 E 256 about 9 MB.
#include "kernels/router/cuda.hpp"

#include <algorithm>

namespace moeplan::kernels::router {
namespace {

constexpr int warps = 8;
constexpr int max_experts = 1024;
constexpr unsigned all = 0xffffffffu;

/// Larger floats have larger keys; 0 is below every float.
__device__ __forceinline__ unsigned key_of(float v) {
    const unsigned bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float sum_of(float v) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(all, v, d);
    return v;
}

/// Scores of this lane's experts; the ones past the end are 0.
template <int per_lane>
__device__ __forceinline__ void scores(const Dims& d, const float* logits, float (&s)[per_lane]) {
    const int lane = threadIdx.x % 32;
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
        s[i] = lane + 32 * i < d.experts ? logits[lane + 32 * i] : -INFINITY;
        most = fmaxf(most, s[i]);
    }
    if (d.score == Score::sigmoid) {
#pragma unroll
        for (int i = 0; i < per_lane; ++i) s[i] = lane + 32 * i < d.experts ? 1.0f / (1.0f + expf(-s[i])) : 0.0f;
        return;
    }
    if (d.score == Score::sqrt_softplus) {
#pragma unroll
        for (int i = 0; i < per_lane; ++i)
            s[i] = lane + 32 * i < d.experts ? sqrtf(fmaxf(s[i], 0.0f) + log1pf(expf(-fabsf(s[i])))) : 0.0f;
        return;
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(all, most, o));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
        s[i] = lane + 32 * i < d.experts ? expf(s[i] - most) : 0.0f;
        sum += s[i];
    }
    sum = sum_of(sum);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) s[i] /= sum;
}

/// Bit mask of the kept groups from the selection scores in shared memory.
__device__ __forceinline__ unsigned kept_groups(const Dims& d, const float* selection) {
    const int lane = threadIdx.x % 32;
    const int size = d.experts / d.groups;
    unsigned key = 0;
    if (lane < d.groups) {
        float best = -INFINITY, second = -INFINITY;
        for (int i = 0; i < size; ++i) {
            const float v = selection[lane * size + i];
            second = fmaxf(second, fminf(best, v));
            best = fmaxf(best, v);
        }
        key = key_of(size == 1 || !d.pair_ranks ? best : best + second);
    }
    unsigned kept = 0;
    for (int g = 0; g < d.kept_groups; ++g) {
        const unsigned most = __reduce_max_sync(all, key);
        const unsigned winner = __reduce_min_sync(all, key == most ? lane : 32u);
        kept |= 1u << winner;
        if (lane == winner) key = 0;
    }
    return kept;
}

template <int per_lane>
__global__ void __launch_bounds__(warps * 32) route(Forward a, float* partial, int tokens_per_block) {
    const Dims& d = a.dims;
    __shared__ int counts[max_experts];
    extern __shared__ float scratch[]; // [warps][experts]: selection scores, later shares
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int e = threadIdx.x; e < d.experts; e += warps * 32) counts[e] = 0;
    __syncthreads();
    float share[per_lane] = {};
    const int begin = blockIdx.x * tokens_per_block, end = min(begin + tokens_per_block, d.tokens);
    for (int t = begin + warp; t < end; t += warps) {
        float s[per_lane];
        scores<per_lane>(d, a.logits + static_cast<std::int64_t>(t) * d.experts, s);
        if (a.scores != nullptr)
#pragma unroll
            for (int i = 0; i < per_lane; ++i)
                if (lane + 32 * i < d.experts) a.scores[static_cast<std::int64_t>(t) * d.experts + lane + 32 * i] = s[i];
        const int* listed = a.table == nullptr ? nullptr
                                               : a.table + static_cast<std::int64_t>(min(max(a.ids[t], 0), a.vocabulary - 1)) * d.top_k;
        unsigned keys[per_lane];
#pragma unroll
        for (int i = 0; i < per_lane; ++i) {
            const int e = lane + 32 * i;
            const float selection = s[i] + (a.bias != nullptr && e < d.experts ? a.bias[e] : 0.0f);
            keys[i] = e < d.experts ? key_of(selection) : 0;
            if (d.groups > 1 && e < d.experts) scratch[warp * d.experts + e] = selection;
        }
        if (d.groups > 1) {
            __syncwarp();
            const unsigned kept = kept_groups(d, scratch + warp * d.experts);
            const int size = d.experts / d.groups;
#pragma unroll
            for (int i = 0; i < per_lane; ++i)
                if (!(kept >> ((lane + 32 * i) / size) & 1)) keys[i] = 0;
            __syncwarp();
        }
        float sum = 0, mine = 0; // lane j keeps the j-th choice
        int choice = 0;
        for (int j = 0; j < d.top_k; ++j) {
            unsigned best = 0;
            int at = 0;
#pragma unroll
            for (int i = 0; i < per_lane; ++i)
                if (keys[i] > best) {
                    best = keys[i];
                    at = i;
                }
            const unsigned most = __reduce_max_sync(all, best);
            unsigned winner = __reduce_min_sync(all, best == most ? lane + 32u * at : ~0u);
            if (listed != nullptr) winner = min(max(listed[j], 0), d.experts - 1);
            float score = 0;
#pragma unroll
            for (int i = 0; i < per_lane; ++i)
                if (winner == lane + 32u * i) {
                    score = s[i];
                    keys[i] = 0;
                }
            score = __shfl_sync(all, score, winner % 32);
            sum += score;
            if (lane == j) {
                mine = score;
                choice = static_cast<int>(winner);
            }
        }
        const float weight = lane < d.top_k ? d.scale * (d.normalise ? mine / sum : mine) : 0.0f;
        const bool identity = choice >= d.experts - a.identities;
        if (lane < d.top_k) {
            const std::int64_t to = static_cast<std::int64_t>(t) * d.top_k + lane;
            a.experts[to] = choice;
            a.weights[to] = identity ? 0.0f : weight;
            atomicAdd(&counts[choice], 1);
        }
        if (a.identity_weight != nullptr) {
            const float drawn = sum_of(identity ? weight : 0.0f);
            if (lane == 0) a.identity_weight[t] = drawn;
        }
        if (partial != nullptr) {
            float total = 0;
#pragma unroll
            for (int i = 0; i < per_lane; ++i) total += s[i];
            total = sum_of(total);
#pragma unroll
            for (int i = 0; i < per_lane; ++i) share[i] += s[i] / total;
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < d.experts; e += warps * 32)
        if (counts[e] != 0) atomicAdd(&a.counts[e], counts[e]);
    if (partial == nullptr) return;
#pragma unroll
    for (int i = 0; i < per_lane; ++i)
        if (lane + 32 * i < d.experts) scratch[warp * d.experts + lane + 32 * i] = share[i];
    __syncthreads();
    for (int e = threadIdx.x; e < d.experts; e += warps * 32) {
        float sum = 0;
        for (int w = 0; w < warps; ++w) sum += scratch[w * d.experts + e];
        partial[static_cast<std::int64_t>(blockIdx.x) * d.experts + e] = sum;
    }
}

/// loss = a E sum_e counts_e sum_t p_te / (t^2 k), one block, fixed order.
__global__ void __launch_bounds__(1024) finish_loss(Dims d, const int* counts, const float* partial, int blocks,
                                                    float* loss) {
    __shared__ float sums[1024];
    float mine = 0;
    if (threadIdx.x < d.experts) {
        for (int b = 0; b < blocks; ++b) mine += partial[static_cast<std::int64_t>(b) * d.experts + threadIdx.x];
        mine *= static_cast<float>(counts[threadIdx.x]);
    }
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (int n = 512; n > 0; n /= 2) {
        if (threadIdx.x < n) sums[threadIdx.x] += sums[threadIdx.x + n];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *loss = d.auxiliary * d.experts * sums[0] / (static_cast<float>(d.tokens) * d.tokens * d.top_k);
}

template <int per_lane>
__global__ void __launch_bounds__(warps * 32) route_backward(Backward a) {
    const Dims& d = a.dims;
    const int lane = threadIdx.x % 32;
    const int t = blockIdx.x * warps + threadIdx.x / 32;
    if (t >= d.tokens) return;
    float s[per_lane], ds[per_lane] = {};
    if (a.scores == nullptr) {
        scores<per_lane>(d, a.logits + static_cast<std::int64_t>(t) * d.experts, s);
    } else {
#pragma unroll
        for (int i = 0; i < per_lane; ++i)
            s[i] = lane + 32 * i < d.experts ? a.scores[static_cast<std::int64_t>(t) * d.experts + lane + 32 * i] : 0.0f;
    }
    const std::int64_t at = static_cast<std::int64_t>(t) * d.top_k + lane;
    const int choice = lane < d.top_k ? a.experts[at] : 0;
    float dw = 0;
    if (lane < d.top_k && choice >= d.experts - a.identities) dw = a.didentity != nullptr ? a.didentity[t] : 0.0f;
    else if (lane < d.top_k && a.dweights != nullptr) dw = a.dweights[at];
    float chosen = 0; // the score of this lane's choice
    for (int j = 0; j < d.top_k; ++j) {
        const int e = __shfl_sync(all, choice, j);
        float v = 0;
#pragma unroll
        for (int i = 0; i < per_lane; ++i)
            if (e == lane + 32 * i) v = s[i];
        v = __shfl_sync(all, v, e % 32);
        if (lane == j) chosen = v;
    }
    const float sum = sum_of(chosen);
    const float mean = sum_of(dw * chosen) / sum;
    const float dchosen = d.scale * (d.normalise ? (dw - mean) / sum : dw);
    for (int j = 0; j < d.top_k; ++j) {
        const int e = __shfl_sync(all, choice, j);
        const float v = __shfl_sync(all, dchosen, j);
#pragma unroll
        for (int i = 0; i < per_lane; ++i)
            if (e == lane + 32 * i) ds[i] += v;
    }
    if (d.auxiliary != 0) {
        float total = 0, shared = 0;
#pragma unroll
        for (int i = 0; i < per_lane; ++i) total += s[i];
        total = sum_of(total);
        const float factor = (a.dloss != nullptr ? *a.dloss : 1.0f) * d.auxiliary * d.experts /
                             (static_cast<float>(d.tokens) * d.tokens * d.top_k);
        float pull[per_lane];
#pragma unroll
        for (int i = 0; i < per_lane; ++i) {
            pull[i] = lane + 32 * i < d.experts ? factor * a.counts[lane + 32 * i] : 0.0f;
            shared += pull[i] * s[i] / total;
        }
        shared = sum_of(shared);
#pragma unroll
        for (int i = 0; i < per_lane; ++i) ds[i] += (pull[i] - shared) / total;
    }
    float inner = 0;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) inner += ds[i] * s[i];
    inner = sum_of(inner);
#pragma unroll
    for (int i = 0; i < per_lane; ++i)
        if (lane + 32 * i < d.experts) {
            float dl;
            if (d.score == Score::sigmoid) dl = ds[i] * s[i] * (1.0f - s[i]);
            else if (d.score == Score::softmax) dl = s[i] * (ds[i] - inner);
            else dl = s[i] > 0.0f ? -ds[i] * expm1f(-s[i] * s[i]) / (2.0f * s[i]) : 0.0f;
            a.dlogits[static_cast<std::int64_t>(t) * d.experts + lane + 32 * i] = dl;
        }
}

__global__ void move_bias(int experts, const int* counts, float rate, float* bias) {
    long long total = 0;
    for (int e = 0; e < experts; ++e) total += counts[e];
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
        const long long excess = static_cast<long long>(experts) * counts[e] - total;
        bias[e] += rate * static_cast<float>((excess < 0) - (excess > 0));
    }
}

constexpr int max_blocks = 1056;
int tokens_per_block(const Dims& d) {
    return std::max(warps, (d.tokens + max_blocks - 1) / max_blocks);
}
int block_count(const Dims& d) { return (d.tokens + tokens_per_block(d) - 1) / tokens_per_block(d); }

std::string describe(const Dims& d) {
    return "router [tokens=" + std::to_string(d.tokens) + " experts=" + std::to_string(d.experts) +
           " top_k=" + std::to_string(d.top_k) + " groups=" + std::to_string(d.groups) +
           " kept_groups=" + std::to_string(d.kept_groups) + "]";
}

void check_dims(const Dims& d) {
    const auto refuse = [&](const char* why) { throw UnsupportedShape(describe(d) + ": " + why); };
    if (d.tokens < 0) refuse("a negative number of tokens");
    if (d.experts < 1 || d.experts > max_experts) refuse("1 to 1024 experts; the reference router has the same bound");
    if (d.top_k < 1 || d.top_k > 32) refuse("top_k must be 1 to 32");
    if (d.groups < 1 || d.groups > 32 || d.experts % d.groups != 0)
        refuse("groups must be 1 to 32 and divide the experts; the reference router takes more groups");
    if (d.kept_groups < 1 || d.kept_groups > d.groups || d.top_k > d.experts / d.groups * d.kept_groups)
        refuse("the kept groups must hold top_k experts");
}

/// Calls launch.operator()<per_lane>() with the smallest register count that holds the experts.
template <typename Launch>
void with_registers(int experts, const Launch& launch) {
    if (experts <= 32) launch.template operator()<1>();
    else if (experts <= 64) launch.template operator()<2>();
    else if (experts <= 128) launch.template operator()<4>();
    else if (experts <= 256) launch.template operator()<8>();
    else if (experts <= 512) launch.template operator()<16>();
    else launch.template operator()<32>();
}

} // namespace

std::size_t workspace_bytes(const Dims& d) {
    return d.auxiliary == 0 ? 0 : static_cast<std::size_t>(block_count(d)) * d.experts * sizeof(float);
}

void forward(const Forward& a, cudaStream_t stream) {
    const Dims& d = a.dims;
    check_dims(d);
    check(cudaMemsetAsync(a.counts, 0, sizeof(int) * d.experts, stream), describe(d) + " counts");
    float* partial = d.auxiliary == 0 ? nullptr : static_cast<float*>(a.workspace);
    if (d.tokens > 0)
        with_registers(d.experts, [&]<int per_lane>() {
            const std::size_t shared =
                d.groups > 1 || partial != nullptr ? sizeof(float) * warps * d.experts : 0; // at most 32 KB
            route<per_lane><<<block_count(d), warps * 32, shared, stream>>>(a, partial, tokens_per_block(d));
            check_launch("router forward", describe(d));
        });
    if (partial == nullptr) return;
    if (d.tokens == 0) {
        check(cudaMemsetAsync(a.loss, 0, sizeof(float), stream), describe(d) + " loss");
        return;
    }
    finish_loss<<<1, 1024, 0, stream>>>(d, a.counts, partial, block_count(d), a.loss);
    check_launch("router loss", describe(d));
}

void backward(const Backward& a, cudaStream_t stream) {
    check_dims(a.dims);
    if (a.dims.tokens == 0) return;
    with_registers(a.dims.experts, [&]<int per_lane>() {
        route_backward<per_lane><<<(a.dims.tokens + warps - 1) / warps, warps * 32, 0, stream>>>(a);
        check_launch("router backward", describe(a.dims));
    });
}

void update_bias(int experts, const int* counts, float rate, float* bias, cudaStream_t stream) {
    move_bias<<<1, 256, 0, stream>>>(experts, counts, rate, bias);
    check_launch("router bias update", "experts=" + std::to_string(experts));
}

} // namespace moeplan::kernels::router
