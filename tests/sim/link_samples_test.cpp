#include "sim/cost/link_samples.hpp"

#include <gtest/gtest.h>

#include "core/configs.hpp"
#include "sim/cost/collectives.hpp"

namespace moeplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

DeviceProfile profile(const DeviceSpec& device) {
  DeviceProfile p{.name = "links", .driver = {}, .date = "2026-11-30", .source = {}, .device = device, .samples = {}};
  for (const auto& [key, us] : std::initializer_list<std::pair<const char*, double>>{{"all_gather payload=1000 ranks=2", 20}, {"all_gather payload=2001000 ranks=2", 40}, {"all_gather payload=4001000 ranks=2", 80},
                                                                                      {"dispatch payload=1000 ranks=2", 30}, {"dispatch payload=4001000 ranks=2", 70}, {"counts payload=512 ranks=2", 150}})
    p.samples.push_back({.key = key, .median = {us * 1e-6}, .spread = 0.1, .count = 7});
  return p;
}

ClusterSpec two_h200() { return resized(load_cluster(kConfigs, "8xh200"), 2); }

TEST(LinkSamples, between_two_payloads_time_is_on_their_line_and_beyond_the_last_at_their_rate) {
  const LinkSamples samples(profile({}));
  EXPECT_DOUBLE_EQ(samples.time("all_gather", 2, 2001000)->seconds, 40e-6);
  EXPECT_TRUE(samples.time("all_gather", 2, 2001000)->exact);
  EXPECT_NEAR(samples.time("all_gather", 2, 3001000)->seconds, 60e-6, 1e-12);
  EXPECT_FALSE(samples.time("all_gather", 2, 3001000)->exact);
  EXPECT_DOUBLE_EQ(samples.time("all_gather", 2, 1)->seconds, 20e-6);
  EXPECT_NEAR(samples.time("all_gather", 2, 6001000)->seconds, 120e-6, 1e-12);
  EXPECT_FALSE(samples.time("all_gather", 4, 1000));
  EXPECT_FALSE(samples.time("all_reduce", 2, 1000));
}

// One time says nothing of a larger payload's; a last one shorter than the one before is noise, not a rate.
TEST(LinkSamples, a_lone_sample_prices_no_larger_payload_and_a_last_that_fell_goes_by_its_own_rate) {
  DeviceProfile p{.name = "links", .driver = {}, .date = "2026-11-30", .source = {}, .device = {}, .samples = {}};
  for (const auto& [key, us] : std::initializer_list<std::pair<const char*, double>>{{"all_gather payload=1000 ranks=2", 20}, {"all_reduce payload=1000000 ranks=2", 50}, {"all_reduce payload=2000000 ranks=2", 40}})
    p.samples.push_back({.key = key, .median = {us * 1e-6}, .spread = 0.1, .count = 7});
  const LinkSamples samples(p);
  EXPECT_TRUE(samples.time("all_gather", 2, 1000)->exact);
  EXPECT_DOUBLE_EQ(samples.time("all_gather", 2, 10)->seconds, 20e-6);
  EXPECT_FALSE(samples.time("all_gather", 2, 1001));
  EXPECT_NEAR(samples.time("all_reduce", 2, 4000000)->seconds, 80e-6, 1e-12);
}

TEST(LinkSamples, a_call_takes_its_measured_time_where_device_size_and_domain_are_those_measured) {
  const ClusterSpec cluster = two_h200();
  const Links measured(cluster, {}, {}, profile(cluster.device)), formula(cluster);
  const CommCall gather{.collective = Collective::all_gather, .payload = {2001000}};
  const Estimate e = measured.price(gather, {2, 1});
  EXPECT_DOUBLE_EQ(e.median.value, 40e-6);
  EXPECT_EQ(e.basis, Basis::measured);
  EXPECT_EQ(measured.price({.collective = Collective::all_gather, .payload = {2001001}}, {2, 1}).basis, Basis::interpolated);
  const CommCall reduce{.collective = Collective::all_reduce, .payload = {2001000}};   // not among the samples
  EXPECT_EQ(measured.price(reduce, {2, 1}).median, formula.price(reduce, {2, 1}).median);
  DeviceSpec other = cluster.device;
  other.name = "another";
  EXPECT_EQ(Links(cluster, {}, {}, profile(other)).price(gather, {2, 1}).median, formula.price(gather, {2, 1}).median);
  const ClusterSpec wide = load_cluster(kConfigs, "64xh200");
  EXPECT_EQ(Links(wide, {}, {}, profile(wide.device)).price(gather, {2, 32}).median, Links(wide).price(gather, {2, 32}).median);   // ranks of two nodes
}

TEST(LinkSamples, a_dispatch_grows_with_its_busiest_rank_and_its_counts_take_what_they_took) {
  const ClusterSpec cluster = two_h200();
  Runtime copies;
  copies.deduplicated_dispatch = false;
  const Links links(cluster, copies, {}, profile(cluster.device));
  const CommCall dispatch{.collective = Collective::dispatch, .group = Group::expert, .payload = {2001000}, .rows = 100, .tokens = 50, .experts = 8};
  EXPECT_NEAR(links.price(dispatch, {2, 1}).median.value, 50e-6, 1e-9);
  EXPECT_NEAR(links.price(dispatch, {2, 1}, 1.5).median.value, 60e-6, 1e-8);
  EXPECT_DOUBLE_EQ(links.host_wait({2, 1}).median.value, 150e-6);
  copies.own_kernels = true;   // this executor's: rows are copied once more, those of 8 experts in one launch
  EXPECT_NEAR(Links(cluster, copies, {}, profile(cluster.device)).price(dispatch, {2, 1}).median.value, 50e-6 + 4.4e-6, 1e-9);
}

/// The same, and delays: of a gather 10 of 40 us, of a dispatch as long as itself and more, of 32 ranks 20 of 50 us, of a payload that was not timed alone.
DeviceProfile with_delays(const DeviceSpec& device) {
  DeviceProfile p = profile(device);
  for (const auto& [key, us] : std::initializer_list<std::pair<const char*, double>>{{"delay all_gather payload=1000 ranks=2", 15}, {"delay all_gather payload=2001000 ranks=2", 10}, {"delay all_gather payload=9001000 ranks=2", 90},
                                                                                      {"delay dispatch payload=4001000 ranks=2", 77}, {"delay all_gather payload=1000 ranks=32 hosts=4", 20}, {"all_gather payload=1000 ranks=32 hosts=4", 50}})
    p.samples.push_back({.key = key, .median = {us * 1e-6}, .spread = 0.1, .count = 5});
  return p;
}

TEST(LinkSamples, what_computing_loses_is_the_delay_over_the_time_alone_of_the_largest_payload_with_both) {
  const LinkSamples samples(with_delays({}));
  EXPECT_DOUBLE_EQ(*samples.share("all_gather", 2, 1, 8, false), 0.25);
  EXPECT_EQ(*samples.share("dispatch", 2, 1, 8, false), 1) << "no more than all of it";
  EXPECT_DOUBLE_EQ(*samples.share("all_gather", 8, 1, 8, false), 0.25) << "of two ranks, where eight were not measured";
  EXPECT_DOUBLE_EQ(*samples.share("all_gather", 64, 8, 1e9, true), 0.4);
  EXPECT_FALSE(samples.share("all_gather", 64, 8, 1e9, false)) << "measured over several hosts";
  EXPECT_FALSE(samples.share("all_reduce", 2, 1, 8, false));
  EXPECT_FALSE(samples.share("dispatch", 64, 8, 1e9, true));
  EXPECT_DOUBLE_EQ(samples.time("all_gather", 2, 2001000)->seconds, 40e-6) << "delays are no times of calls";
  ASSERT_EQ(samples.shares().size(), 3u);
  EXPECT_TRUE(LinkSamples(profile({})).shares().empty());
  DeviceProfile noisy = profile({});
  noisy.samples.push_back({.key = "delay all_gather payload=1000 ranks=2", .median = {1e-9}, .spread = 10, .count = 5});
  EXPECT_FALSE(LinkSamples(noisy).share("all_gather", 2, 1, 8, false)) << "lost in noise is not nothing";
}

// In place of the multiprocessors that NCCL's channels hold: 24 for a gather in one node, 16 between nodes, 32 for sends, of 132.
TEST(LinkSamples, a_call_lends_what_was_measured_on_its_tier_and_else_what_its_channels_hold) {
  const ClusterSpec wide = load_cluster(kConfigs, "64xh200");
  Runtime copies;
  copies.deduplicated_dispatch = false;
  const Links links(wide, copies, {}, with_delays(wide.device)), channels(wide, copies, {}, profile(wide.device)), once(wide, {}, {}, with_delays(wide.device));
  const auto gather = CommCall{.collective = Collective::all_gather, .payload = {1 << 20}}, exchange = CommCall{.collective = Collective::combine, .payload = {1 << 20}};
  EXPECT_DOUBLE_EQ(links.lent(gather, {2, 1}), 0.25);
  EXPECT_DOUBLE_EQ(links.lent(gather, {8, 1}), 0.25);
  EXPECT_DOUBLE_EQ(links.lent(gather, {64, 1}), 0.4);
  EXPECT_DOUBLE_EQ(links.lent(gather, {8, 8}), 0.4);
  EXPECT_DOUBLE_EQ(links.lent(exchange, {4, 1}), kMostLent);
  EXPECT_DOUBLE_EQ(links.lent(exchange, {16, 1}), 16.0 / 132);
  CommCall beside = exchange;
  beside.beside_compute = true;
  EXPECT_DOUBLE_EQ(links.lent(beside, {4, 1}), 0.65) << "lost once, in a call that takes 1/0.65 times as long";
  EXPECT_DOUBLE_EQ(once.lent(exchange, {4, 1}), 20.0 / 132) << "other kernels";
  EXPECT_DOUBLE_EQ(links.lent({.collective = Collective::all_reduce, .payload = {1 << 20}}, {8, 1}), 24.0 / 132);
  EXPECT_EQ(links.lent(gather, {1, 1}), 0);
  EXPECT_DOUBLE_EQ(channels.lent(gather, {8, 1}), 24.0 / 132);
  DeviceSpec other = wide.device;
  other.name = "another";
  EXPECT_DOUBLE_EQ(Links(wide, copies, {}, with_delays(other)).lent(gather, {8, 1}), 24.0 / 132);
}

// 32 consecutive ranks fill four nodes, as those that were measured; every second of 64 does not.
TEST(LinkSamples, over_several_domains_they_hold_for_as_many_consecutive_ranks) {
  const ClusterSpec wide = load_cluster(kConfigs, "64xh200");
  DeviceProfile p{.name = "links", .driver = {}, .date = "2026-12-01", .source = {}, .device = wide.device, .samples = {}};
  for (const auto& [key, us] : std::initializer_list<std::pair<const char*, double>>{{"all_gather payload=1000000 ranks=32 hosts=4", 700}, {"dispatch payload=1000 ranks=32 hosts=4", 100}, {"dispatch payload=4001000 ranks=32 hosts=4", 900}, {"counts payload=512 ranks=32 hosts=4", 250}})
    p.samples.push_back({.key = key, .median = {us * 1e-6}, .spread = 0.1, .count = 7});
  Runtime copies;
  copies.deduplicated_dispatch = false;
  const Links links(wide, copies, {}, p), once(wide, {}, {}, p), formula(wide, copies), formula_once(wide);
  const CommCall gather{.collective = Collective::all_gather, .payload = {1000000}}, rows{.collective = Collective::dispatch, .group = Group::expert, .payload = {2001000}, .rows = 100, .tokens = 50, .experts = 64};
  EXPECT_DOUBLE_EQ(links.price(gather, {32, 1}).median.value, 700e-6);
  EXPECT_EQ(links.price(gather, {32, 1}).basis, Basis::measured);
  EXPECT_EQ(links.price(gather, {32, 2}).median, formula.price(gather, {32, 2}).median);
  EXPECT_EQ(links.price(gather, {16, 1}).median, formula.price(gather, {16, 1}).median) << "not measured";
  EXPECT_NEAR(links.price(rows, {32, 1}).median.value, 500e-6, 1e-9);
  EXPECT_EQ(once.price(rows, {32, 1}).median, formula_once.price(rows, {32, 1}).median) << "tokens go once, hop by hop";
  EXPECT_DOUBLE_EQ(links.host_wait({32, 1}).median.value, 250e-6);
}

// Two ranks that were measured on one host say nothing of two on a network, whatever a node holds; nor do other numbers of hosts.
TEST(LinkSamples, what_was_measured_within_a_host_prices_no_network) {
  const auto with_nodes_of = [](std::int64_t gpus) {
    ClusterSpec c = load_cluster(kConfigs, "64xh200");
    c.tiers.front().span = gpus;
    return c;
  };
  const CommCall gather{.collective = Collective::all_gather, .payload = {1000000}};
  const auto priced = [&](std::int64_t gpus, const char* key) {
    const ClusterSpec cluster = with_nodes_of(gpus);
    DeviceProfile p{.name = "links", .driver = {}, .date = "2026-12-01", .source = {}, .device = cluster.device, .samples = {}};
    p.samples.push_back({.key = key, .median = {123e-6}, .spread = 0.1, .count = 7});
    return Links(cluster, Runtime{}, {}, p).price(gather, {2, 1}).basis == Basis::measured;
  };
  EXPECT_TRUE(priced(2, "all_gather payload=1000000 ranks=2"));
  EXPECT_FALSE(priced(1, "all_gather payload=1000000 ranks=2"));
  EXPECT_TRUE(priced(1, "all_gather payload=1000000 ranks=2 hosts=2"));
  EXPECT_FALSE(priced(2, "all_gather payload=1000000 ranks=2 hosts=2"));
}

}  // namespace
}  // namespace moeplan
