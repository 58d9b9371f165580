#include "sim/program/routed_rows.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan {
namespace {

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

bool works_on_rows(const Op& op) { return ragged_rows(const_cast<Op&>(op)) != nullptr; }

class Finder {
 public:
  explicit Finder(const Block& block) : block_(block), follows_(block.values.size(), false) {}

  std::optional<RoutedRows> run() {
    if (!block_.whole.empty()) return std::nullopt;
    if (!pass(block_.forward, out_.forward) || !pass(block_.backward, out_.backward) ||
        !pass(block_.weight_backward, out_.weight_backward))
      return std::nullopt;
    if (out_.sent == 0) return RoutedRows{};
    for (std::size_t v = 0; v < follows_.size(); ++v)
      if (follows_[v]) out_.values.push_back(static_cast<ValueId>(v));
    return std::move(out_);
  }

 private:
  bool pass(const std::vector<BlockNode>& nodes, std::vector<std::size_t>& calls) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const BlockNode& n = nodes[i];
      if (const CommCall* comm = std::get_if<CommCall>(&n.call)) {
        if (is_host_copy(comm->collective) || comm->group == Group::expert_tensor) return false;
        if (comm->collective != Collective::dispatch) continue;
        if (out_.sent != 0 && out_.sent != comm->rows) return false;
        out_.sent = comm->rows;
        for (const ValueId v : n.writes) follows_[index(v)] = true;
      } else if (const OpCall* call = std::get_if<OpCall>(&n.call)) {
        if (works_on_rows(call->op)) {
          take(n, call->op);
        } else if (std::holds_alternative<op::Add>(call->op) && follows_[index(n.reads.front())]) {
          for (const ValueId v : n.writes) follows_[index(v)] = true;
        } else {
          continue;
        }
        calls.push_back(i);
      }
    }
    return true;
  }

  void take(const BlockNode& n, const Op& op) {
    const Operands contract = operands(op);
    for (std::size_t o = 0; o < contract.size(); ++o) {
      if (!contract[o].ragged) continue;
      for (const auto* list : {&n.operands, &n.gradients})
        if (o < list->size() && (*list)[o] >= 0) follows_[index((*list)[o])] = true;
    }
  }

  const Block& block_;
  std::vector<bool> follows_;
  RoutedRows out_;
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
  for (const ValueId v : rows.values) block.values[index(v)].shape.dim[0] = arriving;
  const auto set = [&](std::vector<BlockNode>& nodes, const std::vector<std::size_t>& calls) {
    for (const std::size_t i : calls) {
      Op& op = std::get<OpCall>(nodes[i].call).op;
      if (std::int64_t* n = ragged_rows(op))
        *n = arriving;
      else
        std::get<op::Add>(op).tokens = arriving;
    }
  };
  set(block.forward, rows.forward);
  set(block.backward, rows.backward);
  set(block.weight_backward, rows.weight_backward);
}

}  // namespace moeplan
