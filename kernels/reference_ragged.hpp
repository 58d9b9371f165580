#pragma once
/// What a ragged call of the references is told besides its operands: how the routing of its layer and micro-batch turned out, and the
/// executor's policies on it. Without it rows are dealt out evenly, nothing is dropped, and there is no balancing loss.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/grouped_linear/op.hpp"
#include "kernels/permute/op.hpp"
#include "kernels/reference_frame.hpp"
#include "kernels/router/op.hpp"

namespace moeplan::reference {

struct Ragged {
  std::span<const std::int64_t> rows_of_expert{};   ///< `grouped_linear`: rows of each local expert, in order
  std::int64_t capacity = 0;   ///< `permute`: most rows of one expert; later copies are dropped (row_map -1). 0: no limit
  /// `router`: weight a of the balancing loss a E sum_e f_e P_e, f_e the share of the choices that went to e, P_e the mean of
  /// s_e / sum_f s_f over tokens (Fedus et al. 2022, equations 4 to 6); its gradient joins the backward.
  double auxiliary = 0;
};

template <class T>
void forward(const op::GroupedLinear& op, const Frame<T>& frame, const Ragged& ragged);
template <class T>
void backward(const op::GroupedLinear& op, const Frame<T>& frame, const Ragged& ragged);
/// Rows that no copy fills are zero.
template <class T>
void forward(const op::Permute& op, const Frame<T>& frame, const Ragged& ragged);
template <class T>
void backward(const op::Router& op, const Frame<T>& frame, const Ragged& ragged);

}  // namespace moeplan::reference
