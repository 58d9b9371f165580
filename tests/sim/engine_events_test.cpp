#include <gtest/gtest.h>

#include <algorithm>

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

// Against a list sorted stably by time, with pushes of all distances between pops.
TEST(EventQueue, ComesOutAsAStableSortWould) {
  EventQueue q;
  std::vector<std::pair<Picoseconds, std::uint32_t>> waiting;
  std::uint64_t seed = 1;
  const auto random = [&] { return seed = seed * 6364136223846793005u + 1442695040888963407u, seed >> 33; };
  std::uint32_t made = 0;
  for (int round = 0; round < 20000; ++round) {
    if (waiting.empty() || random() % 2 == 0) {
      const Picoseconds at = q.now() + static_cast<Picoseconds>(random() % 4 == 0 ? 0 : random() >> (random() % 31));
      q.push(at, made);
      waiting.emplace_back(at, made++);
      continue;
    }
    const auto least = std::min_element(waiting.begin(), waiting.end());   // equal times by number, which grows
    ASSERT_EQ(q.due(), least->first == q.now());
    const auto e = q.pop();
    ASSERT_EQ(std::pair(e.at, e.what), *least);
    waiting.erase(least);
  }
}

}  // namespace
}  // namespace moeplan
