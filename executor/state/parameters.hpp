#pragma once
/// What outlives a step: weights, and for trained ones the accumulated gradient and the optimizer's moments. One entry for each tensor that
/// the rank's blocks declare, under the name that the checkpoint uses; a tied head is the embedding's entry.

#include <map>
#include <string>
#include <vector>

#include "core/spec/plan.hpp"
#include "executor/backend/backend.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

struct Parameter {
  std::string name;                      ///< of the first checkpoint tensor's scope: "model.layers.3.self_attn.q_proj.weight"
  WeightClass cls = WeightClass::other;
  Shape shape{};
  DType held = DType::bf16;              ///< type in memory
  bool trained = false, adapter = false, buffer = false;
  std::vector<TensorSource> sources;     ///< names completed with prefix and layer; `*` left for the expert
  std::int32_t layer = -1;               ///< decoder layer; -1 outside
  Backend::Memory value, gradient, first_moment, second_moment;   ///< gradient and moments f32, trained only
  [[nodiscard]] TensorView view() const { return {value.get(), held, shape}; }
  [[nodiscard]] TensorView gradient_view() const { return {gradient.get(), DType::f32, shape}; }
};

class Parameters {
 public:
  /// Declares and allocates all of them; values are zero. Refuses states that the executor does not keep, by name.
  Parameters(const Program& program, const Problem& problem, Backend& backend);

  [[nodiscard]] std::vector<Parameter>& all() { return all_; }
  [[nodiscard]] const std::vector<Parameter>& all() const { return all_; }
  /// The entry of weight `w` of a slot.
  [[nodiscard]] std::size_t of(std::size_t slot, WeightId w) const { return index_[slot][static_cast<std::size_t>(w)]; }
  [[nodiscard]] Parameter* find(const std::string& name);
  /// Bytes by what they are: weights, adapters, gradients, optimizer.
  [[nodiscard]] StateBytes bytes() const { return bytes_; }

 private:
  std::vector<Parameter> all_;
  std::vector<std::vector<std::size_t>> index_;
  std::map<std::string, std::size_t> by_name_;
  StateBytes bytes_;
};

/// Seeded start values. Each tensor's numbers depend on the seed and its own name only: nearly normal with deviation 0.02 for matrices (Backend::fill_normal), ones
/// for norms, zeros for biases, B of LoRA pairs zero and A uniform in +- 1/sqrt(in), decays and step biases of the linear mixers in the
/// ranges their papers start from. `only_adapters` leaves everything else as it is.
void randomise(Parameters& parameters, std::uint64_t seed, const ModelSpec& model, Backend& backend, bool only_adapters = false);

/// Elements of a tensor's values, to and from floats here.
[[nodiscard]] std::vector<float> values_of(const Parameter& p, Backend& backend);
void set_values(Parameter& p, std::span<const float> values, Backend& backend);

}  // namespace moeplan
