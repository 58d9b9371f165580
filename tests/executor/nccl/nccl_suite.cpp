/// The cases of suite.hpp over NCCL, on any machine with at least one GPU: one process per rank, all on device 0, each with a
/// host id of its own, talking over loopback sockets (slow; correctness only).
///
///   nccl_suite RANKS                 every case, one line each
///   nccl_suite RANKS --cycles N      set-up and tear-down N times, a communicator split off each time; device and host memory, threads and
///                                    open files must not grow
///   nccl_suite RANKS --fault kill    the last rank kills itself (or `stop`s) in the middle; all others must leave with an error
///
/// Exit code 0: all passed; 1: a case failed; 77: skipped, no GPU.

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "executor/nccl/nccl.hpp"
#include "tests/executor/comm/suite.hpp"

namespace {

using namespace moeplan;

class DeviceMemory final : public suite::Memory {
 public:
  explicit DeviceMemory(cudaStream_t stream) : stream_(stream) {}
  ~DeviceMemory() override {
    for (void* p : blocks_) cudaFree(p);
  }
  void* allocate(std::size_t bytes) override {
    void* p = nullptr;
    check(cudaMalloc(&p, bytes + 256));
    blocks_.push_back(p);
    return p;
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
    check(cudaStreamSynchronize(stream_));
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
  }

 private:
  static void check(cudaError_t e) {
    if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
  }
  cudaStream_t stream_;
  std::vector<void*> blocks_;
};

struct Job {
  int ranks = 0, cycles = 0;
  std::string fault;
};

std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return free;
}

int run_cases(const Job& job, int rank, cudaStream_t stream) {
  const auto world = nccl_communicator(rank, job.ranks, nccl_unique_id(), {.stream = stream, .limit = Duration{30000}});
  world->connect();
  for (const auto& each : suite::cases()) {
    DeviceMemory memory(stream);
    const auto begin = Clock::now();
    each.run(*world, memory);
    if (rank == 0) std::printf("ok nccl_%d_%s %lld ms\n", job.ranks, each.name, static_cast<long long>(std::chrono::duration_cast<Duration>(Clock::now() - begin).count()));
    std::fflush(stdout);
  }
  return 0;
}

/// What a process holds.
struct Held {
  long long files = 0, threads = 0, host = 0, device = 0;   ///< the last two in bytes; of the device what all processes hold
};
Held held() {
  const auto entries = [](const char* folder) { return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{}); };
  long long pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return {entries("/proc/self/fd"), entries("/proc/self/task"), resident * sysconf(_SC_PAGESIZE), -static_cast<long long>(free_memory())};
}

int run_cycles(const Job& job, int rank, cudaStream_t stream) {
  Held first;
  const int settled = std::min(20, job.cycles / 2);
  const bool judges_host = job.cycles >= 40;   // NCCL keeps host memory of the first cycles: 210 MB of 8 ranks by the 20th, none more by the 40th
  for (int i = 0; i < job.cycles; ++i) {
    {
      const auto world = nccl_communicator(rank, job.ranks, nccl_unique_id(), {.stream = stream, .limit = Duration{30000}});
      world->connect();
      DeviceMemory memory(stream);
      suite::Buffer<float> x(memory, std::vector<float>(1024, 1.0f));
      world->all_reduce(x.data(), 1024, DType::f32);
      const auto pairs = world->split(rank / 2, rank, "pairs");
      pairs->all_reduce(x.data(), 1024, DType::f32);
      pairs->wait();
      world->wait();
    }
    if (i + 1 == settled) first = held();
    if ((rank == 0 && i % 20 == 19) || i + 1 == job.cycles) {   // said on the way, so that a run that is cut short tells something
      const Held now = held();
      std::printf("%s rank %d: %d cycles; since the %dth %+lld open files, %+lld threads, %+lld KB of the host%s, %+lld KB of the device (all processes)\n", i + 1 == job.cycles ? "ok" : "  ", rank, i + 1, settled, now.files - first.files,
                  now.threads - first.threads, (now.host - first.host) / 1024, judges_host ? "" : " (judged from 40 cycles on)", (now.device - first.device) / 1024);
      std::fflush(stdout);
      if (i + 1 == job.cycles) return now.files > first.files || now.threads > first.threads || (judges_host && now.host - first.host > (64 << 20)) || now.device - first.device > (64 << 20) ? 1 : 0;
    }
  }
  return 0;
}

int run_fault(const Job& job, int rank, cudaStream_t stream) {
  const auto world = nccl_communicator(rank, job.ranks, nccl_unique_id(), {.stream = stream, .limit = Duration{5000}});
  world->connect();
  DeviceMemory memory(stream);
  suite::Buffer<float> x(memory, std::vector<float>(1 << 16, 1.0f));
  for (int i = 0; i < 1000; ++i) {
    if (i == 3 && rank == job.ranks - 1) std::raise(job.fault == "stop" ? SIGSTOP : SIGKILL);
    const auto begin = Clock::now();
    try {
      world->all_reduce(x.data(), 1 << 16, DType::f32);
      world->wait();
    } catch (const CommError& e) {
      std::printf("ok nccl_%d_%s rank %d left after %lld ms: %s\n", job.ranks, job.fault.c_str(), rank,
                  static_cast<long long>(std::chrono::duration_cast<Duration>(Clock::now() - begin).count()), e.what());
      return 0;
    }
  }
  return 1;
}

int run_rank(const Job& job, int rank) {
  try {
    cudaStream_t stream = nullptr;
    if (cudaSetDevice(0) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess) return 77;
    if (job.cycles > 0) return run_cycles(job, rank, stream);
    if (!job.fault.empty()) return run_fault(job, rank, stream);
    return run_cases(job, rank, stream);
  } catch (const std::exception& e) {
    std::printf("FAILED rank %d: %s\n", rank, e.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  if (argc > 1) job.ranks = std::atoi(argv[1]);
  if (argc > 3 && std::string(argv[2]) == "--cycles") job.cycles = std::atoi(argv[3]);
  if (argc > 3 && std::string(argv[2]) == "--fault") job.fault = argv[3];
  if (job.ranks < 1) {
    std::printf("usage: nccl_suite RANKS [--cycles N | --fault kill|stop]\n");
    return 2;
  }
  // The parent never touches CUDA: its children are forked with a clean run time.
  const std::string address = "127.0.0.1:" + std::to_string(20000 + getpid() % 10000);
  std::vector<pid_t> children;
  for (int rank = 0; rank < job.ranks; ++rank) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      for (const auto& [name, value] : nccl_environment_defaults()) setenv(name.c_str(), value.c_str(), 0);
      const std::string host = "nccl-suite-" + std::to_string(getppid()) + "-" + std::to_string(rank);
      const std::pair<const char*, const char*> own[] = {{"NCCL_HOSTID", host.c_str()}, {"NCCL_COMM_ID", address.c_str()}, {"NCCL_SOCKET_IFNAME", "lo"},
                                                         {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}, {"NCCL_NET", "Socket"}, {"NCCL_RAS_ENABLE", "0"}};
      for (const auto& [name, value] : own) setenv(name, value, 1);
      const int code = run_rank(job, rank);
      std::fflush(stdout);
      _exit(code);
    }
    children.push_back(child);
  }
  int worst = 0;
  bool skipped = false;
  const std::size_t checked = job.fault.empty() ? children.size() : children.size() - 1;
  for (std::size_t i = 0; i < checked; ++i) {
    int status = 0;
    waitpid(children[i], &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 77) skipped = true;
    else if (code != 0) {
      std::printf("FAILED rank %zu ended with %d\n", i, code);
      worst = 1;
      for (const pid_t other : children) kill(other, SIGKILL);
    }
  }
  if (!job.fault.empty()) {
    kill(children.back(), SIGKILL);
    waitpid(children.back(), nullptr, 0);
  }
  if (worst == 0 && skipped) {
    std::printf("SKIPPED nccl_suite: no GPU\n");
    return 77;
  }
  std::printf("%s\n", worst == 0 ? "PASSED" : "FAILED");
  return worst;
}
