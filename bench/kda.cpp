/// \file
/// Times the KDA forward and backward on the current GPU as the catalogue calls them (its scratch limit): median of
/// CUDA-event times over rotating input sets, beside the anchors of bench/results/kda_h200.md. Peak memory: what is
/// allocated, by arithmetic, and what the driver reports less once one set of inputs lies there and both passes have
/// run.
///
///     kda_bench [quick | cuts] [--json FILE] [--limit-per-token-head BYTES]
///
/// cuts: few heads with sequences in one piece and in segments, beside each other: what segment_length() of
/// kernels/kda/scratch.hpp rests on. The anchors were measured on an H200 by the method of bench/results/kda_h200.md; a
/// ratio of 0 means there is none.
#include "kernels/kda/kda.hpp"
#include "kernels/base/cuda.hpp"
#include "kernels/kda/scratch.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>

using namespace moeplan::kernels;
using namespace moeplan::kernels::kda;

namespace {

DeviceBuffer random_bf16(std::size_t count, unsigned seed) {
  // One block of random values, repeated: filling gigabytes on the host would cost more than the measurement.
  static std::vector<std::uint16_t> block;
  if (block.empty()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int i = 0; i < (1 << 22) + 4099; ++i) {
      const float x = normal(random);
      std::uint32_t bits;
      std::memcpy(&bits, &x, 4);
      block.push_back(static_cast<std::uint16_t>(bits >> 16));
    }
  }
  DeviceBuffer buffer(count * 2);
  const std::size_t first = std::min<std::size_t>(count, 1 << 22);
  check(cudaMemcpy(buffer.get(), block.data() + seed * 997 % 4096, first * 2, cudaMemcpyHostToDevice), "fill inputs");
  for (std::size_t at = first; at < count; at += first)
    check(cudaMemcpy(buffer.get<std::uint16_t>() + at, buffer.get(), std::min(first, count - at) * 2,
                     cudaMemcpyDeviceToDevice),
          "fill inputs");
  return buffer;
}

double median_ms(int repeats, const std::function<void(int)>& queue) {
  std::vector<float> times;
  queue(0);
  queue(1);
  check(cudaDeviceSynchronize(), "warm up");
  for (int i = 0; i < repeats; ++i) {
    Event begin, end;
    begin.record(nullptr);
    queue(i);
    end.record(nullptr);
    end.synchronize();
    times.push_back(end.milliseconds_since(begin));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Anchor {
  double fla_forward, flashkda_forward, fla_both, fla_peak_gb;
};

/// Rows for --json, in the order they were measured.
struct Report {
  std::FILE* json = nullptr;
  int rows = 0;
};

std::size_t free_memory() {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "free memory");
  return free;
}

/// `limit`: bytes a token and head, 0 for the catalogue's; `segment_chunks` as in Options.
void run(Report& report, int heads, std::int64_t tokens, Anchor anchor, double limit, GateForm form,
         std::int64_t segment_chunks = 0) {
  const Dims dims{.tokens = tokens, .heads = heads, .head_dim = 128, .sequences = 1};
  const std::size_t elements = static_cast<std::size_t>(tokens) * heads * 128;
  const Options options{.workspace_limit = limit > 0
                                               ? static_cast<std::size_t>(limit * static_cast<double>(tokens) * heads)
                                               : static_cast<std::size_t>(scratch_limit(dims)),
                        .segment_chunks = segment_chunks};
  const std::size_t free_before = free_memory();
  const int sets = elements > (std::size_t{1} << 26) ? 1 : 3;  // small shapes rotate so that inputs do not stay in L2
  std::vector<DeviceBuffer> q, k, v, g, dout;
  const auto add_set = [&](int s) {
    q.push_back(random_bf16(elements, 5 * s)), k.push_back(random_bf16(elements, 5 * s + 1));
    v.push_back(random_bf16(elements, 5 * s + 2)), g.push_back(random_bf16(elements, 5 * s + 3));
    dout.push_back(random_bf16(elements, 5 * s + 4));
  };
  add_set(0);
  std::vector<float> beta(static_cast<std::size_t>(tokens) * heads);
  for (std::size_t i = 0; i < beta.size(); ++i)
    beta[i] = 0.05f + 0.9f * static_cast<float>(i * 2654435761u % 1000) / 1000;
  const auto d_beta_in = DeviceBuffer::of(beta), a_log = DeviceBuffer::of(std::vector<float>(heads, 0.5f)),
             bias = DeviceBuffer::of(std::vector<float>(heads * 128, -0.5f));
  DeviceBuffer out(elements * 2), dq(elements * 2), dk(elements * 2), dv(elements * 2), dg(elements * 2),
      dbeta(beta.size() * 4), da(heads * 4), dbias(heads * 512);
  const std::size_t bytes_f = workspace_bytes(dims, options, Pass::forward),
                    bytes_b = workspace_bytes(dims, options, Pass::backward);
  DeviceBuffer scratch(std::max(bytes_f, bytes_b));
  const auto queue_forward = [&](int i) {
    Forward call{.dims = dims, .gate_form = {.form = form}, .options = options};
    call.q = q[i % sets].get<Bf16>(), call.k = k[i % sets].get<Bf16>(), call.v = v[i % sets].get<Bf16>(),
    call.gate = g[i % sets].get<Bf16>();
    call.beta = d_beta_in.get<float>(), call.a_log = a_log.get<float>(), call.dt_bias = bias.get<float>();
    call.out = out.get<Bf16>(), call.workspace = scratch.get();
    forward(call, nullptr);
    return call;
  };
  const auto queue_backward = [&](int i, Forward call) {
    Backward back{.forward = call};
    back.d_out = dout[i % sets].get<Bf16>();
    back.d_q = dq.get<Bf16>(), back.d_k = dk.get<Bf16>(), back.d_v = dv.get<Bf16>(), back.d_gate = dg.get<Bf16>();
    back.d_beta = dbeta.get<float>(), back.d_a_log = da.get<float>(), back.d_dt_bias = dbias.get<float>();
    backward(back, nullptr);
  };
  queue_backward(0, queue_forward(0));
  check(cudaDeviceSynchronize(), "first call");
  const double driver_peak = static_cast<double>(free_before - free_memory()) / 1e9;
  for (int s = 1; s < sets; ++s) add_set(s);
  const int repeats = tokens >= 65536 ? 5 : 11;
  const double ms_f = median_ms(repeats, [&](int i) { queue_forward(i); });
  const double ms_fb = median_ms(repeats, [&](int i) { queue_backward(i, queue_forward(i)); });
  // q, k, v, gate, beta, out, d_out, dq, dk, dv, dgate, dbeta once each, and the scratch.
  const double peak = (10.0 * static_cast<double>(elements) * 2 + 2.0 * static_cast<double>(beta.size()) * 4 +
                       static_cast<double>(std::max(bytes_f, bytes_b))) /
                      1e9;
  const double rows = static_cast<double>(tokens) * heads;
  const Cut up = cut_of(dims, options, Pass::forward), down = cut_of(dims, options, Pass::backward);
  const double floor_f = rows * 1280 / 4.3e9, floor_b = rows * 560e3 / 790e9;
  std::printf(
      "H%d T%lld fwd %.3f ms (%.2fx flashkda %.2fx fla, %.2f of floor) both %.3f ms (%.2fx fla, %.2f of floor) peak "
      "%.3f GB (%.3f of fla) driver %.3f GB, forward %lld groups %lld slabs %lld segments, backward %lld groups %lld "
      "segments\n",
      heads, static_cast<long long>(tokens), ms_f, anchor.flashkda_forward / ms_f, anchor.fla_forward / ms_f,
      floor_f / ms_f, ms_fb, anchor.fla_both / ms_fb, (floor_f + floor_b) / ms_fb, peak,
      anchor.fla_peak_gb > 0 ? peak / anchor.fla_peak_gb : 0, driver_peak, static_cast<long long>(up.groups),
      static_cast<long long>(up.slabs), static_cast<long long>(up.max_segments), static_cast<long long>(down.groups),
      static_cast<long long>(down.max_segments));
  if (report.json != nullptr)
    std::fprintf(report.json,
                 "%s\n  {\"heads\": %d, \"tokens\": %lld, \"gate\": \"%s\", \"forward_ms\": %.4f, "
                 "\"forward_backward_ms\": %.4f, "
                 "\"peak_gb\": %.4f, \"driver_peak_gb\": %.4f, \"anchor_fla_forward_ms\": %.4f, "
                 "\"anchor_flashkda_forward_ms\": %.4f, "
                 "\"anchor_fla_forward_backward_ms\": %.4f, \"anchor_fla_peak_gb\": %.4f}",
                 report.rows++ == 0 ? "[" : ",", heads, static_cast<long long>(tokens),
                 form == GateForm::bounded ? "bounded" : "softplus", ms_f, ms_fb, peak, driver_peak, anchor.fla_forward,
                 anchor.flashkda_forward, anchor.fla_both, anchor.fla_peak_gb);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  double limit = 0;
  Report report;
  bool quick = false, cuts = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "quick") == 0) quick = true;
    if (std::strcmp(argv[i], "cuts") == 0) cuts = true;
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) report.json = std::fopen(argv[++i], "w");
    if (std::strcmp(argv[i], "--limit-per-token-head") == 0 && i + 1 < argc) limit = std::atof(argv[++i]);
  }
  try {
    const auto b = GateForm::bounded;
    if (cuts) {
      for (const std::int64_t tokens : {16384, 65536})
        for (const int heads : {22, 16, 13, 11, 8, 6, 5, 4, 2}) {
          const std::int64_t pieces = 132 / (2 * heads), chunks = tokens / 64;
          run(report, heads, tokens, {}, 4000, b, chunks);
          run(report, heads, tokens, {}, 4000, b, (chunks + pieces - 1) / pieces);
        }
      return 0;
    }
    if (!quick) {
      run(report, 32, 4096, {0.616, 0.4943, 3.2522, 1.2793}, limit, b);
      run(report, 64, 4096, {1.0537, 0.5991, 5.7987, 2.2901}, limit, b);
      run(report, 96, 4096, {1.5452, 0.704, 8.6964, 3.3009}, limit, b);
    }
    run(report, 32, 16384, {2.2778, 1.9114, 12.1916, 4.0454}, limit, b);
    run(report, 64, 16384, {4.0156, 2.3276, 22.4391, 8.0908}, limit, b);
    run(report, 96, 16384, {6.0078, 2.7428, 34.1822, 12.1362}, limit, b);
    if (!quick) {
      run(report, 32, 65536, {8.9699, 7.559, 48.0455, 16.1816}, limit, b);
      run(report, 64, 65536, {16.0107, 9.2299, 89.3242, 32.3632}, limit, b);
      run(report, 96, 65536, {24.1074, 10.8747, 136.3652, 48.5449}, limit, b);
      run(report, 32, 16384, {2.6417, 0, 15.3092, 0}, limit, GateForm::softplus);
      run(report, 8, 16384, {}, limit, b);
      run(report, 4, 4096, {}, limit, b);
      run(report, 1, 65536, {}, limit, b);
      run(report, 32, 1 << 20, {}, limit, b);
    }
    if (report.json != nullptr) {
      std::fprintf(report.json, "\n]\n");
      std::fclose(report.json);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
