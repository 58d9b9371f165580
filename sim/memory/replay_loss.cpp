#include "sim/memory/replay_loss.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/program/loss_values.hpp"

namespace moeplan {
namespace {

const op::CrossEntropy* loss_of(const BlockNode& node) {
  const OpCall* call = std::get_if<OpCall>(&node.call);
  return call ? std::get_if<op::CrossEntropy>(&call->op) : nullptr;
}

}  // namespace

ReplayLoss::ReplayLoss(const Runtime& runtime, ReplayBuffers& buffers)
    : buffers_(buffers),
      eager_(runtime.whole_logits && runtime.kept.contains("eager_cross_entropy")),
      compiled_(runtime.whole_logits && runtime.kept.contains("compiled_cross_entropy")),
      held_(runtime.kept.contains("held_logits")) {
  if (const auto it = runtime.kept.find("chunked_head"); it != runtime.kept.end() && !runtime.whole_logits)
    piece_ = 1024 * it->second;
}

bool ReplayLoss::plays(const BlockNode& node) const { return (eager_ || compiled_ || piece_ > 0) && loss_of(node); }

bool ReplayLoss::stands_for_it(const Value& value) {
  return value.name == kBesideForward || value.name == kBesideBackward || value.name == kKeptByRuntime;
}

void ReplayLoss::begin(const BlockNode& node, std::int32_t micro_batch) {
  if (piece_ > 0 || node.recompute) return;  // heads are not checkpointed
  const op::CrossEntropy& loss = *loss_of(node);
  const double logits = static_cast<double>(loss.tokens) * static_cast<double>(loss.vocabulary);
  std::get<OpCall>(node.call).pass == Pass::backward ? backward(logits, micro_batch) : forward(logits, micro_batch);
}

void ReplayLoss::end(const BlockNode& node) {
  buffers_.drop(std::exchange(gradient_, -1));
  if (piece_ == 0) return;
  const op::CrossEntropy& loss = *loss_of(node);
  const bool backward = std::get<OpCall>(node.call).pass == Pass::backward;
  const auto tokens = static_cast<double>(loss.tokens), vocabulary = static_cast<double>(loss.vocabulary);
  const Buffer of_weights =
      backward && loss.training != Training::full ? take(2 * vocabulary * static_cast<double>(loss.hidden)) : -1;
  pieces(tokens, vocabulary, backward);
  buffers_.drop(of_weights);
}

void ReplayLoss::forward(double logits, std::int32_t micro_batch) {
  const Buffer made = take(2 * logits);
  if (compiled_) {
    saved_[micro_batch] = made;
    return;
  }
  const Buffer copy = take(4 * logits);
  if (held_) buffers_.drop(made), buffers_.drop(std::exchange(copy_, copy));
  saved_[micro_batch] = take(4 * logits);
  if (!held_) buffers_.drop(copy), buffers_.drop(made);
}

void ReplayLoss::backward(double logits, std::int32_t micro_batch) {
  const Buffer arrived = compiled_ ? -1 : take(4 * logits), of_copy = compiled_ ? -1 : take(4 * logits);
  buffers_.drop(arrived);
  if (compiled_) gradient_ = take(2 * logits);
  buffers_.drop(saved_[micro_batch]);
  saved_.erase(micro_batch);
  if (!compiled_) gradient_ = take(2 * logits);
  buffers_.drop(of_copy);
}

/// Logits, their fp32 copy, and backward the probabilities and their gradient: variables of a loop, each replaced once
/// its successor is there; differences and casts go at once.
void ReplayLoss::pieces(double tokens, double vocabulary, bool backward) {
  const double one = tokens * std::min(piece_, vocabulary);
  std::array<Buffer, 4> variables{-1, -1, -1, -1};
  constexpr std::array<double, 4> kBytes{2, 4, 4, 4};
  for (int turn = 0; turn < 2; ++turn) {
    for (std::size_t v = 0; v < (backward ? variables.size() : 2); ++v) {
      const Buffer difference = v == 2 ? take(4 * one) : -1;
      buffers_.drop(std::exchange(variables[v], take(kBytes[v] * one)));
      buffers_.drop(difference);
    }
    if (!backward) {  // exp(x - max), and its product with x
      const Buffer difference = take(4 * one), exponential = take(4 * one);
      buffers_.drop(difference);
      buffers_.drop(take(4 * one));
      buffers_.drop(exponential);
    }
    if (backward) buffers_.drop(take(2 * one));
  }
  for (const Buffer b : variables) buffers_.drop(b);
}

}  // namespace moeplan
