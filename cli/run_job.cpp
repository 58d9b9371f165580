#include "cli/run_job.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cli/run_rank.hpp"
#include "core/error.hpp"
#include "executor/comm/shared_memory.hpp"
#include "executor/comm/watchdog.hpp"
#ifdef MOEPLAN_NCCL
#include "executor/nccl/nccl.hpp"
#endif

namespace moeplan::cli {
namespace {

/// A TCP port that nobody listens on at the moment.
int free_port() {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool found = s >= 0 && ::bind(s, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::getsockname(s, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (s >= 0) ::close(s);
  if (!found) throw InputError("--ranks", "no port of this machine can be had for the ranks to meet on");
  return ntohs(address.sin_port);
}

/// Waits for the children, hands them the signals that come, and ends those that do not leave after another failed.
int attend(const std::vector<pid_t>& children) {
  sigset_t waited;
  sigemptyset(&waited);
  for (const int s : {SIGTERM, SIGUSR1, SIGINT, SIGCHLD}) sigaddset(&waited, s);
  std::vector<pid_t> left = children;
  int worst = 0;
  std::optional<Clock::time_point> failed;
  while (!left.empty()) {
    const timespec moment{.tv_sec = 0, .tv_nsec = 200'000'000};
    if (const int s = sigtimedwait(&waited, nullptr, &moment); s > 0 && s != SIGCHLD)
      for (const pid_t p : left) ::kill(p, s);
    for (std::size_t i = left.size(); i-- > 0;) {
      int status = 0;
      if (::waitpid(left[i], &status, WNOHANG) != left[i]) continue;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
      worst = std::max(worst, code);
      if (code != 0 && code != kInterrupted && !failed) failed = Clock::now();
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (failed && Clock::now() > *failed + 2 * kGrace)
      for (const pid_t p : left) ::kill(p, SIGKILL);
  }
  return worst;
}

/// One process for each rank of this machine. Their parent has touched no device: they are forked with a clean run time.
std::optional<int> fork_ranks(ProcessPlace& place) {
  sigset_t held, before;
  sigemptyset(&held);
  for (const int s : {SIGTERM, SIGUSR1, SIGINT, SIGCHLD}) sigaddset(&held, s);
  pthread_sigmask(SIG_BLOCK, &held, &before);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  std::vector<pid_t> children;
  for (int i = 0; i < place.local_world_size; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(kFailed);
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      place.rank += i;
      place.local_rank = i;
      place.fork_local = false;
      return std::nullopt;
    }
    if (child < 0) {
      for (const pid_t p : children) ::kill(p, SIGKILL);
      throw InputError("--ranks", fmt::format("process {} of {} cannot be started", i + 1, place.local_world_size));
    }
    children.push_back(child);
  }
  const int worst = attend(children);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return worst;
}

}  // namespace

std::optional<Job> find_job(int ranks, bool may_fork, const RankFlags& flags, const std::optional<std::string>& token_file, std::optional<int>& ended) {
  const Environment environment = process_environment();
  Job job{.place = find_place(environment, flags)};
  const bool own = job.place.world_size == 1;
  if (own && (ranks <= 1 || !may_fork)) return std::nullopt;
  if (own) {
    job.place.world_size = job.place.local_world_size = ranks;
    job.place.fork_local = true;
    job.place.port = free_port();
    job.token = random_digest();
  } else {
    if (ranks > 1 && ranks != job.place.world_size)
      throw InputError("--ranks", fmt::format("{}, but {} says that there are {}", ranks, launcher_name(job.place.launcher), job.place.world_size), "leave --ranks out under a launcher");
    job.token = token_file ? find_token(environment, *token_file) : find_token(environment);
  }
  if (job.place.fork_local) ended = fork_ranks(job.place);
  return job;
}

Transport transport_of(const std::string& backend, std::function<void()> ready) {
  if (backend != "cuda") return {.offer = offer_shared_memory, .open = shared_memory_communicator, .ready = std::move(ready)};
#ifdef MOEPLAN_NCCL
  for (const auto& [name, value] : nccl_environment_defaults()) ::setenv(name.c_str(), value.c_str(), 0);
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);   // 1 would have each rank wait for all others in its own part of the opening
  return {.offer =
              [] {
                const NcclId id = nccl_unique_id();
                return std::string(reinterpret_cast<const char*>(id.data()), id.size());
              },
          .open =
              [](int rank, int ranks, const std::string& offer, Duration limit) {
                NcclId id{};
                if (offer.size() != id.size()) throw std::runtime_error("rank 0 handed out no NCCL id");
                std::copy_n(reinterpret_cast<const std::byte*>(offer.data()), id.size(), id.begin());
                return nccl_communicator(rank, ranks, id, {.limit = limit});
              },
          .ready = std::move(ready)};
#else
  throw InputError("--backend", "cuda: this program was built without NCCL, over which ranks exchange", "build where nccl.h is found");
#endif
}

Output run_job(const Job& job, Duration limit, Duration stall, const Transport& transport, std::vector<std::pair<std::string, std::string>> alike, const std::function<Output(Communicator&, Progress&)>& body) {
  alike.insert(alike.begin(), {"version", MOEPLAN_VERSION});
  Output out;
  const auto end = [](const std::string& why) {
    std::fprintf(stderr, "moeplan: note: %s\n", why.c_str());
    ::_exit(kFailed);
  };
  const auto joined = [rank = job.place.rank] {
    if (rank == 0) forget_token(process_environment());
  };
  const auto why = run_rank_process({.place = job.place, .token = job.token, .limit = limit, .stall = stall, .grace = kGrace, .end = end, .joined = joined, .alike = std::move(alike)}, transport,
                                    [&](Communicator& world, Progress& progress) { out = body(world, progress); });
  if (!why) return out;
  Output failed;
  failed.exit_code = kFailed;
  failed.notes.push_back(*why);
  return failed;
}

}  // namespace moeplan::cli
