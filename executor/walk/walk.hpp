#pragma once
/// Walks the lowered program of one rank call by call: the buffers come from the arena, the weights from the
/// parameters, the arithmetic from the backend, what other ranks have from the communicators. What is data rather than
/// program is decided here: token counts of ragged calls, packed sequences, drops.

#include <algorithm>
#include <concepts>
#include <functional>

#include "core/spec/choices.hpp"
#include "core/spec/timeline.hpp"
#include "executor/arena/arena.hpp"
#include "executor/ranks/groups.hpp"
#include "executor/state/parameters.hpp"
#include "executor/walk/batch.hpp"
#include "executor/walk/context.hpp"
#include "executor/walk/exchange.hpp"
#include "executor/walk/once.hpp"

namespace moeplan {

/// An id or a count as an index.
template <std::integral T>
[[nodiscard]] constexpr std::size_t index(T i) {
  return static_cast<std::size_t>(i);
}
[[nodiscard]] inline std::int64_t width_of(const TensorView& t) { return t.shape[t.shape.rank - 1]; }

/// Rows that reach the experts of a rank which runs alone, drawn: by decoder layer and micro-batch, of each local
/// expert over all ranks of its group.
using SliceRows = std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int64_t>>;

struct WalkOptions {
  double capacity_factor = 0;  ///< most rows of one expert over the mean; 0: dropless
  Overflow overflow = Overflow::drop_position;  ///< what becomes of copies beyond it (executor/walk/capacity.hpp)
  double auxiliary = 0;        ///< weight of the routers' balancing loss
  double routed_bound =
      2;  ///< rows that a rank's experts may take together over the balanced share: the bound of the ragged buffers
  std::int64_t rebalance_every = 0;  ///< steps between new placements of the experts by what was counted; 0: none
  bool registers = true;  ///< what exchanges, gathers and reductions use is registered with the communicators, where they can
  const SliceRows* slice = nullptr;  ///< set: this rank is alone (executor/slice), and these rows reach its experts
};

/// What the routers of a micro-batch did, by decoder layer.
struct RoutingReport {
  std::int32_t layer = -1;
  std::vector<std::int64_t> counts;  ///< choices of each expert
  std::int64_t dropped = 0;          ///< copies beyond the capacity that no expert has taken
  double balance = 0;                ///< E sum_e f_e P_e; 1 when balanced
};

/// A call that has just run, for whoever looks on.
struct CallRecord {
  const BlockNode& node;
  std::int32_t slot = -1, micro_batch = -1;
  std::span<const TensorView> operands;  ///< parallel to the contract
};

/// How the rows of one router's micro-batch went over the expert ranks.
struct RoutesOf {
  std::int32_t slot = -1, micro_batch = -1;
  Routes routes;
};

/// Calls between ranks: how long they were under way, and of that what this rank's computing waited for.
struct Overlap {
  double seconds = 0, waited = 0;
  [[nodiscard]] double hidden() const { return seconds > 0 ? std::max(0.0, 1 - waited / seconds) : 0; }   ///< share
};
struct Overlaps {
  Overlap exchange, gather;   ///< rows to experts and back; weights
};

struct MicroBatchResult {
  float loss = 0;                      ///< mean over its labels; 0 on a stage without the head
  std::vector<RoutingReport> routing;  ///< of this stage's routers
};

class Walk {
 public:
  using Observer = std::function<void(const CallRecord&)>;
  /// Seconds since the walk began, by the backend's clock; called once the micro-batch is done.
  using Clock = std::function<void(const Instance&, const BlockNode&, double begin, double end)>;

  /// Refuses, by name, operators that the backend lacks, and what the program does not say how to run. `ranks` is null
  /// for a plan of one rank. `progress` is told the phases.
  Walk(const Program& program, const Problem& problem, const Plan& plan, Parameters& parameters, Backend& backend,
       const WalkOptions& options, RankGroups* ranks = nullptr, Progress* progress = nullptr);

  /// Forward and backward of one micro-batch; adds to the parameters' gradients. The loss is the mean over the
  /// micro-batch's labels; its gradients are scaled by `share`, the micro-batch's part of the step's labels (of all
  /// ranks). Returns the loss. Not for pipelines.
  float run(std::int32_t micro_batch, const Batch& batch, float share) { return run(micro_batch, batch, share, share); }
  /// All micro-batches of a step in the program's order.
  /// `balance_shares`: of the micro-batches on all ranks that share them, where this is one of several.
  std::vector<MicroBatchResult> run_all(std::span<const Batch> batches, std::span<const float> shares,
                                        std::span<const float> balance_shares = {});
  /// Forward only. Not for pipelines.
  float evaluate(const Batch& batch);

  [[nodiscard]] const std::vector<RoutingReport>& routing() const {
    return lanes_.front().result.routing;
  }  ///< of the last micro-batch
  [[nodiscard]] const ArenaPlan& arena() const { return arena_; }
  [[nodiscard]] Bytes staged() const { return staged_.buffer + staged_.ways; }  ///< held beside the arena for calls to other ranks
  /// Memory that communicators know beforehand, and how many of them; or why not. Empty where there is nothing to register with.
  struct Registered {
    Bytes bytes{};
    std::size_t communicators = 0;
    std::string refused;
  };
  [[nodiscard]] const Registered& registered() const { return registered_; }
  [[nodiscard]] Bytes host() const { return arena_.host_size; }  ///< kept values in host memory
  /// Rows that were sent and received in the last `run_all`: what an exact account of the exchange needs.
  [[nodiscard]] const std::vector<RoutesOf>& routes_of_last_step() const { return step_routes_; }
  /// Whether all gradients that this rank has given to the sums over ranks in the last `run_all` were finite; empty where it gave none.
  [[nodiscard]] std::optional<bool> gave_finite();
  void observe(Observer observer) { observer_ = std::move(observer); }
  void time(Clock clock) { clock_ = std::move(clock); }
  /// Of the steps that were timed.
  [[nodiscard]] const Overlaps& overlaps() const { return overlaps_; }
  /// Of a rank alone: spent since the start in what stands for communication, in which nothing else ran.
  [[nodiscard]] double communication_seconds() const { return communication_seconds_; }
  /// Runs what stands for communication on a rank alone, and counts it there; elsewhere just runs it.
  void apart(const std::function<void()>& communication);

 private:
  struct RoutedCall {
    std::size_t ordinal = 0;  ///< which router of its block
    bool routed = false;
    std::int32_t piece = -1;  ///< of an exchange in pieces; -1: all rows
    bool by_piece = false;    ///< works on all pieces, one after the other
  };
  struct BlockNotes {
    std::vector<std::vector<std::int32_t>> columns;  ///< per value: columns in its root; empty for what is no view
    std::vector<std::int64_t> root_columns;
    std::vector<bool> cut;  ///< per value: it comes in pieces of its rows
    std::vector<RoutedCall> forward, backward, weight_backward;  ///< per node
    std::map<const BlockNode*, std::vector<std::vector<std::int32_t>>>
        pieces;  ///< columns of a split's pieces, for its backward
    GatherLayout gathered;
  };
  /// A router of this stage and where its tallies begin.
  struct RouterAt {
    std::int32_t slot = -1;
    op::Router op;
    std::int64_t first = 0;
    [[nodiscard]] std::int64_t choices() const { return op.experts + op.zero_experts; }
  };
  /// The batch's own data in the backend's memory, not the plan's: bytes from the start.
  struct OutsideLayout {
    std::int64_t token_ids = 0, looked_up = 0, labels = 0, positions = 0, starts = 0, long_starts = 0, share = 0,
                 loss = 0, bytes = 0;
  };
  /// A micro-batch between forward and backward.
  struct MicroBatchState {
    const Batch* batch = nullptr;
    float share = 0, balance_share = 0;
    Backend::Memory outside;  ///< labels, positions, boundaries, share, loss
    Backend::Memory tallies;  ///< of the routers: choices of each expert (i32), then shares of the scores (f32)
    std::map<std::string, TensorView> feeds;           ///< by input name
    std::vector<std::vector<std::int64_t>> kept_rows;  ///< per slot, by router and expert: rows of this rank's tokens
                                                       ///< after drops, where the host needs them
    std::vector<std::vector<Routes>> routes;           ///< per slot, by router; with expert ranks only
    std::vector<std::vector<std::vector<std::int64_t>>>
        shared_counts;  ///< per slot, by router: choices of each expert by the tokens of all tensor ranks
    /// By slot and router, where the overflow action is the host's: the experts of the copies (-1: dropped), and how many were dropped.
    struct Limited {
      Backend::Memory kept;
      std::int64_t dropped = 0;
    };
    std::map<std::pair<std::int32_t, std::size_t>, Limited> limited;
    std::map<std::int32_t, OnceRoutes> once;  ///< by slot
    MicroBatchResult result;
  };
  float run(std::int32_t micro_batch, const Batch& batch, float share, float balance_share);
  void note_block(const Block& block);
  void begin(MicroBatchState& state, const Batch& batch, float share, float balance_share);
  void step(std::size_t at, MicroBatchState& state);
  void pass(const Instance& i, MicroBatchState& state);
  void finish(MicroBatchState& state);
  void queue(std::int32_t micro_batch, const Batch& batch, const std::function<void()>& work);
  void tell_clock();
  void begin_clock();
  void node(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
            std::int32_t workspace, MicroBatchState& state);
  void compute(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
               std::int32_t workspace, MicroBatchState& state);
  void communicate(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
                   MicroBatchState& state);
  void learn_routes(const Instance& i, const BlockNode& n, std::size_t ordinal, const PassPlacement& place,
                    const TensorView& to, MicroBatchState& state);
  void exchange_once(const Instance& i, const BlockNode& n, const PassPlacement& place, const TensorView& to,
                     MicroBatchState& state);
  [[nodiscard]] Routes learn_tokens(const Instance& i, const BlockNode& n, const PassPlacement& place,
                                    MicroBatchState& state);
  [[nodiscard]] Backend::Memory allocate_shared(Bytes bytes, const std::string& what);
  void place_staging();
  void register_memory();
  void find_ways();
  /// As whoever reads a message is told.
  [[nodiscard]] std::string place_of(const Instance& i) const;
  void copy_kept(const Instance& i, const BlockNode& n, const PassPlacement& place);
  void claim(std::int32_t buffer);
  void meet_copies(const Instance& i, const BlockNode& n, const PassPlacement& place, std::int32_t workspace);
  void settle_copies();
  void await_copy(const Backend::CopyPoint& point);
  void exchange_rows(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
                     TensorView from, TensorView to, MicroBatchState& state);
  struct InFlight;
  void land(const Block& block, const BlockNode* reader);
  void land(const InFlight& each);
  void await(UnderWay way, Overlap& of, const Instance* instance, const BlockNode* node);
  [[nodiscard]] static TensorView from_row(TensorView view, std::int64_t row);
  [[nodiscard]] bool is_cut(std::int32_t slot, ValueId v) const;
  [[nodiscard]] std::vector<std::int32_t> of_part(std::vector<std::int32_t> ids) const;
  [[nodiscard]] TensorView own_share(TensorView feed, std::int64_t elements) const;
  void merge_loss(const Instance& i, const BlockNode& n, const PassPlacement& place, MicroBatchState& state);
  [[nodiscard]] TensorView part_of(const TensorView& t, std::int64_t row, std::int64_t rows, std::int64_t column,
                                   std::int64_t columns);
  void exchange_context(const CommCall& comm, const TensorView& from, const TensorView& to);
  [[nodiscard]] TensorView take(DType type, std::int64_t rows, std::int64_t width);
  [[nodiscard]] TensorView longer(const TensorView& from, std::int64_t runs, std::int64_t before, std::int64_t behind);
  void shorter(const TensorView& from, const TensorView& to, std::int64_t runs, std::int64_t before,
               std::int64_t behind);
  void edges(const TensorView& of, const TensorView& rows, std::int64_t runs, std::int64_t whole, std::int64_t at,
             bool into);
  void fill_edges(const TensorView& t, std::int64_t runs, std::int64_t whole, std::int64_t at,
                  const std::vector<float>& values);
  void set_state_tokens(const Op& op, std::span<const TensorView> views, std::int64_t runs, std::int64_t whole,
                        std::int64_t before, std::int64_t behind);
  void put_state(const Op& op, const TensorView& to, const TensorView& states, std::int64_t runs, std::int64_t whole,
                 std::int64_t at, float scale);
  void get_state(const Op& op, const TensorView& from, std::int64_t first, std::int64_t runs, std::int64_t whole,
                 std::int64_t at, std::int64_t d_v, float scale, std::vector<float>& out, std::int64_t stride,
                 std::int64_t column);
  [[nodiscard]] static std::size_t reads_beyond(const BlockNode& n);
  void continued_call(const Instance& i, const BlockNode& n, const PassPlacement& at, OpCall call,
                      std::vector<TensorView> views, std::vector<TensorView> gradients, CallContext context,
                      MicroBatchState& state);
  void summarise(const Instance& i, const BlockNode& n, const PassPlacement& at, MicroBatchState& state);
  void pass_rows(const Instance& i, const BlockNode& n, const PassPlacement& at, MicroBatchState& state);
  [[nodiscard]] static bool follows(const ContextRuns& dealt, std::int64_t rank, std::size_t from, std::size_t to,
                                    bool back);
  void pass_state(const Instance& i, const TensorView& from, const TensorView& to, bool scan);
  [[nodiscard]] static bool selects_keys(const Op& op);
  void call_by_runs(const OpCall& call, const std::vector<TensorView>& views,
                    const std::vector<TensorView>& gradients);
  void pass_round(const Instance& i, const BlockNode& n, const PassPlacement& at, MicroBatchState& state);
  template <class F>
  void each_pair(std::int64_t source, std::int64_t rows, const F& f);
  void ring_step(const Instance& i, const BlockNode& n, const PassPlacement& at, MicroBatchState& state);
  void join(const op::Attention& attention, const TensorView& y, const TensorView& lse, const TensorView& y_part,
            const TensorView& lse_part);
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> state_heads(const Instance& i, std::int64_t transition) const;
  [[nodiscard]] std::int64_t tokens_here() const {
    return plan_.micro_batch * problem_.workload.sequence_length / plan_.parallelism.cp;
  }
  [[nodiscard]] std::int64_t sharers() const;
  void share_counts(std::int32_t slot, std::size_t ordinal, MicroBatchState& state);
  [[nodiscard]] std::vector<double> sum_over_sharers(std::vector<double> values);
  void message(std::size_t at);
  void flush_sends();
  [[nodiscard]] TensorView value_view(std::int32_t slot, const PassPlacement& place, ValueId v, const Shape& shape,
                                      const MicroBatchState& state) const;
  [[nodiscard]] TensorView weight_view(std::int32_t slot, WeightId w) const;
  [[nodiscard]] TensorView buffer_view(std::int32_t buffer, DType type, const Shape& shape) const;
  [[nodiscard]] TensorView gathered_view(std::int32_t slot, WeightId w, std::int64_t elements) const;
  [[nodiscard]] std::span<const std::int64_t> rows_of_experts(std::int32_t slot, std::size_t ordinal,
                                                              std::int64_t experts, const MicroBatchState& state) const;
  [[nodiscard]] TensorView outside_view(const MicroBatchState& state, std::int64_t at, DType type,
                                        std::int64_t count) const;
  [[nodiscard]] TensorView tally_view(const MicroBatchState& state, const RouterAt& router, bool shares,
                                      std::int64_t count) const;
  [[nodiscard]] const RouterAt& router_at(std::int32_t slot, std::size_t ordinal) const;
  void place_routers();
  void feed(MicroBatchState& state);
  void gather_weights(const Instance& i, std::int32_t buffer);
  void await_weights(std::int32_t slot);
  void settle();
  void add_carried(const Instance& i);
  void add_gradients(const Instance& i, const MicroBatchState& state);
  void reduce_gradients(const Instance& i, const MicroBatchState& state);
  void note_given(const TensorView& gradients);
  [[nodiscard]] bool reduces(const Parameter& p) const;
  [[nodiscard]] std::int64_t kept(const op::Router& op, std::int64_t choices) const;
  [[nodiscard]] bool limits_by_host() const;
  void limit(std::int32_t slot, std::size_t ordinal, std::span<const TensorView> operands, MicroBatchState& state);
  void tally(std::int32_t slot, std::size_t ordinal, std::span<const TensorView> operands, MicroBatchState& state);
  void tell(const char* phase);
  [[nodiscard]] bool ends_model() const;
  [[nodiscard]] const Block& block_of(std::int32_t slot) const {
    return program_.blocks[static_cast<std::size_t>(program_.slots[static_cast<std::size_t>(slot)].block)];
  }
  [[nodiscard]] const BlockNotes& notes_of(std::int32_t slot) const {
    return notes_[static_cast<std::size_t>(program_.slots[static_cast<std::size_t>(slot)].block)];
  }

  const Program& program_;
  const Problem& problem_;
  const Plan& plan_;
  Parameters& parameters_;
  Backend& backend_;
  WalkOptions options_;
  RankGroups* ranks_;
  Progress* progress_;
  ArenaPlan arena_;
  Backend::Memory memory_;
  Backend::Memory staging_;  ///< of exchanges and reductions
  Staged staged_;            ///< of it, and of the ways of tokens that go once
  Registered registered_;
  std::vector<std::shared_ptr<void>> registrations_;  ///< end before the memory
  /// Rows on their way, by the value that they will be.
  struct InFlight {
    const Instance* instance = nullptr;
    const BlockNode* node = nullptr;
    ValueId value = -1;
    std::int32_t piece = -1;
    Landing landing;
  };
  std::vector<InFlight> in_flight_;
  /// The ways of tokens that go once to each rank, and how many expert ranks one rank of each stands for.
  std::vector<std::pair<Communicator*, std::int64_t>> ways_;
  Backend::Memory given_;    ///< sums of squares of what went into sums over ranks in this step, one each
  std::int64_t given_sums_ = 0;
  std::vector<BlockNotes> notes_;
  std::vector<std::pair<Backend::Memory, std::int64_t>> longer_;  ///< of calls on longer runs: memory and its bytes
  std::size_t taken_ = 0;
  std::int64_t ring_at_ = 0;  ///< step of the ring under way
  std::map<std::tuple<const std::vector<std::int32_t>*, std::int64_t, std::int64_t>, std::vector<std::int32_t>>
      slices_;  ///< columns of parts of tensors, by those of the tensor, first and count
  std::vector<std::int32_t> gathered_;  ///< per slot: buffer of its gathered weights while they are there
  std::vector<std::vector<UnderWay>> arriving_;  ///< per slot: the gathers of its weights
  std::vector<Backend::CopyPoint> fetching_;  ///< per slot: behind which its weights have come from host memory
  Backend::Memory host_;                      ///< kept values that wait there
  /// Copies of kept values under way: out of a stretch of the arena, back into a value.
  struct Leaving {
    std::int64_t begin = 0, end = 0;
    Backend::CopyPoint point;
  };
  struct Returning {
    std::int32_t micro_batch = -1, slot = -1;
    ValueId value = -1;
    Backend::CopyPoint point;
  };
  std::vector<Leaving> leaving_;
  std::vector<Returning> returning_;
  std::vector<MicroBatchState> lanes_;
  OutsideLayout outside_;
  std::vector<RouterAt> routers_;
  std::vector<std::size_t> first_router_;  ///< per slot
  std::int64_t tallies_ = 0;               ///< entries over all routers
  bool hosted_ = false;                    ///< the host sizes the experts' calls: rows cross ranks, or are dropped
  /// What a micro-batch queues, once performed: again at one go. By what its instances are and how many sequences are
  /// packed.
  struct Recorded {
    bool performed = false;
    Backend::Recording play;
  };
  std::map<std::pair<std::vector<std::int64_t>, std::size_t>, Recorded> recorded_;
  std::size_t recordings_ = 0;
  std::vector<Transfer> sending_, receiving_;  ///< messages between stages that go together
  std::vector<RoutesOf> step_routes_;
  Observer observer_;
  Clock clock_;
  std::vector<std::pair<const Instance*, const BlockNode*>> timed_;
  /// Calls between ranks of a timed step, and at which stamp they had been waited for.
  struct Awaited {
    UnderWay way;
    Overlap* of;
    std::size_t stamp;
  };
  std::vector<Awaited> awaited_;
  Overlaps overlaps_;
  std::vector<std::pair<const Instance*, const BlockNode*>> timed_copies_;
  const BlockNode fetch_{.call = CommCall{.collective = Collective::from_host}, .lane = Lane::copy, .reads = {}, .writes = {}, .weights = {}};
  const BlockNode wait_{.call = HostWait{}, .lane = Lane::copy, .reads = {}, .writes = {}, .weights = {}};
  bool waited_ = false;  ///< since the last stamp, for copies
  FetchedType fetched_;  ///< of weights in host memory
  double clocked_ = 0;  ///< seconds of the micro-batches before
  double communication_seconds_ = 0;
};

}  // namespace moeplan
