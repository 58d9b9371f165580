#pragma once
/// The contract of an operator: one plain struct with its dimensions as fields, from which everything else is derived (bytes
/// moved, activations kept, flops, calibration key, buffers of the executor, test inputs, JSON).
///
/// An operator `T` in `kernels/<name>/op.hpp` provides
///   static constexpr std::string_view kind;      // snake_case, the folder's name
///   template <class = void> static constexpr auto fields();  // dims and switches (core/fields.hpp); they make the calibration key
///   Operands operands() const;                   // forward signature: inputs, weights, outputs in call order
///   Flops flops(Pass, Wants) const;              // arithmetic really done (causal attention: the visible pairs only)
///   static std::vector<T> cases();               // shapes for tests and benchmarks, odd ones included
/// and, only where it differs from the default of zero, `Bytes workspace(Pass, Wants) const`.
///
/// The backward signature is derived: it reads the gradient of every differentiable output and every operand whose `need`
/// matches what is wanted, and writes the gradient of every differentiable input (`Wants::input_grad`) and of every
/// trained weight (`Wants::weight_grad`).

#include <boost/container/static_vector.hpp>
#include <cstdint>
#include <string_view>

#include "core/dtype.hpp"
#include "core/fields.hpp"
#include "core/quantity.hpp"
#include "core/spec/training.hpp"

namespace moeplan {

enum class Pass : std::uint8_t { forward, backward };

/// Which gradients a backward call is asked for. A frozen linear has no weight gradient; the first trained layer has no input gradient.
struct Wants {
  bool input_grad = true;
  bool weight_grad = true;
  constexpr bool operator==(const Wants&) const = default;
};

enum class Role : std::uint8_t {
  input,   ///< differentiable input
  index,   ///< input without a gradient (token ids, routing indices, labels, cumulative lengths)
  weight,  ///< parameter; has a gradient only if `trained`
  output,  ///< differentiable output
  aux,     ///< output without a gradient, written for the backward pass or for others (log-sum-exp, inverse rms, counts, indices)
};

/// For which wanted gradient the backward pass reads a forward operand again.
enum Need : std::uint8_t { not_needed = 0, for_input_grad = 1, for_weight_grad = 2, for_any_grad = 3 };

struct Operand {
  std::string_view name;
  Role role = Role::input;
  Shape shape{};
  DType dtype = DType::bf16;
  Need need = not_needed;
  bool trained = false;  ///< weights only
  bool ragged = false;   ///< rows follow the routing; the shape holds the planned (mean or bounded) number of rows

  [[nodiscard]] Bytes bytes() const { return stored_bytes(dtype, shape); }
};

using Operands = boost::container::static_vector<Operand, 24>;

[[nodiscard]] constexpr bool needed(Need need, Wants wants) {
  return ((need & for_input_grad) && wants.input_grad) || ((need & for_weight_grad) && wants.weight_grad);
}

template <class T>
concept Operator = HasFields<T> && HasKind<T> && requires(const T& op, Pass pass, Wants wants) {
  { op.operands() } -> std::same_as<Operands>;
  { op.flops(pass, wants) } -> std::same_as<Flops>;
  { T::cases() };
};

}  // namespace moeplan
