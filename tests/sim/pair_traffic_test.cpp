/// What PEFT's adapter pairs move, against the operations counted one by one.

#include "sim/cost/pair_traffic.hpp"

#include <gtest/gtest.h>

#include "core/configs.hpp"
#include "sim/cost/price.hpp"

namespace moeplan {
namespace {

Runtime peft(double wide) {
  Runtime runtime;
  runtime.fused_lora = false;
  if (wide > 0) runtime.traffic["wide_pair"] = wide;
  return runtime;
}

TEST(PairTraffic, IsTheSumOfTheOperationsOfPeft) {
  constexpr double bf16 = 2, f32 = 4, mask = 1;
  const double scale_and_add = bf16 + (bf16 + bf16) + (bf16 + bf16 + bf16);
  const PairTraffic narrow = pair_traffic(peft(0), DType::bf16);
  EXPECT_EQ(narrow.in, (bf16 + bf16 + mask) + bf16);
  EXPECT_EQ(narrow.out, scale_and_add);
  const PairTraffic autocast = pair_traffic(peft(1), DType::bf16);
  const double widen = bf16 + f32, narrow_again = f32 + bf16, dropout = f32 + f32 + mask;
  EXPECT_EQ(autocast.in, widen + dropout + narrow_again + bf16);
  EXPECT_EQ(autocast.out, scale_and_add);
  EXPECT_EQ(autocast.out_backward, (bf16 + bf16) + bf16 + bf16);
  EXPECT_EQ(autocast.in_backward, bf16 + bf16 + widen + dropout + narrow_again + 3 * bf16);
  const PairTraffic wide = pair_traffic(peft(2), DType::bf16);
  EXPECT_EQ(wide.in, widen + dropout + f32);
  EXPECT_EQ(wide.out, f32 + 2 * f32 + (bf16 + 2 * f32) + narrow_again);
  EXPECT_EQ(wide.out_backward, widen + narrow_again + 2 * f32 + 2 * f32);
  EXPECT_EQ(wide.in_backward, 2 * f32 + dropout + narrow_again + 3 * bf16);
}

TEST(PairTraffic, IsNarrowOnAQuantisedBase) {
  EXPECT_EQ(pair_traffic(peft(1), DType::nf4).in, pair_traffic(peft(0), DType::bf16).in);
}

TEST(PairTraffic, CostsItsBytesAtTheMemorysRate) {
  const std::filesystem::path configs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";
  const DeviceSpec device = load_device(configs, "a100").device;
  op::Linear linear{};
  linear.tokens = 8192, linear.in = 4096, linear.out = 1024, linear.lora_rank = 16;
  const OpCall call{linear, Pass::forward, {}};
  const auto seconds = [&](double wide) {
    return Prices(device, load_profile(configs, "h200"), peft(wide)).price(call).median.value;
  };
  const double extra = 8192.0 * 4096 * (23 - 7);
  EXPECT_NEAR(seconds(1) - seconds(0), extra / (device.memory_bandwidth.value * device.achieved_bandwidth), 1e-9);
}

}  // namespace
}  // namespace moeplan
