/// The opening of a world over NCCL by real processes, with a library in NCCL's place (stand_in.hpp): one rank stands still in its own part, or in the part
/// that all make together, and is named; an opening that takes long is waited for.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>

#include "executor/nccl/nccl.hpp"
#include "executor/rendezvous/rank_process.hpp"
#include "tests/executor/nccl/stand_in.hpp"
#include "tests/executor/rendezvous/loopback.hpp"

namespace moeplan {
namespace {

constexpr int kRanks = 3, kEnded = 0, kNamed = 4, kGraceOver = 9;
constexpr Duration kLimit{60000}, kMayStandStill{3000};   // a loaded machine may not run a process for a second

struct Heard {
  int code = -1;
  std::string said;
};

struct Job {
  std::chrono::milliseconds connecting{0};
  int in_init = StandIn::kNobody, in_poll = StandIn::kNobody, in_device = StandIn::kNobody;
  int killed = StandIn::kNobody;   ///< with its device open
  int other_plan = StandIn::kNobody;

  [[nodiscard]] int culprit() const { return std::max({in_init, in_poll, in_device, killed, other_plan}); }
};

Heard rank_main(const Job& job, int rank, int port) {
  const Transport transport{.offer =
                                [] {
                                  const NcclId id = nccl_unique_id();
                                  return std::string(reinterpret_cast<const char*>(id.data()), id.size());
                                },
                            .open = [](int own, int ranks, const std::string&, Duration limit) { return nccl_communicator(own, ranks, NcclId{}, {.limit = limit}); },
                            .ready =
                                [&] {
                                  while (rank == job.in_device) ::pause();
                                  if (rank == job.killed) ::raise(SIGKILL);
                                }};
  // Who hangs is ended by its grace; the others leave by themselves.
  const Duration grace{rank == job.culprit() ? 200 : 20000};
  const auto why = run_rank_process({.place = place_of(rank, kRanks, port), .token = sha256("token"), .limit = kLimit, .stall = kMayStandStill, .grace = grace, .end = [](const std::string&) { ::_exit(kGraceOver); }, .alike = {{"options", "seed 1"}, {"plan", rank == job.other_plan ? "ep 2" : "ep 4"}}},
                                    transport, [](Communicator&, Progress&) {});
  return {why ? kNamed : kEnded, why.value_or("")};
}

std::vector<Heard> run(const Job& job) {
  void* const memory = ::mmap(nullptr, sizeof(StandIn), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  stand_in = new (memory) StandIn{};
  stand_in->connecting = job.connecting;
  stand_in->hangs_in_init = job.in_init;
  stand_in->hangs_in_poll = job.in_poll;
  const int port = free_port();
  std::vector<Heard> all(kRanks);
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  for (int r = 0; r < kRanks; ++r) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const Heard mine = rank_main(job, r, port);
      (void)!::write(ends[1], mine.said.data(), mine.said.size());
      ::_exit(mine.code);
    }
    ::close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  for (std::size_t r = 0; r < pids.size(); ++r) {
    int status = 0;
    ::waitpid(pids[r], &status, 0);
    all[r].code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    char block[4096];
    for (ssize_t n; (n = ::read(pipes[r], block, sizeof block)) > 0;) all[r].said.append(block, static_cast<std::size_t>(n));
    ::close(pipes[r]);
  }
  ::munmap(memory, sizeof(StandIn));
  return all;
}

void expect_all_name(const Job& job, const std::string& what) {
  const std::vector<Heard> all = run(job);
  for (int r = 0; r < kRanks; ++r) {
    if (r == job.culprit()) continue;
    const Heard& of = all[static_cast<std::size_t>(r)];
    EXPECT_EQ(of.code, kNamed) << "rank " << r;
    EXPECT_TRUE(of.said.starts_with("rank " + std::to_string(job.culprit()) + " on ")) << of.said;
    EXPECT_NE(of.said.find(what), std::string::npos) << of.said;
  }
}

TEST(NcclOpening, ends_well_where_all_open_it) {
  for (const Heard& of : run({})) EXPECT_EQ(of.code, kEnded) << of.said;
}

TEST(NcclOpening, that_takes_longer_than_a_rank_may_stand_still_is_waited_for) {
  for (const Heard& of : run({.connecting = 3 * kMayStandStill})) EXPECT_EQ(of.code, kEnded) << of.said;
}

TEST(NcclOpening, a_rank_whose_device_does_not_open_is_named) {
  expect_all_name({.in_device = 2}, ": init, outside communication: no work done for ");
  expect_all_name({.in_device = 0}, " waits in init, open #0 on world");
}

TEST(NcclOpening, a_rank_that_hangs_in_its_own_part_is_named) { expect_all_name({.in_init = 2}, ": init, outside communication: no work done for "); }

TEST(NcclOpening, a_rank_that_hangs_in_the_part_of_all_is_named) {
  expect_all_name({.connecting = std::chrono::milliseconds(200), .in_poll = 1}, ": init, open #0 on world: it has stood still there for ");
  expect_all_name({.connecting = 10 * kMayStandStill, .in_poll = 0}, ": init, open #0 on world: it has stood still there for ");
}

TEST(NcclOpening, a_rank_that_dies_before_its_part_is_named_by_the_call_that_waits_for_it) { expect_all_name({.killed = 1}, ": init, open #0 on world (there rank "); }

TEST(NcclOpening, a_rank_with_another_plan_is_named_before_anything_is_opened) { expect_all_name({.other_plan = 2}, ": init, outside communication: its plan and rank 0's differ"); }

}  // namespace
}  // namespace moeplan
