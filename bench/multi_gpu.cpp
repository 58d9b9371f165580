/// Collectives and expert exchanges between the GPUs of one host, measured beside what the planner predicts for them.
///
///   multi_gpu_bench [RANKS] [FILE.json]      default: all devices of this host; the table comes last, figures go to the file
///
/// One process per device over NCCL, by the communicator that the executor uses. Each figure is the slowest rank's median of repeated
/// batches; the prediction is the cost model's for so many devices of 8xh200 and was fixed before. "beside compute" is the same call
/// while large matrix products keep the device busy.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "core/configs.hpp"
#include "core/json.hpp"
#include "executor/nccl/nccl.hpp"
#include "kernels/cuda.hpp"
#include "sim/cost/collectives.hpp"

namespace {

using namespace moeplan;
using kernels::DeviceBuffer;
using kernels::Event;
using kernels::Stream;

constexpr std::int64_t kMost = std::int64_t{1} << 30;   ///< bytes of the largest call

/// Products that take about a millisecond each, queued on a stream of their own.
class Compute {
 public:
  Compute() : x_(2 * kTokens * kWidth), w_(2 * kWidth * kWidth), y_(2 * kTokens * kWidth), scratch_(static_cast<std::size_t>(std::max<std::int64_t>(256, cuda::workspace(op_, Pass::forward).value))) {
    for (DeviceBuffer* b : {&x_, &w_, &y_}) b->fill(0);
  }
  void queue(int times) {
    void* const values[] = {x_.get<void>(), w_.get<void>(), y_.get<void>()};
    for (int i = 0; i < times; ++i) cuda::forward(op_, values, scratch_.get<void>(), stream_.get(), &products_);
  }
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }

 private:
  static constexpr std::int64_t kTokens = 8192, kWidth = 7168;
  Op op_ = op::Linear{.tokens = kTokens, .in = kWidth, .out = kWidth};
  Stream stream_;
  cuda::Products products_;
  DeviceBuffer x_, w_, y_, scratch_;
};

struct Machine {
  Communicator& world;
  Stream& stream;
  DeviceBuffer& send;
  DeviceBuffer& receive;
  Compute& compute;
};

double slowest(Communicator& world, double seconds) {
  const auto mine = static_cast<std::int64_t>(seconds * 1e12);
  const std::vector<std::int64_t> all = world.gather_words(std::span(&mine, 1));
  return static_cast<double>(*std::max_element(all.begin(), all.end())) * 1e-12;
}

/// Seconds of one call, of the slowest rank: the median of seven batches that begin together.
template <class Call>
double seconds_of(const Machine& m, const Call& call, std::int64_t bytes) {
  const int repeats = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{64} << 20) / std::max<std::int64_t>(bytes, 1), 1, 20));
  std::vector<double> batches;
  for (int b = 0; b < 8; ++b) {
    m.world.barrier();
    Event begin, end;
    begin.record(m.stream.get());
    for (int i = 0; i < repeats; ++i) call();
    end.record(m.stream.get());
    end.synchronize();
    if (b > 0) batches.push_back(slowest(m.world, static_cast<double>(end.milliseconds_since(begin)) * 1e-3 / repeats));
  }
  std::nth_element(batches.begin(), batches.begin() + 3, batches.end());
  return batches[3];
}

/// Both at once: what the call takes, and how much of the shorter one is hidden behind the other.
template <class Call>
std::pair<double, double> beside(const Machine& m, const Call& call, double alone) {
  const int products = std::max(4, static_cast<int>(alone / 0.5e-3) + 1), calls = std::max(1, static_cast<int>(2e-3 / alone));
  std::vector<double> shares, taken;
  for (int b = 0; b < 5; ++b) {
    m.world.barrier();
    Event begin, compute_end, both_begin, call_begin, call_end, both_end;
    begin.record(m.compute.stream());
    m.compute.queue(products);
    compute_end.record(m.compute.stream());
    compute_end.synchronize();
    const double compute = static_cast<double>(compute_end.milliseconds_since(begin)) * 1e-3;
    m.world.barrier();
    both_begin.record(m.compute.stream());
    m.compute.queue(products);
    both_end.record(m.compute.stream());
    call_begin.record(m.stream.get());
    for (int i = 0; i < calls; ++i) call();
    call_end.record(m.stream.get());
    both_end.synchronize();
    call_end.synchronize();
    const double exchange = static_cast<double>(call_end.milliseconds_since(call_begin)) * 1e-3, products_took = static_cast<double>(both_end.milliseconds_since(both_begin)) * 1e-3;
    const double both = std::max(products_took, exchange), shorter = std::min(compute, alone * calls);
    shares.push_back(slowest(m.world, std::max(0.0, compute + alone * calls - both) / shorter));
    taken.push_back(slowest(m.world, exchange / calls));
  }
  std::sort(shares.begin(), shares.end());
  std::sort(taken.begin(), taken.end());
  return {taken[2], std::min(1.0, shares[2])};
}

struct Row {
  std::string what;
  std::int64_t bytes = 0;
  double predicted = 0, measured = 0, beside = 0, hidden = 0;
};

Row collective(const Machine& m, const Links& links, Collective kind, std::int64_t bytes) {
  const std::int64_t n = m.world.size(), elements = bytes / 2 / n;
  const auto call = [&] {
    switch (kind) {
      case Collective::all_gather: return m.world.all_gather(m.send.get<void>(), m.receive.get<void>(), elements, DType::bf16);
      case Collective::reduce_scatter: return m.world.reduce_scatter(m.send.get<void>(), m.receive.get<void>(), elements, DType::bf16);
      case Collective::all_reduce: return m.world.all_reduce(m.send.get<void>(), elements * n, DType::bf16);
      default: break;
    }
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), elements);
    m.world.all_to_all(m.send.get<void>(), counts, m.receive.get<void>(), counts, DType::bf16);
  };
  Row row{std::string(name_of(kind)), bytes};
  row.predicted = links.price({.collective = kind, .payload = {bytes}}, {n, 1}).median.value;
  row.measured = seconds_of(m, call, bytes);
  std::tie(row.beside, row.hidden) = beside(m, call, row.measured);
  return row;
}

struct Routing {
  const char* model;
  std::int64_t experts, top_k, hidden;
};

/// Rows of `tokens` x top-k to the ranks by their share of a layer's counts; balanced without.
Row exchange(const Machine& m, const Links& links, const Routing& r, std::int64_t tokens, const std::vector<double>& counts) {
  const std::int64_t n = m.world.size(), copies = tokens * r.top_k;
  std::vector<double> share(static_cast<std::size_t>(n), 1.0 / static_cast<double>(n));
  if (!counts.empty()) {
    const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
    std::fill(share.begin(), share.end(), 0.0);
    for (std::size_t e = 0; e < counts.size(); ++e) share[e * static_cast<std::size_t>(n) / counts.size()] += counts[e] / all;
  }
  std::vector<std::int64_t> out, in;
  std::int64_t given = 0;
  for (std::int64_t p = 0; p < n; ++p) {
    out.push_back(p + 1 == n ? copies - given : static_cast<std::int64_t>(share[static_cast<std::size_t>(p)] * static_cast<double>(copies)));
    given += out.back();
  }
  for (std::int64_t p = 0; p < n; ++p) in.push_back(out[static_cast<std::size_t>(m.world.rank())] * r.hidden);
  const double skew = *std::max_element(share.begin(), share.end()) * static_cast<double>(n);
  for (std::int64_t& rows : out) rows *= r.hidden;
  const auto call = [&] { m.world.all_to_all(m.send.get<void>(), out, m.receive.get<void>(), in, DType::bf16); };
  const std::int64_t bytes = copies * r.hidden * 2;
  Row row{fmt::format("{} dispatch, {} tokens, max/mean {:.2f}", r.model, tokens, skew), bytes};
  row.predicted = links.price({.collective = Collective::dispatch, .group = Group::expert, .payload = {bytes}, .rows = copies, .tokens = tokens, .experts = r.experts, .direct = true}, {n, 1}, skew).median.value;
  row.measured = seconds_of(m, call, bytes);
  std::tie(row.beside, row.hidden) = beside(m, call, row.measured);
  return row;
}

/// Bytes/s from pinned host memory to the device, alone on rank 0 and with all ranks at once.
std::pair<double, double> host_link(const Machine& m) {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  void* host = nullptr;
  kernels::check(cudaMallocHost(&host, bytes), "pinned memory");
  const auto once = [&] {
    Event begin, end;
    begin.record(m.stream.get());
    kernels::check(cudaMemcpyAsync(m.receive.get<void>(), host, bytes, cudaMemcpyHostToDevice, m.stream.get()), "copy to the device");
    end.record(m.stream.get());
    end.synchronize();
    return static_cast<double>(end.milliseconds_since(begin)) * 1e-3;
  };
  once();
  m.world.barrier();
  const double alone = slowest(m.world, m.world.rank() == 0 ? once() : 0);
  m.world.barrier();
  const double together = slowest(m.world, once());
  (void)cudaFreeHost(host);
  return {static_cast<double>(bytes) / alone, static_cast<double>(bytes) / together};
}

std::string text_of(const Row& r) {
  return fmt::format("{:52} {:>10.4g} MB {:>10.1f} us {:>10.1f} us {:>+7.1f} % {:>10.1f} us {:>5.0f} %\n", r.what, static_cast<double>(r.bytes) / 1e6, r.predicted * 1e6, r.measured * 1e6,
                     100 * (r.predicted / r.measured - 1), r.beside * 1e6, 100 * r.hidden);
}

int run_rank(int rank, int ranks, const std::string& file) {
  kernels::check(cudaSetDevice(rank), "use a device");
  Stream stream;
  const auto world = nccl_communicator(rank, ranks, nccl_unique_id(), {.stream = stream.get()});
  DeviceBuffer send(kMost), receive(2 * kMost);
  send.fill(0);
  receive.fill(0);
  Compute compute;
  compute.queue(20);
  kernels::check(cudaDeviceSynchronize(), "warm up");
  const Machine m{*world, stream, send, receive, compute};
  // Started from the repository, where it was copied to another machine.
  const std::filesystem::path configs = std::filesystem::exists("configs/clusters") ? "configs" : std::filesystem::path(MOEPLAN_SOURCE) / "configs";
  const Links links(load_cluster(configs, "8xh200"));

  std::vector<Row> rows;
  const auto add = [&](Row row) {
    if (rank == 0) std::fprintf(stderr, "%s", text_of(row).c_str());
    rows.push_back(std::move(row));
  };
  for (const Collective kind : {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all})
    for (std::int64_t bytes = 1 << 10; bytes <= kMost; bytes *= bytes < (1 << 20) ? 32 : 8) add(collective(m, links, kind, bytes));
  const LoadModel real = load_load(configs, "deepseek-v3-prefill-in4096");
  const auto& trace = std::get<TraceLoad>(real.distribution);
  for (const Routing& r : {Routing{"kimi-k3", 896, 16, 3584}, Routing{"deepseek-v3", 256, 8, 7168}, Routing{"qwen3-30b-a3b", 128, 8, 2048}})
    for (const std::int64_t tokens : {1024, 4096}) {
      add(exchange(m, links, r, tokens, {}));
      add(exchange(m, links, r, tokens, trace.counts[trace.counts.size() / 2]));
    }
  const auto [alone, together] = host_link(m);
  if (rank != 0) return 0;
  std::string text = fmt::format("{} devices, NCCL {}\n{:52} {:>13} {:>13} {:>13} {:>9} {:>13} {:>7}\n", ranks, nccl_version(), "", "payload", "predicted", "measured", "error", "beside GEMM", "hidden");
  Json out = Json::array();
  for (const Row& r : rows) {
    text += text_of(r);
    out.push_back({{"call", r.what}, {"payload_bytes", r.bytes}, {"predicted_s", r.predicted}, {"measured_s", r.measured}, {"beside_compute_s", r.beside}, {"hidden", r.hidden}});
  }
  text += fmt::format("host to device: {:.1f} GB/s alone, {:.1f} GB/s each with all {}\n", alone / 1e9, together / 1e9, ranks);
  if (!file.empty()) write_text_file(file, Json{{"ranks", ranks}, {"nccl", nccl_version()}, {"rows", out}, {"host_to_device_alone", alone}, {"host_to_device_together", together}}.dump(1) + "\n");
  std::printf("%s", text.c_str());
  return 0;
}

/// In a child, because a process that has touched CUDA cannot fork one that uses it.
int devices() {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    _exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int there = devices(), ranks = argc > 1 ? std::atoi(argv[1]) : there;
  if (there < 2 || ranks < 2 || ranks > there) {
    std::printf("SKIPPED multi_gpu_bench: %d ranks asked for, %d devices here\n", ranks, there);
    return 77;
  }
  const std::string address = fmt::format("127.0.0.1:{}", 20000 + getpid() % 10000);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      for (const auto& [name, value] : nccl_environment_defaults()) setenv(name.c_str(), value.c_str(), 0);
      setenv("NCCL_COMM_ID", address.c_str(), 1);
      int code = 1;
      try {
        code = run_rank(rank, ranks, argc > 2 ? argv[2] : "");
      } catch (const std::exception& e) {
        std::printf("FAILED rank %d: %s\n", rank, e.what());
      }
      std::fflush(stdout);
      _exit(code);
    }
    children.push_back(child);
  }
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  return worst;
}
