#pragma once
/// What outlives a step: weights, and for trained ones the accumulated gradient and the optimizer's moments. One entry
/// for each tensor that the rank's blocks declare, under the name that the checkpoint uses; a tied head is the
/// embedding's entry. Of a tensor that the plan shards (FSDP) a rank holds a flat piece, padded to the same size on all
/// ranks; of experts its own.

#include <map>
#include <string>
#include <vector>

#include "core/checked.hpp"
#include "core/spec/plan.hpp"
#include "executor/backend/backend.hpp"
#include "executor/ranks/place.hpp"

namespace moeplan {

struct Parameter {
  std::string name;  ///< of the first checkpoint tensor's scope: "model.layers.3.self_attn.q_proj.weight"
  WeightClass cls = WeightClass::other;
  Shape shape{};  ///< as the operator calls of this rank see it
  Shape whole{};  ///< over all ranks
  WeightSplit split = WeightSplit::none;
  std::vector<DealtRows> dealt;
  std::vector<AlikeRows> alike;  ///< what neighbouring tensor (experts: expert-tensor) ranks hold too
  DType held = DType::bf16;      ///< type in memory
  bool arranged = false;         ///< `WeightForm`
  bool trained = false, adapter = false, buffer = false;
  bool away = false;             ///< frozen, in host memory: its slot's gather fetches it
  std::vector<TensorSource> sources;  ///< names completed with prefix and layer; `*` left for the expert
  std::int32_t layer = -1;            ///< decoder layer; -1 outside
  std::int64_t shards = 1;            ///< FSDP degree
  Slots slots{};                      ///< of routed experts: which expert group rank has which; null: in their order
  bool silent = false;                ///< zeros, beside a rank that has the values: its gradient counts nothing
  bool counts = true;  ///< of the ranks that hold these elements, the one whose squares enter the gradient norm
  Backend::Memory value, gradient, first_moment, second_moment;  ///< gradient and moments f32, trained only
  /// Of what this rank holds, padding included.
  [[nodiscard]] Cut cut() const { return {whole, shape, split, dealt, slots}; }
  [[nodiscard]] Shape held_shape() const { return shards == 1 ? shape : Shape{ceil_div(shape.elements(), shards)}; }
  /// Whether training changes it, or reads it beside the weights (router biases): what saves hold.
  [[nodiscard]] bool is_state() const { return trained || (buffer && held == DType::f32); }
  [[nodiscard]] TensorView view() const { return {.data = value.get(), .dtype = held, .shape = held_shape(), .arranged = arranged}; }
  [[nodiscard]] TensorView gradient_view() const { return {gradient.get(), DType::f32, held_shape()}; }
};

/// By decoder layer.
using ExpertSlots = std::map<std::int32_t, Slots>;

/// What of the parameters gets memory.
enum class Keep : std::uint8_t { all, state };

/// Trained tensors that lie one after the other, each from a multiple of 256 bytes on; between them are zeros, which
/// gradients and moments of zero keep. What treats all elements alike (clearing, norm, optimizer) takes them as one.
struct TrainedRun {
  DType held = DType::f32;
  bool counts = true;  ///< as of its parameters
  std::int64_t elements = 0;
  Backend::Memory value, gradient, first_moment, second_moment;
};

class Parameters {
 public:
  /// Declares all of them and allocates what is kept, frozen weights and moments in host memory where `offload` has them; values are zero. Refuses states that the executor does not keep,
  /// by name.
  Parameters(const Program& program, const Problem& problem, Backend& backend, const RankPlace& place = {},
             Keep keep = Keep::all, ExpertSlots slots = {}, Offload offload = Offload::none);

  [[nodiscard]] const RankPlace& place() const { return place_; }
  /// Where the routed experts of a decoder layer are; null: in their order.
  [[nodiscard]] Slots slots(std::int32_t layer) const {
    const auto it = slots_.find(layer);
    return it == slots_.end() ? nullptr : it->second;
  }
  [[nodiscard]] const ExpertSlots& slots() const { return slots_; }
  /// Says where the experts are from now on; their memory is moved by executor/ranks/moves.hpp.
  void set_slots(const ExpertSlots& slots);

  [[nodiscard]] std::vector<Parameter>& all() { return all_; }
  [[nodiscard]] const std::vector<Parameter>& all() const { return all_; }
  [[nodiscard]] std::vector<TrainedRun>& runs() { return runs_; }
  /// The entry of weight `w` of a slot.
  [[nodiscard]] std::size_t of(std::size_t slot, WeightId w) const { return index_[slot][static_cast<std::size_t>(w)]; }
  [[nodiscard]] Parameter* find(const std::string& name);
  /// Bytes by what they are: weights, adapters, gradients, optimizer.
  [[nodiscard]] StateBytes bytes() const { return bytes_; }

 private:
  void allocate(Backend& backend, Keep keep, Offload offload);

  RankPlace place_;
  ExpertSlots slots_;
  std::vector<TrainedRun> runs_;
  std::vector<Parameter> all_;
  std::vector<std::vector<std::size_t>> index_;
  std::map<std::string, std::size_t> by_name_;
  StateBytes bytes_;
};

/// A weight of a block as a rank holds it that shares it with so many data ranks.
[[nodiscard]] Bytes held_bytes(const Block& block, WeightId id, const Problem& problem, const Backend& backend, std::int64_t shards);

/// Bytes by which frozen weights take more on a rank than stored as the plan wants them: block-quantised ones that the
/// backend holds in bf16, for want of a kernel or because ranks share them.
[[nodiscard]] Bytes held_beyond_plan(const Program& program, const Problem& problem, const Parallelism& parallelism, const Backend& backend);
/// The same of the copies of weights in host memory that are on the device together.
[[nodiscard]] Bytes fetched_beyond_plan(const Program& program, const Problem& problem, const Plan& plan, const Backend& backend);

/// Seeded start values. Each tensor's numbers depend on the seed and its own name only: nearly normal with deviation
/// 0.02 for matrices (Backend::fill_normal), ones for norms, zeros for biases, B of LoRA pairs zero and A uniform in
/// +- 1/sqrt(in), decays and step biases of the linear mixers in the ranges their papers start from. `only_adapters`
/// leaves everything else as it is.
void randomise(Parameters& parameters, std::uint64_t seed, const ModelSpec& model, Backend& backend,
               bool only_adapters = false);

/// Elements of what this rank holds of a tensor, to and from floats here.
[[nodiscard]] std::vector<float> values_of(const Parameter& p, Backend& backend);
void set_values(Parameter& p, std::span<const float> values, Backend& backend);
/// Keeps of the whole tensor's values what this rank holds.
void set_from_whole(Parameter& p, std::span<const float> whole, const RankPlace& place, Backend& backend);

}  // namespace moeplan
