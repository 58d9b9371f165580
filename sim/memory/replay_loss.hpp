#pragma once
/// What a framework's loss over logits allocates, one buffer after the other, where its order is known (the runtime's
/// `kept` names it). A sum at the peak does not tell which holes the buffers leave and fill.
///
///   eager_cross_entropy: PyTorch's, over a copy in fp32: logits (2 bytes), the copy (4), its log-softmax (4, saved);
///   the first two go before the backward pass; there the gradient of the log-softmax (4), of the copy (4), and in the
///   type of the logits (2) follow each other, and only the last is there while the head's products read it.
///   compiled_cross_entropy: the same by torch.compile: logits (2, saved) and their gradient (2).
///   held_logits: the caller holds the copy on, until the next micro-batch has made its own.
///   chunked_head: prime-rl's head, which goes over the vocabulary in pieces of so many times 1,024 logits a token,
///   with the variables of the piece before still there, and makes a gradient of the weights whether or not they are
///   trained.

#include <map>

#include "sim/memory/replay_buffers.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

class ReplayLoss {
 public:
  ReplayLoss(const Runtime& runtime, ReplayBuffers& buffers);

  /// Whether the node is a loss whose buffers are known one by one.
  [[nodiscard]] bool plays(const BlockNode& node) const;
  /// Whether a block's value is there for the sum of these buffers (runtime_form.cpp).
  [[nodiscard]] static bool stands_for_it(const Value& value);
  /// What comes before the node's own results are there, and what goes after them.
  void begin(const BlockNode& node, std::int32_t micro_batch);
  void end(const BlockNode& node);

 private:
  using Buffer = ReplayBuffers::Buffer;
  [[nodiscard]] Buffer take(double bytes) { return buffers_.take({static_cast<std::int64_t>(bytes)}); }
  void forward(double logits, std::int32_t micro_batch);
  void backward(double logits, std::int32_t micro_batch);
  void pieces(double tokens, double vocabulary, bool backward);

  ReplayBuffers& buffers_;
  bool eager_, compiled_, held_;
  double piece_ = 0;
  std::map<std::int32_t, Buffer> saved_;  ///< by micro-batch
  Buffer copy_ = -1, gradient_ = -1;      ///< held by the caller; of the logits
};

}  // namespace moeplan
