#pragma once
/// Tokens that go once to each rank (or to each node, and there once to each rank), however many of their experts are
/// there. Only whole rows of tokens travel; copies are made where the experts are, by the same `permute` that would
/// make them before they left, and summed there by the same `combine`, so a rank gets one sum a token back. The weights
/// of the copies travel with the tokens, their gradients back as scalars.
///
/// A hop is such an exchange within one group: `permute` puts a row once for each rank that wants it, in the order of
/// the ranks; its backward sums what comes back. Two hops are two of them.

#include "executor/walk/exchange.hpp"
#include "sim/program/staging.hpp"

namespace moeplan {

/// One exchange of rows, of one layer and micro-batch.
struct Hop {
  Communicator* group = nullptr;
  HopRows rows;
  std::int64_t tokens = 0, top = 1;          ///< rows here, and to how many ranks of the group one of them goes at most
  std::vector<std::int64_t> sent, received;  ///< rows by rank
  std::vector<std::int64_t> order;           ///< of each row sent: which row here it is
  TensorView choices, map;                   ///< i32 [tokens, top]: the ranks, and which row sent that is
};

/// What is known of the rows of a layer and micro-batch on their way there: kept for the way back and the backward
/// pass.
struct OnceRoutes {
  OnceBytes most;          ///< bytes and rows that there is room for
  Backend::Memory memory;  ///< of the tensors here: `most.ways`
  std::int64_t used = 0;   ///< bytes of it
  std::vector<Hop> hops;
  std::int64_t tokens = 0, top_k = 1;  ///< of this rank, and the router's choices of each
  std::int64_t arrived = 0, top = 1,
               rows = 0;  ///< tokens that arrived, how many copies one of them has here at most, and all copies
  std::vector<std::int64_t> rows_of_expert;  ///< by local slot
  std::vector<std::int64_t> place;           ///< [arrived, top]: which of the token's choices a copy is; -1: none
  TensorView choices, weights, map;          ///< [arrived, top]: local slot (i32), weight (f32), row of the copy (i32)
};

/// What the source knows: `slots` [tokens, top_k], the slot of each copy over the expert ranks (-1: dropped, or an
/// expert without weights), and its `weights`. `groups` are the ways, each with how many slots one of its ranks stands
/// for: [(expert group, slots of a rank)], or [(ranks of the same number on all nodes, slots of a node), (ranks of a
/// node, slots of a rank)]. Learns what the others send; all ranks call it. `buffer`: of `routes.most.buffer()` bytes, here
/// and below. `where`: the layer and micro-batch, for whoever reads that more rows come than there is room for.
void learn_once(OnceRoutes& routes, const std::vector<std::pair<Communicator*, std::int64_t>>& groups,
                std::int64_t first_slot, std::int64_t local_slots, std::int64_t tokens, std::int64_t top_k,
                std::vector<std::int64_t> slots, std::vector<float> weights, Backend& backend, std::byte* buffer,
                const std::string& where);

/// `x` [tokens, width] -> `to` [rows, width], by local slot, then by who sent it and token.
void dispatch_once(OnceRoutes& routes, const TensorView& x, const TensorView& to, Backend& backend, std::byte* buffer);
/// The gradient of `dispatch_once`: `from` like its `to` -> `dx` [tokens, width], summed over copies.
void collect_once(OnceRoutes& routes, const TensorView& from, const TensorView& dx, Backend& backend, std::byte* buffer);
/// `from` [rows, width], the copies' results -> `y` [tokens, width], their weighted sum.
void combine_once(OnceRoutes& routes, const TensorView& from, const TensorView& y, Backend& backend, std::byte* buffer);
/// The gradient of `combine_once`: `dy` -> `to`, of the copies' results `rows`; and, where it is present, of the
/// weights [tokens, top_k].
void spread_once(OnceRoutes& routes, const TensorView& dy, const TensorView& rows, const TensorView& to,
                 const TensorView& d_weights, Backend& backend, std::byte* buffer);

/// Writes a block's exchanges so: permute and dispatch become one call from tokens to copies, combine and its sum one
/// call back, and their gradients likewise. Reads and writes are those of the new calls, from which lifetimes follow.
/// Operands of a call: dispatch x, indices, weights; combine: none; in backward dispatch dy, copies' results, and
/// gradients {d weights}.
[[nodiscard]] Block exchanged_once(Block block);

}  // namespace moeplan
