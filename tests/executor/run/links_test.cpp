#include "executor/calibrate/links.hpp"

#include <gtest/gtest.h>

#include "executor/comm/in_process.hpp"

namespace moeplan {
namespace {

TEST(Links, a_fit_gives_back_latency_and_rate) {
  std::vector<ProfileSample> samples{{.key = "linear tokens=1 in=2 out=3 forward", .median = {1}}};
  for (const double bytes : {1024.0, 1048576.0, 1073741824.0})
    samples.push_back({.key = "all_gather payload=" + std::to_string(static_cast<std::int64_t>(bytes)) + " ranks=2", .median = {20e-6 + bytes / 200e9}});
  const std::vector<LinkFit> fits = fit_links(samples);
  ASSERT_EQ(fits.size(), 1u);
  EXPECT_EQ(fits[0].collective, "all_gather");
  EXPECT_EQ(fits[0].ranks, 2);
  EXPECT_NEAR(fits[0].latency, 20e-6, 1e-9);
  EXPECT_NEAR(fits[0].rate / 200e9, 1, 1e-6);
  EXPECT_LT(fits[0].worst, 1e-6);
}

TEST(Links, every_collective_is_timed_at_every_payload_and_all_ranks_have_the_same_figures) {
  std::vector<std::vector<ProfileSample>> of(2);
  run_ranks(2, [&](Communicator& c) {
    const auto backend = cpu_backend(CpuStorage::wide);
    of[static_cast<std::size_t>(c.rank())] = time_links(c, *backend, {.least_bytes = 1 << 10, .most_bytes = 1 << 13, .batches = 3});
  });
  ASSERT_EQ(of[0].size(), 11u);   // counts; five collectives, two payloads
  EXPECT_EQ(of[0], of[1]);
  EXPECT_EQ(of[0][0].key, "counts payload=512 ranks=2");
  EXPECT_EQ(of[0][1].key, "all_gather payload=1024 ranks=2");
  EXPECT_EQ(of[0][10].key, "send_receive payload=4096 ranks=2");
  for (const ProfileSample& s : of[0]) EXPECT_GT(s.median.value, 0) << s.key;
}

TEST(Links, products_are_timed_with_and_without_calls_beside_them_and_all_ranks_have_the_same_delays) {
  std::vector<std::vector<ProfileSample>> of(2);
  const OpCall product{op::Linear{.tokens = 8, .in = 16, .out = 16}, Pass::forward, {}};
  run_ranks(2, [&](Communicator& c) {
    const auto backend = cpu_backend(CpuStorage::as_planned);
    std::vector<ProfileSample> alone = time_links(c, *backend, {.least_bytes = 1 << 10, .most_bytes = 1 << 12, .batches = 3});
    std::erase_if(alone, [](const ProfileSample& s) { return s.key.starts_with("all_reduce"); });
    of[static_cast<std::size_t>(c.rank())] = time_delays(c, *backend, alone, {.product = product, .bytes = 1 << 12, .calls = {1e-4}, .batches = 3});
  });
  ASSERT_EQ(of[0].size(), 4u) << "of the five what was timed alone";
  EXPECT_EQ(of[0], of[1]);
  EXPECT_EQ(of[0][0].key, "delay all_gather payload=4096 ranks=2");
  EXPECT_EQ(of[0][3].key, "delay send_receive payload=4096 ranks=2");
  for (const ProfileSample& s : of[0]) EXPECT_GT(s.median.value, 0) << s.key;
  EXPECT_TRUE(fit_links(of[0]).empty()) << "delays are no times of calls";
}

TEST(Links, all_groups_of_neighbours_are_timed_that_divide_the_ranks) {
  std::vector<std::vector<ProfileSample>> of(6);
  run_ranks(6, [&](Communicator& c) {
    const auto backend = cpu_backend(CpuStorage::as_planned);
    of[static_cast<std::size_t>(c.rank())] = time_groups(c, *backend, {.least_bytes = 1 << 10, .most_bytes = 1 << 10, .batches = 1}, {.product = {op::Linear{.tokens = 8, .in = 16, .out = 16}, Pass::forward, {}}, .bytes = 1 << 10, .calls = {1e-4}, .batches = 1});
  });
  ASSERT_EQ(of[0].size(), 2 * (1 + 2 * 5u)) << "of two and of six: counts, five collectives and their delays";
  EXPECT_EQ(of[0], of[1]);
  EXPECT_EQ(of[0][1].key, "all_gather payload=1024 ranks=2");
  EXPECT_EQ(of[0][12].key, "all_gather payload=1020 ranks=6") << "a whole number of bf16 for each";
  EXPECT_EQ(of[0].back().key, "delay send_receive payload=1020 ranks=6");
  for (std::size_t i = 0; i < of[0].size(); ++i) EXPECT_EQ(of[0][i].key, of[5][i].key);
}

}  // namespace
}  // namespace moeplan
