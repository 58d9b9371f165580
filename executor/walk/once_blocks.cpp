/// A block whose tokens go once to each rank: what was a permute and a dispatch is one call, and so on the way back.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "executor/walk/once.hpp"
#include "sim/program/context_steps.hpp"

namespace moeplan {
namespace {

const CommCall* exchange_of(const BlockNode& n, Collective what) {
  const CommCall* comm = std::get_if<CommCall>(&n.call);
  return comm && comm->group == Group::expert && comm->collective == what ? comm : nullptr;
}

template <class Op>
bool is_call(const BlockNode& n, Pass pass) {
  const OpCall* call = std::get_if<OpCall>(&n.call);
  return call && call->pass == pass && std::holds_alternative<Op>(call->op);
}

class Rewriter {
 public:
  explicit Rewriter(Block block) : block_(std::move(block)) {
    for (const auto* list : {&block_.forward, &block_.backward})
      for (const BlockNode& n : *list) {
        if (is_call<op::Permute>(n, Pass::forward)) permutes_[n.writes.front()] = &n;
        if (exchange_of(n, Collective::combine)) combines_[n.writes.front()] = &n;
        if (is_call<op::Combine>(n, Pass::forward)) summed_[n.operands[0]] = true;
        if (is_call<op::Combine>(n, Pass::forward) && !n.recompute) weights_ = n.operands[1];
        if (is_call<op::Combine>(n, Pass::backward)) {
          summed_[n.operands[0]] = true;
          if (n.gradients[0] >= 0) sums_of_[n.gradients[0]] = &n;
        }
        if (is_call<op::Permute>(n, Pass::backward) && n.gradients[2] >= 0) copies_of_[n.gradients[2]] = &n;
      }
    swap_returned();
  }

  std::optional<Block> run() {
    if (weights_ < 0 || !block_.whole.empty()) return {};
    std::vector<BlockNode> forward, backward;
    if (!rewrite(block_.forward, forward) || !rewrite(block_.backward, backward)) return {};
    block_.forward = std::move(forward), block_.backward = std::move(backward);
    find_kept();
    return std::move(block_);
  }

 private:
  /// Where the rows of a sum wait in host memory for its backward pass, the experts' results that they were made of wait instead.
  void swap_returned() {
    for (BlockNode& back : block_.backward) {
      const CommCall* comm = std::get_if<CommCall>(&back.call);
      if (!comm || comm->collective != Collective::from_host) continue;
      const ValueId rows = back.writes.front();
      const auto results = combines_.find(back.operands.front());
      const bool summed = std::any_of(block_.backward.begin(), block_.backward.end(), [&](const BlockNode& n) {
        return is_call<op::Combine>(n, Pass::backward) && n.operands[0] == rows;
      });
      if (!summed || results == combines_.end()) continue;
      const ValueId made = results->second->reads.front(), kept = back.operands.front(),
                    returned = add_like(block_, made, block_.values[static_cast<std::size_t>(made)].name + " (returned)");
      for (BlockNode& out : block_.forward)
        if (const CommCall* leaves = std::get_if<CommCall>(&out.call); leaves && leaves->collective == Collective::to_host && out.reads.front() == kept)
          out.reads.front() = made;
      back.operands.front() = made, back.writes.front() = returned;
      returned_[rows] = returned;
    }
  }

  /// What the new calls of the backward pass read of the forward pass.
  void find_kept() {
    std::set<ValueId> read, written;
    for (const auto* list : {&block_.backward, &block_.weight_backward})
      for (const BlockNode& n : *list)
        for (const ValueId v : n.reads) read.insert(block_.alias[static_cast<std::size_t>(v)]);
    for (const BlockNode& n : block_.forward) written.insert(n.writes.begin(), n.writes.end());
    std::vector<ValueId> kept;
    for (const ValueId v : block_.kept)
      if (read.contains(block_.alias[static_cast<std::size_t>(v)])) kept.push_back(v);
    for (const ValueId v : written)
      if (block_.alias[static_cast<std::size_t>(v)] == v && read.contains(v) &&
          std::find(kept.begin(), kept.end(), v) == kept.end())
        kept.push_back(v);
    block_.kept = std::move(kept);
  }

  bool rewrite(const std::vector<BlockNode>& list, std::vector<BlockNode>& out) const {
    for (const BlockNode& n : list) {
      if (is_call<op::Permute>(n, Pass::forward) || is_call<op::Permute>(n, Pass::backward) ||
          is_call<op::Combine>(n, Pass::backward))
        continue;
      if (is_call<op::Combine>(n, Pass::forward)) {
        const auto comm = combines_.find(n.operands[0]);
        if (comm == combines_.end()) return false;
        out.push_back(*comm->second);
        out.back().recompute = n.recompute, out.back().is_backward = n.is_backward;
        out.back().reads = out.back().operands = {comm->second->reads.front()};
        out.back().writes = {n.operands[3]};
        continue;
      }
      if (exchange_of(n, Collective::dispatch)) {
        out.push_back(n);
        const auto permute = permutes_.find(n.reads.front());
        const auto sum = sums_of_.find(n.reads.front());
        if (permute != permutes_.end()) {
          const std::vector<ValueId>& of = permute->second->operands;
          out.back().operands = {of[0], n.recompute ? -1 : of[1], n.recompute ? -1 : weights_};
        } else if (sum != sums_of_.end()) {
          const BlockNode& combine = *sum->second;
          const auto returned = returned_.find(combine.operands[0]);
          const auto results = combines_.find(combine.operands[0]);
          if (results == combines_.end() && returned == returned_.end()) return false;
          out.back().operands = {combine.gradients[3], returned == returned_.end() ? results->second->reads.front() : returned->second};
          out.back().gradients = {combine.gradients[1]};
          if (combine.gradients[1] >= 0) out.back().writes.push_back(combine.gradients[1]);
        } else {
          return false;
        }
        out.back().reads.clear();
        for (const ValueId v : out.back().operands)
          if (v >= 0) out.back().reads.push_back(v);
        continue;
      }
      if (exchange_of(n, Collective::combine)) {
        if (summed_.contains(n.writes.front())) continue;  // its sum takes it along
        const auto copies = copies_of_.find(n.writes.front());
        if (copies == copies_of_.end() || copies->second->gradients[0] < 0) return false;
        out.push_back(n);
        out.back().operands = {n.reads.front(), -1};
        out.back().writes = {copies->second->gradients[0]};
        continue;
      }
      out.push_back(n);
    }
    // A sum whose rows get no gradient would lose that of its weights.
    for (const BlockNode& n : list)
      if (is_call<op::Combine>(n, Pass::backward) && (n.gradients[0] < 0 || n.gradients[3] < 0)) return false;
    return true;
  }

  Block block_;
  ValueId weights_ = -1;
  std::map<ValueId, const BlockNode*> permutes_, combines_;  ///< by what they write
  std::map<ValueId, bool> summed_;                           ///< rows that a combine sums
  std::map<ValueId, ValueId> returned_;                      ///< rows from host memory: what comes back in their place
  std::map<ValueId, const BlockNode*> sums_of_, copies_of_;  ///< backward: of the gradient of the rows
};

}  // namespace

Block exchanged_once(Block block) {
  const bool exchanges = std::any_of(block.forward.begin(), block.forward.end(), [](const BlockNode& n) {
    return exchange_of(n, Collective::dispatch) != nullptr;
  });
  if (!exchanges) return block;
  std::optional<Block> out = Rewriter(block).run();
  return out ? *std::move(out) : std::move(block);
}

}  // namespace moeplan
