#include "sim/load/exchange.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"

namespace moeplan {
namespace {

Shares even(std::size_t experts) { return Shares(experts, 1.0 / static_cast<double>(experts)); }

TEST(Exchange, EveryCopyIsSentOnceAndWorkedOnOnce) {
  const Placement placement = contiguous(16, 4);
  const Exchange x = draw_exchange(even(16), placement, {.sequences = 2, .tokens = 128, .top_k = 2}, 7);
  EXPECT_EQ(x.total(), 4 * 2 * 128 * 2);
  std::int64_t received = 0, worked = 0;
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(x.sent(r), 2 * 128 * 2);
    received += x.received(r);
    std::int64_t here = 0;
    for (int s = 0; s < 4; ++s) here += x.slot_rows[static_cast<std::size_t>(4 * r + s)];
    EXPECT_EQ(here, x.received(r));
    worked += here;
  }
  EXPECT_EQ(received, x.total());
  EXPECT_EQ(worked, x.total());
}

TEST(Exchange, IsTheSameForTheSameSeed) {
  const Placement placement = contiguous(8, 2);
  EXPECT_EQ(draw_exchange(even(8), placement, {.tokens = 64}, 3).rows, draw_exchange(even(8), placement, {.tokens = 64}, 3).rows);
  EXPECT_NE(draw_exchange(even(8), placement, {.tokens = 64}, 3).rows, draw_exchange(even(8), placement, {.tokens = 64}, 4).rows);
}

// One expert has half of the tokens; with two of three slots its tokens go half to each of them.
TEST(Exchange, ReplicasShareTheTokensOfTheirExpert) {
  const Placement placement{{0, 1, 0, 1}, 2};
  const Exchange x = draw_exchange({0.75, 0.25}, placement, {.sequences = 4, .tokens = 1000, .top_k = 1, .precision = 1e6}, 1);
  EXPECT_NEAR(static_cast<double>(x.slot_rows[0]), static_cast<double>(x.slot_rows[2]), 8);
  EXPECT_NEAR(static_cast<double>(x.received(0)) / static_cast<double>(x.total()), 0.5, 0.01);
}

// Capacity factor 1 over two experts of three quarters and a quarter: a quarter of all copies is dropped.
TEST(Exchange, DropsWhatExceedsTheCapacityOfEachSource) {
  const Exchange x = draw_exchange({0.75, 0.25}, contiguous(2, 2), {.sequences = 1, .tokens = 4000, .top_k = 1, .precision = 1e9, .capacity_factor = 1.0}, 1);
  EXPECT_NEAR(static_cast<double>(x.dropped) / (2 * 4000), 0.25, 0.02);
  EXPECT_EQ(x.total() + x.dropped, 2 * 4000);
}

// The cheap way to received rows (one Dirichlet for the whole micro-batch) spreads as the exact one does.
TEST(Exchange, ReceivedRowsSpreadAsTheOneDirichletThatStandsForThem) {
  const Placement placement = contiguous(32, 8);
  const Sampling sampling{.sequences = 8 * 2, .sequence_length = 256, .top_k = 2, .precision = 100};
  double exact = 0, cheap = 0;
  const int draws = 300;
  for (int d = 0; d < draws; ++d) {
    const Exchange x = draw_exchange(even(32), placement, {.sequences = 2, .tokens = 256, .top_k = 2, .precision = 100}, static_cast<std::uint64_t>(d));
    const auto loads = rank_loads(realised(even(32), sampling, static_cast<std::uint64_t>(1000 + d)), placement);
    for (int r = 0; r < 8; ++r) {
      exact += std::pow(8.0 * static_cast<double>(x.received(r)) / static_cast<double>(x.total()) - 1, 2);
      cheap += std::pow(loads[static_cast<std::size_t>(r)] - 1, 2);
    }
  }
  EXPECT_NEAR(std::sqrt(exact / cheap), 1, 0.06);
}

TEST(Exchange, RefusesWhatHasNoTokensOrNoSlot) {
  EXPECT_THROW((void)draw_exchange(even(4), contiguous(4, 2), {.sequences = 0}, 1), InputError);
  EXPECT_THROW((void)draw_exchange(even(4), Placement{{0, 1, 2, 2}, 2}, {.sequences = 1}, 1), InputError);
}

}  // namespace
}  // namespace moeplan
