/// Which communicators of a plan have the queue of exchanges: those that serve nothing but exchanges.

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "executor/ranks/groups.hpp"

namespace moeplan {
namespace {

using Names = std::set<std::string>;

/// Exchanges nothing; notes who moves to the second queue.
class Noting final : public Communicator {
 public:
  Noting(std::string name, std::vector<int> ranks, Names& moved) : Communicator(std::move(name), 0, std::move(ranks)), moved_(moved) {}
  void move_beside() override { moved_.insert(name()); }
  void abort(const std::string&) noexcept override {}

 private:
  void do_all_reduce(const Call&, void*) override {}
  void do_all_gather(const Call&, const void*, void*) override {}
  void do_reduce_scatter(const Call&, const void*, void*) override {}
  void do_all_to_all(const Call&, const void*, std::span<const std::int64_t>, void*, std::span<const std::int64_t>) override {}
  void do_send_receive(const Call&, std::span<const Transfer>, std::span<const Transfer>) override {}
  void do_barrier(const Call&) override {}
  std::unique_ptr<Communicator> do_split(const Call&, std::optional<int>, int, const std::string& label) override {
    return std::make_unique<Noting>(label, std::vector<int>{0}, moved_);
  }
  void do_gather_words(const Call&, std::span<const std::int64_t>, std::span<std::int64_t>) override {}
  void do_wait(const Call&) override {}

  Names& moved_;
};

Names beside(const Parallelism& p, const std::vector<int>& neighbours = {}) {
  Names moved;
  std::vector<int> all(static_cast<std::size_t>(p.world()));
  std::iota(all.begin(), all.end(), 0);
  Noting world("world", all, moved);
  const RankGroups groups(world, p, neighbours);
  return moved;
}

TEST(RankGroups, ExchangesHaveAQueueBesideGathersAndReductions) {
  EXPECT_EQ(beside({.ep = 4, .dp_shard = 8}), Names{"expert"});
  EXPECT_EQ(beside({.ep = 2, .etp = 2, .dp_shard = 8}), (Names{"expert", "expert_tensor"}));
  EXPECT_EQ(beside({.tp = 2, .cp = 2, .ep = 2, .dp_replicate = 2, .dp_shard = 2}), (Names{"tensor", "context"})) << "expert ranks are the tensor ranks";
  EXPECT_EQ(beside({.pp = 2, .ep = 4, .dp_shard = 8}), Names{"expert"});
}

TEST(RankGroups, WhatServesBothLanesStaysOnTheFirstQueue) {
  EXPECT_EQ(beside({.ep = 8, .dp_shard = 8}), Names{}) << "the world exchanges and gathers";
  EXPECT_EQ(beside({.pp = 2, .ep = 4, .dp_shard = 4}), Names{}) << "a stage exchanges and gathers";
  EXPECT_EQ(beside({.tp = 4, .dp_shard = 2}, {2}), Names{"tensor"}) << "neighbours reduce";
  EXPECT_EQ(beside({.ep = 2, .dp_shard = 4}, {2}), Names{}) << "two neighbours are two expert ranks";
}

}  // namespace
}  // namespace moeplan
