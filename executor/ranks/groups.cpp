#include "executor/ranks/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "core/error.hpp"
#include "executor/rendezvous/rank_process.hpp"
#include "sim/program/call_kinds.hpp"

namespace moeplan {

RankGroups::RankGroups(Communicator& world, const Parallelism& parallelism, const std::vector<int>& neighbours)
    : world_(world), place_{world.rank(), parallelism} {
  if (world.size() != parallelism.world())
    throw InputError("ranks", fmt::format("there are {}, the plan is for {}", world.size(), parallelism.world()));
  by_shape_[{world.size(), 1}] = &world_;
  for (const auto& [group, name] : EnumNames<Group>::names)
    if (group == Group::world || place_.size(group) > 1)
      groups_[static_cast<std::size_t>(group)] = over(place_.size(group), place_.stride(group), std::string(name));
  for (const int n : neighbours) neighbours_[n] = over(n, 1, fmt::format("tensor{}", n));
  stage_ = over(parallelism.stage_ranks(), 1, "stage");
  part_lanes();
}

void RankGroups::part_lanes() {
  for (const auto& c : own_) {
    bool exchanges = false, others = std::any_of(neighbours_.begin(), neighbours_.end(), [&](const auto& n) { return n.second == c.get(); });
    for (const auto& [group, name] : EnumNames<Group>::names)
      if (of(group) == c.get()) (lane_of(CommCall{.group = group}) == Lane::expert_communication ? exchanges : others) = true;
    if (exchanges && !others) c->move_beside();
  }
}

void RankGroups::wait() {
  each([](Communicator& c) { c.wait(); });
}

RankGroups::Registrations RankGroups::register_memory(const std::shared_ptr<void>& memory, Bytes bytes) {
  Registrations out;
  each([&](Communicator& c) {
    Registration one = c.register_memory(memory, bytes.value);
    if (one.handle) out.handles.push_back(std::move(one.handle));
    if (!one.refused.empty()) out.refused = std::move(one.refused);
  });
  return out;
}

/// The ranks of this one's number modulo `stride`, so many in a row of them: no two groups of a shape share a rank.
Communicator* RankGroups::over(int size, int stride, const std::string& label) {
  const auto [at, fresh] = by_shape_.try_emplace({size, stride}, nullptr);
  if (!fresh) return at->second;
  const int rank = world_.rank(), first = rank - rank / stride % size * stride;
  own_.push_back(world_.split(first, rank, label));
  return at->second = own_.back().get();
}

Communicator& RankGroups::need(Group group) const {
  Communicator* c = of(group);
  if (!c) throw std::logic_error(fmt::format("a call over the {} group, which has one rank", name_of(group)));
  return *c;
}

Communicator& RankGroups::sharers(Group group, int ranks) const {
  return ranks == place_.size(group) ? need(group) : *neighbours_.at(ranks);
}

template <class F>
void RankGroups::each(const F& f) const {
  f(world_);
  for (const auto& c : own_) f(*c);
}

void RankGroups::split_nodes(int ranks) {
  Communicator& experts = need(Group::expert);
  own_.push_back(experts.split(experts.rank() / ranks, experts.rank(), "node"));
  node_ = own_.back().get();
  own_.push_back(experts.split(experts.rank() % ranks, experts.rank(), "between_nodes"));
  between_nodes_ = own_.back().get();
}

CommCounters RankGroups::counters() const {
  CommCounters out{};
  each([&out](const Communicator& c) {
    for (std::size_t k = 0; k < out.size(); ++k)
      out[k].calls += c.counters()[k].calls, out[k].payload += c.counters()[k].payload,
          out[k].sent += c.counters()[k].sent;
  });
  return out;
}

void RankGroups::reset_counters() {
  each([](Communicator& c) { c.reset_counters(); });
}

void RankGroups::check_order() {
  each([](Communicator& c) { c.check_order(); });
}

std::uint64_t RankGroups::order_hash() const {
  std::uint64_t hash = 0;
  each([&hash](const Communicator& c) { hash = hash * 1099511628211ull ^ c.order_hash(); });
  return hash;
}

std::vector<int> tensor_neighbours(const Problem& problem, const Plan& plan) {
  std::set<int> out;
  if (plan.parallelism.tp > 2)
    for (std::int32_t layer = -1; layer <= static_cast<std::int32_t>(problem.model.layers.size()); ++layer)
      for (const Weight& w : slot_weights(problem, plan, layer).weights)
        if (w.trained && !is_expert(w.split))
          for (const AlikeRows& alike : alike_rows(w, plan.parallelism))
            if (alike.ranks < plan.parallelism.tp) out.insert(alike.ranks);
  return {out.begin(), out.end()};
}

void require_counts(const Communicator& group, std::span<const std::int64_t> all, std::int64_t most, const std::string& what) {
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] < 0 || all[i] > most) {
      const int rank = group.world_ranks()[i / (all.size() / static_cast<std::size_t>(group.size()))];
      throw RankBlamed(rank, fmt::format("rank {} sent {} as {}, which must be a number from 0 to {}", rank, all[i], what, most));
    }
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
