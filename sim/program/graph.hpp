#pragma once
/// The forward graph of one block (a decoder layer, the embedding, the head with its loss), as architectures compose it:
/// values flow through operator calls and through differentiable communication. Weights are declared where they are used,
/// so a model's parameter count, its checkpoint tensors and its program cannot disagree.

#include <string>
#include <variant>
#include <vector>

#include "core/spec/workload.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan {

/// A tensor of the checkpoint, as the file names it. `*` stands for the expert index; `{}` for the layer index.
struct TensorSource {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t count = 1;      ///< how many such tensors (experts)
  DType dtype = DType::bf16;   ///< as stored in the checkpoint
  std::int64_t padding = 0;    ///< stored elements beyond the used ones, per tensor (K3 A_log: 128 stored, 96 used)
  bool operator==(const TensorSource&) const = default;
};

/// How a weight is cut over ranks.
enum class WeightSplit : std::uint8_t {
  none,          ///< whole on every tensor rank
  column,        ///< first dimension over tensor ranks
  row,           ///< last dimension over tensor ranks
  expert,        ///< first dimension (experts) over expert ranks; the matrix itself over expert-tensor ranks as column
  expert_row,    ///< same, the matrix over expert-tensor ranks as row
  first,         ///< whole on the first tensor rank, zeros on the others: what is added before their sum (the bias of a row-parallel projection)
};

/// Rows of a cut dimension that are dealt out to the ranks apart from the others (gate and up; q, k and v): `whole` over all ranks, `here` on
/// each. Where `whole` is fewer parts than ranks, several ranks have the same.
struct DealtRows {
  std::int64_t whole = 0, here = 0;
  bool operator==(const DealtRows&) const = default;
  /// How many of `ranks` consecutive ranks have the same rows.
  [[nodiscard]] constexpr std::int64_t sharers(std::int64_t ranks) const {
    if (here <= 0 || here * ranks <= whole || whole % here != 0) return 1;
    const std::int64_t parts = whole / here;
    return parts < ranks && ranks % parts == 0 ? ranks / parts : 1;
  }
};

using ValueId = std::int32_t;
using WeightId = std::int32_t;

struct Weight {
  std::string name;                     ///< local, canonical ("self_attn.q_proj.weight")
  WeightClass cls = WeightClass::other;
  Shape shape{};                        ///< as this rank's operator calls see it (after tensor and expert split)
  Shape full_shape{};                   ///< unsplit
  DType dtype = DType::bf16;            ///< as held in memory
  WeightSplit split = WeightSplit::none;
  std::vector<DealtRows> dealt{};       ///< of the cut dimension of column and expert; empty: all of it in one
  bool trained = false;
  bool adapter = false;                 ///< LoRA A or B: no checkpoint source, always trained
  bool buffer = false;                  ///< never has a gradient (router score bias, integer tables)
  std::vector<TensorSource> sources;
};

/// Groups of ranks that communicate.
enum class Group : std::uint8_t { tensor, context, data_shard, data_replicate, expert, expert_tensor, expert_data_shard, expert_data_replicate, pipeline, world };
template <>
struct EnumNames<Group> {
  static constexpr std::array names{
      std::pair{Group::tensor, std::string_view("tensor")}, std::pair{Group::context, std::string_view("context")},
      std::pair{Group::data_shard, std::string_view("data_shard")}, std::pair{Group::data_replicate, std::string_view("data_replicate")},
      std::pair{Group::expert, std::string_view("expert")}, std::pair{Group::expert_tensor, std::string_view("expert_tensor")},
      std::pair{Group::expert_data_shard, std::string_view("expert_data_shard")},
      std::pair{Group::expert_data_replicate, std::string_view("expert_data_replicate")},
      std::pair{Group::pipeline, std::string_view("pipeline")}, std::pair{Group::world, std::string_view("world")}};
};

enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, dispatch, combine, send_receive, all_to_all, state_chain, state_scan, to_host, from_host };
template <>
struct EnumNames<Collective> {
  static constexpr std::array names{
      std::pair{Collective::all_gather, std::string_view("all_gather")}, std::pair{Collective::reduce_scatter, std::string_view("reduce_scatter")},
      std::pair{Collective::all_reduce, std::string_view("all_reduce")}, std::pair{Collective::dispatch, std::string_view("dispatch")},
      std::pair{Collective::combine, std::string_view("combine")}, std::pair{Collective::send_receive, std::string_view("send_receive")},
      std::pair{Collective::all_to_all, std::string_view("all_to_all")}, std::pair{Collective::state_chain, std::string_view("state_chain")},
      std::pair{Collective::state_scan, std::string_view("state_scan")}, std::pair{Collective::to_host, std::string_view("to_host")},
      std::pair{Collective::from_host, std::string_view("from_host")}};
};
/// Copies over the host link: no other rank takes part.
[[nodiscard]] constexpr bool is_host_copy(Collective c) { return c == Collective::to_host || c == Collective::from_host; }

/// One communication call of this rank. `payload` follows nccl-tests: the full size (all-gather output, reduce-scatter input,
/// all-reduce buffer, all-to-all buffer of one rank); for dispatch and combine the bytes this rank sends if no copy stays local and none
/// is de-duplicated; for send_receive what goes to the neighbour; for a chain of states the states of all runs of this rank, for a scan
/// what it sends in each round.
struct CommCall {
  Collective collective = Collective::all_gather;
  Group group = Group::data_shard;
  Bytes payload{};
  std::int64_t rows = 0;        ///< dispatch/combine: token copies this rank sends (tokens x top-k); state_*: runs of tokens on this rank
  std::int64_t tokens = 0;      ///< dispatch/combine: tokens they come from; state_*: floats of a run's map and state
  std::int64_t experts = 0;     ///< dispatch/combine: experts routed over
  bool beside_compute = false;  ///< dispatch/combine: the schedule lays another pass's compute beside it
  bool direct = false;          ///< dispatch/combine: once to each rank instead of once to each node
  Bytes back{};                 ///< dispatch/combine: payload of the reverse call, which may travel in another type; 0: the same
  bool operator==(const CommCall&) const = default;
};

/// Dropless dispatch: the host must learn the counts before it can size the expert calls.
struct HostWait {
  bool operator==(const HostWait&) const = default;
};

struct Value {
  std::string name;
  Shape shape{};
  DType dtype = DType::bf16;
  bool ragged = false;          ///< rows follow the routing
  bool differentiable = true;
  bool dispatch_buffer = false; ///< counted as dispatch buffer, not activation
  bool always_kept = false;     ///< small and from other ranks: kept for backward in every recompute mode
  std::int32_t producer = -1;   ///< node that writes it; -1 for a block input
  [[nodiscard]] Bytes bytes() const { return stored_bytes(dtype, shape); }
};

/// How an operator that looks at tokens of other context ranks is run (context_steps.hpp writes it out).
enum class ContextWork : std::uint8_t {
  none,
  ring,    ///< keys and values of all ranks pass by, one part a step
  halo,    ///< also reads the last rows before this rank's runs of tokens
  state,   ///< also reads the recurrent state before this rank's runs
};

/// One call of the forward graph. For an operator `inputs`, `weights` and `outputs` follow the order of its operands.
struct GraphNode {
  std::variant<Op, CommCall, HostWait> call;
  std::vector<ValueId> inputs;
  std::vector<WeightId> weights;
  std::vector<ValueId> outputs;
  bool in_place = false;        ///< communication: the output is the input, its bytes where they were
  ContextWork context = ContextWork::none;
  std::vector<ValueId> also{};  ///< what `context` reads beyond the operator's operands; never differentiated in the graph
  std::int32_t also_first = 0;  ///< halo: the input whose rows also[0] precede; the others follow
  CommCall exchange{};          ///< halo, state: the call that brought `also`, backward it takes the gradients back; ring: its size in `rows`
  bool summary = false;         ///< the operator runs for its final state alone, which is the only output
  bool forward_only = false;    ///< communication in place that the backward pass does not repeat
};

/// Forward graph of a block. Inputs come first in `values`.
struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Weight> weights;
  std::vector<GraphNode> nodes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<std::string> uncovered;   ///< what this block has but the program does not do ("image tokens")
};

}  // namespace moeplan
