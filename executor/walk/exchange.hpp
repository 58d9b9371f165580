#pragma once
/// Token copies to the ranks of their experts and back. A rank sends rows ordered by expert, then by token; a rank's
/// experts get theirs ordered by expert, then by sending rank, then by token: the order that one rank with all tokens
/// and all experts would have. How many go where is data: the counts are exchanged first, once a layer and micro-batch;
/// backward and recompute use them again.

#include <functional>

#include "executor/backend/backend.hpp"
#include "executor/comm/communicator.hpp"

namespace moeplan {

/// How a tensor's elements travel: types that a communicator does not know go as bytes.
struct Wire {
  DType dtype = DType::u8;
  std::int64_t per_element = 1;  ///< elements of `dtype` for each of the tensor's
};
[[nodiscard]] Wire wire_of(DType held);

/// Rows of tokens that one hop moves (executor/walk/once.hpp): those sent, those received, those of it that stay on the rank.
struct HopRows {
  std::int64_t sent = 0, received = 0, own = 0;
};

/// Rows of one layer and micro-batch over the ranks of an expert group. Where a placement says which slot of which rank
/// has which expert, a "local expert" is a slot here.
struct Routes {
  std::int64_t local_experts = 0;
  std::vector<std::int64_t> sent;      ///< by rank: rows of this rank's tokens for the experts there
  std::vector<std::int64_t> received;  ///< [rank][local expert]: rows of that rank's tokens for this rank's experts
  std::vector<std::int64_t> rows_of_expert;   ///< by local expert, over all ranks
  std::vector<std::int64_t> of_neighbours{};  ///< [expert-tensor rank][local expert]: rows that each has; empty without
  /// Rows in this rank's calls, by local expert: those of all expert-tensor ranks.
  std::vector<std::int64_t> rows_in_calls{};
  std::vector<RowRun>
      pieces{};  ///< this rank's rows (by expert) in the order in which they are sent (by slot); empty: as they lie
  std::vector<HopRows> hops{};   ///< where tokens go once to each rank or node; `sent` and `received` are empty then
  std::vector<Routes> parts{};   ///< of an exchange in pieces: each piece's, whose rows are in `pieces`
  std::int64_t sent_before = 0, received_before = 0;   ///< of a piece: rows of those before it
  [[nodiscard]] std::int64_t sent_rows() const;
  [[nodiscard]] std::int64_t received_rows() const;
};

/// Rows that a rank may say it has: numbers of rows are i32.
inline constexpr std::int64_t kMostRows = (std::int64_t{1} << 31) - 1;
/// Throws where more rows reach the experts of `whose` ("rank 3") than its buffer holds; `where`: the layer and micro-batch.
void require_rows(const std::string& where, std::int64_t rows, const std::string& whose, std::int64_t bound);

/// Tells the group how many rows of this rank's tokens each of the experts (all of the layer's) is to get, and learns
/// the same of the others. `slots`: the expert of each slot, rank by rank; empty: in their order.
/// `chunks`: pieces into which each rank's rows of each expert are cut evenly.
[[nodiscard]] Routes exchange_counts(Communicator& group, std::span<const std::int64_t> rows_of_expert,
                                     std::span<const std::int64_t> slots = {}, std::int64_t chunks = 1);

/// Rows of one rank's tokens for each slot, by the rank's rows of each expert: the copies of an expert with several
/// slots go to them in equal parts, consecutive rows together. Ranks begin with different slots, so that remainders
/// spread (as sim/load/exchange.hpp draws it).
[[nodiscard]] std::vector<RowRun> rows_of_slots(std::span<const std::int64_t> rows_of_expert,
                                                std::span<const std::int64_t> slots, std::int64_t rank);

/// Learns what the expert-tensor ranks have of each local expert; `rows_of_expert` is this rank's.
void exchange_neighbours(Communicator& group, Routes& routes);

/// What is issued on `group` from here on comes after what the backend has queued: by the device where it can, else the
/// host waits.
void after_compute(Communicator& group, Backend& backend);
/// What the backend gets from here on comes after what is issued on `group`.
void before_compute(Communicator& group, Backend& backend);

/// What an exchange needs: scratch for as many bytes as the larger of both buffers; between expert-tensor ranks, and where experts are placed,
/// twice; in pieces four times, the second half for the way back.
struct Exchange {
  Communicator& group;
  Backend& backend;
  std::byte* scratch;
  bool timed = false;   ///< how long it is under way will be asked
};

/// Calls on a group between two points of its queue.
struct UnderWay {
  Communicator* group = nullptr;
  std::shared_ptr<void> begun, there;   ///< null where nothing is queued: it is over
  double blocked = 0;                   ///< s, of the host in the calls
  /// What the backend gets from here on comes after them.
  void await(Backend& backend) const;
  /// From begin to end, once both are passed.
  [[nodiscard]] double seconds() const { return begun ? group->seconds_between(begun, there) : blocked; }
};
/// Issues `calls` on the group, behind what the backend has queued.
[[nodiscard]] UnderWay issue(Communicator& group, Backend& backend, bool timed, const std::function<void()>& calls);

/// The rest of an exchange that is under way, for when its rows are needed: they are waited for (by a device's queue, where there is one), then put
/// where they belong.
struct Landing {
  UnderWay way;
  std::function<void()> place;
};

/// `from` [sent rows, width], by expert -> `to` [received rows, width], by local expert. Both may be longer; the rest
/// stays as it is. Of a piece: the whole's `from` and the piece's `to`.
[[nodiscard]] Landing dispatch_rows(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to);
/// The way back: `from` by local expert -> `to` by expert. A piece's `to` is the whole's, of which it writes its own rows.
[[nodiscard]] Landing combine_rows(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to);
/// Rows of `to` beyond those sent become zero.
void clear_rest(const Exchange& by, const Routes& routes, const TensorView& to);

/// Expert-tensor ranks work on each other's rows: `from`, this rank's by local expert -> `to`, those of all, by local
/// expert and rank. Each row goes to every other rank.
void gather_neighbours(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to);
/// The way back: each rank's `from` is its part of a sum, `to` the whole sum for this rank's rows; those beyond them
/// become zero. `to` is contiguous.
void sum_neighbours(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to);

}  // namespace moeplan
