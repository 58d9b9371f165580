#include "planner/price_memo.hpp"

#include <mutex>

namespace moeplan {

/// Over the whole numbers, switches and enums of an operator.
std::size_t PriceMemo::Hash::operator()(const OpCall& call) const {
  std::uint64_t h = call.op.index() * 8 + static_cast<std::uint64_t>(call.pass) * 4 + (call.wants.input_grad ? 2 : 0) + (call.wants.weight_grad ? 1 : 0);
  const auto mix = [&](std::uint64_t x) { h = (h ^ x) * 0x9E3779B97F4A7C15u, h ^= h >> 29; };
  std::visit(
      [&]<class T>(const T& op) {
        for_each_field<T>([&](const auto& f) {
          using Member = std::remove_cvref_t<decltype(op.*(f.member))>;
          if constexpr (std::is_integral_v<Member> || std::is_enum_v<Member>) mix(static_cast<std::uint64_t>(op.*(f.member)));
        });
      },
      call.op);
  return h;
}

Estimate PriceMemo::price(const Prices& prices, const OpCall& call, const HeldClock& clock) {
  const std::size_t hash = Hash{}(call);
  Part& part = parts_[hash % kParts];
  {
    const std::shared_lock lock(part.mutex);
    if (const auto known = part.known.find(call); known != part.known.end()) return prices.held(known->second, clock);
  }
  const Prices::Rested e = prices.rested(call);
  const std::unique_lock lock(part.mutex);
  if (part.known.size() < kMost) part.known.try_emplace(call, e);
  return prices.held(e, clock);
}

}  // namespace moeplan
