#include "executor/comm/watchdog.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <deque>
#include <limits>

#include "executor/comm/in_process.hpp"

namespace moeplan {
namespace {

void expect_in(const std::string& part, const std::string& text) { EXPECT_NE(text.find(part), std::string::npos) << text; }

RankState waiting(int rank, const std::string& comm, std::uint64_t sequence, std::vector<int> members, int elapsed = 100, int limit = 1000) {
  RankState s{.rank = rank, .host = "h" + std::to_string(rank)};
  s.at.phase = "backward";
  s.at.in_call = true;
  s.at.communicator = comm;
  s.at.operation = "all_reduce";
  s.at.sequence = sequence;
  s.at.members = std::move(members);
  s.at.entered[comm] = sequence;
  s.at.elapsed = Duration{elapsed};
  s.at.limit = Duration{limit};
  return s;
}
RankState computing(int rank, const std::string& comm, std::uint64_t last, int elapsed = 100) {
  RankState s{.rank = rank, .host = "h" + std::to_string(rank)};
  s.at.phase = "optimizer";
  s.at.entered[comm] = last;
  s.at.elapsed = Duration{elapsed};
  return s;
}

TEST(Culprit, nobody_is_blamed_within_the_limits) { EXPECT_FALSE(find_culprit({waiting(0, "world", 5, {0, 1}), computing(1, "world", 4)})); }

TEST(Culprit, the_rank_that_has_not_come_is_blamed_not_the_one_that_waits) {
  const auto v = find_culprit({waiting(0, "world", 5, {0, 1, 2}, 1500), waiting(1, "world", 5, {0, 1, 2}, 1400), computing(2, "world", 4, 1600)});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 2);
  EXPECT_EQ(v->host, "h2");
  expect_in("rank 2 on h2: optimizer, outside communication: outside communication for 1600 ms, while rank 0 has waited 1500 ms in backward, all_reduce #5 on world (limit 1000 ms)", v->text());
}

TEST(Culprit, a_rank_that_has_passed_the_call_is_not_blamed) {
  const auto v = find_culprit({waiting(0, "world", 5, {0, 1, 2}, 1500), computing(1, "world", 5, 9000), computing(2, "world", 4, 10)});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 2);
}

TEST(Culprit, blame_follows_who_waits_for_whom) {
  // 0 waits for 1 on world, 1 waits for 2 on a smaller group, 2 computes.
  const auto v = find_culprit({waiting(0, "world", 5, {0, 1}, 1500), waiting(1, "world/ep.0", 3, {1, 2}, 900), computing(2, "world/ep.0", 2)});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 2);
}

TEST(Culprit, a_dead_rank_is_placed_by_the_call_in_which_another_waits_for_it) {
  RankState dead = computing(1, "world", 4);
  dead.gone = true;
  const auto v = find_culprit({waiting(0, "world", 5, {0, 1}, 20), dead});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->text(), "rank 1 on h1: backward, all_reduce #5 on world (there rank 0 waits for it, last heard of in optimizer): its process ended");
}

TEST(Culprit, a_wait_for_what_is_queued_is_one_for_all_who_do_not_wait) {
  RankState queued = waiting(0, "world", 5, {0, 1}, 20), dead = computing(1, "world", 5);
  queued.at.operation = "wait";
  dead.gone = true;
  const auto v = find_culprit({queued, dead});
  ASSERT_TRUE(v);
  expect_in("backward, wait #5 on world (there rank 0 waits for it", v->text());
}

TEST(Culprit, a_dead_rank_for_which_nobody_waits_is_placed_by_its_last_word) {
  RankState dead = computing(1, "world", 4);
  dead.gone = true;
  const auto v = find_culprit({computing(0, "world", 4), dead});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->text(), "rank 1 on h1: optimizer, outside communication: its process ended");
}

TEST(Culprit, a_circle_is_called_one) {
  const auto v = find_culprit({waiting(0, "a", 1, {0, 1}, 1500), waiting(1, "b", 1, {0, 1}, 1500)});
  ASSERT_TRUE(v);
  expect_in("ranks 0, 1 wait for each other", v->text());
}

TEST(Culprit, a_call_that_does_not_end_with_all_ranks_in_it_blames_nobody_else) {
  const auto v = find_culprit({waiting(0, "world", 5, {0, 1}, 1500), waiting(1, "world", 5, {0, 1}, 1500)});
  ASSERT_TRUE(v);
  expect_in("all its ranks have come to the call, but it does not end", v->text());
}

TEST(Culprit, a_receive_waits_for_its_sender) {
  RankState receiver = waiting(0, "world", 1, {1}, 1500);
  receiver.at.operation = "receive";
  receiver.at.entered.clear();
  const auto v = find_culprit({receiver, computing(1, "world", 0)});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 1);
}

TEST(Culprit, the_dead_come_before_the_silent_and_those_before_the_slow) {
  RankState silent = computing(2, "world", 4), gone = computing(3, "world", 4);
  silent.silent = true;
  gone.gone = true;
  const RankState overdue = waiting(0, "world", 5, {0, 1, 2, 3}, 1500), slow = computing(1, "world", 4);
  EXPECT_EQ(find_culprit({overdue, slow, silent, gone})->rank, 3);
  EXPECT_EQ(find_culprit({overdue, slow, silent})->rank, 2);
  EXPECT_EQ(find_culprit({overdue, slow})->rank, 1);
}

RankState working(int rank, const std::string& comm, std::uint64_t last, int elapsed, int stall) {
  RankState s = computing(rank, comm, last, elapsed);
  s.at.phase = "save";
  s.at.stall = Duration{stall};
  return s;
}

TEST(Culprit, a_rank_that_tells_of_its_work_is_waited_for_however_long_that_takes) {
  EXPECT_FALSE(find_culprit({waiting(0, "world", 5, {0, 1}, 90000, 1000), working(1, "world", 4, 300, 400)}));
}

TEST(Culprit, one_that_has_none_to_tell_of_is_blamed_before_the_call_that_waits_is_overdue) {
  const auto v = find_culprit({waiting(0, "world", 5, {0, 1}, 700, 1000), working(1, "world", 4, 500, 400)});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->text(), "rank 1 on h1: save, outside communication: no work done for 500 ms (limit 400 ms), while rank 0 waits in backward, all_reduce #5 on world");
}

TEST(Culprit, one_that_has_none_to_tell_of_is_let_be_while_nobody_waits_for_it) {
  EXPECT_FALSE(find_culprit({computing(0, "world", 4, 700), working(1, "world", 4, 500, 400)}));
  EXPECT_FALSE(find_culprit({waiting(0, "world", 5, {0, 1, 2}), working(1, "world", 5, 500, 400), computing(2, "world", 4)})) << "it has come";
}

TEST(Culprit, another_overdue_call_is_looked_at_where_the_first_waits_for_a_rank_that_works) {
  const auto v = find_culprit({waiting(0, "world/a", 5, {0, 1}, 2500), working(1, "world/a", 4, 300, 400), waiting(2, "world/b", 7, {2, 3}, 1500), computing(3, "world/b", 6)});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 3);
}

// The first has waited for one that loaded for long; that one then comes, so all have, and the call may take its time.
TEST(Culprit, a_call_is_not_said_not_to_end_before_the_last_to_come_has_waited_too) {
  RankState late = waiting(1, "world", 5, {0, 1}, 50, 1000);
  EXPECT_FALSE(find_culprit({waiting(0, "world", 5, {0, 1}, 100000, 1000), late}));
  late.at.elapsed = Duration{1500};
  EXPECT_TRUE(find_culprit({waiting(0, "world", 5, {0, 1}, 100000, 1000), late}));
}

TEST(Culprit, a_circle_is_not_called_one_before_the_last_to_come_has_waited_too) {
  EXPECT_FALSE(find_culprit({waiting(0, "a", 1, {0, 1}, 100000), waiting(1, "b", 1, {0, 1}, 50)}));
}

TEST(Culprit, of_two_that_are_waited_for_the_one_that_does_not_go_on_is_blamed) {
  const RankState moves = working(1, "world", 4, 390, 400);
  const auto watched = find_culprit({waiting(0, "world", 5, {0, 1, 2}, 1500), moves, working(2, "world", 4, 410, 400)});
  ASSERT_TRUE(watched);
  EXPECT_EQ(watched->rank, 2);
  const auto not_watched = find_culprit({waiting(0, "world", 5, {0, 1, 2}, 1500), moves, computing(2, "world", 4, 100)});
  ASSERT_TRUE(not_watched);
  EXPECT_EQ(not_watched->rank, 2);
}

// Where weights have been loaded slowly and the first step begins, which tells of no work: others have waited in their first call since long ago.
TEST(Culprit, one_that_has_just_ended_its_slow_work_has_a_limit_of_its_own) {
  RankState begins = computing(1, "world", 4, 20);
  begins.at.untold = Duration{600};
  EXPECT_FALSE(find_culprit({waiting(0, "world", 5, {0, 1}, 100000, 1000), begins}));
  RankState in_another = waiting(1, "world/ep.0", 3, {1, 2}, 50);
  in_another.at.untold = Duration{600};
  EXPECT_FALSE(find_culprit({waiting(0, "world", 5, {0, 1}, 100000, 1000), in_another, computing(2, "world/ep.0", 2)}));
  begins.at.untold = Duration{1100};
  const auto v = find_culprit({waiting(0, "world", 5, {0, 1}, 100000, 1000), begins});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 1);
}

RankState turning(int rank, int elapsed, int still, int together = 100000) {
  RankState s = waiting(rank, "world", 5, {0, 1, 2}, elapsed);
  s.at.still = Duration{still};
  s.at.together = Duration{together};
  return s;
}

TEST(Culprit, a_call_that_all_have_come_to_may_take_its_time_while_all_turn) {
  EXPECT_FALSE(find_culprit({turning(0, 60000, 5), turning(1, 60000, 3), turning(2, 1500, 8)}));
  EXPECT_FALSE(find_culprit({turning(0, 200000, 5), turning(1, 99000, 3), turning(2, 150000, 8)})) << "it has been theirs together for 99 s";
  const auto v = find_culprit({turning(0, 100001, 5), turning(1, 100001, 3), turning(2, 100002, 8)});
  ASSERT_TRUE(v);
  expect_in("all its ranks have come to the call, but it does not end", v->text());
}

TEST(Culprit, of_an_overdue_call_that_all_have_come_to_the_one_that_stands_still_is_blamed) {
  const auto v = find_culprit({turning(0, 1500, 5), turning(1, 1300, 3), turning(2, 1400, 1390)});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->text(), "rank 2 on h2: backward, all_reduce #5 on world: all its ranks have come to the call, and it has stood still in it for 1390 ms; rank 0 has waited 1500 ms in backward, all_reduce #5 on world (limit 1000 ms)");
}

TEST(Culprit, a_call_in_which_all_stand_still_is_not_waited_for) { EXPECT_TRUE(find_culprit({turning(0, 1500, 1500), turning(1, 1500, 1500), turning(2, 1500, 1500)})); }

// Rank 0 waits in its next call for 1 and 2, which open a connection.
TEST(Culprit, who_waits_for_ranks_that_turn_in_a_call_of_their_own_waits_too) {
  RankState ahead = waiting(0, "world", 6, {0, 1}, 5000), one = turning(1, 7000, 5), two = turning(2, 7000, 5);
  ahead.at.still = Duration{2};
  EXPECT_FALSE(find_culprit({ahead, one, two}));
  two.at.still = Duration{6900};
  ASSERT_TRUE(find_culprit({ahead, one, two}));
  EXPECT_EQ(find_culprit({ahead, one, two})->rank, 2);
}

TEST(Culprit, outside_steps_one_that_stands_still_in_a_call_is_blamed_long_before_that_is_overdue) {
  RankState a = turning(0, 900, 5), b = turning(1, 500, 5), c = turning(2, 800, 450);
  for (RankState* s : {&a, &b, &c}) s->at.stall = Duration{400};
  const auto v = find_culprit({a, b, c});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->text(), "rank 2 on h2: backward, all_reduce #5 on world: it has stood still there for 450 ms (limit 400 ms), while rank 0 waits in backward, all_reduce #5 on world");
  EXPECT_EQ(find_culprit({waiting(0, "world", 6, {0, 1, 2}), waiting(1, "world", 6, {0, 1, 2}), c})->rank, 2) << "for the others the call has ended";
  c.at.still = Duration{390};
  EXPECT_FALSE(find_culprit({a, b, c}));
}

// As where the devices of all hang while they are opened.
TEST(Culprit, where_all_stand_in_their_own_work_the_longest_is_named_in_the_end) {
  EXPECT_FALSE(find_culprit({working(0, "world", 0, 2900, 400), working(1, "world", 0, 2790, 400)}));
  const auto v = find_culprit({working(0, "world", 0, 2900, 400), working(1, "world", 0, 3000, 400)});
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 1);
  expect_in("no work done for 3000 ms, nor by any other rank", v->text());
  EXPECT_FALSE(find_culprit({working(0, "world", 0, 2900, 400), working(1, "world", 0, 300, 400)})) << "one goes on";
}

// What it waits for without turning may be just the one that has not come, and that one goes on.
TEST(Culprit, one_that_stands_still_is_let_be_while_a_rank_has_not_come) {
  RankState a = turning(0, 900, 5), c = turning(2, 800, 790);
  for (RankState* s : {&a, &c}) s->at.stall = Duration{400};
  EXPECT_FALSE(find_culprit({a, working(1, "world", 4, 300, 400), c}));
}

TEST(Stall, within_calls_counts_from_the_last_turn) {
  Progress p(Duration{1000}, true);
  p.set_stall(Duration{50});
  p.set_limit(Duration{2000}, Duration{9000});
  p.enter("world", "open", 0, {0, 1}, true);
  EXPECT_EQ(p.snapshot().limit, Duration{2000});
  EXPECT_EQ(p.snapshot().together, Duration{9000});
  std::this_thread::sleep_for(Duration{60});
  EXPECT_TRUE(p.snapshot().stands_still());
  p.turn();
  EXPECT_FALSE(p.snapshot().stands_still());
  EXPECT_GE(p.snapshot().elapsed, Duration{60});
  std::this_thread::sleep_for(Duration{60});
  EXPECT_TRUE(p.snapshot().stands_still());
  p.leave();
  EXPECT_FALSE(p.snapshot().stands_still());
  Progress untold(Duration{1000});
  untold.set_stall(Duration{50});
  untold.enter("world", "open", 0, {0, 1}, true);
  std::this_thread::sleep_for(Duration{60});
  EXPECT_FALSE(untold.snapshot().stands_still()) << "its calls tell of no turns";
  EXPECT_EQ(untold.snapshot().together, Duration{1000});
}

TEST(Stall, leaves_time_to_notice_to_leave_and_to_end_within_the_minute) { EXPECT_EQ(kStalled, Duration{40000}); }

TEST(Stall, is_put_off_by_work_by_calls_and_by_changes_of_phase) {
  Progress p;
  EXPECT_EQ(p.snapshot().stall, Duration{0});
  p.set_stall(Duration{50});
  std::this_thread::sleep_for(Duration{60});
  EXPECT_TRUE(p.snapshot().stalled());
  p.advance();
  EXPECT_FALSE(p.snapshot().stalled());
  p.advance(Duration{3600000});   // what comes next takes longer
  std::this_thread::sleep_for(Duration{60});
  EXPECT_FALSE(p.snapshot().stalled());
  p.advance();
  std::this_thread::sleep_for(Duration{60});
  p.enter("world", "barrier", 1, {0, 1}, true);
  EXPECT_FALSE(p.snapshot().stalled()) << "that is for its own limit";
  p.leave();
  EXPECT_FALSE(p.snapshot().stalled());
  std::this_thread::sleep_for(Duration{60});
  EXPECT_TRUE(p.snapshot().stalled());
  p.set_phase("load");
  EXPECT_FALSE(p.snapshot().stalled());
  p.set_stall(Duration{0});
  std::this_thread::sleep_for(Duration{60});
  EXPECT_FALSE(p.snapshot().stalled());
  EXPECT_GE(p.snapshot().answers_for(), Duration{60});
  EXPECT_LT(p.snapshot().answers_for(), Duration{10000}) << "only since nobody is told any more";
}

TEST(OperationLimit, is_a_multiple_of_the_prediction_with_a_floor) {
  EXPECT_EQ(operation_limit(0.001), Duration{20000});
  EXPECT_EQ(operation_limit(10), Duration{50000});
  EXPECT_EQ(operation_limit(10, {.factor = 2, .at_least = Duration{1}}), Duration{20000});
}

TEST(StepLimit, follows_what_a_step_takes_once_one_has_ended) {
  const Duration most{300000};
  EXPECT_EQ(step_limit(2, 0.5, most), Duration{20000});
  EXPECT_EQ(step_limit(8, 3, most), Duration{40000});
  EXPECT_EQ(step_limit(0, 8, most), Duration{40000}) << "slower than predicted";
  EXPECT_EQ(step_limit(2, 0.5, Duration{6000}), Duration{6000});
}

// 60 s, 3 until it is noticed and 15 to leave: 42 are left. A step of 28 s or more needs 1.5 times itself.
TEST(StepLimit, lets_all_leave_within_a_minute_unless_a_step_takes_longer) {
  const Duration most{300000};
  EXPECT_EQ(step_limit(8.4, 3, most), Duration{42000});
  EXPECT_EQ(step_limit(12, 3, most), Duration{42000});
  EXPECT_EQ(step_limit(28, 3, most), Duration{42000});
  EXPECT_EQ(step_limit(3, 40, most), Duration{60000});
  EXPECT_EQ(step_limit(1000, 3, most), most);
}

TEST(StepLimit, of_the_first_step_leaves_time_to_make_things_ready) {
  const Duration most{300000};
  EXPECT_EQ(step_limit(0.1, 0, most), Duration{42000});
  EXPECT_EQ(step_limit(20, 0, most), Duration{100000});
  EXPECT_EQ(step_limit(0, 0, most), most) << "nobody says how long it takes";
  EXPECT_EQ(step_limit(0.1, 0, Duration{6000}), Duration{6000});
}

TEST(OperationLimit, of_a_senseless_prediction_is_finite_and_positive) {
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_GE(operation_limit(bad), Duration{20000});
    EXPECT_LE(operation_limit(bad), Duration{1000000000});
  }
}

/// Runs `ranks` threads under a watchdog whose calls may take 150 ms; the verdict, after all have left.
std::optional<Verdict> watched(int ranks, const std::function<void(Communicator&, Progress&, std::atomic<bool>&)>& body) {
  InProcessWorld world(ranks, {.limit = Duration{30000}});
  std::deque<Progress> progress;
  std::vector<Watchdog::Watched> list;
  for (int r = 0; r < ranks; ++r) {
    progress.emplace_back(Duration{150});
    list.push_back({r, "node" + std::to_string(r / 2), &progress.back()});
  }
  std::atomic<bool> over{false};
  std::optional<Verdict> verdict;
  std::atomic<int> left{0};
  {
    Watchdog dog(list, [&](const Verdict& v) {
      verdict = v;
      over = true;
      world.abort(v.text());
    }, Duration{10});
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        const auto c = world.communicator(r);
        c->report_to(&progress[static_cast<std::size_t>(r)]);
        try {
          body(*c, progress[static_cast<std::size_t>(r)], over);
        } catch (const CommError& e) {
          EXPECT_EQ(e.fault(), CommFault::aborted);
          ++left;
        }
      });
    for (auto& t : threads) t.join();
  }
  if (verdict) { EXPECT_EQ(left, ranks - 1); }
  return verdict;
}

TEST(Watchdog, a_rank_stuck_in_compute_is_named_with_host_and_phase_and_all_leave) {
  const auto v = watched(4, [](Communicator& c, Progress& p, std::atomic<bool>& over) {
    c.barrier();
    p.set_phase(c.rank() == 2 ? "optimizer" : "save");
    if (c.rank() == 2)
      while (!over) std::this_thread::sleep_for(Duration{1});
    else
      c.barrier();
  });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 2);
  EXPECT_EQ(v->host, "node1");
  expect_in("rank 2 on node1: optimizer, outside communication", v->text());
  expect_in("in save, barrier #2 on world", v->text());
}

TEST(Watchdog, a_rank_missing_from_a_sub_communicator_is_named_through_the_ranks_that_wait) {
  const auto v = watched(4, [](Communicator& c, Progress&, std::atomic<bool>& over) {
    const auto half = c.split(c.rank() / 2, c.rank(), "ep");
    if (c.rank() == 3)
      while (!over) std::this_thread::sleep_for(Duration{1});
    else {
      float x = 0;
      half->all_reduce(&x, 1, DType::f32);
      c.barrier();
    }
  });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->rank, 3);
}

TEST(Watchdog, a_run_within_its_limits_is_left_alone) {
  EXPECT_FALSE(watched(4, [](Communicator& c, Progress&, std::atomic<bool>&) {
    for (int i = 0; i < 50; ++i) c.barrier();
  }));
}

}  // namespace
}  // namespace moeplan
