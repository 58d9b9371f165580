#pragma once
/// Time of a block's passes: its calls priced one by one and laid on lanes in program order; each starts when its lane is free
/// and what it reads is there. Calls of other lanes hold multiprocessors while they run; a compute call beside them has the others, so that what takes c alone
/// beside a call of w seconds that holds the share m ends after c + m w (w < c). As the engine plays it.

#include <functional>

#include "core/spec/forecast.hpp"
#include "sim/program/block.hpp"

namespace moeplan {

/// Prices one call of a block. The one door through which planner and simulator learn what a call costs.
using PriceCall = std::function<Estimate(const BlockNode&)>;

/// Share of the device's multiprocessors that a call's kernels hold (Links::lent); empty: none.
using LentTo = std::function<double(const CommCall&)>;

struct PassTime {
  Seconds total{};             ///< from the first start to the last end
  Seconds compute{};           ///< compute lane busy were it alone, recompute left out
  Seconds recompute{};         ///< compute lane busy with repeated forward calls
  Seconds exposed{};           ///< total - compute - recompute: communication nothing hides, and what it takes from compute
  std::array<double, 3> basis{};   ///< seconds priced as measured, interpolated, roofline
};

struct BlockTime {
  PassTime forward, backward, weight_backward;
};

[[nodiscard]] BlockTime block_time(const Block& block, const PriceCall& price, const LentTo& lent = {});

/// Model flops of a block: its products, forward and backward, nothing repeated, causal attention as the contract counts it (half), or whole.
[[nodiscard]] Flops model_flops(const Block& block, bool full_attention);

}  // namespace moeplan
