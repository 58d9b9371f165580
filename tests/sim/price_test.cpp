#include "sim/cost/price.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/configs.hpp"
#include "core/error.hpp"

namespace moeplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

DeviceSpec device(const std::string& name) { return load_device(kConfigs, name).device; }
DeviceProfile h200() { return load_profile(kConfigs, "h200"); }
OpCall call(const std::string& key) { return parse_key(key).value(); }
double quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[static_cast<std::size_t>(std::lround(q * static_cast<double>(v.size() - 1)))];
}

/// 1000 FLOP/s, 100 B/s, half of each reached.
DeviceSpec toy() {
  DeviceSpec d;
  d.name = "toy", d.generation = "toy", d.peak["bf16"] = {1000}, d.memory_bandwidth = {100}, d.achieved_matmul = 0.5, d.achieved_bandwidth = 0.5, d.memory = {1};
  return d;
}
DeviceProfile toy_profile(std::vector<ProfileSample> samples) {
  DeviceProfile p;
  p.name = "toy", p.source = "made up", p.date = "today", p.device = toy(), p.samples = std::move(samples);
  return p;
}

TEST(Prices, without_samples_the_roofline_at_its_achieved_ceilings) {
  const Prices prices(toy(), toy_profile({}), {});
  // 2 x 1 x 64 x 32 flops = 4.1 s at peak; bytes 2 (64 + 64 x 32 + 32) = 4288, 42.9 s.
  const OpCall c = call("linear tokens=1 in=64 out=32 forward");
  EXPECT_DOUBLE_EQ(prices.limit(c).value, 42.88);
  const Estimate e = prices.price(c);
  EXPECT_DOUBLE_EQ(e.median.value, 85.76);
  EXPECT_EQ(e.basis, Basis::roofline);
  EXPECT_LT(e.low, e.median);
  EXPECT_GT(e.high, e.median);
}

TEST(Prices, a_measured_call_gets_its_time_back) {
  const Prices prices(toy(), toy_profile({{"linear tokens=1 in=64 out=32 forward", {60}, 0.1, 5}}), {});
  const Estimate e = prices.price(call("linear tokens=1 in=64 out=32 forward"));
  EXPECT_DOUBLE_EQ(e.median.value, 60);
  EXPECT_EQ(e.basis, Basis::measured);
  EXPECT_DOUBLE_EQ(e.low.value, 54);
  EXPECT_DOUBLE_EQ(e.high.value, 66);
}

TEST(Prices, ranks_that_are_no_multiples_of_8_are_asked_among_themselves) {
  const auto sample = [](int rank, double seconds) { return ProfileSample{"linear tokens=100 in=64 out=64 lora_rank=" + std::to_string(rank) + " forward", {seconds}, 0, 1}; };
  const auto time = [&](const std::vector<ProfileSample>& samples, int rank) { return Prices(toy(), toy_profile(samples), {}).price(call(sample(rank, 1).key)).median.value; };
  const std::vector<ProfileSample> whole{sample(16, 2000), sample(64, 3000)}, both{sample(16, 2000), sample(20, 4000), sample(36, 5000), sample(64, 3000)};
  EXPECT_GT(time(whole, 24), 2000);
  EXPECT_LT(time(whole, 24), 3000);
  EXPECT_EQ(time(both, 24), time(whole, 24)) << "the line through 16 and 64 is that of multiples of 8";
  EXPECT_GT(time(both, 28), 4000);
  EXPECT_LT(time(both, 28), 5000);
  EXPECT_GT(time(whole, 28), 2000) << "without such samples the others answer";
  EXPECT_LT(time(whole, 28), 3000);
}

TEST(Prices, utilisation_is_held_outside_the_table_and_lies_between_inside) {
  const Prices prices(toy(), toy_profile({{"linear tokens=100 in=64 out=64 forward", {1000}, 0, 1}, {"linear tokens=10000 in=64 out=64 forward", {200000}, 0, 1}}), {});
  const auto u = [&](const std::string& key) {
    const Estimate e = prices.price(call(key));
    EXPECT_EQ(e.basis, Basis::interpolated);
    return prices.limit(call(key)).value / e.median.value;
  };
  const double low = prices.limit(call("linear tokens=100 in=64 out=64 forward")).value / 1000;
  const double high = prices.limit(call("linear tokens=10000 in=64 out=64 forward")).value / 200000;
  ASSERT_NEAR(low, 0.819, 0.001) << "2 x 100 x 64 x 64 flops take 819 s";
  EXPECT_NEAR(u("linear tokens=1 in=64 out=64 forward"), low, 1e-6);
  EXPECT_NEAR(u("linear tokens=1000000 in=64 out=64 forward"), high, 1e-6);
  const double between = u("linear tokens=1000 in=64 out=64 forward");
  EXPECT_GT(between, std::min(low, high));
  EXPECT_LT(between, std::max(low, high));
}

TEST(Prices, a_stored_type_without_samples_takes_the_utilisation_of_its_shape) {
  const Prices prices(toy(), toy_profile({{"linear tokens=100 in=64 out=64 forward", {1000}, 0, 1}, {"linear tokens=200 in=64 out=64 forward", {4000}, 0, 1}}), {});
  const OpCall fp8 = call("linear tokens=100 in=64 out=64 weight=fp8 forward");
  const Estimate e = prices.price(fp8);
  EXPECT_NEAR(prices.limit(fp8).value / e.median.value, 0.8192, 1e-4);
  EXPECT_EQ(e.basis, Basis::interpolated);
}

TEST(Prices, the_launch_is_added_once_and_views_and_idle_calls_are_free) {
  Runtime runtime;
  runtime.launch_overhead = {3};
  const DeviceProfile profile = toy_profile({{"linear tokens=1 in=64 out=32 forward", {60}, 0, 1}});
  const Prices prices(toy(), profile, runtime);
  EXPECT_DOUBLE_EQ(prices.price(call("linear tokens=1 in=64 out=32 forward")).median.value, 63);
  OpCall idle = call("linear tokens=1 in=64 out=32 backward dx");
  idle.wants = {false, false};
  EXPECT_EQ(prices.price(idle).median.value, 0);
  for (const Op& op : examples())
    if (is_view(op)) {
      EXPECT_EQ(prices.price({op, Pass::forward, {}}).median.value, 0);
    }
}

// 216 bytes a row are no multiple of 16: the products of 108-wide heads run at the fp32 rate, a tenth here, those of 112 at full rate.
TEST(Prices, unfused_scores_of_heads_off_16_bytes_leave_the_tensor_cores) {
  DeviceSpec d = toy();
  d.peak["f32"] = {100}, d.memory_bandwidth = {1e12};
  Runtime unfused;
  unfused.fused_attention = false, unfused.score_traffic = 13, unfused.score_traffic_backward = 19;
  const Prices prices(d, toy_profile({}), unfused);
  const auto seconds = [&](const char* key) { return prices.price(call(key)).median.value; };
  const double off = seconds("attention tokens=64 sequence_length=64 heads=2 kv_heads=2 d_qk=108 d_v=108 forward");
  const double on = seconds("attention tokens=64 sequence_length=64 heads=2 kv_heads=2 d_qk=112 d_v=112 forward");
  EXPECT_NEAR(on, 2.0 * 64 * 64 * 2 * 224 / 500, 1e-3);
  EXPECT_NEAR(off, 2.0 * 64 * 64 * 2 * 216 / 50, 1e-3);
}

TEST(Prices, twice_the_device_takes_half_the_time) {
  DeviceSpec twice = toy();
  twice.name = "twice", twice.peak["bf16"] = {2000}, twice.memory_bandwidth = {200};
  const DeviceProfile profile = toy_profile({{"linear tokens=100 in=64 out=64 forward", {1000}, 0, 1}});
  const OpCall c = call("linear tokens=100 in=64 out=64 forward");
  EXPECT_NEAR(Prices(twice, profile, {}).price(c).median.value, 500, 1e-4);
  EXPECT_EQ(Prices(twice, profile, {}).price(c).basis, Basis::interpolated) << "same generation";
  twice.achieved_matmul = 0.25;
  EXPECT_NEAR(Prices(twice, profile, {}).price(c).median.value, 1000, 1e-4) << "half the published ceiling";
  twice.generation = "other";
  EXPECT_EQ(Prices(twice, profile, {}).price(c).basis, Basis::roofline);
}

TEST(Prices, between_two_measured_shapes_on_a_line_the_logarithm_of_utilisation_is_straight) {
  // 2 t 64 64 flops at 1000 a second: 819.2 s and 81,920 s at u = 0.8 and 0.2; ten times the tokens are half way, u = sqrt(0.8 x 0.2) = 0.4.
  const Prices prices(toy(), toy_profile({{"linear tokens=99 in=64 out=64 forward", {811.008 / 0.8}, 0, 1}, {"linear tokens=9999 in=64 out=64 forward", {81911.808 / 0.2}, 0, 1},
                                          {"linear tokens=999 in=64 out=4096 forward", {1e7}, 0, 1}, {"linear tokens=999 in=64 out=16 forward", {1e7}, 0, 1}}), {});
  const OpCall c = call("linear tokens=999 in=64 out=64 forward");
  EXPECT_NEAR(prices.limit(c).value / prices.price(c).median.value, 0.4, 1e-4) << "not what lies beside the line";
}

/// One expert of 64 x 64: 2 n 64 64 flops, 8.192 n seconds at the peak; measured at twice that with 16 rows each, at four times with 2 each.
DeviceProfile toy_experts() {
  return toy_profile({{"grouped_linear rows=64 experts=4 in=64 out=64 forward", {2 * 8.192 * 64}, 0, 1}, {"grouped_linear rows=8 experts=4 in=64 out=64 forward", {4 * 8.192 * 8}, 0, 1}});
}

TEST(Prices, experts_with_unequal_rows_follow_from_what_each_takes_among_its_equals) {
  Runtime own;
  own.own_kernels = true;
  DeviceSpec fast = toy();   // whatever is moved takes no time
  fast.memory_bandwidth = {1e9};
  DeviceProfile profile = toy_experts();
  profile.device = fast;
  const Prices prices(fast, profile, own);
  const OpCall c = call("grouped_linear rows=36 experts=4 in=64 out=64 forward");
  const std::vector<std::int64_t> halves{16, 2, 16, 2}, one{36, 0, 0, 0};
  // Equal rows take 2 x 64 (16 each), 4 x 8 (2 each) and 4 x 4 (1 each: weights alone) x 8.192 s: what multiplies adds up beside them (sim/cost/expert_curve.hpp).
  const auto multiplies = [](double among_equals) { return std::pow(std::pow(among_equals, 2.3) - std::pow(4 * 4, 2.3), 1 / 2.3); };
  const double together = std::pow(std::pow(4 * 4, 2.3) + std::pow((multiplies(2 * 64) + multiplies(4 * 8)) / 2, 2.3), 1 / 2.3);
  EXPECT_LT(together, (2 * 64 + 4 * 8) / 2.0);
  EXPECT_NEAR(prices.price(c, halves).median.value, together * 8.192, 1e-3);
  EXPECT_NEAR(prices.price(c, one).median.value, 2 * 36 * 8.192, 0.1) << "the three without rows take nothing";
  EXPECT_NEAR(prices.price(c, std::vector<std::int64_t>{9, 9, 9, 9}).median.value / prices.price(c).median.value, 1, 0.01) << "between measured rows, straight";
  // Where only the sum is known the load says how it falls: half of the experts at 16 of 9, half at 2 of 9.
  const Prices loaded(fast, profile, own, {2.0 / 9, 16.0 / 9});
  EXPECT_NEAR(loaded.price(c).median.value, prices.price(c, halves).median.value, 1e-3);
  EXPECT_NEAR(Prices(fast, profile, {}, {2.0 / 9, 16.0 / 9}).price(c).median.value, prices.price(c).median.value, 1e-6) << "tiles of other runtimes are not known";
}

TEST(Prices, experts_whose_every_count_of_rows_was_measured_are_measured_and_others_interpolated) {
  Runtime own;
  own.own_kernels = true;
  const Prices prices(toy(), toy_experts(), own);
  const OpCall c = call("grouped_linear rows=36 experts=4 in=64 out=64 forward");
  const auto basis = [&](std::vector<std::int64_t> rows) { return prices.price(c, rows).basis; };
  EXPECT_EQ(basis({16, 16, 16, 16}), Basis::measured);
  EXPECT_EQ(basis({2, 16, 2, 16}), Basis::measured) << "each beside its equals";
  EXPECT_EQ(basis({0, 16, 2, 16}), Basis::measured) << "an expert without rows does nothing";
  EXPECT_EQ(basis({9, 9, 9, 9}), Basis::interpolated);
  EXPECT_EQ(basis({2, 16, 2, 15}), Basis::interpolated);
  DeviceSpec other = toy();
  other.name = "other";
  EXPECT_EQ(Prices(other, toy_experts(), own).price(c, std::vector<std::int64_t>{16, 16, 16, 16}).basis, Basis::interpolated);
}

TEST(Prices, columns_made_dense_take_what_was_measured_and_nothing_where_kernels_take_strides) {
  Runtime own;
  own.own_kernels = true;
  const DeviceProfile profile = toy_profile({{"copy_columns bytes=100", {10}, 0, 1}, {"copy_columns bytes=10000", {1000}, 0, 1}, {"launch", {7}, 0, 1}, {"linear tokens=1 in=64 out=32 forward", {60}, 0, 1}});
  const Prices prices(toy(), profile, own);
  EXPECT_DOUBLE_EQ(prices.copies({1000}).value, 100);
  EXPECT_DOUBLE_EQ(prices.copies({20000}).value, 2000) << "the edge's rate";
  EXPECT_DOUBLE_EQ(prices.copies({10}).value, 10) << "no copy is shorter than the shortest";
  EXPECT_EQ(prices.copies({0}).value, 0);
  EXPECT_EQ(Prices(toy(), profile, {}).copies({1000}).value, 0);
  EXPECT_DOUBLE_EQ(Prices(toy(), toy_profile({}), own).copies({1000}).value, 40) << "read and written at 50 B/s";
  EXPECT_DOUBLE_EQ(prices.price(call("linear tokens=1 in=64 out=32 forward")).median.value, 67) << "the measured launch";
  Runtime foreign;
  foreign.launch_overhead = {3};
  EXPECT_DOUBLE_EQ(Prices(toy(), profile, foreign).price(call("linear tokens=1 in=64 out=32 forward")).median.value, 63) << "another runtime's is its own";
}

TEST(Prices, samples_that_mean_nothing_are_refused) {
  const auto refusal = [](const std::string& key) -> std::string {
    try {
      const Prices p(toy(), toy_profile({{key, {1}, 0, 1}}), {});
    } catch (const InputError& e) {
      return e.what();
    }
    return {};
  };
  EXPECT_NE(refusal("lineal tokens=1 forward").find("no call of the catalogue"), std::string::npos);
  EXPECT_NE(refusal("").find("no call of the catalogue"), std::string::npos);
  EXPECT_EQ(refusal("all_gather group=data_shard payload=1"), "") << "collectives are not priced here";
}

TEST(DefaultProfile, every_key_is_the_catalogues_own) {
  for (const ProfileSample& s : h200().samples) {
    const std::optional<OpCall> c = parse_key(s.key);
    ASSERT_TRUE(c) << s.key;
    EXPECT_EQ(key(c->op, c->pass, c->wants), s.key);
  }
}

TEST(DefaultProfile, leaving_a_sample_out_misses_it_by_six_percent_in_the_median) {
  const Prices prices(device("h200"), h200(), {});
  std::vector<double> error;
  for (const double ratio : prices.left_out()) error.push_back(std::abs(1 / ratio - 1));
  ASSERT_GT(error.size(), 100u);   // of large tables not every sample
  EXPECT_LE(quantile(error, 0.5), 0.06);
  EXPECT_LE(quantile(error, 0.9), 0.22);
}

TEST(DefaultProfile, known_times_come_out) {
  const Prices prices(device("h200"), h200(), {});
  const Estimate gemm = prices.price(call("linear tokens=8192 in=8192 out=8192 forward"));
  EXPECT_EQ(gemm.basis, Basis::measured);
  EXPECT_NEAR(gemm.median.value, 1.4207e-3, 1e-7);
  // Between two measured neighbours of the same weights: 692 TFLOP/s at 1024 tokens, 762 at 4096.
  const OpCall middle = call("linear tokens=2048 in=7168 out=2048 forward");
  const double rate = flops(middle.op, Pass::forward).value / prices.price(middle).median.value;
  EXPECT_GT(rate, 680e12);
  EXPECT_LT(rate, 770e12);
  // A chunked scan runs at a tenth of the roofline; one without samples is not priced as a matrix product.
  const OpCall kda = call("kda tokens=16384 sequence_length=16384 heads=96 head_dim=128 bounded=true forward");
  EXPECT_GT(prices.price(kda).median.value, 5 * prices.limit(kda).value);
  const OpCall mamba{op::Mamba2::cases().front(), Pass::forward, {}};
  EXPECT_GT(prices.price(mamba).median.value, 5 * prices.limit(mamba).value);
}

TEST(DefaultProfile, every_operator_has_a_finite_price_on_every_device) {
  const DeviceProfile profile = h200();
  for (const auto& name : config_names(kConfigs, "devices")) {
    const Prices prices(device(name), profile, {});
    for (const Op& op : all_cases()) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const Estimate e = prices.price({op, pass, {}});
        EXPECT_TRUE(std::isfinite(e.median.value) && e.median.value >= 0) << name << ' ' << key(op, pass);
        EXPECT_LE(e.low, e.median);
        EXPECT_LE(e.median, e.high);
      }
    }
  }
}

}  // namespace
}  // namespace moeplan
