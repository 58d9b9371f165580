/// Real processes, real signals: each test starts ranks that join over TCP and meet at barriers, does something to one of them, and
/// reads what the others say when they leave.
#include "executor/rendezvous/lifeline.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "executor/comm/communicator.hpp"
#include "tests/executor/rendezvous/loopback.hpp"

namespace moeplan {
namespace {

constexpr int kRanks = 4, kLost = 4;
const LifelineOptions kFast{.beat = Duration{100}, .silence = Duration{4000}};   // a loaded machine may not run a process for a second
const LifelineOptions kSlow{.beat = Duration{10000}, .silence = Duration{60000}};
constexpr Duration kCallLimit{2000};

void expect_in(const std::string& part, const std::string& text) { EXPECT_NE(text.find(part), std::string::npos) << text; }

struct Process {
  pid_t pid = 0;
  int pipe = -1;         ///< what it says
  std::string said;
  int code = -1;         ///< exit code, 128 + signal, or -1 while it runs
};

/// What rank `rank` does at step 5; the others just go on.
using Fault = void (*)(Lifeline&);

void die(Lifeline&) { ::raise(SIGKILL); }
void die_a_while_later(Lifeline&) {
  std::this_thread::sleep_for(Duration{1500});
  ::raise(SIGKILL);
}
void stop(Lifeline&) { ::raise(SIGSTOP); }
void exit_quietly(Lifeline&) { ::_exit(0); }
void hang(Lifeline&) { std::this_thread::sleep_for(std::chrono::seconds(60)); }
/// Its work takes longer than a barrier may, and it tells of it, or of none.
void work_slowly(Lifeline&) {}
void stand_still(Lifeline&) { std::this_thread::sleep_for(std::chrono::seconds(60)); }
void fail(Lifeline& l) {
  l.fail("out of memory: 3 GiB asked for");
  throw std::bad_alloc();
}
void nothing(Lifeline&) {}

int rank_main(int rank, int port, int culprit, Fault fault, int out) {
  const auto say = [out](const std::string& text) { (void)!::write(out, (text + "\n").data(), text.size() + 1); };
  try {
    Progress progress(kCallLimit);
    progress.set_phase("rendezvous");
    Joined joined = join(place_of(rank, kRanks, port), sha256("token"), "node" + std::to_string(rank), "id", {.limit = Duration{20000}});
    Lifeline line(std::move(joined), progress, [&](const Verdict& v) {
      say(v.text());
      ::_exit(kLost);
    }, fault == die_a_while_later ? kSlow : kFast);
    for (int step = 0; step < 20; ++step) {
      progress.set_phase("forward dispatch");
      if (rank == culprit && step == 5) {
        progress.set_phase("backward reduce");
        if (fault == work_slowly || fault == stand_still) progress.set_stall(Duration{1500});
        for (int piece = 0; fault == work_slowly && piece < 20; ++piece) {
          progress.advance();
          std::this_thread::sleep_for(Duration{300});
        }
        fault(line);
      }
      line.barrier("step", kCallLimit);
    }
    say("done");
    return 0;
  } catch (const CommError&) {
    std::this_thread::sleep_for(std::chrono::seconds(5));   // the lifeline's thread ends the process
    return 1;
  } catch (const std::exception&) {
    return 1;
  }
}

/// Runs the ranks; every one but a stopped culprit ends within 30 s or is killed and reported as 137.
std::vector<Process> run(int culprit, Fault fault) {
  const int port = free_port();
  std::vector<Process> all(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int code = rank_main(r, port, culprit, fault, ends[1]);
      ::_exit(code);
    }
    ::close(ends[1]);
    all[static_cast<std::size_t>(r)] = {pid, ends[0], {}, -1};
  }
  const auto end = Clock::now() + std::chrono::seconds(30);
  const auto running = [&] {
    int n = 0;
    for (auto& p : all) {
      int status = 0;
      if (p.code == -1 && ::waitpid(p.pid, &status, WNOHANG) == p.pid) p.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (p.code == -1) ++n;
    }
    return n;
  };
  const int leftover = fault == stop ? 1 : 0;
  while (running() > leftover && Clock::now() < end) std::this_thread::sleep_for(Duration{5});
  for (auto& p : all) {
    if (p.code == -1) {
      ::kill(p.pid, SIGKILL);
      int status = 0;
      ::waitpid(p.pid, &status, 0);
      p.code = 137;
    }
    char block[4096];
    for (ssize_t n; (n = ::read(p.pipe, block, sizeof block)) > 0;) p.said.append(block, static_cast<std::size_t>(n));
    ::close(p.pipe);
  }
  return all;
}

/// All but the culprit left with the code for a lost peer, and said `what`.
void expect_all_blame(int culprit, Fault fault, const std::string& what) {
  const auto all = run(culprit, fault);
  for (int r = 0; r < kRanks; ++r) {
    if (r == culprit) continue;
    const Process& p = all[static_cast<std::size_t>(r)];
    EXPECT_EQ(p.code, kLost) << "rank " << r << ": " << p.said;
    expect_in("rank " + std::to_string(culprit) + " on node" + std::to_string(culprit) + ": ", p.said);
    expect_in(what, p.said);
  }
}

TEST(Lifeline, a_run_without_fault_ends_well_on_all_ranks) {
  for (const Process& p : run(0, nothing)) {
    EXPECT_EQ(p.code, 0);
    EXPECT_EQ(p.said, "done\n");
  }
}

TEST(Lifeline, a_killed_rank_is_named_by_all_others) { expect_all_blame(2, die, "its process ended"); }
TEST(Lifeline, a_change_of_phase_is_told_before_the_next_beat) { expect_all_blame(2, die_a_while_later, "backward reduce"); }
TEST(Lifeline, a_killed_rank_0_is_named_by_all_others) { expect_all_blame(0, die, "its process ended"); }
TEST(Lifeline, a_stopped_rank_is_named_by_all_others) { expect_all_blame(2, stop, "no sign of life"); }
TEST(Lifeline, a_stopped_rank_0_is_named_by_all_others) { expect_all_blame(0, stop, "no sign of life"); }
TEST(Lifeline, a_rank_that_exits_without_goodbye_is_named) { expect_all_blame(1, exit_quietly, "its process ended"); }
TEST(Lifeline, a_rank_that_fails_says_why) { expect_all_blame(3, fail, "backward reduce, outside communication: out of memory: 3 GiB asked for"); }
TEST(Lifeline, a_failing_rank_0_says_why) { expect_all_blame(0, fail, "out of memory: 3 GiB asked for"); }

TEST(Lifeline, a_rank_that_hangs_outside_communication_is_named_with_its_phase_and_leaves_too) {
  const auto all = run(2, hang);
  for (const Process& p : all) {
    EXPECT_EQ(p.code, kLost) << p.said;
    expect_in("rank 2 on node2: backward reduce, outside communication", p.said);
    expect_in("barrier step #6 on lifeline", p.said);
  }
}

TEST(Lifeline, a_rank_that_goes_on_with_its_work_is_waited_for) {
  for (const Process& p : run(2, work_slowly)) {
    EXPECT_EQ(p.code, 0) << p.said;
    EXPECT_EQ(p.said, "done\n");
  }
}

TEST(Lifeline, a_rank_that_has_no_work_to_tell_of_is_named_before_the_barrier_is_overdue) {
  for (const Process& p : run(2, stand_still)) {
    EXPECT_EQ(p.code, kLost) << p.said;
    expect_in("rank 2 on node2: backward reduce, outside communication: no work done for", p.said);
  }
}

TEST(Lifeline, barriers_of_different_names_are_refused) {
  const int port = free_port();
  std::vector<std::thread> threads;
  std::vector<std::string> errors(2);
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      Progress progress;
      Lifeline line(join(place_of(r, 2, port), sha256("token"), "node", "", {.limit = Duration{20000}}), progress, {}, kFast);
      try {
        line.barrier(r == 0 ? "save" : "load", Duration{10000});
      } catch (const CommError& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  for (const auto& e : errors) expect_in("rank 1 on node: barrier \"load\": the others are at barrier \"save\"", e);
}

TEST(Lifeline, a_world_of_one_passes_its_own_barriers) {
  Progress progress;
  Lifeline line(join(place_of(0, 1, 0), Token{}, "here", ""), progress, {});
  line.barrier("save", Duration{1000});
  line.barrier("save", Duration{1000});
}

}  // namespace
}  // namespace moeplan
