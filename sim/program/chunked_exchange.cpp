#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "sim/program/block.hpp"
#include "sim/program/routed_rows.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

bool is_exchange(const BlockNode& n, Collective what) {
  const CommCall* comm = std::get_if<CommCall>(&n.call);
  return comm && comm->group == Group::expert && comm->collective == what;
}

class Chunker {
 public:
  Chunker(Block block, std::int64_t chunks) : block_(std::move(block)), chunks_(chunks) {
    for (std::size_t v = 0; v < block_.values.size(); ++v) block_.whole.push_back(static_cast<ValueId>(v));
  }

  Block run() {
    for (auto* nodes : {&block_.forward, &block_.backward}) *nodes = cut(*nodes);
    for (auto* nodes : {&block_.forward, &block_.backward, &block_.weight_backward})
      for (BlockNode& n : *nodes) n.reads = expanded(n.reads);
    block_.kept = expanded(block_.kept);
    block_.put_off = expanded(block_.put_off);
    for (const auto* ends : {&block_.outputs, &block_.input_grads})
      for (const ValueId v : *ends) if (v >= 0 && pieces_.count(v)) throw std::logic_error(block_.name + ": an exchange ends in what the block hands on");
    if (pieces_.empty()) block_.whole.clear();
    return std::move(block_);
  }

 private:
  /// Rows [from, until) of piece k of n rows.
  std::int64_t rows(std::int64_t n, std::int64_t k) const { return n * (k + 1) / chunks_ - n * k / chunks_; }

  const std::vector<ValueId>& pieces(ValueId v) {
    const auto [it, fresh] = pieces_.try_emplace(v);
    if (!fresh) return it->second;
    const ValueId alias = block_.alias[index(v)];
    const std::vector<ValueId> of_alias = alias != v ? pieces(alias) : std::vector<ValueId>{};
    std::vector<ValueId> made;
    for (std::int64_t k = 0; k < chunks_; ++k) {
      Value piece = block_.values[index(v)];
      piece.shape.dim[0] = rows(piece.shape.dim[0], k);
      piece.name += fmt::format(" [{}]", k);
      made.push_back(static_cast<ValueId>(block_.values.size()));
      block_.values.push_back(std::move(piece));
      block_.category.push_back(block_.category[index(v)]);
      block_.alias.push_back(of_alias.empty() ? made.back() : of_alias[static_cast<std::size_t>(k)]);
      block_.whole.push_back(v);
    }
    return pieces_[v] = std::move(made);
  }

  std::vector<ValueId> expanded(const std::vector<ValueId>& ids) const {
    std::vector<ValueId> out;
    for (const ValueId v : ids) {
      const auto it = pieces_.find(v);
      if (it == pieces_.end()) out.push_back(v);
      else out.insert(out.end(), it->second.begin(), it->second.end());
    }
    return out;
  }

  /// The k-th piece of a call: what it reads and writes by rows cut, gradients of weights with the last piece.
  BlockNode piece(const BlockNode& node, std::int64_t k) {
    BlockNode out = node;
    if (CommCall* comm = std::get_if<CommCall>(&out.call)) {
      const auto share = [&](std::int64_t& n) { n = rows(n, k); };
      share(comm->payload.value), share(comm->rows), share(comm->tokens);
      comm->beside_compute = comm->group == Group::expert;
    } else if (OpCall* op = std::get_if<OpCall>(&out.call)) {
      std::int64_t* n = rows_of_routed(op->op);
      if (!n) throw std::logic_error(fmt::format("{}: {} between dispatch and combine cannot be cut by rows", block_.name, kind(op->op)));
      *n = rows(*n, k);
    }
    for (ValueId& v : out.reads) if (pieces_.count(v)) v = pieces(v)[static_cast<std::size_t>(k)];
    std::vector<ValueId> writes;
    for (const ValueId v : node.writes) {
      if (std::find(block_.weight_grads.begin(), block_.weight_grads.end(), v) == block_.weight_grads.end()) writes.push_back(pieces(v)[static_cast<std::size_t>(k)]);
      else if (k + 1 == chunks_) writes.push_back(v);
    }
    out.writes = std::move(writes);
    return out;
  }

  std::vector<BlockNode> cut(const std::vector<BlockNode>& nodes) {
    std::vector<BlockNode> out;
    for (std::size_t i = 0; i < nodes.size();) {
      if (!is_exchange(nodes[i], Collective::dispatch)) {
        out.push_back(nodes[i++]);
        continue;
      }
      std::size_t end = i + 1;
      while (end < nodes.size() && !is_exchange(nodes[end], Collective::combine) && !is_exchange(nodes[end], Collective::dispatch)) ++end;
      const bool closed = end < nodes.size() && is_exchange(nodes[end], Collective::combine);
      if (closed) ++end;
      std::vector<BlockNode> cut_calls;
      for (std::int64_t k = 0; k < chunks_; ++k) {
        out.push_back(piece(nodes[i], k));
        if (k == 0 && i + 1 < end && std::holds_alternative<HostWait>(nodes[i + 1].call)) {
          out.push_back(nodes[i + 1]);
          out.back().reads = {pieces(nodes[i].writes.front()).front()};
        }
      }
      for (std::size_t n = i + 1; n < end; ++n) {
        if (std::holds_alternative<HostWait>(nodes[n].call)) continue;
        const bool by_rows = std::any_of(nodes[n].reads.begin(), nodes[n].reads.end(), [&](ValueId v) { return pieces_.count(v) > 0; });
        if (!by_rows) { out.push_back(nodes[n]); continue; }
        cut_calls.push_back(nodes[n]);
        for (const ValueId v : nodes[n].writes)
          if (std::find(block_.weight_grads.begin(), block_.weight_grads.end(), v) == block_.weight_grads.end()) pieces(v);
      }
      for (std::int64_t k = 0; k < chunks_; ++k)
        for (const BlockNode& n : cut_calls) out.push_back(piece(n, k));
      i = end;
    }
    return out;
  }

  Block block_;
  std::int64_t chunks_;
  std::map<ValueId, std::vector<ValueId>> pieces_;
};

}  // namespace

Block chunked_exchange(Block block, std::int64_t chunks) { return Chunker(std::move(block), chunks).run(); }

}  // namespace moeplan
