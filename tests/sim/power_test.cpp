/// What a device draws, the clock it settles at, and what that makes of prices. Numbers by hand: idle 100 W, 500 W held, 1000 W at most, energy by the clock.

#include "sim/cost/power.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "sim/cost/price.hpp"

namespace moeplan {
namespace {

PowerProfile toy_power(double exponent = 1) { return {.limit = 500, .peak = 1000, .idle = 100, .boost = 2000, .exponent = exponent, .samples = {}}; }
/// Follows the clock in all its time.
PoweredCall products(double watts, double seconds = 1) { return {.seconds = seconds, .joules = watts * seconds, .clock_share = 1, .reached = 1}; }

/// 1000 FLOP/s, 100 B/s.
DeviceSpec toy() {
  DeviceSpec d;
  d.name = "toy", d.generation = "toy", d.peak["bf16"] = {1000}, d.memory_bandwidth = {100}, d.achieved_matmul = 0.5, d.achieved_bandwidth = 0.5, d.memory = {1};
  return d;
}
constexpr const char* kKey = "linear tokens=100 in=64 out=64 forward";   // 819 s of products, 289 s of bytes
DeviceProfile toy_profile(double watts) {
  DeviceProfile p;
  p.name = "toy", p.source = "made up", p.date = "today", p.device = toy(), p.samples = {{kKey, {1000}, 0, 5}}, p.power = toy_power();
  p.power->samples = {{.key = kKey, .watts = watts, .clock_share = 1}};
  return p;
}
OpCall call(const std::string& key) { return parse_key(key).value(); }

TEST(Power, below_the_limit_the_clock_is_the_boost_clock) {
  EXPECT_EQ(sustained_clock(toy_power(), std::vector<Repeated>{{products(400), 1}}), 1);
  EXPECT_EQ(sustained_clock(toy_power(), {}), 1) << "nothing to do";
}

TEST(Power, products_alone_settle_where_the_square_of_the_clock_meets_the_limit) {
  // Energy by the clock, time by its inverse: 100 + 1600 x^2 = 500.
  EXPECT_NEAR(sustained_clock(toy_power(), std::vector<Repeated>{{products(1600), 1}}), 0.5, 1e-6);
  EXPECT_NEAR(sustained_clock(toy_power(), std::vector<Repeated>{{products(1600, 7), 3}}), 0.5, 1e-6) << "how long and how often is no matter alone";
  // With energy by its square: 100 + 3200 x^3 = 500.
  EXPECT_NEAR(sustained_clock(toy_power(2), std::vector<Repeated>{{products(3200), 1}}), 0.5, 1e-6);
}

TEST(Power, what_draws_little_leaves_more_for_the_rest) {
  // Equally long at boost: products of 1600 W and nothing at all, in which the clock has no part. (1600 x + 100 / x + 100) / (1 / x + 1) = 500, x = 0.6614.
  const PoweredCall idle{.seconds = 1, .joules = 0, .clock_share = 0, .reached = 1};
  const double x = sustained_clock(toy_power(), std::vector<Repeated>{{products(1600), 1}, {idle, 1}});
  EXPECT_NEAR((1600 * x + 100 / x + 100) / (1 / x + 1), 500, 1e-3);
  EXPECT_GT(x, 0.5);
}

TEST(Power, more_power_never_raises_the_clock) {
  for (const double exponent : {0.0, 0.8, 2.0})
    for (const double share : {0.0, 0.5, 1.0}) {
      double before = 1;
      for (double watts = 50; watts < 1e5; watts *= 1.3) {
        const PoweredCall other{.seconds = 2, .joules = 200, .clock_share = share, .reached = 1};
        const double x = sustained_clock(toy_power(exponent), std::vector<Repeated>{{products(watts), 1}, {other, 2}});
        EXPECT_LE(x, before) << watts;
        EXPECT_GE(x, kLeastClock);
        before = x;
      }
    }
}

TEST(Power, above_the_peak_a_call_is_slowed_at_once_and_the_clock_first_takes_that_away) {
  // 100 + 1800 x = 1000 within its own second: half of the boost clock is all that it reaches.
  EXPECT_NEAR(reached_clock(toy_power(), 1, 1800, 1), 0.5, 1e-12);
  EXPECT_EQ(reached_clock(toy_power(), 1, 900, 1), 1) << "exactly the peak";
  // Half of the energy of a copy is not the clock's: 1 - (1 - x) / 2 = 3/4.
  EXPECT_NEAR(reached_clock(toy_power(), 0, 1200, 1), 0.5, 1e-12);
  const PoweredCall c{.seconds = 1, .joules = 1800, .clock_share = 1, .reached = 0.5};
  EXPECT_EQ(seconds_at(c, 1), 1);
  EXPECT_EQ(seconds_at(c, 0.5), 1) << "no clock above it matters";
  EXPECT_EQ(seconds_at(c, 0.25), 2);
  EXPECT_EQ(joules_at(toy_power(), c, 1), 900);
  EXPECT_EQ(joules_at(toy_power(), c, 0.25), 450);
}

TEST(Power, a_copy_takes_as_long_at_any_clock_and_half_of_what_it_draws_stays) {
  const PoweredCall copy{.seconds = 3, .joules = 600, .clock_share = 0, .reached = 1};
  EXPECT_EQ(seconds_at(copy, 0.5), 3);
  EXPECT_EQ(joules_at(toy_power(), copy, 0.5), 450);
}

TEST(Power, a_limit_below_idle_ends_at_the_least_clock) {
  PowerProfile p = toy_power();
  p.limit = 50;
  EXPECT_EQ(sustained_clock(p, std::vector<Repeated>{{products(1), 1}}), kLeastClock);
}

TEST(PowerTables, a_call_draws_by_its_utilisation_and_an_unknown_one_as_others_that_are_bound_alike) {
  PowerProfile p = toy_power();
  p.samples = {{.key = kKey, .watts = 800, .clock_share = 1}, {.key = "add tokens=100 hidden=64 forward", .watts = 300, .clock_share = 0.1}};
  const PowerTables tables(p, toy());
  const PoweredCall half = tables.call(call(kKey), 10, 2, 20);
  EXPECT_NEAR(half.joules, 8600, 1e-6) << "800 W for each second of products at the data sheet's rate, 300 W for each of bytes";
  EXPECT_EQ(half.reached, 1) << "430 W and idle";
  EXPECT_NEAR(tables.call(call("linear tokens=100 in=64 out=64 backward dx"), 10, 2, 20).joules, 8600, 1e-6) << "the other pass";
  EXPECT_NEAR(tables.call(call(kKey), 2, 10, 20).joules, 4600, 1e-6) << "few rows: most of it is weights";
  const PoweredCall norm = tables.call(call("rms_norm tokens=8 hidden=64 forward"), 2, 10, 20);
  EXPECT_NEAR(norm.joules, 3000, 1e-6);
  EXPECT_NEAR(norm.clock_share, 0.1, 1e-12);
  EXPECT_NEAR(tables.call(call("attention tokens=8 sequence_length=8 heads=1 kv_heads=1 d_qk=8 d_v=8 forward"), 10, 2, 20).joules, 8600, 1e-6);
}

// The energy of its own sample, 800 W x 819.2 s, and no more: without a call that bytes bind nobody told apart what they take.
TEST(PowerTables, products_alone_draw_what_they_were_seen_to_draw) {
  PowerProfile p = toy_power();
  p.samples = {{.key = kKey, .watts = 800, .clock_share = 1}};
  const PowerTables tables(p, toy());
  EXPECT_NEAR(tables.call(call(kKey), 819.2, 288.8, 1000).joules, 800 * 819.2, 1e-6);
  EXPECT_NEAR(tables.call(call("rms_norm tokens=8 hidden=64 forward"), 2, 10, 20).joules, 8000, 1e-6) << "as much as products a second, for want of better";
}

// The same product with many rows and with few: its flops bind it, or the weights' bytes.
TEST(PowerTables, a_call_is_asked_among_those_that_are_bound_as_it_is) {
  PowerProfile p = toy_power();
  p.samples = {{.key = "linear tokens=64000 in=6400 out=6400 forward", .watts = 800, .clock_share = 0.9}, {.key = "linear tokens=1 in=6400 out=6400 forward", .watts = 300, .clock_share = 0}};
  const PowerTables tables(p, toy());
  EXPECT_NEAR(tables.call(call("linear tokens=8 in=6400 out=6400 forward"), 1, 100, 200).clock_share, 0, 1e-12) << "bytes bind it";
  EXPECT_NEAR(tables.call(call("linear tokens=8 in=6400 out=6400 forward"), 100, 1, 200).clock_share, 0.9, 1e-12);
  EXPECT_NEAR(tables.call(call("linear tokens=8 in=6400 out=6400 forward"), 100, 10, 200).joules, 800 * 100 + 300 * 10, 1e-6);
  // A quarter of the bytes' time is enough to tell products apart: what the same call draws is then the same sum, whatever binds it.
  p.samples = {{.key = "linear tokens=64000 in=6400 out=6400 forward", .watts = 800, .clock_share = 0.9}, {.key = "add tokens=100 hidden=64 forward", .watts = 300, .clock_share = 0.1}};
  EXPECT_NEAR(PowerTables(p, toy()).call(call("linear tokens=8 in=6400 out=6400 forward"), 5, 10, 20).joules, 800 * 5 + 300 * 10, 1e-6);
}

TEST(PowerTables, experts_that_were_timed_draw_by_the_second_for_both_count_tiles) {
  const std::string key = "grouped_linear rows=400 experts=4 in=64 out=64 forward";   // 100 rows each
  PowerProfile p = toy_power();
  p.samples = {{.key = "add tokens=100 hidden=64 forward", .watts = 300, .clock_share = 0}, {.key = key, .watts = 800, .clock_share = 1}};
  const std::vector<ProfileSample> times{{.key = key, .median = {8000}}};
  const OpCall experts = call(key);
  const double compute = 2.0 * 400 * 64 * 64 / 1000, traffic = static_cast<double>(bytes_moved(experts.op, Pass::forward, {}).value) / 100, joules = 800 * compute + 300 * traffic;
  // Half of the rows in three quarters of the time: tiles are no fewer for that.
  const OpCall fewer = call("grouped_linear rows=200 experts=4 in=64 out=64 forward");
  EXPECT_NEAR(PowerTables(p, toy(), times).call(fewer, compute / 2, traffic / 2, 6000).joules, joules * 6000 / 8000, 1e-6 * joules);
  EXPECT_NEAR(PowerTables(p, toy(), times).call(experts, compute, traffic, 8000).joules, joules, 1e-6 * joules);
  EXPECT_NEAR(PowerTables(p, toy()).call(fewer, compute / 2, traffic / 2, 6000).joules, joules / 2, 1e-6 * joules) << "without a time, by flops and bytes";
}

TEST(PowerTables, a_sample_of_no_call_is_refused) {
  PowerProfile p = toy_power();
  p.samples = {{.key = "liner tokens=1 forward", .watts = 1, .clock_share = 0}};
  EXPECT_THROW(PowerTables(p, toy()), InputError);
  DeviceProfile profile = toy_profile(1600);
  profile.power->samples[0].key = "nothing";
  EXPECT_THROW(Prices(toy(), profile, {}), InputError);
}

TEST(Prices, at_a_lower_clock_a_call_takes_longer_by_its_share_and_stays_what_it_is) {
  Prices prices(toy(), toy_profile(100), {});
  EXPECT_EQ(prices.price(call(kKey)).median.value, 1000) << "until a clock is held";
  EXPECT_EQ(prices.clock(), 2000);
  prices.hold({.clock = 0.5, .fastest = 1, .slowest = 0.4});
  const Estimate e = prices.price(call(kKey));
  EXPECT_NEAR(e.median.value, 2000, 1e-9);
  EXPECT_NEAR(e.low.value, 970, 1e-9) << "3 % between machines, at the boost clock";
  EXPECT_NEAR(e.high.value, 2575, 1e-9) << "3 % between machines, at the slowest clock";
  EXPECT_EQ(e.basis, Basis::measured) << "the time is that of the call itself, and the clock is said beside it";
  EXPECT_EQ(prices.clock(), 1000);
}

TEST(Prices, power_of_another_device_or_of_none_changes_no_price) {
  DeviceProfile without = toy_profile(1600);
  without.power.reset();
  Prices plain(toy(), without, {});
  EXPECT_EQ(plain.clock(), std::nullopt);
  plain.hold({.clock = 0.5, .fastest = 0.5});
  EXPECT_EQ(plain.price(call(kKey)).median.value, 1000);
  DeviceSpec other = toy();
  other.name = "other";
  Prices foreign(other, toy_profile(1600), {});
  EXPECT_EQ(foreign.clock(), std::nullopt);
  foreign.hold({.clock = 0.5, .fastest = 0.5});
  EXPECT_EQ(foreign.price(call(kKey)).median.value, Prices(other, without, {}).price(call(kKey)).median.value);
}

}  // namespace
}  // namespace moeplan
