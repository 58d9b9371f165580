#pragma once
/// What FSDP2 allocates for weights and gradients that are cut over the data ranks
/// (torch/distributed/fsdp/_fully_shard: _fsdp_collectives.py, _fsdp_param_group.py; facts restated):
///
///   a unit's all-gather fills a buffer of the gather stream, from which its weights are copied out, each into storage
///   of its own on the compute stream. In the forward pass that buffer is held until the next unit's has been copied
///   out, the last one until the model returns (_fsdp_state.py, _post_forward: before a loss outside of it); in the
///   backward pass it goes at once, and the gather of the unit before is issued. Gradients come in the type of the
///   weights that ran (bf16); when a unit's backward pass is over they are copied into one buffer of the reduction's type
///   (compute stream), which stays until the next unit's reduction, and the reduced share lives in the reduction's
///   stream.
///
/// Experts that expert parallelism cuts and no data rank does are not wrapped (NeMo AutoModel, moe/parallelizer.py:
/// `ignored_params` unless they are cut over ranks of FSDP too): neither gathered nor cast nor reduced, with gradients
/// of their own.

#include <map>

#include "sim/memory/replay_buffers.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

class ReplayFsdp {
 public:
  ReplayFsdp(const Program& program, const Problem& problem, const Plan& plan, ReplayBuffers& buffers);

  /// Whether the runtime is one of these (`copied_out` in its `kept`; above 1: on one device too), and the plan has it
  /// cut anything.
  [[nodiscard]] static bool used(const Problem& problem, const Plan& plan);
  /// Whether a weight belongs to one of its units.
  [[nodiscard]] static bool wraps(const Weight& w, const Parallelism& p);
  /// Bytes of a block's wrapped weights as they run: those held in fp32 are cast before the gather, quantised ones
  /// travel as they are. Where several adapters are allocated, one of which is trained, all of them travel.
  [[nodiscard]] static Bytes whole(const Block& block, const Runtime& runtime, const Parallelism& p);

  /// The weights of the slot are there from here.
  void unshard(std::int32_t slot, bool backward);
  /// The slot has run: forward, the last one (and with a root unit the one before it) stays for the backward pass.
  void reshard(std::int32_t slot, bool backward);
  /// The model has returned: the last gather's buffer goes.
  void end_forward();
  /// The slot's backward pass has left whole gradients, which are dropped once they have been copied.
  void reduce(std::int32_t slot, std::vector<ReplayBuffers::Buffer>& whole);
  /// A micro-batch's backward pass is over.
  void end_backward();
  /// The optimizer has used the gradients.
  void drop_gradients();

 private:
  using Buffer = ReplayBuffers::Buffer;
  [[nodiscard]] Bytes whole(std::int32_t slot) const;
  [[nodiscard]] bool in_root(std::int32_t slot) const;
  void copy_out(std::int32_t slot);
  void copy_in(double elements);

  const Program& program_;
  const Problem& problem_;
  const Plan& plan_;
  ReplayBuffers& buffers_;
  bool root_unit_;  ///< embedding, last norm and head are the root's: gathered once a pass, reduced at its end
  std::map<std::int32_t, std::vector<Buffer>> unsharded_;  ///< a buffer for each weight
  std::map<std::int32_t, Buffer> ahead_, gradients_;
  std::map<std::int32_t, Buffer> apart_;  ///< gradients of weights that are not wrapped
  Buffer gathered_ = -1, reducing_ = -1;
  std::vector<Buffer> root_whole_;
  double root_elements_ = 0;
};

}  // namespace moeplan
