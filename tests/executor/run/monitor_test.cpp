#include <gtest/gtest.h>

#include <cmath>

#include "executor/monitor/monitor.hpp"

namespace moeplan {
namespace {

StepReport step(std::int64_t n, double loss, double norm) {
  StepReport r{.step = n, .loss = loss, .gradient_norm = norm, .seconds = 0.5, .tokens = 100, .routing = {}};
  r.routing.push_back({.layer = 3, .counts = {10, 0, 2}});
  return r;
}

TEST(Watch, IsQuietWhenNothingHappens) {
  Watch watch;
  for (int n = 1; n < 100; ++n) EXPECT_TRUE(watch.warnings(step(n, 3 - 0.01 * n + 0.05 * (n % 3), 1 + 0.2 * (n % 5))).empty()) << n;
}

TEST(Watch, NoticesJumpsAndWhatIsNotFinite) {
  Watch watch;
  for (int n = 1; n < 20; ++n) (void)watch.warnings(step(n, 2 + 0.01 * (n % 2), 1 + 0.01 * (n % 2)));
  EXPECT_EQ(watch.warnings(step(20, 5, 1)).size(), 1u);
  EXPECT_EQ(watch.warnings(step(21, 2, 50)).size(), 1u);
  EXPECT_NE(watch.warnings(step(22, NAN, 1)).front().find("skipped"), std::string::npos);
  EXPECT_NE(watch.warnings(step(23, 2, INFINITY)).front().find("norm"), std::string::npos);
}

TEST(StepJson, HasItsStableKeysAndNoNan) {
  const Json j = step_json(step(7, NAN, 2), {});
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "step_s", "tokens_per_second", "mem_peak_bytes", "imbalance_max", "drop_rate", "expert_tokens"}) EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_TRUE(j.at("loss").is_null());
  EXPECT_FALSE(j.contains("mfu")) << "nothing to hold it to";
  EXPECT_EQ(step_json(step(7, 2, 2), {}, 0.25).at("mfu"), 0.25);
  EXPECT_EQ(j.at("tokens_per_second"), 200.0);
  EXPECT_EQ(j.at("expert_tokens").at("3"), (Json{10, 0, 2}));
}

TEST(Prometheus, IsTextExposition) {
  MemoryBreakdown memory;
  memory[MemoryCategory::weights] = {64};
  const std::string text = prometheus_text(step(7, 2.5, NAN), memory, memory, 700);
  EXPECT_NE(text.find("# TYPE moeplan_tokens_total counter\nmoeplan_tokens_total 700\n"), std::string::npos);
  EXPECT_EQ(text.find("mfu"), std::string::npos);
  EXPECT_NE(prometheus_text(step(7, 2.5, 1), memory, memory, 700, 0.25).find("\nmoeplan_mfu_ratio 0.25\n"), std::string::npos);
  EXPECT_NE(text.find("moeplan_grad_norm NaN\n"), std::string::npos);
  EXPECT_NE(text.find("moeplan_expert_tokens{layer=\"3\",expert=\"0\"} 10\n"), std::string::npos);
  EXPECT_NE(text.find("moeplan_expert_imbalance_ratio{layer=\"3\"} 2.5\n"), std::string::npos);
  EXPECT_NE(text.find("moeplan_memory_bytes{rank=\"0\",kind=\"weights\",state=\"predicted\"} 64\n"), std::string::npos);
}

}  // namespace
}  // namespace moeplan
