/// \file
/// What the roundings on the way cost each gradient of the loss's weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "kernels/reference.hpp"
#include "tests/kernels/device_call.hpp"

namespace moeplan::test {

/// Bounds for the gradients of W, b, A and B of `cross_entropy`, element by element.
///
/// The gradient of a logit, dz, is kept in bf16, and so are x A^T and dz B of a pair; the reference keeps them whole.
/// Each rounding is off by at most u = 2^-8 of its value, evenly spread, so that a sum of rounded terms a_i is off by
/// at most u sum |a_i|, and by more than 6 standard deviations, 6 / sqrt(3) u sqrt(sum a_i^2), in none of 10^8 cases.
/// Where a label's dz, near -1 / tokens, meets another token's probability of the same entry, the terms cancel and the
/// gradient is off by several per cent of itself: the sums of the magnitudes say by how much. dz of one token is read
/// from the reference as the gradient of a bias; what rounding x A^T does to it, as the same with the change of the
/// logits in that bias.
class CrossEntropyRounding {
 public:
  CrossEntropyRounding(const op::CrossEntropy& op, const std::vector<reference::View<double>>& values, double dloss)
      : op_(op) {
    const Operands list = op.operands();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string_view name = list[i].name;
      if (name == "x") x_ = values[i];
      if (name == "labels") labels_ = values[i];
      if (name == "w") w_ = values[i];
      if (name == "b") b_ = values[i];
      if (name == "a") a_ = values[i];
      if (name == "b_lora") b_lora_ = values[i];
      if (name == "lse") lse_ = values[i];
    }
    std::int64_t labelled = 0;
    for (std::int64_t t = 0; t < op.tokens; ++t) labelled += labels_[t] >= 0;
    for (std::int64_t t = 0; t < op.tokens; ++t) add_token(t, labelled ? dloss / static_cast<double>(labelled) : 0);
  }

  /// Of every element of the gradient of `name`; empty for what is not bounded here.
  [[nodiscard]] std::vector<double> of(std::string_view name) const {
    std::vector<double> out;
    const double s = std::abs(op_.lora_scale);
    const auto each = [&](std::int64_t rows, std::int64_t columns, auto&& bound) {
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j)
          out.push_back(bound(static_cast<std::size_t>(i), static_cast<std::size_t>(j)));
    };
    const auto over_tokens = [&](auto&& term, auto&& change) {  // rounded terms, and changes that add up as they are
      Sum sum;
      double changes = 0;
      for (std::size_t t = 0; t < dz_.size(); ++t) sum.add(term(t)), changes += std::abs(change(t));
      return sum.bound() + changes;
    };
    const auto x = [&](std::size_t t, std::size_t c) {
      return x_(static_cast<std::int64_t>(t), static_cast<std::int64_t>(c));
    };
    if (name == "w")
      each(op_.vocabulary, op_.hidden, [&](std::size_t v, std::size_t c) {
        return over_tokens([&](std::size_t t) { return dz_[t][v] * x(t, c); },
                           [&](std::size_t t) { return moved_[t][v] * x(t, c); });
      });
    if (name == "b")
      each(op_.vocabulary, 1, [&](std::size_t v, std::size_t) {
        return over_tokens([&](std::size_t t) { return dz_[t][v]; }, [&](std::size_t t) { return moved_[t][v]; });
      });
    if (name == "b_lora")  // dz and x A^T are rounded each
      each(op_.vocabulary, op_.lora_rank, [&](std::size_t v, std::size_t r) {
        return s * over_tokens([&](std::size_t t) { return 2 * dz_[t][v] * low_[t][r]; },
                               [&](std::size_t t) { return moved_[t][v] * low_[t][r]; });
      });
    if (name == "a")
      each(op_.lora_rank, op_.hidden, [&](std::size_t r, std::size_t c) {
        double all = 0, squares = 0;  // each token's error is bounded already
        for (std::size_t t = 0; t < dz_.size(); ++t) {
          const double term = s * back_off_[t][r] * x(t, c);
          all += std::abs(term), squares += term * term;
        }
        return std::min(all, std::sqrt(squares));
      });
    return out;
  }

 private:
  static constexpr double u = 1.0 / 256;
  struct Sum {
    double all = 0, squares = 0;
    void add(double term) { all += std::abs(term), squares += term * term; }
    [[nodiscard]] double bound() const { return u * std::min(all, 3.47 * std::sqrt(squares)); }
  };

  /// The gradient of one token's logits, its share of the loss being `share`, with `shift` added to them before the
  /// scale.
  [[nodiscard]] std::vector<double> logit_gradient(std::int64_t t, double share,
                                                   const std::vector<double>& shift) const {
    op::CrossEntropy one = op_;
    one.tokens = 1, one.bias = true, one.training = Training::full, one.fused_gradient = false;
    std::vector<double> bias = shift, out(bias.size(), 0);
    for (std::size_t v = 0; b_ && v < bias.size(); ++v) bias[v] += b_[static_cast<std::int64_t>(v)];
    const Operands list = one.operands();
    std::vector<reference::View<double>> values(list.size()), gradients(list.size());
    double label = labels_[t], log_sum = lse_[t], loss = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string_view name = list[i].name;
      if (name == "x") values[i].data = x_.row(t);
      if (name == "labels") values[i].data = &label;
      if (name == "w") values[i].data = w_.data;
      if (name == "b") values[i].data = bias.data(), gradients[i].data = out.data();
      if (name == "a") values[i].data = a_.data;
      if (name == "b_lora") values[i].data = b_lora_.data;
      if (name == "lse") values[i].data = &log_sum;
      if (name == "loss") values[i].data = &loss, gradients[i].data = &share;
    }
    reference::backward<double>(one, values, gradients);
    return out;
  }

  void add_token(std::int64_t t, double share) {
    const auto vocabulary = static_cast<std::size_t>(op_.vocabulary), rank = static_cast<std::size_t>(op_.lora_rank);
    std::vector<double> low(rank), shift(vocabulary), off(rank);
    for (std::size_t r = 0; r < rank; ++r)
      for (std::int64_t c = 0; c < op_.hidden; ++c) low[r] += a_(static_cast<std::int64_t>(r), c) * x_(t, c);
    dz_.push_back(logit_gradient(t, share, shift));
    moved_.emplace_back(vocabulary, 0.0);
    if (rank > 0) {
      const std::vector<double> stored_low = numbers(DType::bf16, stored(DType::bf16, low, rank));
      for (std::size_t v = 0; v < vocabulary; ++v)
        for (std::size_t r = 0; r < rank; ++r)
          shift[v] += op_.lora_scale * (stored_low[r] - low[r]) *
                      b_lora_(static_cast<std::int64_t>(v), static_cast<std::int64_t>(r));
      moved_.back() = logit_gradient(t, share, shift);
      for (std::size_t v = 0; v < vocabulary; ++v) moved_.back()[v] -= dz_.back()[v];
      for (std::size_t r = 0; r < rank; ++r) {
        Sum sum;
        double back = 0, moved = 0;
        for (std::size_t v = 0; v < vocabulary; ++v) {
          const double b = b_lora_(static_cast<std::int64_t>(v), static_cast<std::int64_t>(r));
          sum.add(dz_.back()[v] * b), back += dz_.back()[v] * b, moved += moved_.back()[v] * b;
        }
        off[r] = sum.bound() + u * std::abs(back) + std::abs(moved);
      }
    }
    low_.push_back(low), back_off_.push_back(off);
  }

  const op::CrossEntropy& op_;
  reference::View<double> x_, labels_, w_, b_, a_, b_lora_, lse_;
  std::vector<std::vector<double>> dz_, moved_;      ///< [tokens][vocabulary]: dz, and what rounding x A^T adds to it
  std::vector<std::vector<double>> low_, back_off_;  ///< [tokens][rank]: x A^T, and by how much dz B is off
};

}  // namespace moeplan::test
