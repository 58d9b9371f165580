#pragma once
/// Composes a `Graph`. Architectures call operators on values; the builder shards weights, adds LoRA pairs by the workload's
/// tuning, and checks that shapes agree with each operator's contract.

#include <initializer_list>
#include <optional>
#include <span>

#include "core/spec/choices.hpp"
#include "sim/program/graph.hpp"

namespace moeplan {

/// What shapes a block besides the model: the sharding and the tokens of one micro-batch on one rank.
struct BlockContext {
  std::int64_t tokens = 1;            ///< tokens of the micro-batch on this rank (after context split)
  std::int64_t sequence_length = 1;   ///< length of one sequence (whole); tokens / (sequence_length / cp) sequences
  int tp = 1, cp = 1, ep = 1, etp = 1;
  ContextExchange context_exchange = ContextExchange::ring;
  StatePassing state_passing = StatePassing::scan;
  int runs = 1;                       ///< stretches of consecutive tokens of a sequence on this rank: 2 where early and late parts are paired for balance
  double routed_scale = 1.0;          ///< rows that reach this rank's experts / the balanced share
  bool dropless = true;               ///< counts are exchanged and waited for
  DType dispatch = DType::bf16;       ///< type in which rows travel to the experts
  bool merges_loss = false;           ///< over tensor ranks: each one's log-sum-exp is gathered; otherwise three numbers a token are summed
  bool direct = false;                ///< dispatch and combine: once to each rank instead of once to each node
  std::int64_t replicas = 0;          ///< expert slots beyond one each
  DType expert_storage = DType::bf16; ///< frozen routed experts in memory
  DType linear_storage = DType::bf16; ///< frozen attention, dense and shared projections in memory
  Workload workload{};                ///< tuning and storage per weight class
};

class Builder {
 public:
  Builder(std::string name, const BlockContext& context) : context_(context) { graph_.name = std::move(name); }

  [[nodiscard]] const BlockContext& context() const { return context_; }
  [[nodiscard]] const Value& value(ValueId id) const { return graph_.values[static_cast<std::size_t>(id)]; }
  /// Tokens of the residual stream on this rank: sequence parallelism cuts them over the tensor ranks outside tensor regions.
  [[nodiscard]] std::int64_t tokens() const { return context_.tokens / context_.tp; }
  /// Consecutive tokens of one sequence on this rank.
  [[nodiscard]] std::int64_t run() const { return context_.sequence_length / (static_cast<std::int64_t>(context_.cp) * context_.runs); }
  /// Such stretches in the micro-batch.
  [[nodiscard]] std::int64_t run_count() const { return context_.tokens / run(); }

  /// Sees a value as another shape of as many elements from here on (heads as rows of their own, and back).
  void reshape(ValueId id, Shape shape);

  /// A value that comes from outside the block.
  ValueId input(std::string name, Shape shape, DType dtype = DType::bf16, bool differentiable = true);
  void output(ValueId id) { graph_.outputs.push_back(id); }

  /// Prefix of the weights declared from here on ("self_attn."); returns the previous one.
  std::string scope(std::string prefix);

  /// Declares a parameter of one checkpoint tensor `<scope><name>`. `shape` is unsplit; `stored` its type in the checkpoint.
  WeightId weight(WeightClass cls, const std::string& name, Shape shape, WeightSplit split = WeightSplit::none, std::optional<DType> stored = {});
  /// Declares a parameter made of several checkpoint tensors (fused or per-expert); source names get the scope prefix.
  WeightId weight(WeightClass cls, const std::string& name, Shape shape, WeightSplit split, std::vector<TensorSource> sources);
  /// Sets the rows that this tensor rank holds of a weight cut by column: more than its even share where parts are too few to go
  /// round and are held by several ranks (key-value heads, state groups).
  void hold_rows(WeightId id, std::int64_t rows);
  /// Deals the rows of a cut weight (experts: of their second dimension) out part by part. Before the call that uses it: its pair is cut alike.
  void deal(WeightId id, std::vector<DealtRows> parts) { graph_.weights[static_cast<std::size_t>(id)].dealt = std::move(parts); }
  /// Marks the last declared weight as a buffer: resident, never trained.
  void buffer(WeightId id);
  /// A parameter that ships and is resident but that no operator of ours reads (vision tower): counted, frozen.
  void idle_weight(WeightClass cls, const std::string& name, Shape shape, std::int64_t count = 1, std::optional<DType> stored = {});

  [[nodiscard]] Training training(WeightClass cls) const;
  [[nodiscard]] std::int64_t lora_rank(WeightClass cls) const;
  /// How a weight of this class is held in memory: trained ones and what is not a projection as bf16.
  [[nodiscard]] DType held(WeightClass cls) const;
  [[nodiscard]] Shape split_shape(const Shape& full, WeightSplit split) const;

  /// Appends a call. `values` and `weights` follow the operator's operands of role input/index and weight; returns the outputs
  /// (role output and aux) in order.
  std::vector<ValueId> call(const Op& op, std::initializer_list<ValueId> values, std::initializer_list<WeightId> weights = {});
  std::vector<ValueId> call(const Op& op, std::span<const ValueId> values, std::span<const WeightId> weights);

  /// y = x W^T with the LoRA pair that the tuning of `cls` asks for. `name` without ".weight". `out` is unsplit.
  ValueId linear(ValueId x, const std::string& name, std::int64_t out, WeightClass cls, WeightSplit split = WeightSplit::none, bool bias = false);
  ValueId linear(ValueId x, WeightId w, std::int64_t out_local, WeightClass cls, const std::string& adapter_name, WeightId bias = -1);
  /// The LoRA pair of a weight if the tuning of its class asks for one, A [r, in] and B [out, r] (`linear` adds its own), both unsplit.
  /// `a`, `b`: how the pair is cut over tensor ranks.
  std::vector<WeightId> adapters(WeightId w, const std::string& adapter_name, std::int64_t in, std::int64_t out, WeightSplit a = WeightSplit::none, WeightSplit b = WeightSplit::none);
  /// One ragged GEMM over the local experts; `out_local` after the expert-tensor split.
  ValueId grouped_linear(ValueId rows, WeightId w, std::int64_t experts_local, std::int64_t out_local, const std::string& adapter_name, WeightId bias = -1);
  ValueId rms_norm(ValueId x, const std::string& name, WeightClass cls = WeightClass::norm);

  /// Sequence-parallel regions: all-gather over the tensor group on entry, reduce-scatter on exit; nothing at tp = 1.
  ValueId enter_tensor_region(ValueId x);
  ValueId leave_tensor_region(ValueId y);

  /// Sum over the tensor group of what each rank's columns or vocabulary contribute to per-row statistics: `bytes_per_row` of them.
  /// In place: the rows stay where they are. A norm's backward sums again (`twice`), a loss's does not.
  ValueId sum_statistics(ValueId x, std::int64_t bytes_per_row, bool twice);
  /// The loss of `tokens` tokens over the parts of the vocabulary: each rank's log-sum-exp of each token and its share of the loss are gathered.
  ValueId merge_loss(ValueId loss, std::int64_t tokens);
  /// x summed over the tensor group, where every rank needs all of it; so is its gradient.
  ValueId sum_over_tensor(ValueId x);

  /// Context parallelism; each is the value itself at cp = 1.
  /// Rows of all context ranks.
  ValueId gather_context(ValueId x);
  /// Columns for rows: [t, w] -> [t cp, w / cp], and back.
  ValueId heads_for_tokens(ValueId x) { return exchange_context(x, true); }
  ValueId tokens_for_heads(ValueId x) { return exchange_context(x, false); }
  /// Marks the last call as one whose keys and values come round the ring.
  void by_ring();
  /// The `rows` rows before each run of `values`, in one exchange with the neighbours. Nothing at cp = 1.
  std::vector<ValueId> halo(std::span<const ValueId> values, std::int64_t rows);
  /// The state of a scan before each of this rank's runs: the scan runs once for its final states, then they are passed. `transition`:
  /// floats of the map from the state before to the state after, `state`: of the state, both of one run. Nothing at cp = 1.
  std::vector<ValueId> pass_state(const Op& op, std::span<const ValueId> values, std::span<const WeightId> weights, std::int64_t transition, std::int64_t state);
  /// Lets the last call read `also`, as `halo` (of its inputs from `first` on) or `pass_state` gave it.
  void reads_also(ContextWork work, std::vector<ValueId> also, std::int32_t first = 0);

  /// All-to-all of permuted rows to the ranks of their experts and back (and their gathering over expert-tensor ranks); the
  /// rows themselves at ep = etp = 1.
  ValueId dispatch(ValueId rows, std::int64_t tokens, std::int64_t experts);
  ValueId combine(ValueId rows, std::int64_t sent_rows, std::int64_t tokens, std::int64_t experts);

  void uncovered(std::string what) { graph_.uncovered.push_back(std::move(what)); }

  [[nodiscard]] Graph take() { return std::move(graph_); }

 private:
  WeightId add_weight(Weight w);
  ValueId add_value(Value v);
  /// Bytes of rows on their way to the experts: bf16, or fp8 with a float per 128 columns.
  [[nodiscard]] Bytes wire_bytes(ValueId rows) const;
  ValueId exchange_context(ValueId x, bool heads_for_tokens);
  /// Appends a communication call.
  void communicate(const CommCall& call, std::vector<ValueId> inputs, std::vector<ValueId> outputs);
  BlockContext context_;
  Graph graph_;
  std::string scope_;
};

}  // namespace moeplan
