#include "core/configs.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "core/write.hpp"

namespace moeplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

/// The message of the InputError that `f` throws; empty if it throws none.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  return {};
}

/// A file under the test's own directory, removed with it.
class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(::testing::TempDir()) / ("configs_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string write(const std::string& text) const {
    const auto path = dir_ / "file.json";
    std::ofstream(path) << text;
    return path.string();
  }
  std::filesystem::path dir_;
};

void expect_in(const std::string& part, const std::string& message) { EXPECT_NE(message.find(part), std::string::npos) << message; }

TEST(Configs, every_file_parses_and_says_its_sources) {
  for (const auto& n : config_names(kConfigs, "devices")) {
    const DeviceEntry e = load_device(kConfigs, n);
    EXPECT_EQ(e.device.name, n);
    for (const char* figure : {"memory", "memory_bandwidth", "peak", "achieved_matmul", "achieved_bandwidth", "multiprocessors", "host_link"})
      EXPECT_GT(e.device.sources.count(figure), 0u) << n << " does not say where " << figure << " comes from";
    for (const LinkTier& t : e.node.tiers) EXPECT_FALSE(t.source.empty()) << n;
    EXPECT_FALSE(e.node.source.empty()) << n;
  }
  for (const auto& n : config_names(kConfigs, "clusters")) {
    const ClusterSpec c = load_cluster(kConfigs, n);
    EXPECT_EQ(c.name, n);
    EXPECT_FALSE(c.source.empty()) << n;
    EXPECT_EQ(c.tiers.back().span, c.devices()) << n;
    EXPECT_EQ(c.price.has_value(), !c.price_source.empty()) << n;
  }
  for (const auto& n : config_names(kConfigs, "workloads")) EXPECT_FALSE(load_workload(kConfigs, n).source.empty()) << n;
  for (const auto& n : config_names(kConfigs, "loads")) EXPECT_FALSE(load_load(kConfigs, n).source.empty()) << n;
  for (const auto& n : config_names(kConfigs, "runtimes")) EXPECT_FALSE(load_runtime(kConfigs, n).source.empty()) << n;
  for (const auto& n : config_names(kConfigs, "profiles")) EXPECT_FALSE(load_profile(kConfigs, n).source.empty()) << n;
}

TEST(Configs, a_runtime_like_another_holds_only_what_differs) {
  Runtime waiting = load_runtime(kConfigs, "megatron-deepspeed-blocking");
  EXPECT_EQ(waiting.traffic.at("launch_blocking"), 1);
  const Runtime plain = load_runtime(kConfigs, "megatron-deepspeed");
  EXPECT_LT(plain.host_call.value, waiting.host_call.value);
  waiting.traffic.erase("launch_blocking");
  waiting.name = plain.name, waiting.source = plain.source, waiting.host_call = plain.host_call;
  EXPECT_EQ(waiting, plain);
}

TEST(Configs, what_is_read_writes_back_to_the_same_value) {
  const ClusterSpec c = load_cluster(kConfigs, "128xh200");
  EXPECT_EQ(read_document<ClusterSpec>(to_json(c), "again"), c);
  const LoadModel l = load_load(kConfigs, "deepseek-v3-prefill-in1024");
  EXPECT_EQ(read_document<LoadModel>(to_json(l), "again"), l);
}

TEST(Configs, the_128_h200_are_16_machines_of_19_TB) {
  const ClusterSpec c = load_cluster(kConfigs, "128xh200");
  EXPECT_EQ(c.nodes, 16);
  EXPECT_EQ(c.devices(), 128);
  EXPECT_NEAR(static_cast<double>(c.device.memory.value) * 128, 19.3e12, 0.1e12);
  ASSERT_EQ(c.tiers.size(), 2u);
  EXPECT_EQ(c.tiers[0].span, 8);
  EXPECT_DOUBLE_EQ(c.tiers[0].bandwidth.value, 450e9);
  EXPECT_EQ(c.tiers[1].span, 128);
  EXPECT_DOUBLE_EQ(c.tiers[1].bandwidth.value, 50e9);
}

TEST(Configs, a_rack_of_72_is_one_domain) {
  const ClusterSpec one = load_cluster(kConfigs, "gb200-nvl72"), two = load_cluster(kConfigs, "2xgb200-nvl72");
  ASSERT_EQ(one.tiers.size(), 1u);
  EXPECT_EQ(one.tiers[0].span, 72);
  ASSERT_EQ(two.tiers.size(), 2u);
  EXPECT_EQ(two.tiers[0].span, 72);
  EXPECT_EQ(two.devices(), 144);
}

TEST(Configs, a_count_of_gpus_becomes_whole_machines_or_a_part_of_one) {
  const DeviceEntry h200 = load_device(kConfigs, "h200");
  EXPECT_EQ(cluster_of(h200, 128).nodes, 16);
  const ClusterSpec four = cluster_of(h200, 4);
  EXPECT_EQ(four.nodes, 1);
  EXPECT_EQ(four.devices(), 4);
  EXPECT_EQ(four.host_memory.value, h200.node.host_memory.value / 2);
  ASSERT_EQ(four.tiers.size(), 1u);
  EXPECT_EQ(four.tiers[0].span, 4);
  EXPECT_EQ(cluster_of(h200, 1).devices(), 1);
  expect_in("12 h200 are not whole machines of 8; give 8 or 16", refusal([&] { (void)cluster_of(h200, 12); }));
  expect_in("give 1 to", refusal([&] { (void)cluster_of(h200, 0); }));
  expect_in("give 1 to", refusal([&] { (void)cluster_of(h200, -8); }));
  ClusterSpec grown = resized(load_cluster(kConfigs, "64xh200"), 256);
  grown.source = load_cluster(kConfigs, "256xh200").source;
  EXPECT_EQ(grown, load_cluster(kConfigs, "256xh200"));
  expect_in("no network beyond", refusal([&] { (void)resized(load_cluster(kConfigs, "gb200-nvl72"), 144); }));
}

TEST(Configs, a_name_that_is_not_there_proposes_the_nearest) {
  const std::string m = refusal([] { (void)load_cluster(kConfigs, "128xh20"); });
  expect_in("did you mean \"128xh200\"?", m);
  expect_in("known: 1024xh100", m);
  expect_in("empty name", refusal([] { (void)load_cluster(kConfigs, ""); }));
  EXPECT_NE(refusal([] { (void)load_cluster(kConfigs, "../../etc/passwd"); }), "");
  EXPECT_NE(refusal([] { (void)load_cluster(kConfigs, "/nowhere/cluster.json"); }), "");
  EXPECT_NE(refusal([] { (void)load_cluster(kConfigs, std::string(10000, 'x')); }), "");
}

TEST_F(Files, clusters_that_do_not_add_up_are_refused) {
  const auto bad = [&](const std::string& text) { return refusal([&] { (void)load_cluster(kConfigs, write(text)); }); };
  expect_in("nodes: 0 is out of range", bad(R"({"device": "h200", "nodes": 0})"));
  expect_in("nodes: -1 is out of range", bad(R"({"device": "h200", "nodes": -1})"));
  expect_in("nodes", bad(R"({"device": "h200"})"));
  expect_in("did you mean \"h200\"", bad(R"({"device": "h2000", "nodes": 1})"));
  expect_in("did you mean \"nodes\"", bad(R"({"device": "h200", "nods": 1})"));
  expect_in("price", bad(R"({"device": "h200", "nodes": 1, "price": "0 USD/h"})"));
  expect_in("price", bad(R"({"device": "h200", "nodes": 1, "price": 3.5})"));
  expect_in("price_source: is missing", bad(R"({"device": "h200", "nodes": 1, "price": "3 USD/h"})"));
  expect_in("no links", bad(R"({"device": "h200", "nodes": 1, "tiers": []})"));
  expect_in("spans 4 of 8 devices", bad(R"({"device": "h200", "nodes": 1, "tiers": [{"name": "a", "kind": "network", "span": 4, "bandwidth": "1 GB/s", "latency": "1 us", "source": "x"}]})"));
  expect_in("each wider than the last", bad(R"({"device": "h200", "nodes": 1, "tiers": [{"name": "a", "kind": "network", "span": 4, "bandwidth": "1 GB/s", "latency": "1 us", "source": "x"}, {"name": "b", "kind": "network", "span": 2, "bandwidth": "1 GB/s", "latency": "1 us", "source": "x"}]})"));
  expect_in("is not a number with a unit", bad(R"({"device": "h200", "nodes": 1, "host_memory": "lots"})"));
  expect_in("has no bf16", bad(R"({"device": {"name": "d", "generation": "g", "memory": "1 GB", "memory_bandwidth": "1 GB/s", "peak": {"fp8": "1 TFLOP/s"}}, "nodes": 1, "devices_per_node": 1, "tiers": []})"));
}

TEST_F(Files, workloads_that_contradict_themselves_are_refused) {
  const auto bad = [&](const std::string& text) { return refusal([&] { (void)load_workload(kConfigs, write(text)); }); };
  expect_in("attention.rank: LoRA of rank 0", bad(R"({"sequence_length": 4096, "attention": {"training": "lora"}})"));
  expect_in("rank 8 on a class that is full", bad(R"({"sequence_length": 4096, "head": {"training": "full", "rank": 8}})"));
  expect_in("every weight is frozen", bad(R"({"sequence_length": 4096, "attention": {"training": "frozen"}, "dense": {"training": "frozen"}})"));
  expect_in("norm: LoRA needs a matrix product", bad(R"({"sequence_length": 4096, "norm": {"training": "lora", "rank": 8, "alpha": 8}})"));
  expect_in("frozen_storage", bad(R"({"sequence_length": 4096, "frozen_storage": "i32"})"));
  expect_in("sequence_length: 0 is out of range", bad(R"({"sequence_length": 0})"));
  expect_in("whole number", bad(R"({"sequence_length": 9223372036854775808.5})"));
  expect_in("tokens", bad(R"({"sequence_length": 4096, "tokens": 1e308})"));
  expect_in("shared_adapter", bad(R"({"sequence_length": 4096, "dense": {"training": "lora", "rank": 8, "alpha": 8, "shared_adapter": true}})"));
}

TEST_F(Files, traces_of_the_wrong_width_empty_negative_or_zero_are_refused) {
  const auto bad = [&](const std::string& counts) {
    return refusal([&] { (void)load_load(kConfigs, write(R"({"distribution": {"kind": "trace", "counts": )" + counts + "}}")); });
  };
  expect_in("no layers", bad("[]"));
  expect_in("no experts", bad("[[]]"));
  expect_in("counts[1]: 2 experts, the first row has 3", bad("[[1, 2, 3], [1, 2]]"));
  expect_in("-1 is out of range", bad("[[1, -1]]"));
  expect_in("counts[0]: the counts sum to 0", bad("[[0, 0]]"));
  expect_in("a list", bad("[1, 2]"));
}

TEST_F(Files, profiles_need_a_device_a_source_and_distinct_keys) {
  const auto bad = [&](const std::string& text) { return refusal([&] { (void)load_profile(kConfigs, write(text)); }); };
  expect_in("is there twice", bad(R"({"name": "p", "date": "d", "source": "s", "device": "h200", "samples": [{"key": "a", "median": "1 us"}, {"key": "a", "median": "2 us"}]})"));
  expect_in("source: is empty", bad(R"({"name": "p", "date": "d", "source": "", "device": "h200", "samples": []})"));
  expect_in("median", bad(R"({"name": "p", "date": "d", "source": "s", "device": "h200", "samples": [{"key": "a", "median": "0 us"}]})"));
}

}  // namespace
}  // namespace moeplan
