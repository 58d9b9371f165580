#pragma once
/// Lowering: (Problem, Plan, rank) -> Program, the list of what one rank does in a training step. The planner prices it, the
/// simulator plays it, the executor runs it.
///
/// Blocks are lowered once per kind; the program lists their instances by (slot, micro-batch) in issue order. A slot is one
/// block on this stage: the embedding, each decoder layer, the head with its loss.

#include <functional>

#include "sim/program/block.hpp"
#include "sim/program/builder.hpp"
#include "sim/program/issue.hpp"

namespace moeplan {

/// What FSDP does for one slot: bytes gathered before use and gradients reduced after the backward pass.
struct SlotSharding {
  Bytes dense_gather{}, expert_gather{};   ///< all-gather outputs (payloads) over the dense and the expert shard group
  Bytes gathered{};                        ///< memory of the unsharded copies while the block runs (casts of trained weights included)
  Bytes dense_reduce{}, expert_reduce{};   ///< reduce-scatter inputs of trained gradients, unsharded
  Bytes host_fetch{};                      ///< frozen shards that come from host memory before each gather
  Bytes staged{};                          ///< of the buffer that calls pass through (staging.hpp), for the gradients
  Bytes tensor_reduce{};                   ///< of these what tensor (or expert-tensor) ranks hold alike: summed first
  bool operator==(const SlotSharding&) const = default;
  [[nodiscard]] bool reduces() const { return dense_reduce.value + expert_reduce.value + tensor_reduce.value > 0; }
};

/// Long-lived bytes of the weights of one block on one rank.
struct StateBytes {
  Bytes weights{}, adapters{}, gradients{}, optimizer{};
  Bytes host_weights{}, host_optimizer{};  ///< in host memory
  std::int64_t trained_elements = 0;       ///< on this rank, after sharding
  double orthogonal_flops = 0;             ///< Muon: of its Newton-Schulz steps on this rank's share of the matrices
  StateBytes& operator+=(const StateBytes& o);
};

/// What happens at a stage boundary and inside a stage with values that cross layers.
struct Slot {
  std::int32_t block = 0;          ///< index into Program::blocks
  std::int32_t layer = -1;         ///< decoder layer; -1 embedding, layers() head
  std::int32_t chunk = 0;          ///< index into Program::chunks
  SlotSharding sharding;
  StateBytes state;
};

/// Slots [first, end) of one virtual stage and what crosses its ends, per micro-batch.
struct ProgramChunk {
  std::int32_t first = 0, end = 0;
  Bytes stream{};                  ///< x at the entrance (at the exit of the model's first virtual stage)
  Bytes carried{};                 ///< values received besides x that later slots read (stored residual blocks, shared indices)
  Bytes leaving{};                 ///< x and carried values that cross to the next virtual stage
  bool receives = false;           ///< another virtual stage comes before it
};

struct Program {
  int rank = 0, stage = 0;
  std::vector<Block> blocks;
  std::vector<Slot> slots;
  std::vector<Instance> instances;
  StateBytes resident;             ///< idle weights (vision tower)
  std::vector<ProgramChunk> chunks;   ///< virtual stages of this rank, in model order
  OptimizerKind optimizer = OptimizerKind::adamw;
};

/// Everything about a model that lowering asks for, composed once: which layer kinds there are and what crosses stages.
struct ModelOutline {
  std::vector<std::string> kinds;            ///< per layer
  std::vector<bool> trained;                 ///< per slot of the whole model (embedding, layers, head): holds anything trained
  std::vector<std::int64_t> stored_before;   ///< per layer: stored residual blocks that reach it
};
[[nodiscard]] ModelOutline outline(const ModelSpec& model, const Workload& workload);

/// The context of a plan's blocks. `routed_scale`: rows that reach this rank's experts over the balanced share.
[[nodiscard]] BlockContext block_context(const Problem& problem, const Plan& plan, double routed_scale = 1.0);

/// Runs of consecutive tokens of a sequence on a context rank. Where late queries cost more than early ones (ring attention, indexers)
/// rank r of n holds runs r and 2 n - 1 - r, which makes all ranks equal; otherwise one.
[[nodiscard]] int context_runs(const ModelSpec& model, const Plan& plan);

/// Floats of the largest recurrent state of a model's mixers on one tensor rank and of the map from the state before a run to the one
/// after it (delta rules: a d_k x d_k matrix a head; others: their decays); zero without such mixers.
struct StateFloats {
  std::int64_t state = 0, transition = 0;
};
[[nodiscard]] StateFloats state_floats(const Mixer& mixer, int tp);
[[nodiscard]] StateFloats largest_state(const ModelSpec& model, int tp);

/// Lowers one slot of the model: -1 embedding, 0 .. layers-1, layers = head.
[[nodiscard]] Block lower_slot(const Problem& problem, const Plan& plan, const ModelOutline& outline, std::int32_t layer, double routed_scale);

/// The weights of a slot alone, without its passes: what the states depend on.
[[nodiscard]] Block slot_weights(const Problem& problem, const Plan& plan, std::int32_t layer);

/// The optimizer's call over a rank's trained elements. Muon's matrices stand as one shape that costs as many flops.
[[nodiscard]] OpCall optimizer_call(const StateBytes& state, OptimizerKind kind);
/// What streams through the device in each direction while it steps over states in host memory.
[[nodiscard]] CommCall optimizer_copy(const StateBytes& state);
/// Device memory of that stream: two pieces.
[[nodiscard]] Bytes optimizer_window(const StateBytes& state);

[[nodiscard]] SlotSharding slot_sharding(const Block& block, const Problem& problem, const Plan& plan);
[[nodiscard]] StateBytes state_bytes(const Block& block, const Problem& problem, const Plan& plan);
/// Elements of a weight that `ranks` consecutive tensor ranks (experts: expert-tensor ranks) hold alike: weights that are not cut, key-value
/// heads or state groups fewer than ranks. Each saw its share of tokens or heads, so their gradients are summed before the data ranks.
struct AlikeRows {
  int ranks = 1;
  std::int64_t first = 0, elements = 0;   ///< of the rank's part
  bool operator==(const AlikeRows&) const = default;
};
[[nodiscard]] std::vector<AlikeRows> alike_rows(const Weight& weight, const Parallelism& parallelism);
/// Whether a weight's gradient is added to where gradients are accumulated, or lives apart until it is reduced (FSDP).
[[nodiscard]] bool accumulates_in_place(const Weight& weight, const Problem& problem, const Plan& plan);
/// Gives a block what the runtime's own operators hold beyond the catalogue's: whole logits, scores, kept copies; takes away gradients
/// that are accumulated in place.
void apply_runtime(Block& block, const Problem& problem, const Plan& plan);
/// Resident weights that no block runs.
[[nodiscard]] StateBytes idle_state(const Problem& problem, const Plan& plan);

/// Layers [first, end) of chunk `chunk` of a stage.
struct LayerRange {
  std::int32_t first = 0, end = 0;
};
[[nodiscard]] LayerRange chunk_layers(const Plan& plan, int stage, int chunk);

/// Micro-batches between forward and backward on a stage under 1F1B: min(m, p - stage).
[[nodiscard]] std::int64_t in_flight(const Plan& plan, int stage);

/// The whole program of a rank, verified. Throws InputError if `rank` is outside the plan, std::logic_error if what was lowered
/// is unsound (our bug).
[[nodiscard]] Program lower(const Problem& problem, const Plan& plan, int rank, double routed_scale = 1.0);

/// Same without the check, for those who want the faults.
[[nodiscard]] Program lower_unverified(const Problem& problem, const Plan& plan, int rank, double routed_scale = 1.0);

/// Sends that no stage receives as sent, between neighbouring stages of one pipeline (one program a stage, in order), the last
/// one and the first included where chunks wrap around.
[[nodiscard]] std::vector<std::string> verify_exchange(const std::vector<Program>& stages);

/// Faults of a program: those of its blocks, instances that use what has not happened, gathers without release. Empty when sound.
[[nodiscard]] std::vector<std::string> verify(const Program& program);

}  // namespace moeplan
