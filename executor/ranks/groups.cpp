#include "executor/ranks/groups.hpp"

#include <fmt/format.h>

#include <bit>

#include "core/error.hpp"

namespace moeplan {

RankGroups::RankGroups(Communicator& world, const Parallelism& parallelism)
    : world_(world), place_{world.rank(), parallelism} {
  if (world.size() != parallelism.world())
    throw InputError("ranks", fmt::format("there are {}, the plan is for {}", world.size(), parallelism.world()));
  for (const auto& [group, name] : EnumNames<Group>::names) {
    if (group == Group::world || place_.size(group) == 1) continue;
    const int colour = place_.members(group).front();  // no two groups of a kind share a rank
    groups_[static_cast<std::size_t>(group)] = world.split(colour, world.rank(), std::string(name));
  }
  if (parallelism.pp > 1) stage_ = world.split(place_.stage(), world.rank(), "stage");
}

Communicator* RankGroups::of(Group group) const {
  if (group == Group::world) return &world_;
  return groups_[static_cast<std::size_t>(group)].get();
}

Communicator& RankGroups::need(Group group) const {
  Communicator* c = of(group);
  if (!c) throw std::logic_error(fmt::format("a call over the {} group, which has one rank", name_of(group)));
  return *c;
}

CommCounters RankGroups::counters() const {
  CommCounters out = world_.counters();
  const auto add = [&out](const Communicator* c) {
    for (std::size_t k = 0; c && k < out.size(); ++k)
      out[k].calls += c->counters()[k].calls, out[k].payload += c->counters()[k].payload,
          out[k].sent += c->counters()[k].sent;
  };
  for (const auto& c : groups_) add(c.get());
  add(stage_.get());
  return out;
}

void RankGroups::reset_counters() {
  world_.reset_counters();
  for (const auto& c : groups_)
    if (c) c->reset_counters();
  if (stage_) stage_->reset_counters();
}

void RankGroups::check_order() {
  world_.check_order();
  for (const auto& c : groups_)
    if (c) c->check_order();
  if (stage_) stage_->check_order();
}

std::uint64_t RankGroups::order_hash() const {
  std::uint64_t hash = world_.order_hash();
  for (const auto& c : groups_) hash = hash * 1099511628211ull ^ (c ? c->order_hash() : 0);
  return hash * 1099511628211ull ^ (stage_ ? stage_->order_hash() : 0);
}

std::vector<double> sum_over_ranks(Communicator& world, std::span<const double> values) {
  std::vector<std::int64_t> words;
  for (const double v : values) words.push_back(std::bit_cast<std::int64_t>(v));
  const auto all = world.gather_words(words);
  std::vector<double> out(values.size(), 0.0);
  for (std::size_t i = 0; i < all.size(); ++i) out[i % out.size()] += std::bit_cast<double>(all[i]);
  return out;
}

std::vector<std::int64_t> sum_over_ranks(Communicator& world, std::span<const std::int64_t> values) {
  const auto all = world.gather_words(values);
  std::vector<std::int64_t> out(values.size(), 0);
  for (std::size_t i = 0; i < all.size(); ++i) out[i % out.size()] += all[i];
  return out;
}

}  // namespace moeplan
