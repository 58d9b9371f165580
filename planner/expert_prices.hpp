#pragma once
/// Prices of calls under the rows that a plan's exchange leaves each expert: capacity, overflow, padding and copies change them.

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "core/spec/plan.hpp"
#include "planner/price_memo.hpp"

namespace moeplan {

class ExpertPrices {
 public:
  /// `plain`: of an exchange without any of these; it outlives this.
  ExpertPrices(const Problem& problem, const Prices& plain);

  /// Makes room for those of a plan; they are worked out when it first asks. Not thread-safe; before the first `of` such a plan.
  void prepare(const Plan& plan);

  /// Under the plan's own spread. From any thread.
  [[nodiscard]] const Prices& of(const Plan& plan) const { return entry(plan).prices; }

  /// Of a call at a clock, remembered: grouped products by plan, all others together.
  [[nodiscard]] Estimate price(const Plan& plan, const OpCall& call, const HeldClock& clock) const;

 private:
  struct Entry {
    ExpertExchange exchange;
    Parallelism parallelism;
    std::once_flag once{};
    Prices prices;
    PriceMemo memo{};
  };
  /// Capacity, whether it reroutes, whether it pads, copies, and how those lie.
  using Key = std::tuple<double, bool, bool, std::int64_t, ExpertPlacement, int, int>;
  [[nodiscard]] static Key key(const Plan& plan);
  [[nodiscard]] Entry& entry(const Plan& plan) const;

  const Problem& problem_;
  const Prices& plain_;
  std::map<Key, std::unique_ptr<Entry>> entries_;
  mutable PriceMemo memo_;
};

}  // namespace moeplan
