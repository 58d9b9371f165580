#pragma once
/// Prices of calls, remembered: the blocks of a search repeat few distinct calls, however their exchange, placement and storage differ.

#include <array>
#include <shared_mutex>
#include <unordered_map>

#include "sim/cost/price.hpp"

namespace moeplan {

/// From any thread. What it returns is what `prices` does at that clock, whoever asked first.
class PriceMemo {
 public:
  [[nodiscard]] Estimate price(const Prices& prices, const OpCall& call, const HeldClock& clock);

 private:
  struct Hash {
    std::size_t operator()(const OpCall& call) const;
  };
  /// A part of the calls, by hash, with a lock of its own.
  struct Part {
    std::shared_mutex mutex;
    std::unordered_map<OpCall, Prices::Rested, Hash> known;
  };
  static constexpr std::size_t kParts = 16, kMost = 8192;   ///< calls a part remembers: some 40 MB in all
  std::array<Part, kParts> parts_;
};

}  // namespace moeplan
