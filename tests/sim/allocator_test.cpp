/// The caching allocator's replay: sequences short enough to follow by hand.

#include "sim/memory/allocator.hpp"

#include <gtest/gtest.h>

namespace moeplan {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
Bytes mib(std::int64_t n) { return {n * kMiB}; }

TEST(Allocator, RoundsToHalfAKilobyte) {
  CachingAllocator a;
  (void)a.allocate({1});
  EXPECT_EQ(a.allocated().value, 512);
  (void)a.allocate({513});
  EXPECT_EQ(a.allocated().value, 512 + 1024);
}

TEST(Allocator, TakesSmallOnesFromSegmentsOfTwoMebibytes) {
  CachingAllocator a;
  (void)a.allocate(mib(1));
  EXPECT_EQ(a.reserved(), mib(2));
  (void)a.allocate(mib(1));  // the other half of the same segment
  EXPECT_EQ(a.reserved(), mib(2));
  (void)a.allocate({512});
  EXPECT_EQ(a.reserved(), mib(4));
}

TEST(Allocator, TakesMediumOnesFromSegmentsOfTwentyMebibytes) {
  CachingAllocator a;
  (void)a.allocate(mib(4));
  EXPECT_EQ(a.reserved(), mib(20));
  for (int i = 0; i < 4; ++i) (void)a.allocate(mib(4));
  EXPECT_EQ(a.reserved(), mib(20));
  (void)a.allocate(mib(4));
  EXPECT_EQ(a.reserved(), mib(40));
}

TEST(Allocator, GivesLargeOnesASegmentRoundedToTwoMebibytes) {
  CachingAllocator a;
  (void)a.allocate({10 * kMiB + 1});
  EXPECT_EQ(a.reserved(), mib(12));
}

TEST(Allocator, DoesNotSplitOffAMebibyteOrLess) {
  CachingAllocator a;
  const auto first = a.allocate(mib(64));
  a.free(first);
  (void)a.allocate(
      {63 * kMiB});  // what is left is exactly 1 MiB: the block stays whole, and all of it counts as allocated
  EXPECT_EQ(a.allocated(), mib(64));
  EXPECT_EQ(a.reserved(), mib(64));
}

TEST(Allocator, ReusesTheSmallestBlockThatFits) {
  CachingAllocator a;
  const auto big = a.allocate(mib(100)), medium = a.allocate(mib(40));
  a.free(big);
  a.free(medium);
  (void)a.allocate(mib(40));  // from the 40, not from the 100
  (void)a.allocate(mib(100));
  EXPECT_EQ(a.reserved(), mib(140));
}

TEST(Allocator, JoinsFreedNeighboursSoThatALargerOneFits) {
  CachingAllocator a;
  const auto whole = a.allocate(mib(60));
  a.free(whole);
  const auto left = a.allocate(mib(20)), middle = a.allocate(mib(20)), right = a.allocate(mib(20));
  EXPECT_EQ(a.reserved(), mib(60));
  a.free(left);
  a.free(right);
  EXPECT_EQ(a.segments(), 1u);
  a.free(middle);
  (void)a.allocate(mib(60));
  EXPECT_EQ(a.reserved(), mib(60));
}

TEST(Allocator, CannotUseAHoleThatIsInterrupted) {
  CachingAllocator a;
  const auto whole = a.allocate(mib(60));
  a.free(whole);
  const auto left = a.allocate(mib(20)), middle = a.allocate(mib(20)), right = a.allocate(mib(20));
  a.free(left);
  a.free(right);
  (void)a.allocate(mib(40));  // 40 MiB are free, in two pieces
  EXPECT_EQ(a.reserved(), mib(100));
  EXPECT_EQ(a.allocated(), mib(60));
  a.free(middle);
}

TEST(Allocator, KeepsStreamsApart) {
  CachingAllocator a;
  const auto first = a.allocate(mib(30), 0);
  a.free(first);
  (void)a.allocate(mib(30), 1);
  EXPECT_EQ(a.reserved(), mib(60));
}

TEST(Allocator, GrowsOneRangeWithExpandableSegments) {
  CachingAllocator a({.expandable_segments = true, .capacity = {}});
  const auto left = a.allocate(mib(30));  // pages of 20 MiB: 40 mapped, 10 left
  EXPECT_EQ(a.reserved(), mib(40));
  const auto right = a.allocate(mib(30));  // the 10 and one page more
  EXPECT_EQ(a.reserved(), mib(60));
  a.free(left);
  a.free(right);
  (void)a.allocate(mib(60));  // one range: nothing is interrupted
  EXPECT_EQ(a.reserved(), mib(60));
}

TEST(Allocator, GivesUnusedSegmentsBackBeforeItRefuses) {
  CachingAllocator a({.expandable_segments = false, .capacity = mib(100)});
  const auto first = a.allocate(mib(60));
  a.free(first);
  EXPECT_GE(a.allocate(mib(80)), 0);  // 60 + 80 would not fit; the unused 60 goes back
  EXPECT_EQ(a.reserved(), mib(80));
  EXPECT_EQ(a.allocate(mib(40)), -1);
  EXPECT_EQ(a.peak_reserved(), mib(80));
}

TEST(Allocator, HoldsWhatAnotherStreamMayStillReadAlthoughItsOwnerLetItGo) {
  CachingAllocator a;
  const CachingAllocator::Handle first = a.allocate(mib(64));
  a.release(first);
  EXPECT_EQ(a.allocated(), mib(0));
  (void)a.allocate(mib(64));  // does not fit into the first: that is still of use
  EXPECT_EQ(a.reserved(), mib(128));
  EXPECT_EQ(a.peak_allocated(), mib(64));
  a.free(first);
  EXPECT_EQ(a.allocated(), mib(64));
  (void)a.allocate(mib(64));
  EXPECT_EQ(a.reserved(), mib(128));
}

}  // namespace
}  // namespace moeplan
