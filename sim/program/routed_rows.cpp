#include "sim/program/routed_rows.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace moeplan {
namespace {

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

bool works_on_rows(const Op& op) { return ragged_rows(const_cast<Op&>(op)) != nullptr; }

class Finder {
 public:
  explicit Finder(const Block& block) : block_(block), follows_(block.values.size(), false) {}

  std::optional<RoutedRows> run() {
    if (!pass(block_.forward, out_.forward) || !pass(block_.backward, out_.backward) ||
        !pass(block_.weight_backward, out_.weight_backward))
      return std::nullopt;
    if (out_.sent == 0) return RoutedRows{};
    for (std::size_t v = 0; v < follows_.size(); ++v)
      if (follows(static_cast<ValueId>(v))) out_.values.push_back(static_cast<ValueId>(v));
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool follows(ValueId v) const { return follows_[index(whole_of(block_, v))]; }
  void follow(ValueId v) { follows_[index(whole_of(block_, v))] = true; }

  bool pass(const std::vector<BlockNode>& nodes, std::vector<std::size_t>& calls) {
    std::map<ValueId, std::int64_t> sent;   // in all pieces of an exchange
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const BlockNode& n = nodes[i];
      if (const CommCall* comm = std::get_if<CommCall>(&n.call)) {
        if (is_host_copy(comm->collective) || comm->group == Group::expert_tensor) return false;
        if (comm->collective != Collective::dispatch) continue;
        sent[whole_of(block_, n.writes.front())] += comm->rows;
        for (const ValueId v : n.writes) follow(v);
      } else if (const OpCall* call = std::get_if<OpCall>(&n.call)) {
        if (works_on_rows(call->op)) {
          take(n, call->op);
        } else if (std::holds_alternative<op::Add>(call->op) && follows(n.reads.front())) {
          for (const ValueId v : n.writes) follow(v);
        } else {
          continue;
        }
        calls.push_back(i);
      }
    }
    for (const auto& [value, rows] : sent) {
      if (out_.sent != 0 && out_.sent != rows) return false;
      out_.sent = rows;
    }
    return true;
  }

  void take(const BlockNode& n, const Op& op) {
    const Operands contract = operands(op);
    for (std::size_t o = 0; o < contract.size(); ++o) {
      if (!contract[o].ragged) continue;
      for (const auto* list : {&n.operands, &n.gradients})
        if (o < list->size() && (*list)[o] >= 0) follow((*list)[o]);
    }
  }

  const Block& block_;
  std::vector<bool> follows_;
  RoutedRows out_;
};

/// Which piece of which whole each value is.
struct Pieces {
  explicit Pieces(const Block& block) : place(block.whole.size(), -1), of_whole(block.whole.size(), 0) {
    for (std::size_t v = 0; v < block.whole.size(); ++v)
      if (const std::size_t w = index(block.whole[v]); w != v) place[v] = of_whole[w]++;
  }
  /// Of `n` rows those of value `v`, cut as chunked_exchange does.
  [[nodiscard]] std::int64_t rows(const Block& block, ValueId v, std::int64_t n) const {
    if (place.empty() || place[index(v)] < 0) return n;
    const std::int64_t k = place[index(v)], count = of_whole[index(block.whole[index(v)])];
    return n * (k + 1) / count - n * k / count;
  }
  /// The following value whose rows a call works on: one piece, or a whole where it reads all of its pieces.
  [[nodiscard]] std::int64_t rows(const Block& block, const BlockNode& node, const std::vector<bool>& follows, std::int64_t n) const {
    if (place.empty()) return n;
    ValueId piece = -1;
    for (const auto* list : {&node.reads, &node.writes})
      for (const ValueId v : *list) {
        if (!follows[index(v)] || place[index(v)] < 0) continue;
        if (piece >= 0 && place[index(v)] != place[index(piece)]) return n;
        piece = v;
      }
    return piece < 0 ? n : rows(block, piece, n);
  }

  std::vector<std::int32_t> place, of_whole;   ///< -1: no piece; pieces of each whole
};

}  // namespace

std::int64_t* ragged_rows(Op& op) {
  if (auto* linear = std::get_if<op::GroupedLinear>(&op)) return &linear->rows;
  if (auto* glu = std::get_if<op::Glu>(&op)) return glu->ragged ? &glu->tokens : nullptr;
  if (auto* activate = std::get_if<op::Activate>(&op)) return activate->ragged ? &activate->tokens : nullptr;
  return nullptr;
}
std::int64_t* rows_of_routed(Op& op) {
  if (auto* linear = std::get_if<op::GroupedLinear>(&op)) return &linear->rows;
  if (auto* glu = std::get_if<op::Glu>(&op)) return &glu->tokens;
  if (auto* activate = std::get_if<op::Activate>(&op)) return &activate->tokens;
  if (auto* add = std::get_if<op::Add>(&op)) return &add->tokens;
  return nullptr;
}

std::optional<RoutedRows> routed_rows(const Block& block) { return Finder(block).run(); }

void set_routed_scale(Block& block, const RoutedRows& rows, double scale) {
  const auto arriving =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(rows.sent) * scale));  // as Builder::dispatch
  const Pieces pieces(block);
  std::vector<bool> follows(pieces.place.empty() ? 0 : block.values.size(), false);
  for (const ValueId v : rows.values) {
    block.values[index(v)].shape.dim[0] = pieces.rows(block, v, arriving);
    if (!follows.empty()) follows[index(v)] = true;
  }
  const auto set = [&](std::vector<BlockNode>& nodes, const std::vector<std::size_t>& calls) {
    for (const std::size_t i : calls) {
      const std::int64_t here = pieces.rows(block, nodes[i], follows, arriving);
      Op& op = std::get<OpCall>(nodes[i].call).op;
      if (std::int64_t* n = ragged_rows(op))
        *n = here;
      else
        std::get<op::Add>(op).tokens = here;
    }
  };
  set(block.forward, rows.forward);
  set(block.backward, rows.backward);
  set(block.weight_backward, rows.weight_backward);
}

}  // namespace moeplan
