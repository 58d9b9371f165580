/// What a block exchanges with other context ranks.

#include "sim/program/builder.hpp"

namespace moeplan {

void Builder::communicate(const CommCall& call, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
  graph_.nodes.push_back({.call = call, .inputs = std::move(inputs), .weights = {}, .outputs = std::move(outputs)});
}

ValueId Builder::gather_context(ValueId x) {
  if (context_.cp == 1) return x;
  Value v = value(x);
  v.shape.dim[0] *= context_.cp;
  v.name += ".gathered";
  v.producer = static_cast<std::int32_t>(graph_.nodes.size());
  const Bytes payload = v.bytes();
  const ValueId out = add_value(std::move(v));
  communicate({.collective = Collective::all_gather, .group = Group::context, .payload = payload}, {x}, {out});
  return out;
}

ValueId Builder::exchange_context(ValueId x, bool heads_for_tokens) {
  if (context_.cp == 1) return x;
  Value v = value(x);
  const std::int64_t columns = v.shape[v.shape.rank - 1], rows = v.shape.elements() / columns, cp = context_.cp;
  v.shape = heads_for_tokens ? Shape{rows * cp, columns / cp} : Shape{rows / cp, columns * cp};
  v.name += ".exchanged";
  v.producer = static_cast<std::int32_t>(graph_.nodes.size());
  const Bytes payload = v.bytes();
  const ValueId out = add_value(std::move(v));
  communicate({.collective = Collective::all_to_all, .group = Group::context, .payload = payload}, {x}, {out});
  return out;
}

std::vector<ValueId> Builder::halo(std::span<const ValueId> values, std::int64_t rows) {
  if (context_.cp == 1 || rows == 0) return {};
  std::vector<ValueId> inputs(values.begin(), values.end()), out;
  CommCall call{.collective = Collective::send_receive, .group = Group::context, .rows = context_.runs};
  for (const ValueId x : values) {
    Value v = value(x);
    const std::int64_t columns = v.shape[v.shape.rank - 1];
    v.shape = {run_count() * rows, columns};
    v.name += ".before";
    v.differentiable = false;
    v.always_kept = true;
    v.producer = static_cast<std::int32_t>(graph_.nodes.size());
    call.payload += v.bytes();
    out.push_back(add_value(std::move(v)));
  }
  communicate(call, std::move(inputs), out);
  return out;
}

std::vector<ValueId> Builder::pass_state(const Op& op, std::span<const ValueId> values, std::span<const WeightId> weights, std::int64_t transition, std::int64_t state) {
  if (context_.cp == 1) return {};
  const bool chain = context_.state_passing == StatePassing::chain;
  const auto made = [&](const char* what, std::int64_t floats) {
    return add_value({.name = scope_ + what, .shape = {run_count(), floats}, .dtype = DType::f32, .differentiable = false, .always_kept = true,
                      .producer = static_cast<std::int32_t>(graph_.nodes.size())});
  };
  const ValueId maps = made("state_maps", transition + state);
  graph_.nodes.push_back({.call = op, .inputs = {values.begin(), values.end()}, .weights = {weights.begin(), weights.end()}, .outputs = {maps}, .summary = true});
  const ValueId before = made("states_before", state);
  communicate({.collective = chain ? Collective::state_chain : Collective::state_scan, .group = Group::context, .payload = value(chain ? before : maps).bytes(), .rows = context_.runs, .tokens = transition + state},
              {maps}, {before});
  return {before};
}

void Builder::by_ring() {
  if (context_.cp == 1) return;
  graph_.nodes.back().context = ContextWork::ring;
  graph_.nodes.back().exchange.rows = context_.cp;
}

void Builder::reads_also(ContextWork work, std::vector<ValueId> also, std::int32_t first) {
  if (also.empty()) return;
  GraphNode& node = graph_.nodes.back();
  node.context = work;
  node.also_first = first;
  const std::int32_t producer = value(also.front()).producer;
  node.exchange = std::get<CommCall>(graph_.nodes[static_cast<std::size_t>(producer)].call);
  node.also = std::move(also);
}

}  // namespace moeplan
