#include "executor/comm/in_process.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "executor/comm/reduce.hpp"

namespace moeplan {
namespace {

constexpr Duration kShort{150}, kLong{20000};

/// The CommError that a run ends with.
CommError failure(int ranks, const std::function<void(Communicator&)>& body, Duration limit = kLong) {
  try {
    run_ranks(ranks, body, {.limit = limit});
  } catch (const CommError& e) {
    return e;
  }
  ADD_FAILURE() << "no CommError";
  return {CommFault::library, {}, ""};
}

void expect_in(const std::string& part, const std::string& text) { EXPECT_NE(text.find(part), std::string::npos) << text; }

TEST(InProcess, different_collectives_are_refused_naming_both_ranks) {
  const CommError e = failure(3, [](Communicator& c) {
    float x[9] = {};
    if (c.rank() == 2) c.all_gather(x, x, 3, DType::f32);
    else c.all_reduce(x, 3, DType::f32);
  });
  EXPECT_EQ(e.fault(), CommFault::mismatch);
  expect_in("rank 0 issued all_reduce f32 x 3, sum as #1, rank 2 issued all_gather f32 x 3 as #1", e.what());
}

TEST(InProcess, different_sizes_are_refused_naming_both_ranks) {
  const CommError e = failure(2, [](Communicator& c) {
    float x[8] = {};
    c.all_reduce(x, c.rank() == 0 ? 8 : 4, DType::f32);
  });
  EXPECT_EQ(e.fault(), CommFault::mismatch);
  expect_in("rank 0 issued all_reduce f32 x 8, sum as #1, rank 1 issued all_reduce f32 x 4, sum as #1", e.what());
}

TEST(InProcess, counts_of_all_to_all_that_do_not_match_are_refused) {
  const CommError e = failure(2, [](Communicator& c) {
    std::vector<float> x(8), y(8);
    const std::vector<std::int64_t> send{1, 1}, receive = c.rank() == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{1, 1};
    c.all_to_all(x.data(), send, y.data(), receive, DType::f32);
  });
  EXPECT_EQ(e.fault(), CommFault::mismatch);
  expect_in("rank 1 sends 1 elements to rank 0, which expects 2", e.what());
}

TEST(InProcess, a_receive_of_another_size_is_refused_naming_both_ranks) {
  const CommError e = failure(2, [](Communicator& c) {
    float x[4] = {};
    if (c.rank() == 0) c.send(x, 4, DType::f32, 1);
    else c.receive(x, 3, DType::f32, 0);
  });
  EXPECT_EQ(e.fault(), CommFault::mismatch);
  expect_in("rank 0 sends f32 x 4, rank 1 receives f32 x 3", e.what());
}

TEST(InProcess, a_rank_that_stays_away_is_named_at_the_limit) {
  std::atomic<bool> over{false};
  const CommError e = failure(4, [&](Communicator& c) {
    if (c.rank() == 3) {
      while (!over) std::this_thread::sleep_for(Duration{1});
      return;
    }
    try {
      c.barrier();
    } catch (...) {
      over = true;
      throw;
    }
  }, kShort);
  EXPECT_EQ(e.fault(), CommFault::timeout);
  expect_in("barrier #1 on world: rank 3 did not come within 150 ms", e.what());
}

TEST(InProcess, a_rank_that_ends_early_is_named) {
  const CommError e = failure(3, [](Communicator& c) {
    if (c.rank() == 1) return;
    c.barrier();
  });
  EXPECT_EQ(e.fault(), CommFault::peer_lost);
  expect_in("rank 1 ended without it", e.what());
}

TEST(InProcess, a_receive_from_a_rank_that_ended_is_refused) {
  const CommError e = failure(2, [](Communicator& c) {
    float x = 0;
    if (c.rank() == 0) c.receive(&x, 1, DType::f32, 1);
  });
  EXPECT_EQ(e.fault(), CommFault::peer_lost);
  EXPECT_EQ(e.where().rank, 0);
  EXPECT_EQ(e.where().peer, 1);
  EXPECT_EQ(e.where().operation, "receive");
}

TEST(InProcess, the_exception_of_one_rank_is_the_one_that_is_thrown) {
  EXPECT_THROW(run_ranks(4, [](Communicator& c) {
    if (c.rank() == 2) throw std::out_of_range("no memory left");
    c.barrier();
  }), std::out_of_range);
}

TEST(InProcess, the_others_are_told_which_rank_failed_and_why) {
  std::mutex mutex;
  std::vector<std::string> texts;
  EXPECT_THROW(run_ranks(4, [&](Communicator& c) {
    if (c.rank() == 2) throw std::out_of_range("no memory left");
    try {
      c.barrier();
    } catch (const CommError& e) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(e.what());
      throw;
    }
  }), std::out_of_range);
  ASSERT_EQ(texts.size(), 3u);
  for (const auto& t : texts) expect_in("rank 2 failed: no memory left", t);
}

TEST(InProcess, abort_wakes_ranks_in_every_communicator) {
  const CommError e = failure(4, [](Communicator& c) {
    const auto half = c.split(c.rank() / 2, c.rank(), "half");
    if (c.rank() == 0) c.abort("told to");
    else if (c.rank() == 1) c.barrier();
    else if (c.rank() == 2) half->barrier();
    else {
      float x = 0;
      half->receive(&x, 1, DType::f32, 0);
    }
  });
  EXPECT_EQ(e.fault(), CommFault::aborted);
  expect_in("told to", e.what());
}

TEST(InProcess, after_an_abort_the_next_call_is_refused) {
  InProcessWorld world(2);
  const auto c = world.communicator(0);
  world.abort("over");
  EXPECT_THROW(c->barrier(), CommError);
  EXPECT_THROW(c->barrier(), CommError);
}

TEST(InProcess, a_packed_type_does_not_travel_as_such) {
  InProcessWorld world(1);
  const auto c = world.communicator(0);
  float x = 0;
  try {
    c->all_reduce(&x, 1, DType::mxfp4);
    FAIL();
  } catch (const CommError& e) {
    EXPECT_EQ(e.fault(), CommFault::bad_call);
    expect_in("mxfp4 does not travel as such", e.what());
  }
}

TEST(InProcess, a_peer_out_of_range_is_refused) {
  InProcessWorld world(1);
  const auto c = world.communicator(0);
  float x = 0;
  EXPECT_THROW(c->send(&x, 1, DType::f32, 1), CommError);
  EXPECT_THROW(c->send(&x, 1, DType::f32, 0), CommError);
}

TEST(InProcess, sums_do_not_depend_on_who_comes_first) {
  const int ranks = 4, n = 257;
  std::vector<float> first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<float> result(n);
    run_ranks(ranks, [&](Communicator& c) {
      std::mt19937 random(static_cast<unsigned>(c.rank()));
      std::vector<float> x(n);
      for (auto& v : x) v = std::uniform_real_distribution<float>(-1, 1)(random);
      if ((c.rank() + repeat) % 2 == 0) std::this_thread::yield();
      c.all_reduce(x.data(), n, DType::f32);
      if (c.rank() == 3) result = x;
    });
    if (repeat == 0) first = result;
    EXPECT_EQ(result, first);
  }
}

TEST(InProcess, bf16_sums_round_once) {
  std::uint16_t result = 0;
  run_ranks(3, [&](Communicator& c) {
    // 256 + 1 + 1: rounding after each step would lose both ones (bf16 has 8 bits).
    std::uint16_t x = float_to_bf16(c.rank() == 0 ? 256.0f : 1.0f);
    c.all_reduce(&x, 1, DType::bf16);
    if (c.rank() == 0) result = x;
  });
  EXPECT_EQ(bf16_to_float(result), 258.0f);
}

TEST(InProcess, max_carries_nan) {
  run_ranks(3, [&](Communicator& c) {
    float x = c.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    c.all_reduce(&x, 1, DType::f32, Reduction::max);
    EXPECT_TRUE(std::isnan(x));
  });
}

TEST(InProcess, integer_sums_wrap) {
  run_ranks(2, [&](Communicator& c) {
    std::int32_t x = std::numeric_limits<std::int32_t>::max();
    c.all_reduce(&x, 1, DType::i32);
    EXPECT_EQ(x, -2);
  });
}

TEST(InProcess, progress_says_where_a_rank_failed) {
  Progress progress;
  const CommError e = failure(2, [&](Communicator& c) {
    if (c.rank() != 0) return;
    c.report_to(&progress);
    progress.set_phase("optimizer");
    c.barrier();
  });
  EXPECT_EQ(progress.snapshot().text(), "optimizer, barrier #1 on world");
  EXPECT_EQ(progress.snapshot().members, (std::vector<int>{0, 1}));
}

TEST(InProcess, random_programs_end_the_same_on_all_ranks) {
  // Each rank draws the same program from a shared seed, with sub-communicators, and counts the same payloads.
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::vector<CommCounters> counts(4);
    run_ranks(4, [&](Communicator& world) {
      std::mt19937 random(seed);
      const auto half = world.split(world.rank() % 2, world.rank(), "half");
      for (int step = 0; step < 17; ++step) {
        Communicator& c = random() % 2 ? world : *half;
        const auto n = static_cast<std::int64_t>(random() % 50);
        std::vector<float> a(static_cast<std::size_t>(n * c.size()), 1.0f), b(a);
        switch (random() % 4) {
          case 0: c.all_reduce(a.data(), n, DType::f32); break;
          case 1: c.all_gather(b.data(), a.data(), n, DType::f32); break;
          case 2: c.reduce_scatter(a.data(), b.data(), n, DType::f32); break;
          default: c.barrier();
        }
      }
      world.check_order();
      half->check_order();
      counts[static_cast<std::size_t>(world.rank())] = world.counters();
    });
    for (const auto& c : counts) EXPECT_EQ(c, counts[0]);
  }
}

}  // namespace
}  // namespace moeplan
