/// What is read of a device's meters, and the section that follows.

#include "executor/calibrate/power.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace moeplan {
namespace {

/// 1e15 FLOP/s, 4e12 B/s.
DeviceSpec toy() {
  DeviceSpec d;
  d.name = "toy", d.generation = "toy", d.peak["bf16"] = {1e15}, d.memory_bandwidth = {4e12}, d.memory = {1};
  return d;
}
OpCall call(const std::string& key) { return parse_key(key).value(); }
const char* const kProducts = "linear tokens=8192 in=4096 out=4096 forward";
const char* const kSmaller = "linear tokens=1024 in=4096 out=4096 forward";
const char* const kAttention = "attention tokens=8192 sequence_length=8192 heads=32 kv_heads=32 d_qk=128 d_v=128 forward";
const char* const kSum = "add tokens=16384 hidden=4096 forward";

/// What a device of this law shows of a call of `joules` and `seconds`, repeated without rest and with as much rest as work.
PowerReading shown(const PowerProfile& p, const std::string& key, PoweredCall c) {
  c.reached = reached_clock(p, c.clock_share, c.joules, c.seconds);
  double x = 1;
  while (x > 0.2 && p.idle + joules_at(p, c, x) / seconds_at(c, x) > p.limit) x -= 1e-5;
  const auto held = [&](double at, double rest) {
    const double t = seconds_at(c, at);
    return Held{.seconds = t, .clock = at * p.boost, .watts = p.idle + joules_at(p, c, at) / (t * (1 + rest)), .rate = 1 / (t * (1 + rest))};
  };
  PowerReading out{.call = call(key), .sustained = held(x, 0), .rested = {}, .share = {}};
  if (x < 0.95) out.rested = held(1, 1);
  else out.share = c.clock_share;
  return out;
}

TEST(FitPower, finds_the_law_behind_the_readings) {
  const PowerProfile law{.limit = 700, .peak = 930, .idle = 120, .boost = 1980, .exponent = 0.9, .samples = {}};
  PowerReadings readings{.idle = 120, .boost = 1980, .calls = {}};
  readings.calls.push_back(shown(law, kProducts, {.seconds = 4e-4, .joules = 0.44, .clock_share = 0.8}));    // 1,100 W beyond idle: slowed at once
  readings.calls.push_back(shown(law, kAttention, {.seconds = 3e-3, .joules = 2.1, .clock_share = 1}));      // 700 W: only when it lasts
  readings.calls.push_back(shown(law, kSum, {.seconds = 1.2e-4, .joules = 0.05, .clock_share = 0.1}));       // 417 W: never
  ASSERT_TRUE(readings.calls[0].rested && readings.calls[1].rested && !readings.calls[2].rested);
  const std::optional<PowerProfile> p = fit_power(readings, 700, toy(), std::nullopt);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->limit, 700);
  EXPECT_EQ(p->idle, 120);
  EXPECT_NEAR(p->peak, 930, 1);
  EXPECT_NEAR(p->exponent, 0.9, 0.02) << "attention alone tells it";
  ASSERT_EQ(p->samples.size(), 3u);
  const PowerSample &sum = p->samples[0], &attention = p->samples[1], &products = p->samples[2];   // by key
  // Bytes of the sum: 3 x 16384 x 4096 x 2 over 4e12 B/s.
  const double traffic = 3.0 * 16384 * 4096 * 2 / 4e12, memory = 0.05 / traffic;
  EXPECT_NEAR(sum.watts, memory, 0.01 * memory);
  const double compute = 2.0 * 8192 * 4096 * 4096 / 1e15, bytes = 2.0 * (2 * 8192.0 * 4096 + 4096.0 * 4096) / 4e12;
  EXPECT_NEAR(products.watts, (0.44 - memory * bytes) / compute, 0.03 * products.watts);
  EXPECT_NEAR(products.clock_share, 0.8, 0.05);
  EXPECT_NEAR(attention.clock_share, 1, 0.05);
  // A second run adds to the first and leaves its constants.
  PowerReadings more{.idle = 200, .boost = 1500, .calls = {shown(law, kSmaller, {.seconds = 6e-5, .joules = 0.04, .clock_share = 0.5})}};
  const std::optional<PowerProfile> both = fit_power(more, 500, toy(), p);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->samples.size(), 4u);
  EXPECT_EQ(both->limit, 700);
  EXPECT_EQ(both->idle, 120);
}

TEST(FitPower, the_order_in_which_calls_are_read_says_nothing) {
  const PowerProfile law{.limit = 700, .peak = 930, .idle = 120, .boost = 1980, .exponent = 0.9, .samples = {}};
  const PowerReading products = shown(law, kProducts, {.seconds = 4e-4, .joules = 0.44, .clock_share = 0.8}), attention = shown(law, kAttention, {.seconds = 3e-3, .joules = 2.1, .clock_share = 1});
  // 500 W at the full rate of memory, and 417.
  const PowerReading norm = shown(law, "rms_norm tokens=16384 hidden=4096 forward", {.seconds = 1e-4, .joules = 500 * 2.0 * 16384 * 4096 * 2 / 4e12, .clock_share = 0.1}), sum = shown(law, kSum, {.seconds = 1.2e-4, .joules = 0.042, .clock_share = 0.1});
  const auto fit = [](std::vector<PowerReading> calls, const std::optional<PowerProfile>& before) { return fit_power({.idle = 120, .boost = 1980, .calls = std::move(calls)}, 700, toy(), before); };
  const auto forth = fit({products, attention, norm, sum}, std::nullopt), back = fit({sum, norm, attention, products}, std::nullopt);
  ASSERT_TRUE(forth && back);
  EXPECT_EQ(*forth, *back);
  // Read in two runs: what memory draws is known from the second on, and products are told apart from it by that.
  const auto later = fit({sum}, fit({products, attention, norm}, std::nullopt)), earlier = fit({norm}, fit({products, attention, sum}, std::nullopt));
  ASSERT_TRUE(later && earlier);
  for (const auto& p : {later, earlier})
    for (const PowerSample& s : forth->samples) {
      const auto same = std::find_if(p->samples.begin(), p->samples.end(), [&](const PowerSample& o) { return o.key == s.key; });
      ASSERT_NE(same, p->samples.end()) << s.key;
      EXPECT_NEAR(same->watts, s.watts, 1e-6 * s.watts) << s.key;
    }
}

TEST(FitPower, a_device_that_nothing_slows_has_no_section) {
  const PowerProfile law{.limit = 5000, .peak = 5000, .idle = 120, .boost = 1980, .exponent = 0.9, .samples = {}};
  const PowerReadings readings{.idle = 120, .boost = 1980, .calls = {shown(law, kProducts, {.seconds = 4e-4, .joules = 0.44, .clock_share = 1})}};
  EXPECT_FALSE(fit_power(readings, 5000, toy(), std::nullopt));
  EXPECT_FALSE(fit_power({}, 700, toy(), std::nullopt));
}

TEST(PowerCalls, are_the_longest_of_each_class_that_no_sample_stands_for) {
  std::map<std::string, OpCall> calls;
  std::vector<ProfileSample> samples;
  const auto add = [&](const std::string& key, double seconds) { calls.emplace(key, call(key)), samples.push_back({.key = key, .median = {seconds}}); };
  add(kProducts, 4e-3), add(kSmaller, 4e-4), add("linear tokens=2048 in=4096 out=4096 forward", 8e-4), add("linear tokens=65536 in=4096 out=4096 forward", 0.03);
  add(kSum, 1e-4), add("add tokens=8192 hidden=4096 forward", 5e-5), add("rms_norm tokens=8 hidden=64 forward", 5e-6);
  const auto keys = [&](const std::vector<PowerSample>& known) {
    std::vector<std::string> out;
    for (const OpCall& c : power_calls(calls, samples, known, toy())) out.push_back(key(c.op, c.pass, c.wants));
    std::sort(out.begin(), out.end());
    return out;
  };
  // Nothing above 10 ms, nothing below 30 us; of products a smaller one too.
  EXPECT_EQ(keys({}), (std::vector<std::string>{kSum, kSmaller, kProducts}));
  EXPECT_EQ(keys({{.key = "add tokens=64 hidden=64 forward", .watts = 1, .clock_share = 0}}), (std::vector<std::string>{kSmaller, kProducts})) << "bytes are alike";
  EXPECT_EQ(keys({{.key = "linear tokens=8192 in=4096 out=3200 forward", .watts = 1, .clock_share = 0}}), (std::vector<std::string>{kSum, kSmaller})) << "within a factor of 1.3";
  EXPECT_EQ(keys({{.key = "linear tokens=8192 in=4096 out=8192 forward", .watts = 1, .clock_share = 0}}), (std::vector<std::string>{kSum, kSmaller, kProducts}));
}

TEST(PowerCalls, attention_to_a_window_does_not_stand_for_attention_to_all) {
  const std::string all = "attention tokens=8192 sequence_length=8192 heads=32 kv_heads=32 d_qk=128 d_v=128 forward", window = "attention tokens=8192 sequence_length=8192 heads=32 kv_heads=32 d_qk=128 d_v=128 window=128 forward",
                    smaller = "attention tokens=2048 sequence_length=2048 heads=32 kv_heads=32 d_qk=128 d_v=128 forward";
  const std::map<std::string, OpCall> calls{{all, call(all)}, {window, call(window)}, {smaller, call(smaller)}};
  const std::vector<ProfileSample> samples{{.key = all, .median = {4e-3}}, {.key = window, .median = {4.9e-4}}, {.key = smaller, .median = {4e-4}}};
  EXPECT_EQ(power_calls(calls, samples, {}, toy()).size(), 3u) << "an eighth of the longest of its kind, and the window beside";
}

TEST(ReadPower, takes_time_clock_and_power_while_a_call_repeats) {
  const auto backend = cpu_backend(CpuStorage::as_planned);
  const auto start = std::chrono::steady_clock::now();
  // 500 W, counted in steps of 0.05 s; a clock that never falls.
  const PowerMeter meter{.joules = [&] { return 25 * std::floor(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 0.05); }, .clock = [] { return 2000.0; }, .limit = 700};
  const std::vector<OpCall> calls{call("add tokens=64 hidden=64 forward")};
  std::size_t asked = 0;
  const PowerReadings r = read_power(*backend, meter, calls, [&](std::size_t, std::size_t all) { asked = all; });
  EXPECT_EQ(asked, 1u);
  EXPECT_EQ(r.boost, 2000);
  EXPECT_NEAR(r.idle, 500, 100);
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].sustained.clock, 2000);
  EXPECT_NEAR(r.calls[0].sustained.watts, 500, 100);
  EXPECT_GT(r.calls[0].sustained.seconds, 0);
  EXPECT_LE(r.calls[0].sustained.rate * r.calls[0].sustained.seconds, 1.001) << "no more calls than time allows";
  EXPECT_FALSE(r.calls[0].rested);
  EXPECT_FALSE(r.calls[0].share) << "nothing lowered the clock";
}

TEST(HoldSteps, takes_clock_and_power_of_steps_and_leaves_out_those_before_the_device_has_settled) {
  const auto start = std::chrono::steady_clock::now();
  const auto now = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  // 900 W and 1,900 MHz at first, 500 W and 1,500 MHz from 0.15 s on.
  const auto joules = [&] { const double t = now(); return t < 0.15 ? 900 * t : 900 * 0.15 + 500 * (t - 0.15); };
  const PowerMeter meter{.joules = [&] { return 10 * std::floor(joules() / 10); }, .clock = [&] { return now() < 0.15 ? 1900.0 : 1500.0; }, .limit = 700};
  int steps = 0;
  const std::optional<Held> held = hold_steps(meter, [&] { ++steps, std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  ASSERT_TRUE(held);
  EXPECT_GE(now(), 1);
  EXPECT_EQ(held->clock, 1500);
  EXPECT_NEAR(held->watts, 500, 25);
  EXPECT_GE(held->seconds, 0.05);
  EXPECT_NEAR(held->seconds * held->rate, 1, 1e-9);
  const PowerMeter dead{.joules = []() -> std::optional<double> { return std::nullopt; }, .clock = []() -> std::optional<double> { return std::nullopt; }, .limit = 700};
  EXPECT_FALSE(hold_steps(dead, [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); }));
}

TEST(ReadPower, a_meter_that_does_not_answer_says_nothing_rather_than_zero) {
  const auto backend = cpu_backend(CpuStorage::as_planned);
  const auto start = std::chrono::steady_clock::now();
  const auto counted = [&] { return 25 * std::floor(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 0.05); };
  const std::vector<OpCall> calls{call("add tokens=64 hidden=64 forward")};
  // Every second question fails: a zero among the answers would be taken for steps of the counter and for a clock that stands.
  std::atomic<int> asked = 0;
  const PowerMeter lame{.joules = [&]() -> std::optional<double> { return asked++ % 2 == 0 ? std::nullopt : std::optional(counted()); },
                        .clock = [&]() -> std::optional<double> { return asked++ % 3 == 0 ? std::nullopt : std::optional(2000.0); }, .limit = 700};
  const PowerReadings some = read_power(*backend, lame, calls, [](std::size_t, std::size_t) {});
  ASSERT_EQ(some.calls.size(), 1u);
  EXPECT_EQ(some.boost, 2000);
  EXPECT_NEAR(some.calls[0].sustained.watts, 500, 100);
  EXPECT_EQ(some.calls[0].sustained.clock, 2000);
  const PowerMeter dead{.joules = []() -> std::optional<double> { return std::nullopt; }, .clock = []() -> std::optional<double> { return std::nullopt; }, .limit = 700};
  const PowerReadings none = read_power(*backend, dead, calls, [](std::size_t, std::size_t) {});
  EXPECT_TRUE(none.calls.empty());
  const PowerProfile before{.limit = 700, .peak = 930, .idle = 120, .boost = 1980, .exponent = 0.9, .samples = {{.key = kSum, .watts = 400, .clock_share = 0}}};
  EXPECT_EQ(fit_power(none, 700, toy(), before), before) << "what was known stays";
  EXPECT_FALSE(fit_power(none, 700, toy(), std::nullopt));
}

}  // namespace
}  // namespace moeplan
