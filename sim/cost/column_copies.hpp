#pragma once
/// The time of calls whose operands are columns of other tensors, or lie in another type than the kernels write: this project's kernels take dense
/// tensors of the contract's types (`copied_bytes`, sim/program/call_scratch.hpp).

#include "sim/cost/block_time.hpp"
#include "sim/cost/price.hpp"

namespace moeplan {

/// `block_time` where `price` answers for calls whose operands lie as their kernels read them.
[[nodiscard]] BlockTime block_time(const Block& block, const Prices& prices, const PriceCall& price, const LentTo& lent = {});

}  // namespace moeplan
