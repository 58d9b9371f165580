#pragma once
/// One rank of a many-rank plan, alone on one device. Its shapes, weights, buffers and calls are the true ones; only
/// the others are missing. They are taken to be equal to this one: what would arrive is copied from what this rank
/// sends, in the true size, so that memory and the calls' sizes are those of the plan. How long those copies take says
/// nothing about a network; it is counted apart (Walk::communication_seconds) and the network is charged from the cost
/// model.

#include <cstdint>
#include <memory>
#include <utility>

#include "executor/backend/backend.hpp"
#include "executor/comm/communicator.hpp"
#include "executor/ranks/place.hpp"
#include "executor/walk/exchange.hpp"

namespace moeplan {

/// Routes of a rank alone. `kept`: rows of its own tokens for each expert of the layer, which its router decided;
/// `arriving`: rows of each of its experts over all ranks, drawn. Those that are not its own come from its neighbour in
/// the group, and so do own rows beyond what arrives: totals are exact, who sent them is not.
[[nodiscard]] Routes slice_routes(std::span<const std::int64_t> kept, std::span<const std::int64_t> arriving, int index,
                                  int ranks);

/// The world of rank `place.rank` as it sees it. Splits by the names of the plan's groups (RankGroups).
///   all_gather       this rank's part in every rank's place
///   reduce_scatter   this rank's part, times the ranks
///   all_reduce       likewise (sum); maximum and minimum stay
///   all_to_all       rows as they are sent, again and again until all that arrive are filled
///   send_receive     what arrives are seeded numbers of deviation 0.02
///   gather_words     these words, once a rank
/// Data lies in `backend`'s memory. Throws InputError for types that it cannot copy.
[[nodiscard]] std::unique_ptr<Communicator> slice_world(const RankPlace& place, Backend& backend);

}  // namespace moeplan
