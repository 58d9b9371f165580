#include "sim/program/call_kinds.hpp"

#include <algorithm>
#include <array>

namespace moeplan {

bool is_view(const GraphNode& node) {
  const Op* op = std::get_if<Op>(&node.call);
  return node.in_place || (op && is_view(*op));
}

bool is_sum(const Op& op) {
  const op::Add* add = std::get_if<op::Add>(&op);
  return add && add->scale == 1;
}

bool is_cheap(std::string_view kind) {
  static constexpr std::array<std::string_view, 14> names{
      "rms_norm", "gated_rms_norm", "layer_norm",         "glu",          "activation", "add",       "mul_gate", "rope",
      "split",    "short_conv",     "attention_residual", "hyper_expand", "hyper_pre",  "hyper_post"};
  return std::find(names.begin(), names.end(), kind) != names.end();
}

bool may_wait(std::string_view kind) { return kind == "linear" || kind == "grouped_linear"; }

bool is_routing(std::string_view kind) { return kind == "router" || kind == "indexer"; }

Lane lane_of(const CommCall& comm) {
  switch (comm.group) {
    case Group::expert:
    case Group::expert_tensor:
    case Group::tensor:
    case Group::context:
      return Lane::expert_communication;
    default:
      return Lane::data_communication;
  }
}

Collective reversed(Collective c) {
  switch (c) {
    case Collective::all_gather:
      return Collective::reduce_scatter;
    case Collective::reduce_scatter:
      return Collective::all_gather;
    case Collective::dispatch:
      return Collective::combine;
    case Collective::combine:
      return Collective::dispatch;
    default:
      return c;
  }
}

}  // namespace moeplan
