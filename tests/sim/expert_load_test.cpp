#include "sim/load/expert_load.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/configs.hpp"
#include "core/error.hpp"
#include "sim/load/draws.hpp"

namespace moeplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

LoadModel load(const std::string& name) { return load_load(kConfigs, name); }
LoadModel trace(std::vector<std::vector<double>> counts) {
  LoadModel m;
  m.distribution = TraceLoad{std::move(counts)};
  return m;
}
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}
double mean_factor(const std::vector<Shares>& shares, std::int64_t ep) {
  double sum = 0;
  for (const auto& s : shares) sum += rank_factor(s, ep);
  return sum / static_cast<double>(shares.size());
}

TEST(Random, is_the_same_everywhere) {
  Random r(0);  // SplitMix64's published first outputs of seed 0
  EXPECT_EQ(r.bits(), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(r.bits(), 0x6E789E6AA1B965F4u);
}

TEST(Random, normal_and_gamma_have_their_moments) {
  Random r(7);
  const int n = 200000;
  double sum = 0, square = 0, g = 0, g2 = 0, small = 0;
  for (int i = 0; i < n; ++i) {
    const double x = r.normal(), y = r.gamma(3);
    sum += x, square += x * x, g += y, g2 += y * y, small += r.gamma(0.25);
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(square / n, 1, 0.02);
  EXPECT_NEAR(g / n, 3, 0.02);
  EXPECT_NEAR(g2 / n - 9, 3, 0.15);
  EXPECT_NEAR(small / n, 0.25, 0.01);
}

TEST(Random, logarithm_and_cosine_are_those_of_long_double) {
  Random r(5);
  const long double turn = 2 * std::acos(-1.0L);
  for (int i = 0; i < 300000; ++i) {
    double u = r.uniform();
    if (i % 3 == 0) u *= 0x1p-40;              // far tails
    if (i % 3 == 1) u = 1 - u * 0x1p-20;       // where the logarithm is near 0
    const long double log = -2 * std::log(static_cast<long double>(u));
    ASSERT_NEAR(static_cast<double>((minus_two_log(u) - log) / log), 0, 4e-16) << u;
    const double v = r.uniform();
    ASSERT_NEAR(static_cast<double>(cos_turn(v) - std::cos(turn * static_cast<long double>(v))), 0, 4e-16) << v;
  }
  EXPECT_EQ(cos_turn(0.5), -1);
}

TEST(Draws, many_at_a_time_are_the_numbers_drawn_one_by_one) {
  for (std::uint64_t t = 0; t < 400; ++t) {
    Random shape(t), a(t + 99), b(t + 99);
    // Shapes above and below 1, near 1 (where a normal far out is refused), and 0, for which nothing is drawn.
    std::vector<double> shapes(1 + t % 130), many(shapes.size()), one(shapes.size());
    for (double& s : shapes) s = t % 4 == 0 ? 3 * shape.uniform() : t % 4 == 1 ? 14 * std::exp(shape.normal()) : t % 4 == 2 ? 1 + 0.1 * shape.uniform() : (shape.bits() & 1) * 2.0;
    draw_gammas(a, shapes, many);
    for (std::size_t i = 0; i < one.size(); ++i) one[i] = shapes[i] > 0 ? b.gamma(shapes[i]) : 0;
    ASSERT_EQ(many, one) << t;
    ASSERT_EQ(a.bits(), b.bits()) << t;
    draw_normals(a, many);
    for (double& x : one) x = b.normal();
    ASSERT_EQ(many, one) << t;
    ASSERT_EQ(a.bits(), b.bits()) << t;
  }
}

TEST(RankLoads, contiguous_experts_add_up_by_hand) {
  const Shares s{0.4, 0.1, 0.2, 0.3};
  EXPECT_EQ(rank_factor(s, 1), 1);
  EXPECT_DOUBLE_EQ(rank_factor(s, 2), 1.0) << "0.5 and 0.5";
  EXPECT_DOUBLE_EQ(rank_factor(s, 4), 1.6) << "0.4 of a quarter";
}

TEST(StageFactors, time_takes_the_mean_buffers_the_worst_and_savings_the_sum) {
  const std::vector<Shares> s{{0.75, 0.25}, {0.25, 0.75}, {0.6, 0.4}};
  const StageFactors all = stage_factors(s, 2, 0, 3);
  EXPECT_DOUBLE_EQ(all.step, (1.5 + 1.5 + 1.2) / 3);
  EXPECT_DOUBLE_EQ(all.buffer, 1.5);
  EXPECT_NEAR(all.saved, 2 * 1.6 / 3, 1e-12) << "rank 0 has 0.75 + 0.25 + 0.6 of 3 layers";
  const StageFactors none = stage_factors(s, 2, 3, 3);
  EXPECT_EQ(none.buffer, 1);
}

TEST(Uniform, has_no_imbalance_and_no_noise) {
  const FactorBand b = factor_band(load("uniform"), 58, 256, 64, {});
  EXPECT_NEAR(b.p95.buffer, 1, 1e-12);
  EXPECT_NEAR(b.p95.saved, 1, 1e-12);
  const auto shares = expert_shares(load("uniform"), 1, 8).front();
  for (const double s : shares) EXPECT_DOUBLE_EQ(s, 0.125);
}

TEST(DeepSeekV3Trace, rank_imbalance_is_that_of_the_published_counts) {
  // Mean over 58 layers of max/mean at EP 8..256, contiguous placement; in 1024 and in 4096.
  const auto a = expert_shares(load("deepseek-v3-prefill-in1024"), 58, 256), b = expert_shares(load("deepseek-v3-prefill-in4096"), 58, 256);
  const std::vector<std::pair<std::int64_t, std::pair<double, double>>> table{{8, {1.67, 2.07}}, {16, {1.93, 2.57}}, {32, {2.29, 3.04}}, {64, {2.90, 3.77}}, {128, {4.14, 5.36}}, {256, {6.53, 8.12}}};
  for (const auto& [ep, want] : table) {
    EXPECT_NEAR(mean_factor(a, ep), want.first, 0.006) << ep;
    EXPECT_NEAR(mean_factor(b, ep), want.second, 0.006) << ep;
  }
  EXPECT_NEAR(stage_factors(a, 64, 0, 58).buffer, 4.5, 0.05) << "worst layer";
  EXPECT_NEAR(stage_factors(a, 64, 0, 58).saved, 1.8, 0.05) << "hottest rank over all layers";
  double worst_stage = 0;
  for (std::size_t i = 0; i + 15 <= 58; ++i) worst_stage = std::max(worst_stage, stage_factors(a, 64, i, i + 15).saved);
  EXPECT_NEAR(worst_stage, 2.6, 0.05);
}

TEST(Traces, small_models_match_their_published_ranges) {
  EXPECT_NEAR(mean_factor(expert_shares(load("olmoe-c4"), 3, 64), 8), 1.161, 0.002);
  EXPECT_NEAR(mean_factor(expert_shares(load("olmoe-arxiv"), 3, 64), 32), 3.905, 0.005);
  EXPECT_NEAR(mean_factor(expert_shares(load("deepseek-v2-lite-law"), 26, 64), 16), 1.697, 0.005);
  EXPECT_NEAR(mean_factor(expert_shares(load("mixtral-github"), 3, 8), 8), 1.29, 0.002);
}

TEST(LogNormal, two_levels_reproduce_the_real_imbalance_at_ep8) {
  // Real: 1.55-2.07 over workloads; the two-level generator 1.5-1.84; without groups 1.2.
  const double two = mean_factor(expert_shares(load("log-normal-v3"), 200, 256), 8);
  EXPECT_GT(two, 1.5);
  EXPECT_LT(two, 1.84);
  LoadModel flat = load("log-normal-v3");
  std::get<LogNormalLoad>(flat.distribution).group_sigma = 0;
  EXPECT_NEAR(mean_factor(expert_shares(flat, 200, 256), 8), 1.2, 0.1);
}

TEST(Generated, loads_are_shares_and_follow_their_seed) {
  for (const auto& name : {"zipf", "log-normal-v3", "dirichlet-v3", "balanced-pretrain"}) {
    const LoadModel m = load(name);
    const auto a = expert_shares(m, 4, 96), again = expert_shares(m, 4, 96), more = expert_shares(m, 5, 96);
    EXPECT_EQ(a, again);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), more.begin())) << "a layer does not depend on how many there are";
    EXPECT_NE(a[0], a[1]);
    EXPECT_NE(a, expert_shares(m, 4, 96, 1)) << "another draw";
    for (const auto& s : a) EXPECT_NEAR(std::accumulate(s.begin(), s.end(), 0.0), 1, 1e-12);
  }
}

TEST(Sampling, its_variance_is_that_of_sequences_and_tokens) {
  // 4 sequences of 100 tokens, top 2, precision 99: 1/(S+1) = (1/100 + 99/100/200) / 4 = 0.0037375.
  Sampling s;
  s.sequences = 4, s.sequence_length = 100, s.top_k = 2, s.precision = 99;
  EXPECT_NEAR(1 / (effective_precision(s) + 1), 0.0037375, 1e-9);
  const Shares p{0.25, 0.75};
  double square = 0;
  const int n = 20000;
  for (int i = 0; i < n; ++i) {
    const double d = realised(p, s, static_cast<std::uint64_t>(i))[0] - 0.25;
    square += d * d;
  }
  EXPECT_NEAR(square / n, 0.25 * 0.75 * 0.0037375, 2e-5);
}

TEST(LoadTable, bands_are_ordered_and_agree_with_the_layers_without_noise) {
  Sampling s;
  s.sequences = 512;
  const LoadModel m = load("deepseek-v3-prefill-in1024");
  const LoadTable table(m, 58, 256, {8, 64}, s);
  const auto shares = expert_shares(m, 58, 256);
  for (const std::int64_t ep : {8, 64}) {
    const FactorBand b = table.stage(ep, 10, 25);
    EXPECT_LE(b.p50.step, b.p95.step);
    EXPECT_LE(b.p50.buffer, b.p95.buffer);
    EXPECT_LE(b.p50.saved, b.p50.step) << "a hot rank averages out over layers";
    EXPECT_LE(b.p50.step, b.p50.buffer);
    EXPECT_NEAR(b.p50.step / stage_factors(shares, ep, 10, 25).step, 1, 0.02) << "tokens barely matter";
  }
  EXPECT_EQ(table.stage(8, 5, 5).p95.buffer, 1);
}

TEST(LoadTable, wider_expert_groups_never_have_a_cooler_worst_rank) {
  const auto shares = expert_shares(load("log-normal-v3"), 8, 256);
  for (const auto& s : shares)
    for (std::int64_t ep = 1; ep < 256; ep *= 2) EXPECT_LE(rank_factor(s, ep), rank_factor(s, 2 * ep) + 1e-12);
}

TEST(DropRate, closed_forms_and_counts_agree_with_the_published_table) {
  EXPECT_DOUBLE_EQ(drop_rate({0.5, 0.5}, 1), 0);
  EXPECT_DOUBLE_EQ(drop_rate({0.75, 0.25}, 1), 0.25) << "1.5 and 0.5 of the mean; half a mean dropped of two";
  EXPECT_NEAR(drop_rate_poisson(128, 1.0), 0.035, 0.0005);
  EXPECT_NEAR(drop_rate_poisson(64, 1.25), 0.0013, 0.0001);
  EXPECT_NEAR(drop_rate_poisson(16, 1.25), 0.023, 0.001);
  EXPECT_NEAR(drop_rate_log_normal(0.66, 1.0), 0.26, 0.01);
  const auto shares = expert_shares(load("deepseek-v3-prefill-in1024"), 58, 256);
  const auto mean = [&](double cf) {
    double sum = 0;
    for (const auto& s : shares) sum += drop_rate(s, cf);
    return sum / 58;
  };
  EXPECT_NEAR(mean(1.0), 0.27, 0.006);
  EXPECT_NEAR(mean(1.25), 0.20, 0.006);
  EXPECT_NEAR(mean(2.0), 0.096, 0.003);
  EXPECT_NEAR(mean(3.0), 0.043, 0.003);
}

TEST(Capacity, megatrons_convention_by_hand) {
  EXPECT_EQ(expert_capacity(4096, 8, 256, 1.0), 128);
  EXPECT_EQ(expert_capacity(4096, 8, 256, 1.25), 160);
  EXPECT_EQ(expert_capacity(100, 2, 64, 1.0), 4) << "3.125 rounded up";
  EXPECT_THROW((void)expert_capacity(100, 2, 64, 0), InputError);
  // Shares 0.5 0.3 0.1 0.1: at CF 1 each keeps a quarter at most; rank 0 of two keeps both its quarters.
  EXPECT_DOUBLE_EQ(capped_rank_factor({0.5, 0.3, 0.1, 0.1}, 2, 1.0, false), 1.0);
  EXPECT_DOUBLE_EQ(capped_rank_factor({0.5, 0.3, 0.1, 0.1}, 2, 2.0, false), 1.6);
  EXPECT_DOUBLE_EQ(capped_rank_factor({0.5, 0.3, 0.1, 0.1}, 2, 1.5, true), 1.5);
}

TEST(Refusals, loads_that_do_not_fit_the_model) {
  const auto message = [](std::vector<std::vector<double>> c, std::int64_t experts) { return refusal([&] { (void)expert_shares(trace(std::move(c)), 2, experts); }); };
  EXPECT_NE(message({{1, 2, 3}}, 4).find("a trace of 3 experts for a model of 4"), std::string::npos);
  EXPECT_NE(message({}, 4).find("without layers"), std::string::npos);
  EXPECT_NE(message({{1, -2}}, 2).find("a count of -2"), std::string::npos);
  EXPECT_NE(message({{0, 0}}, 2).find("sum to 0"), std::string::npos);
  EXPECT_NE(refusal([] { (void)rank_factor({0.5, 0.5}, 3); }).find("2 experts on 3 ranks"), std::string::npos);
  EXPECT_NE(refusal([] { (void)rank_factor({0.5, 0.5}, 0); }), "");
  Sampling none;
  none.sequences = 0;
  EXPECT_NE(refusal([&] { (void)factor_band(load("zipf"), 2, 8, 2, none); }), "");
}

}  // namespace
}  // namespace moeplan
