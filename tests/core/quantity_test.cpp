#include "core/quantity.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace moeplan {
namespace {

TEST(Quantity, BytesOverARateAreSeconds) {
  EXPECT_DOUBLE_EQ((Bytes{80} / BytesPerSecond{40}).value, 2.0);
  EXPECT_DOUBLE_EQ((Flops{90} / FlopsPerSecond{30}).value, 3.0);
}

TEST(Quantity, DecimalAndBinaryUnitsAreNotMixed) {
  EXPECT_EQ(parse_quantity<Bytes>("80 GiB"), Bytes{85899345920});
  EXPECT_EQ(parse_quantity<Bytes>("80 GB"), Bytes{80000000000});
  EXPECT_EQ(parse_quantity<Bytes>("1KiB"), Bytes{1024});
}

TEST(Quantity, ReadsEachKindInItsOwnUnits) {
  EXPECT_DOUBLE_EQ(parse_quantity<Seconds>("1.5 us")->value, 1.5e-6);
  EXPECT_DOUBLE_EQ(parse_quantity<BytesPerSecond>("400 Gb/s")->value, 5e10);
  EXPECT_DOUBLE_EQ(parse_quantity<FlopsPerSecond>("989 TFLOP/s")->value, 989e12);
  EXPECT_DOUBLE_EQ(parse_quantity<DollarsPerHour>("3.5 USD/h")->value, 3.5);
}

TEST(Quantity, RefusesWhatIsNotAFiniteNumberWithAUnit) {
  for (const char* text : {"", "80", "GiB", "80 gib", "80 GiB/s", "80 GiB ", " 80 GiB", "nan B", "inf B", "1e400 B", "1e308 PB", "0x10 B", "80  .GiB", "--1 B",
                           "9223372036854775808 B", "10000000000000000000 kB"})
    EXPECT_FALSE(parse_quantity<Bytes>(text)) << text;
  EXPECT_FALSE(parse_quantity<Seconds>("3 GiB"));
  EXPECT_FALSE(parse_quantity<Bytes>(std::string(100, '1') + " B"));
}

TEST(Quantity, WhatIsWrittenExactlyReadsBackToTheSameBits) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const Bytes bytes{static_cast<std::int64_t>(random() >> (random() % 64)) & std::int64_t{0x7fffffffffffffff}};
    ASSERT_EQ(parse_quantity<Bytes>(exact_text(bytes)), bytes) << exact_text(bytes);
    const Seconds seconds{std::exp(std::uniform_real_distribution<>(-40, 40)(random))};
    ASSERT_EQ(parse_quantity<Seconds>(exact_text(seconds)), seconds) << exact_text(seconds);
  }
  EXPECT_EQ(exact_text(Bytes{85899345920}), "80 GiB");
  EXPECT_EQ(exact_text(Bytes{9223372036854775807}), "9223372036854775807 B");
}

TEST(Quantity, IsShownWithThreeDigits) {
  EXPECT_EQ(human(Bytes{85100000000}), "85.1 GB");
  EXPECT_EQ(human(Bytes{44500000000000}), "44.5 TB");
  EXPECT_EQ(human(Bytes{512}), "512 B");
  EXPECT_EQ(human(Bytes{0}), "0 B");
  EXPECT_EQ(human(Bytes{999960000000}), "1.00 TB");
  EXPECT_EQ(human(Seconds{1.923}), "1.92 s");
  EXPECT_EQ(human(Seconds{0}), "0 s");
  EXPECT_EQ(human(Seconds{0.0000012}), "1.20 us");
  EXPECT_EQ(human(Bytes{-2000}), "-2.00 kB");
}

}  // namespace
}  // namespace moeplan
