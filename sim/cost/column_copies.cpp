#include "sim/cost/column_copies.hpp"

#include "sim/program/call_scratch.hpp"

namespace moeplan {

BlockTime block_time(const Block& block, const Prices& prices, const PriceCall& price, const LentTo& lent) {
  const CallScratch copied = copied_bytes(block, prices.runtime());
  return block_time(block, [&](const BlockNode& node) {
    Estimate e = price(node);
    const Seconds copies = prices.copies(copied(node));
    return Estimate{e.median + copies, e.low + copies, e.high + copies, e.basis};
  }, lent);
}

}  // namespace moeplan
