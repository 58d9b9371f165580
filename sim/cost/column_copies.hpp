#pragma once
/// Which operands of a call are columns of other tensors (`split`). This project's kernels read and write dense tensors: such operands are copied
/// before the call, and such results after it (executor/cuda), which takes time (`Prices::copies`).

#include <functional>

#include "sim/cost/block_time.hpp"
#include "sim/cost/price.hpp"

namespace moeplan {

/// Bytes of columns that a call of this block reads or writes, each operand once.
[[nodiscard]] std::function<Bytes(const BlockNode&)> column_copies(const Block& block);

/// `price`, and for calls of this block what its columns take. All three are asked while the result lives.
[[nodiscard]] PriceCall with_column_copies(const Block& block, const Prices& prices, const PriceCall& price);

}  // namespace moeplan
