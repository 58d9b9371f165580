/// Times of grouped products over the rows of an expert: stairs of 128 rows, and two ways in which blocks work.

#include "sim/cost/expert_curve.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace moeplan {
namespace {

constexpr std::int64_t kExperts = 64;
op::GroupedLinear experts(double mean) {
  return {.rows = std::llround(mean * kExperts), .experts = kExperts, .in = 64, .out = 64};
}

/// Seconds 1 / u of equal rows: one tile 5, two 10 where blocks work alone and 8 in pairs, three 13 and four 16 in
/// pairs, six 30 alone.
UtilisationTable table() {
  UtilisationTable t;
  const auto add = [&](double rows, double seconds) {
    t.add({.shape = shape_of(Op{experts(rows)}, {}), .utilisation = 1 / seconds, .seconds = seconds});
  };
  add(32, 5), add(128, 5), add(144, 10), add(192, 8), add(256, 8), add(320, 13), add(384, 13), add(512, 16),
      add(768, 30);
  t.arrange();
  return t;
}
ExpertCurve curve(const UtilisationTable& t, double mean) {
  return expert_curve(experts(mean), {}, t,
                      [](const op::GroupedLinear&, double utilisation) { return 1 / utilisation; });
}

TEST(ExpertCurve, is_a_staircase_of_tiles_in_the_way_that_the_mean_rows_choose) {
  const UtilisationTable t = table();
  const ExpertCurve alone = curve(t, 128), pairs = curve(t, 256), many = curve(t, 1024);
  for (const ExpertCurve* c : {&alone, &pairs, &many}) {
    EXPECT_NEAR(c->at(100), 5, 1e-6) << "one tile is shared by nobody";
    EXPECT_NEAR(c->at(0.5) / c->at(1), 0.5, 1e-9) << "half of the time an expert has no row";
  }
  EXPECT_NEAR(alone.at(129), 10, 1e-6) << "a tile begun costs all of it";
  EXPECT_NEAR(alone.at(200), 10, 1e-6) << "not the 8 of calls whose mean is 200";
  EXPECT_NEAR(pairs.at(129), 8, 1e-6);
  EXPECT_NEAR(pairs.at(150), 8, 1e-6) << "not the 10 of calls whose mean is 150";
  EXPECT_NEAR(pairs.at(257), 13, 1e-6) << "no slope from 256 to 320";
  EXPECT_NEAR(pairs.at(450), 16, 1e-6);
  EXPECT_NEAR(alone.at(300), 15, 1e-6) << "three tiles lie a quarter of the way from two (10) to six (30)";
  EXPECT_NEAR(many.at(300), 15, 1e-6);
  EXPECT_NEAR(many.at(768), 30, 1e-6);
}

TEST(ExpertsTogether, take_what_equals_take_and_less_than_the_mean_of_what_unequal_ones_do) {
  const UtilisationTable t = table();
  const ExpertCurve pairs = curve(t, 256);   // one tile 5, which is all weights, two 8, three 13
  const auto together = [&](std::initializer_list<std::pair<double, double>> of) {
    ExpertsTogether out(pairs);
    for (const auto& [rows, share] : of) out.add(rows, share);
    return out.seconds();
  };
  EXPECT_NEAR(together({{256, 1}}), 8, 1e-6);
  EXPECT_NEAR(together({{256, 0.25}, {192, 0.75}}), 8, 1e-6) << "as many tiles";
  EXPECT_NEAR(together({{128, 1}}), 5, 1e-6);
  EXPECT_NEAR(together({{0, 0.5}, {128, 0.5}}), 2.5, 1e-6) << "half of the weights";
  // Half have one tile, half three: (5^2.3 + (half of (13^2.3 - 5^2.3)^(1 / 2.3))^2.3)^(1 / 2.3), where the mean of 5 and 13 is 9.
  const double multiplies = std::pow(std::pow(13, 2.3) - std::pow(5, 2.3), 1 / 2.3) / 2;
  EXPECT_NEAR(together({{100, 0.5}, {320, 0.5}}), std::pow(std::pow(5, 2.3) + std::pow(multiplies, 2.3), 1 / 2.3), 1e-6);
  EXPECT_LT(together({{100, 0.5}, {320, 0.5}}), 9);
  EXPECT_GT(together({{100, 0.5}, {320, 0.5}}), 6.5) << "those that multiply wait for nobody";
}

TEST(ExpertCurve, of_mxfp4_experts_with_few_rows_has_tiles_of_32) {
  const auto stored = [](double mean) {
    op::GroupedLinear e = experts(mean);
    e.weight = DType::mxfp4;
    return e;
  };
  UtilisationTable t;
  for (const auto& [rows, seconds] : {std::pair{16.0, 3.0}, {32.0, 4.0}, {64.0, 6.0}, {128.0, 7.0}, {256.0, 14.0}})
    t.add({.shape = shape_of(Op{stored(rows)}, {}), .utilisation = 1 / seconds, .seconds = seconds});
  t.arrange();
  const auto of = [&](double mean) {
    return expert_curve(stored(mean), {}, t, [](const op::GroupedLinear&, double utilisation) { return 1 / utilisation; });
  };
  const ExpertCurve few = of(20), more = of(40);
  EXPECT_NEAR(few.at(16), 3, 1e-6);
  EXPECT_NEAR(few.at(32), 4, 1e-6);
  EXPECT_NEAR(few.at(33), 8, 1e-6) << "a second tile, not the 6 of calls whose mean is 64";
  EXPECT_NEAR(few.at(100), 16, 1e-6) << "four tiles";
  EXPECT_NEAR(more.at(64), 6, 1e-6);
  EXPECT_NEAR(more.at(128), 7, 1e-6) << "one tile of 128";
  EXPECT_NEAR(more.at(16), 6, 1e-6) << "not the 3 of two blocks a multiprocessor";
  EXPECT_EQ(more.measured(16), nullptr);
  EXPECT_NE(few.measured(16), nullptr);
}

TEST(ExpertCurve, says_which_rows_were_measured_so) {
  const UtilisationTable t = table();
  const ExpertCurve alone = curve(t, 128), pairs = curve(t, 256);
  EXPECT_NE(alone.measured(144), nullptr);
  EXPECT_EQ(alone.measured(192), nullptr) << "measured in pairs";
  EXPECT_EQ(pairs.measured(144), nullptr);
  EXPECT_NE(pairs.measured(192), nullptr);
  EXPECT_EQ(pairs.measured(200), nullptr);
}

}  // namespace
}  // namespace moeplan
