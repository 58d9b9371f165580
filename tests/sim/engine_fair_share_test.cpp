#include <gtest/gtest.h>

#include "sim/engine/fair_share.hpp"

namespace moeplan {
namespace {

constexpr double kGb = 1e9;
/// A flow that could use 1000 GB/s of each link it crosses, so that only links hold it back.
std::int32_t unbounded(FairShare& s, std::vector<std::int32_t> links) {
  std::vector<LinkUse> uses;
  for (const std::int32_t l : links) uses.push_back({l, 1000 * kGb});
  return s.start(uses);
}
double rate(const FairShare& s, std::int32_t flow, double full) { return s.speed(flow) * full / kGb; }

// One link L of 100 GB/s. x + y = 100 and neither may be less than the other without need: x = y = 50.
TEST(FairShare, TwoFlowsShareALinkEqually) {
  FairShare s;
  const auto l = s.add_link({100 * kGb});
  const auto x = unbounded(s, {l}), y = unbounded(s, {l});
  // A use above the capacity counts as the capacity: full speed is 100 GB/s.
  EXPECT_DOUBLE_EQ(rate(s, x, 100 * kGb), 50);
  EXPECT_DOUBLE_EQ(rate(s, y, 100 * kGb), 50);
}

// L1 = 100, L2 = 30. x crosses L1; y crosses L1 and L2; z crosses L2.
// L2 fills first, at y = z = 15. Then x takes what is left of L1: x = 100 - 15 = 85.
TEST(FairShare, ThreeFlowsBottleneckedOnDifferentLinks) {
  FairShare s;
  const auto l1 = s.add_link({100 * kGb}), l2 = s.add_link({30 * kGb});
  const std::vector<LinkUse> both{{l1, 30 * kGb}, {l2, 30 * kGb}};
  const auto x = unbounded(s, {l1});
  const auto y = s.start(both);
  const auto z = unbounded(s, {l2});
  EXPECT_DOUBLE_EQ(rate(s, x, 100 * kGb), 85);
  EXPECT_DOUBLE_EQ(rate(s, y, 30 * kGb), 15);
  EXPECT_DOUBLE_EQ(rate(s, z, 30 * kGb), 15);
}

// L = 100. x alone reaches only 20: it keeps 20, y gets 80 of the 90 that it could use.
TEST(FairShare, AFlowThatNeedsLessThanItsShareKeepsItsSpeed) {
  FairShare s;
  const auto l = s.add_link({100 * kGb});
  const auto x = s.start(std::vector<LinkUse>{{l, 20 * kGb}});
  const auto y = s.start(std::vector<LinkUse>{{l, 90 * kGb}});
  EXPECT_DOUBLE_EQ(s.speed(x), 1);
  EXPECT_NEAR(rate(s, y, 90 * kGb), 80, 1e-9);
}

// L = 100, x and y at 60 each share it 50 : 50; when y ends x has its 60 back. The change is told.
TEST(FairShare, RatesUpdateWhenAFlowEnds) {
  FairShare s;
  const auto l = s.add_link({100 * kGb});
  const auto x = s.start(std::vector<LinkUse>{{l, 60 * kGb}});
  EXPECT_TRUE(s.changed().empty());
  const auto y = s.start(std::vector<LinkUse>{{l, 60 * kGb}});
  EXPECT_EQ(s.changed(), std::vector<std::int32_t>{x});
  EXPECT_NEAR(rate(s, x, 60 * kGb), 50, 1e-9);
  s.end(y);
  EXPECT_EQ(s.changed(), std::vector<std::int32_t>{x});
  EXPECT_DOUBLE_EQ(s.speed(x), 1);
}

// A flow loads two links 4 : 1. L1 = 100, L2 = 20; x puts 80 on L1 and 20 on L2, y puts 20 on L2 alone.
// Main rates rise together: x at level r puts r / 4 on L2, y puts r. L2 is full at r / 4 + r = 20, r = 16 (y = 16, x's share 4).
TEST(FairShare, AFlowMayLoadItsLinksUnequally) {
  FairShare s;
  const auto l1 = s.add_link({100 * kGb}), l2 = s.add_link({20 * kGb});
  const auto x = s.start(std::vector<LinkUse>{{l1, 80 * kGb}, {l2, 20 * kGb}});
  const auto y = s.start(std::vector<LinkUse>{{l2, 20 * kGb}});
  EXPECT_NEAR(rate(s, x, 80 * kGb), 16, 1e-9);
  EXPECT_NEAR(rate(s, y, 20 * kGb), 16, 1e-9);
}

TEST(FairShare, FlowsThatMeetNoFullLinkAreNeverSlowed) {
  FairShare s;
  const auto l = s.add_link({100 * kGb});
  for (int i = 0; i < 10; ++i) {
    const auto f = s.start(std::vector<LinkUse>{{l, 10 * kGb}});
    EXPECT_EQ(s.speed(f), 1.0);
    EXPECT_TRUE(s.changed().empty());
  }
}

TEST(FairShare, WhatStartsAtOneInstantIsSharedOnce) {
  FairShare s;
  s.defer();
  const auto l = s.add_link({100 * kGb});
  const auto x = unbounded(s, {l}), y = unbounded(s, {l}), z = unbounded(s, {l});
  s.end(z);
  EXPECT_TRUE(s.unsettled());
  s.settle();
  EXPECT_EQ(s.changed(), (std::vector<std::int32_t>{x, y}));
  EXPECT_DOUBLE_EQ(s.speed(x), 0.5);
  EXPECT_DOUBLE_EQ(s.speed(y), 0.5);
  EXPECT_FALSE(s.unsettled());
}

// Whatever the flows: no link carries more than it can, and no flow could go faster without slowing one that is not faster.
TEST(FairShare, NoLinkIsOverfullAndEveryHeldFlowHasAFullLinkWhereNoneIsFaster) {
  std::uint64_t seed = 1;
  const auto random = [&](int n) { seed = seed * 6364136223846793005ull + 1442695040888963407ull; return static_cast<int>((seed >> 33) % static_cast<std::uint64_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    FairShare s;
    std::vector<double> capacity;
    for (int l = 0; l < 5; ++l) { capacity.push_back((10 + random(90)) * kGb); s.add_link({capacity.back()}); }
    std::vector<std::pair<std::int32_t, std::vector<LinkUse>>> flows;
    for (int f = 0; f < 12; ++f) {
      if (f > 6 && random(3) == 0) { const auto gone = static_cast<std::size_t>(random(static_cast<int>(flows.size()))); s.end(flows[gone].first); flows.erase(flows.begin() + static_cast<std::ptrdiff_t>(gone)); continue; }
      std::vector<LinkUse> uses;
      for (std::int32_t l = 0; l < 5; ++l) if (random(2) == 0) uses.push_back({l, std::min(capacity[static_cast<std::size_t>(l)], (5 + random(40)) * kGb)});
      if (uses.empty()) uses.push_back({0, 5 * kGb});
      const auto id = s.start(uses);
      flows.emplace_back(id, std::move(uses));
    }
    const auto full = [](const std::vector<LinkUse>& uses) { double m = 0; for (const auto& u : uses) m = std::max(m, u.bytes_per_second); return m; };
    std::vector<double> carried(5, 0);
    for (const auto& [id, uses] : flows) for (const auto& u : uses) carried[static_cast<std::size_t>(u.link)] += u.bytes_per_second * s.speed(id);
    for (std::size_t l = 0; l < 5; ++l) EXPECT_LE(carried[l], capacity[l] * (1 + 1e-9));
    for (const auto& [id, uses] : flows) {
      EXPECT_GT(s.speed(id), 0);
      if (s.speed(id) == 1) continue;
      bool held = false;
      for (const auto& u : uses) {
        if (carried[static_cast<std::size_t>(u.link)] < capacity[static_cast<std::size_t>(u.link)] * (1 - 1e-9)) continue;
        bool fastest = true;
        for (const auto& [other, theirs] : flows)
          for (const auto& t : theirs)
            if (t.link == u.link && s.speed(other) * full(theirs) > s.speed(id) * full(uses) * (1 + 1e-9)) fastest = false;
        held = held || fastest;
      }
      EXPECT_TRUE(held) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace moeplan
