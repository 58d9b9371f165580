/// Whose kernels a plan is priced with, and how the load enters the price of experts.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include "core/configs.hpp"
#include "kernels/catalogue.hpp"
#include "planner/expert_prices.hpp"
#include "planner/load_spread.hpp"
#include "planner/problem.hpp"
#include "core/spec/profile_keys.hpp"
#include "sim/cost/link_samples.hpp"
#include "sim/cost/price.hpp"

namespace moeplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

Problem problem(const std::string& device, const std::string& runtime) {
  ProblemRequest request;
  request.model = "qwen3-30b-a3b", request.device = device, request.gpus = 1, request.runtime = runtime;
  return make_problem(kConfigs, request);
}
bool holds(const DeviceProfile& profile, std::string_view start) {
  return std::any_of(profile.samples.begin(), profile.samples.end(), [&](const ProfileSample& s) { return s.key.starts_with(start); });
}

TEST(OwnProfile, the_executors_plans_on_hopper_rest_on_its_own_kernels) {
  const DeviceProfile own = problem("h200", "moeplan").profile;
  EXPECT_EQ(own.name, "h200-moeplan");
  EXPECT_TRUE(own.source.starts_with("moeplan calibrate")) << own.source;
  EXPECT_TRUE(holds(own, kLaunchKey));
  EXPECT_EQ(problem("h100", "moeplan").profile.name, "h200-moeplan") << "the same generation";
  EXPECT_EQ(problem("h200", "megatron-core").profile.name, "h200") << "public kernels run there";
  EXPECT_EQ(problem("b200", "moeplan").profile.name, "h200") << "of another generation nothing is known of them";
}

TEST(OwnProfile, operators_that_were_not_measured_keep_the_public_kernels_samples) {
  const DeviceProfile own = problem("h200", "moeplan").profile, only = load_profile(kConfigs, "h200-moeplan");
  ASSERT_FALSE(holds(only, "sparse_attention "));
  EXPECT_TRUE(holds(own, "sparse_attention "));
  const DeviceProfile common = load_profile(kConfigs, "h200");
  for (const ProfileSample& s : common.samples)
    if (s.key.starts_with("grouped_linear ")) {
      EXPECT_EQ(std::count_if(own.samples.begin(), own.samples.end(), [&](const ProfileSample& o) { return o.key == s.key; }),
                std::count_if(only.samples.begin(), only.samples.end(), [&](const ProfileSample& o) { return o.key == s.key; }))
          << s.key << ": measured here, so not from there";
    }
}

TEST(OwnProfile, every_key_is_the_catalogues_own_or_the_machines) {
  const DeviceProfile own = load_profile(kConfigs, "h200-moeplan");
  EXPECT_LT(std::filesystem::file_size(kConfigs / "profiles" / "h200-moeplan.json"), 1'000'000u);
  for (const ProfileSample& s : own.samples) {
    if (s.key == kLaunchKey || bytes_of_key(s.key, kCopyColumnsKey) || bytes_of_key(s.key, kToDeviceKey) || bytes_of_key(s.key, kToHostKey) || bytes_of_key(s.key, kAllocateKey)) continue;
    if (s.key.find(" payload=") != std::string::npos) {   // between two ranks
      const std::string word = s.key.substr(0, s.key.find(' '));
      EXPECT_TRUE((std::set<std::string>{"all_gather", "reduce_scatter", "all_reduce", "send_receive", "dispatch", "counts"}.contains(word))) << s.key;   // those that Links asks for
      EXPECT_TRUE(LinkSamples(own).time(word, 2, 1e6)) << s.key;
      continue;
    }
    const std::optional<OpCall> c = parse_key(s.key);
    ASSERT_TRUE(c) << s.key;
    EXPECT_EQ(key(c->op, c->pass, c->wants), s.key);
  }
}

TEST(LoadSpread, is_the_load_in_at_most_128_values_of_mean_one) {
  Problem p = problem("h200", "moeplan");
  const std::vector<double> spread = load_spread(p);
  ASSERT_EQ(spread.size(), 128u);
  EXPECT_TRUE(std::is_sorted(spread.begin(), spread.end()));
  EXPECT_NEAR(std::accumulate(spread.begin(), spread.end(), 0.0) / 128, 1, 1e-9);
  EXPECT_GT(spread.back(), 1.5) << "log-normal-v3 is uneven";
  p.load.distribution = UniformLoad{};
  EXPECT_TRUE(load_spread(p).empty());
  // 127 experts without a token: one in 128 has all.
  std::vector<double> counts(128, 0.0);
  counts[5] = 1000;
  p.load.distribution = TraceLoad{{counts}};
  const std::vector<double> one = load_spread(p);
  EXPECT_EQ(std::count(one.begin(), one.end(), 0.0), 127);
  EXPECT_NEAR(one.back(), 128, 1e-9);
}

TEST(LoadSpread, experts_without_tokens_make_a_micro_batch_cheaper) {
  Problem p = problem("h200", "moeplan");
  const OpCall c = parse_key("grouped_linear rows=32768 experts=128 in=2048 out=1536 forward").value();
  std::vector<double> counts(128, 0.0);
  std::fill(counts.begin(), counts.begin() + 16, 1.0);
  p.load.distribution = TraceLoad{{counts}};
  const Prices few(p.cluster.device, p.profile, p.runtime, load_spread(p)), even(p.cluster.device, p.profile, p.runtime);
  EXPECT_LT(few.price(c).median.value, even.price(c).median.value) << "an eighth of the weights is read";
}

// 128 experts, the first with 40 times the rows of the others: f = 128 x 40 / 167 = 30.7 of the mean, the rest 0.766.
TEST(LoadSpread, is_what_the_exchange_leaves) {
  Problem p = problem("h200", "moeplan");
  std::vector<double> counts(128, 1.0);
  counts[0] = 40;
  p.load.distribution = TraceLoad{{counts}};
  const Parallelism ep8{.ep = 8, .dp_shard = 8};
  const auto spread = [&](const ExpertExchange& x) { return load_spread(p, x, ep8); };
  EXPECT_NEAR(spread({}).back(), 128 * 40 / 167.0, 1e-9);
  // Cut at twice the mean: 2 and 127 times 0.766, whose mean is 0.776.
  const double rest = 128 / 167.0, mean = (2 + 127 * rest) / 128;
  EXPECT_NEAR(spread({.capacity_factor = 2}).back(), 2 / mean, 1e-9);
  EXPECT_NEAR(spread({.capacity_factor = 2}).front(), rest / mean, 1e-9);
  // Rerouted rows fill the others up: nothing is lost, so the mean stays 1.
  EXPECT_NEAR(spread({.capacity_factor = 2, .overflow = Overflow::reroute}).back(), 2, 1e-9);
  EXPECT_NEAR(spread({.capacity_factor = 2, .overflow = Overflow::reroute}).front(), 126 / 127.0, 1e-9);
  EXPECT_TRUE(spread({.capacity_factor = 2, .pad = true}).empty()) << "all alike";
  // 8 copies more, all of the hot expert: nine slots of 40 / 9 of 136 slots' 167.
  EXPECT_NEAR(spread({.replicas = 8, .placement = ExpertPlacement::balanced}).back(), 40 / 9.0 * 136 / 167, 1e-9);
  EXPECT_EQ(spread({.placement = ExpertPlacement::balanced}), spread({})) << "experts lie elsewhere and are as many";
}

// What a capacity does to a plan's grouped products: the same rows in fewer large pieces take as long as the curve over rows says.
TEST(LoadSpread, sets_the_price_of_a_plans_experts) {
  Problem p = problem("h200", "moeplan");
  std::vector<double> counts(128, 0.0);
  std::fill(counts.begin(), counts.begin() + 16, 1.0);
  p.load.distribution = TraceLoad{{counts}};
  Plan few, full;
  few.parallelism = full.parallelism = {.ep = 8, .dp_shard = 8};
  full.experts.capacity_factor = 1.0, full.experts.pad = true;
  const Prices plain(p.cluster.device, p.profile, p.runtime, load_spread(p));
  ExpertPrices prices(p, plain);
  prices.prepare(few);
  prices.prepare(full);
  const OpCall c = parse_key("grouped_linear rows=32768 experts=128 in=2048 out=1536 forward").value();
  EXPECT_EQ(prices.price(few, c, {}).median.value, plain.price(c).median.value);
  const double alike = Prices(p.cluster.device, p.profile, p.runtime).price(c).median.value;
  EXPECT_EQ(prices.price(full, c, {}).median.value, alike);
  EXPECT_NEAR(plain.spread_as({1.0}).price(c).median.value, alike, 1e-6 * alike);
  EXPECT_LT(prices.price(few, c, {}).median.value, prices.price(full, c, {}).median.value);
}

}  // namespace
}  // namespace moeplan
