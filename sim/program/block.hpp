#pragma once
/// A block as it runs: the forward calls and the backward calls of one layer kind, with recompute written out, on lanes, and
/// the lifetimes of every value. Derived from the forward graph and the operators' contracts; nothing is typed twice.

#include "core/spec/plan.hpp"
#include "core/spec/results.hpp"
#include "sim/program/graph.hpp"

namespace moeplan {

enum class Lane : std::uint8_t { compute, expert_communication, data_communication, copy };
inline constexpr std::size_t kLanes = 4;
template <>
struct EnumNames<Lane> {
  static constexpr std::array names{std::pair{Lane::compute, std::string_view("compute")},
                                    std::pair{Lane::expert_communication, std::string_view("expert_communication")},
                                    std::pair{Lane::data_communication, std::string_view("data_communication")},
                                    std::pair{Lane::copy, std::string_view("copy")}};
};

/// One call of a lowered block. Order between calls is by their reads and writes.
struct BlockNode {
  std::variant<OpCall, CommCall, HostWait> call;
  Lane lane = Lane::compute;
  std::vector<ValueId> reads, writes;
  std::vector<WeightId> weights;
  bool recompute = false;   ///< repeats a forward call inside the backward pass
  bool is_backward = false; ///< side by side: of the backward pass
  bool summary = false;     ///< run for its final state alone (context parallelism)
  /// Operator calls, for each operand of the contract: the value it is (forward) or that is read again (backward), and the gradient
  /// that arrives (outputs) or is written (inputs, trained weights); -1 for weights themselves and for what is absent. Empty where the
  /// call is one of several that share its work with other context ranks.
  std::vector<ValueId> operands = {}, gradients = {};
};

/// Values 0 .. forward_values-1 are the graph's; gradients and recomputed copies follow.
struct Block {
  std::string name;
  std::vector<Value> values;
  std::vector<MemoryCategory> category;        ///< per value
  std::vector<ValueId> alias;                  ///< per value: the value whose memory it shares (views), or itself
  std::vector<ValueId> whole;                  ///< per value: the value of which it is some rows; empty where nothing is cut
  std::vector<Weight> weights;
  std::vector<ValueId> inputs, outputs;        ///< inputs[0] is this block's own; the others are carried: they belong to the slot that made them
  std::vector<ValueId> input_grads;            ///< parallel to inputs; -1 where none is wanted
  std::vector<ValueId> output_grads;           ///< parallel to outputs; -1 where none exists
  std::vector<ValueId> weight_grads;           ///< parallel to weights; -1 for what is not trained
  std::vector<BlockNode> forward, backward;
  std::vector<BlockNode> weight_backward;      ///< split schedules: weight gradients of matrix products, made after the backward pass
  std::vector<ValueId> kept;                   ///< written in the forward pass (or an input), read in the backward pass
  std::vector<ValueId> put_off;                ///< split schedules: what the backward pass leaves for weight_backward and the reduction
  std::size_t forward_values = 0;
  Bytes host{};                                ///< kept in host memory between the passes
};

/// The value of which `v` is some rows, or itself.
[[nodiscard]] inline ValueId whole_of(const Block& block, ValueId v) { return block.whole.empty() ? v : block.whole[static_cast<std::size_t>(v)]; }

/// Bytes of one pass of a block, relative to what other blocks hold.
struct PassMemory {
  std::array<Bytes, kMemoryCategories> at_peak{};   ///< of this block's values and workspace when their sum is largest
  std::string peak_at;                              ///< the call at which it is
  [[nodiscard]] Bytes peak() const { Bytes s{}; for (const Bytes b : at_peak) s += b; return s; }
};

/// What calls to other ranks hold beside the values, from the start of a run (staging.hpp).
struct Staged {
  Bytes buffer{};   ///< that they pass through, one at a time: a stage holds the largest of its slots'
  Bytes ways{};     ///< of tokens that go once: of each slot and micro-batch under way
  bool operator==(const Staged&) const = default;
};

struct BlockMemory {
  PassMemory forward, backward, weight_backward;
  std::array<Bytes, kMemoryCategories> put_off{};   ///< from the end of the backward pass to that of weight_backward
  std::array<Bytes, kMemoryCategories> kept{};      ///< from the end of the forward pass to the backward pass, inputs included where kept
  Staged staged{};                                  ///< for the exchanges
  [[nodiscard]] Bytes kept_bytes() const { Bytes s{}; for (const Bytes b : kept) s += b; return s; }
};

/// Derives the block. `needs_input_grad`: whether anything before this block is trained.
/// `recompute`: none keeps all that backward reads; selective repeats what is cheap (norms, activations, gates, views);
/// full keeps the block's inputs and the routing decisions only (recompute never changes the routing). `split`: the weight
/// gradients of linear and grouped_linear go to weight_backward; what they read is recomputed in the backward pass and put off.
/// `offload`: what is kept leaves for host memory once it is made and comes back in the order in which the backward pass reads it;
/// values below `kOffloaded` stay.
inline constexpr Bytes kOffloaded{std::int64_t{1} << 20};
[[nodiscard]] Block differentiate(Graph graph, Recompute recompute, bool needs_input_grad, bool split = false, bool offload = false);

/// Walks the lifetimes of the passes.
[[nodiscard]] BlockMemory block_memory(const Block& block);

/// Cuts what lies between each dispatch and its combine, forward and backward, into `chunks` pieces of the rows: the exchange of a
/// piece runs under the experts of the one before. All dispatches are issued first, then each piece's experts and combine; the
/// counts are exchanged once. Weight gradients are complete after the last piece.
[[nodiscard]] Block chunked_exchange(Block block, std::int64_t chunks);

/// A forward and a backward pass (of two micro-batches) side by side, as one block whose `forward` list holds the calls of both in
/// issue order: compute calls up to the next exchange, in turn from each. A host wait comes after the other pass's compute was
/// issued, so that it holds up nothing but its own pass's rest. Exchanges are marked `beside_compute`.
[[nodiscard]] Block side_by_side(const Block& forward, const Block& backward);

/// Bugs in a lowered block: reads before writes, shapes that disagree with the contract, values used after their end.
/// Empty when sound.
[[nodiscard]] std::vector<std::string> verify(const Block& block);

}  // namespace moeplan
