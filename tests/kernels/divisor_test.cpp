#include "kernels/base/divisor.hpp"

#include <gtest/gtest.h>

#include <initializer_list>

namespace moeplan::cuda {
namespace {

TEST(Divisor, GivesTheQuotientAroundEveryMultipleItIsTriedAt) {
  constexpr std::uint32_t end = 1u << 31;
  for (const std::uint32_t by : {1u, 2u, 3u, 5u, 7u, 10u, 12u, 96u, 127u, 128u, 641u, 896u, 7168u, 12288u, 65537u, 163840u, 1000003u, (1u << 30) - 1, 1u << 30, (1u << 30) + 1, end - 1}) {
    const Divisor divisor = Divisor::of(by);
    const std::uint32_t multiples = (end - 1) / by, step = multiples / 4096 + 1;
    for (std::uint32_t m = 0; m <= multiples; m += step)
      for (const std::uint32_t n : {m * by, m * by + by - 1, m * by - 1}) {
        if (n >= end) continue;   // before the first multiple, behind the last
        ASSERT_EQ(divisor.quotient(n), n / by) << n << " / " << by;
      }
    ASSERT_EQ(divisor.quotient(end - 1), (end - 1) / by) << by;
  }
}

}  // namespace
}  // namespace moeplan::cuda
