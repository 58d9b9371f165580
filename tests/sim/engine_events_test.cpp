#include <gtest/gtest.h>

#include "sim/engine/events.hpp"

namespace moeplan {
namespace {

TEST(EventQueue, EventsComeOutByTime) {
  EventQueue q;
  for (const Picoseconds at : {50, 10, 40, 20, 30, 60, 5}) q.push(at, static_cast<std::uint32_t>(at));
  std::vector<std::uint32_t> seen;
  while (!q.empty()) seen.push_back(q.pop().what);
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{5, 10, 20, 30, 40, 50, 60}));
  EXPECT_EQ(q.now(), 60);
}

TEST(EventQueue, EventsOfOneInstantComeOutInTheOrderTheyWentIn) {
  EventQueue q;
  for (std::uint32_t i = 0; i < 100; ++i) q.push(7, i);
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(q.pop().what, i);
}

TEST(EventQueue, PushingWhilePoppingKeepsTheOrder) {
  EventQueue q;
  q.push(1, 0);
  Picoseconds before = 0;
  std::uint32_t popped = 0;
  while (!q.empty()) {
    const auto e = q.pop();
    EXPECT_GE(e.at, before);
    before = e.at;
    if (++popped < 1000) {
      q.push(e.at + 3 * e.what % 7, popped);
      if (popped % 2 == 0) q.push(e.at + 5, popped);
    }
  }
  EXPECT_GT(popped, 1000u);
}

}  // namespace
}  // namespace moeplan
