/// \file
/// How a call of KDA is cut into parts, by arithmetic alone.
#include "kernels/kda/scratch.hpp"

#include <gtest/gtest.h>

namespace moeplan::kernels::kda {
namespace {

Dims dims(int heads, std::int64_t tokens) { return {.tokens = tokens, .heads = heads}; }
Options product(const Dims& d) { return {.workspace_limit = static_cast<std::size_t>(scratch_limit(d))}; }
Cut product_cut(const Dims& d, Pass pass) { return cut_of(d, product(d), pass); }

TEST(KdaScratch, KeepsThePeakOfForwardAndBackwardBelowSixTenthsOfFlas) {
  struct Anchor {
    int heads;
    std::int64_t tokens;
    double gigabytes;  // flash-linear-attention 0.5.2 on an H200: bench/results/kda_h200.md
  };
  for (const Anchor a : {Anchor{32, 4096, 1.2793},
                         {64, 4096, 2.2901},
                         {96, 4096, 3.3009},
                         {32, 16384, 4.0454},
                         {64, 16384, 8.0908},
                         {96, 16384, 12.1362},
                         {32, 65536, 16.1816},
                         {64, 65536, 32.3632},
                         {96, 65536, 48.5449}}) {
    const Dims d = dims(a.heads, a.tokens);
    // q, k, v, gate, out and their gradients in bf16, beta and its gradient in fp32.
    const double operands = static_cast<double>(a.tokens * a.heads) * (10 * 2 * 128 + 2 * 4);
    const auto scratch = std::max(product_cut(d, Pass::forward).total, product_cut(d, Pass::backward).total);
    EXPECT_LE(scratch, scratch_limit(d)) << a.heads << " heads, " << a.tokens << " tokens";
    EXPECT_LT((operands + static_cast<double>(scratch)) / 1e9, 0.6 * a.gigabytes)
        << a.heads << " heads, " << a.tokens << " tokens";
  }
}

TEST(KdaScratch, CutsSegmentsByTheHeadsOfAGroup) {
  const Cut all = cut_of(dims(32, 65536), {}, Pass::backward), groups = product_cut(dims(32, 65536), Pass::backward);
  EXPECT_FALSE(all.segmented);  // 64 scans on 132 multiprocessors: two cuts would not pay
  EXPECT_TRUE(groups.segmented);
  EXPECT_EQ(groups.groups, 3);
  EXPECT_EQ(groups.group_heads, 11);
  EXPECT_EQ(groups.segment_chunks, 171);  // 1024 chunks over 132 / 22 = 6 cuts
  EXPECT_EQ(groups.max_segments, 6);
}

TEST(KdaScratch, TakesAMillionTokensForwardInSlabsOfAllHeadsAndBackwardAHeadAtATime) {
  const Dims d = dims(32, std::int64_t{1} << 20);
  const Cut forward = product_cut(d, Pass::forward), backward = product_cut(d, Pass::backward);
  EXPECT_LE(forward.total, std::int64_t{2} << 30);
  EXPECT_EQ(forward.group_heads, 32);
  EXPECT_EQ(forward.slabs, 19);  // 16,384 chunks of 32 x 74,240 bytes: 38.9 GB
  EXPECT_EQ(backward.group_heads, 1);
  EXPECT_TRUE(backward.segmented);
  EXPECT_GT(backward.total, std::int64_t{2} << 30);  // what one head takes
  EXPECT_LT(backward.total, 2'750'000'000);
}

TEST(KdaScratch, SlabsCoverEveryChunkOnce) {
  for (const std::int64_t tokens : {1, 63, 64, 65, 1000, 5000, 70000})
    for (const std::size_t limit : {std::size_t{1}, std::size_t{4} << 20, std::size_t{64} << 20}) {
      const Cut c = cut_of({.tokens = tokens, .heads = 3, .sequences = 7},
                           {.workspace_limit = limit, .segment_chunks = 1 << 20}, Pass::forward);
      EXPECT_GE(c.slabs * c.slab_chunks, c.max_chunks);
      EXPECT_LT((c.slabs - 1) * c.slab_chunks, c.max_chunks);
      EXPECT_TRUE(c.group_heads == 1 || c.total <= static_cast<std::int64_t>(limit))
          << tokens << " tokens, " << limit << " bytes";
    }
}

TEST(KdaScratch, GroupsOfHeadsDifferByOneAtMost) {
  for (int heads = 1; heads <= 128; ++heads)
    for (std::int64_t groups = 1; groups <= heads; ++groups) {
      const Cut c{.groups = groups, .group_heads = (heads + groups - 1) / groups};
      int most = 0, least = heads;
      for (std::int64_t g = 0; g < groups; ++g) {
        const int size = c.first(g + 1, heads) - c.first(g, heads);
        most = std::max(most, size), least = std::min(least, size);
      }
      ASSERT_EQ(c.first(0, heads), 0);
      ASSERT_EQ(c.first(groups, heads), heads);
      ASSERT_EQ(most, c.group_heads);
      ASSERT_LE(most - least, 1);
    }
}

}  // namespace
}  // namespace moeplan::kernels::kda
