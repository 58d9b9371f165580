#pragma once
/// CPU references: what every operator means, forward and backward, in float or double, written to be read. The judge of every
/// faster implementation, and the CPU backend of the executor. How operands are passed: `kernels/reference_frame.hpp`.

#include "kernels/catalogue.hpp"
#include "kernels/reference_frame.hpp"
#include "kernels/reference_ragged.hpp"

namespace moeplan::reference {

/// Runs the reference of any operator that has one. Throws InputError naming the operator otherwise.
template <class T>
void forward(const Op& op, std::span<const View<T>> values, const Ragged& ragged = {});
template <class T>
void backward(const Op& op, std::span<const View<T>> values, std::span<const View<T>> gradients, const Ragged& ragged = {});

#define MOEPLAN_REFERENCE(Operator)                             \
  template <class T>                                            \
  void forward(const op::Operator& op, const Frame<T>& frame);  \
  template <class T>                                            \
  void backward(const op::Operator& op, const Frame<T>& frame);
#include "kernels/reference_list.inc"
#undef MOEPLAN_REFERENCE

}  // namespace moeplan::reference
