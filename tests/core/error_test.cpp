#include "core/error.hpp"

#include <gtest/gtest.h>

#include "core/checked.hpp"

namespace moeplan {
namespace {

TEST(Error, IsOneLineOfWhereWhatAndWhatWouldDo) {
  EXPECT_STREQ(InputError("plan.json: ep", "3 does not divide 64", "take 2 or 4").what(), "plan.json: ep: 3 does not divide 64; take 2 or 4");
  EXPECT_STREQ(InputError("", "nothing to do").what(), "nothing to do");
}

TEST(Error, TextFromFilesIsShownWithoutControlCharacters) {
  EXPECT_EQ(shown("a\"b\\\x1b[31m\n"), R"("a\"b\\\x1b[31m\x0a")");
  EXPECT_EQ(shown("\xff"), R"("\xff")");
  EXPECT_LE(shown(std::string(1000, 'x')).size(), 90u);
}

TEST(Checked, ThrowsInsteadOfWrappingRound) {
  const std::int64_t big = std::int64_t{1} << 62;
  EXPECT_EQ(checked_mul(1 << 20, 1 << 20, "x"), std::int64_t{1} << 40);
  EXPECT_THROW((void)checked_mul(big, 2, "x"), InputError);
  EXPECT_THROW((void)checked_add(big, big, "x"), InputError);
  EXPECT_EQ(ceil_div(7, 2), 4);
  EXPECT_EQ(ceil_div(0, 2), 0);
}

}  // namespace
}  // namespace moeplan
