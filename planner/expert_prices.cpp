#include "planner/expert_prices.hpp"

#include <stdexcept>

#include "planner/load_spread.hpp"

namespace moeplan {

ExpertPrices::ExpertPrices(const Problem& problem, const Prices& plain) : problem_(problem), plain_(plain) {}

ExpertPrices::Key ExpertPrices::key(const Plan& plan) {
  const ExpertExchange& x = plan.experts;
  const bool copies = x.replicas > 0, capacity = x.capacity_factor.has_value();
  return {x.capacity_factor.value_or(0), capacity && x.overflow == Overflow::reroute, capacity && x.pad, x.replicas, copies ? x.placement : ExpertPlacement::contiguous,
          copies ? plan.parallelism.ep : 1, copies ? plan.parallelism.etp : 1};
}

void ExpertPrices::prepare(const Plan& plan) {
  std::unique_ptr<Entry>& e = entries_[key(plan)];
  if (!e) e.reset(new Entry{.exchange = plan.experts, .parallelism = plan.parallelism, .prices = plain_});
}

ExpertPrices::Entry& ExpertPrices::entry(const Plan& plan) const {
  const auto at = entries_.find(key(plan));
  if (at == entries_.end()) throw std::logic_error("prices of a plan that was not prepared");
  Entry& e = *at->second;
  if (e.exchange.capacity_factor || e.exchange.replicas > 0)
    std::call_once(e.once, [&] { e.prices = plain_.spread_as(load_spread(problem_, e.exchange, e.parallelism)); });
  return e;
}

Estimate ExpertPrices::price(const Plan& plan, const OpCall& call, const HeldClock& clock) const {
  if (!std::holds_alternative<op::GroupedLinear>(call.op)) return memo_.price(plain_, call, clock);
  Entry& e = entry(plan);
  return e.memo.price(e.prices, call, clock);
}

}  // namespace moeplan
