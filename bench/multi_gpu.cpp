/// Collectives and expert exchanges between the GPUs of one host, measured beside what the planner predicts for them.
///
///   multi_gpu_bench [RANKS] [FILE.json]             default: all devices of this host; the table comes last, figures go to the file
///   multi_gpu_bench RANKS --predict                 what would be predicted for so many; needs no device
///   multi_gpu_bench RANKS --one-device              several processes on one device, over sockets: small, and only that everything arrives
///
/// One process per device over NCCL, by the communicator that the executor uses. Each figure is the slowest rank's median of repeated
/// batches; the prediction is the cost model's for so many devices of 8xh200 and was fixed before. "beside compute" is the same call
/// while large matrix products keep the device busy.

#include "bench/multi_gpu.hpp"

#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "core/configs.hpp"
#include "core/json.hpp"
#include "executor/nccl/nccl.hpp"

namespace moeplan::multi_gpu {
Compute::Compute()
    : x_(2 * kTokens * kWidth), w_(2 * kWidth * kWidth), y_(2 * kTokens * kWidth), scratch_(static_cast<std::size_t>(std::max<std::int64_t>(256, cuda::workspace(op_, Pass::forward).value))) {
  for (DeviceBuffer* b : {&x_, &w_, &y_}) b->fill(0);
}

void Compute::queue(int times) {
  void* const values[] = {x_.get<void>(), w_.get<void>(), y_.get<void>()};
  for (int i = 0; i < times; ++i) cuda::forward(op_, values, scratch_.get<void>(), stream_.get(), &products_);
}

double slowest(Communicator& world, double seconds) {
  const auto mine = static_cast<std::int64_t>(seconds * 1e12);
  const std::vector<std::int64_t> all = world.gather_words(std::span(&mine, 1));
  return static_cast<double>(*std::max_element(all.begin(), all.end())) * 1e-12;
}

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30, kMostShared = std::int64_t{1} << 23;   ///< bytes of the largest call; of ranks on one device

/// Seconds of one call, of the slowest rank: the median of seven batches that begin together.
double seconds_of(const Machine& m, const Call& call, std::int64_t bytes) {
  const int repeats = m.compute ? static_cast<int>(std::clamp<std::int64_t>((std::int64_t{64} << 20) / std::max<std::int64_t>(bytes, 1), 1, 20)) : 1;
  std::vector<double> batches;
  for (int b = 0; b < (m.compute ? 8 : 2); ++b) {
    m.world.barrier();
    Event begin, end;
    begin.record(m.stream());
    for (int i = 0; i < repeats; ++i) call();
    end.record(m.stream());
    end.synchronize();
    if (b > 0) batches.push_back(slowest(m.world, static_cast<double>(end.milliseconds_since(begin)) * 1e-3 / repeats));
  }
  std::sort(batches.begin(), batches.end());
  return batches[batches.size() / 2];
}

/// Both at once: what the call takes, and how much of the shorter one is hidden behind the other.
std::pair<double, double> beside(const Machine& m, const Call& call, double alone) {
  const int products = std::max(4, static_cast<int>(alone / 0.5e-3) + 1), calls = std::max(1, static_cast<int>(2e-3 / alone));
  std::vector<double> shares, taken;
  for (int b = 0; b < 5; ++b) {
    m.world.barrier();
    Event begin, compute_end, both_begin, call_begin, call_end, both_end;
    begin.record(m.compute->stream());
    m.compute->queue(products);
    compute_end.record(m.compute->stream());
    compute_end.synchronize();
    const double compute = static_cast<double>(compute_end.milliseconds_since(begin)) * 1e-3;
    m.world.barrier();
    both_begin.record(m.compute->stream());
    m.compute->queue(products);
    both_end.record(m.compute->stream());
    call_begin.record(m.stream());
    for (int i = 0; i < calls; ++i) call();
    call_end.record(m.stream());
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

}  // namespace

Row timed(const Machine& m, Row row, const Call& call) {
  row.measured = seconds_of(m, call, row.bytes);
  if (m.compute) std::tie(row.beside, row.hidden) = beside(m, call, row.measured);
  return row;
}

namespace {

/// Sizes of a collective from 1 KiB on, with their predictions.
std::vector<Row> collectives(const ClusterSpec& cluster, Collective kind, int ranks, std::int64_t most) {
  const Links links(cluster);
  std::vector<Row> rows;
  for (std::int64_t bytes = 1 << 10; bytes <= most; bytes *= bytes < (1 << 20) ? 32 : 8)
    rows.push_back({std::string(name_of(kind)), bytes, links.price({.collective = kind, .payload = {bytes}}, {ranks, 1}).median.value});
  return rows;
}

void perform(const Machine& m, Collective kind, std::int64_t bytes) {
  const std::int64_t n = m.world.size(), elements = bytes / 2 / n;
  switch (kind) {
    case Collective::all_gather: return m.world.all_gather(m.send.get<void>(), m.receive.get<void>(), elements, DType::bf16);
    case Collective::reduce_scatter: return m.world.reduce_scatter(m.send.get<void>(), m.receive.get<void>(), elements, DType::bf16);
    case Collective::all_reduce: return m.world.all_reduce(m.send.get<void>(), elements * n, DType::bf16);
    default: break;
  }
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), elements);
  m.world.all_to_all(m.send.get<void>(), counts, m.receive.get<void>(), counts, DType::bf16);
}

constexpr std::array kKinds{Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all};

/// Expert exchanges of three models: balanced, and as in a recorded layer of DeepSeek-V3.
std::vector<Exchanges> routings(const std::filesystem::path& configs, int ranks, const std::vector<std::int64_t>& token_counts) {
  const LoadModel real = load_load(configs, "deepseek-v3-prefill-in4096");
  const auto& trace = std::get<TraceLoad>(real.distribution);
  std::vector<Exchanges> out;
  for (const Routing& r : {Routing{"kimi-k3", 896, 16, 3584}, Routing{"deepseek-v3", 256, 8, 7168}, Routing{"qwen3-30b-a3b", 128, 8, 2048}})
    for (const std::int64_t tokens : token_counts)
      for (const std::vector<double>& counts : {std::vector<double>{}, trace.counts[trace.counts.size() / 2]}) out.emplace_back(r, ranks, tokens, counts);
  return out;
}
const std::vector<std::int64_t> kTokens{1024, 4096}, kTokensShared{8, 16};

/// Started from the repository, where it was copied to another machine.
std::filesystem::path configs_here() { return std::filesystem::exists("configs/clusters") ? "configs" : std::filesystem::path(MOEPLAN_SOURCE) / "configs"; }

/// Bytes/s from pinned host memory to the device, alone on rank 0 and with all ranks at once.
std::pair<double, double> host_link(const Machine& m) {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  void* host = nullptr;
  kernels::check(cudaMallocHost(&host, bytes), "pinned memory");
  const auto once = [&] {
    Event begin, end;
    begin.record(m.stream());
    kernels::check(cudaMemcpyAsync(m.receive.get<void>(), host, bytes, cudaMemcpyHostToDevice, m.stream()), "copy to the device");
    end.record(m.stream());
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
  std::string text = fmt::format("{:60} {:>10.4g} MB {:>10.1f} us", r.what, static_cast<double>(r.bytes) / 1e6, r.predicted * 1e6);
  if (r.measured > 0) text += fmt::format(" {:>10.1f} us", r.measured * 1e6);
  if (r.beside > 0) text += fmt::format(" {:>+7.1f} % {:>10.1f} us {:>5.0f} %", 100 * (r.predicted / r.measured - 1), r.beside * 1e6, 100 * r.hidden);
  return text + "\n";
}

int predict(int ranks) {
  const std::filesystem::path configs = configs_here();
  const ClusterSpec cluster = load_cluster(configs, "8xh200");
  std::vector<Row> rows;
  for (const Collective kind : kKinds)
    for (Row& row : collectives(cluster, kind, ranks, kMost)) rows.push_back(std::move(row));
  for (const Exchanges& e : routings(configs, ranks, kTokens))
    for (Row& row : e.predicted(cluster)) rows.push_back(std::move(row));
  for (const Row& row : rows) std::printf("%s", text_of(row).c_str());
  return 0;
}

int run_rank(int rank, int ranks, bool one_device, const std::string& file) {
  const std::unique_ptr<Backend> backend = cuda_backend(one_device ? 0 : rank);
  const auto world = nccl_communicator(rank, ranks, nccl_unique_id(), {.stream = backend->queue()});
  world->connect();
  const std::int64_t most = one_device ? kMostShared : kMost;
  DeviceBuffer send(static_cast<std::size_t>(most)), receive(2 * static_cast<std::size_t>(most));
  send.fill(0);
  receive.fill(0);
  std::optional<Compute> compute;
  if (!one_device) compute.emplace().queue(20);
  kernels::check(cudaDeviceSynchronize(), "warm up");
  const std::filesystem::path configs = configs_here();
  const ClusterSpec cluster = load_cluster(configs, "8xh200");
  const Machine m{*world, *backend, send, receive, compute ? &*compute : nullptr, cluster};

  std::vector<Row> rows;
  const auto add = [&](Row row) {
    if (rank == 0) std::fprintf(stderr, "%s", text_of(row).c_str());
    rows.push_back(std::move(row));
  };
  for (const Collective kind : kKinds)
    for (const Row& row : collectives(cluster, kind, ranks, most)) add(timed(m, row, [&] { perform(m, kind, row.bytes); }));
  for (const Exchanges& e : routings(configs, ranks, one_device ? kTokensShared : kTokens))
    for (Row& row : e.measured(m)) add(std::move(row));
  if (one_device) {
    if (rank == 0) std::printf("PASSED: %zu calls of %d ranks, all rows came back; nothing here was timed on devices of their own\n", rows.size(), ranks);
    return 0;
  }
  const auto [alone, together] = host_link(m);
  if (rank != 0) return 0;
  std::string text = fmt::format("{} devices, NCCL {}\n{:60} {:>13} {:>13} {:>13} {:>9} {:>13} {:>7}\n", ranks, nccl_version(), "", "payload", "predicted", "measured", "error", "beside GEMM", "hidden");
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
}  // namespace moeplan::multi_gpu

int main(int argc, char** argv) {
  using namespace moeplan::multi_gpu;
  const int there = devices(), ranks = argc > 1 ? std::atoi(argv[1]) : there;
  const std::string_view mode = argc > 2 ? argv[2] : "";
  const bool one_device = mode == "--one-device";
  if (ranks != 0 && ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8) {
    std::printf("usage: multi_gpu_bench [2 | 4 | 8] [FILE.json | --predict | --one-device]\n");
    return 2;
  }
  if (mode == "--predict") return predict(std::max(ranks, 2));
  if (ranks < 2 || there < (one_device ? 1 : ranks)) {
    std::printf("SKIPPED multi_gpu_bench: %d ranks asked for, %d devices here\n", ranks, there);
    return 77;
  }
  const std::string address = fmt::format("127.0.0.1:{}", 20000 + getpid() % 10000);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      for (const auto& [name, value] : moeplan::nccl_environment_defaults()) setenv(name.c_str(), value.c_str(), 0);
      setenv("NCCL_COMM_ID", address.c_str(), 1);
      if (one_device) {
        const std::string host = fmt::format("multi-gpu-{}-{}", getppid(), rank);
        for (const auto& [name, value] : {std::pair{"NCCL_HOSTID", host.c_str()}, {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_NET", "Socket"}, {"NCCL_RAS_ENABLE", "0"}}) setenv(name, value, 1);
      }
      int code = 1;
      try {
        code = run_rank(rank, ranks, one_device, one_device ? "" : std::string(mode));
      } catch (const std::exception& e) {
        std::printf("FAILED rank %d: %s\n", rank, e.what());
      }
      std::fflush(stdout);
      _exit(code);
    }
    children.push_back(child);
  }
  int worst = 0;
  for (std::size_t ended = 0; ended < children.size(); ++ended) {
    int status = 0;
    wait(&status);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (code != 0 && worst == 0)   // the others would wait for it
      for (const pid_t child : children) kill(child, SIGKILL);
    worst = std::max(worst, code);
  }
  return worst;
}
