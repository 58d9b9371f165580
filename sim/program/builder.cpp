#include "sim/program/builder.hpp"

#include <fmt/format.h>

#include <cassert>
#include <cmath>

#include "core/checked.hpp"

namespace moeplan {
namespace {

bool is_projection(WeightClass cls) {
  return cls == WeightClass::attention || cls == WeightClass::dense || cls == WeightClass::shared || cls == WeightClass::experts;
}

/// alpha / rank of a tuning's pairs.
double scale_of(const Tuning& t) { return t.training == Training::lora && t.rank > 0 && t.alpha > 0 ? t.alpha / static_cast<double>(t.rank) : 1.0; }

}  // namespace

ValueId Builder::add_value(Value v) {
  graph_.values.push_back(std::move(v));
  return static_cast<ValueId>(graph_.values.size() - 1);
}

void Builder::reshape(ValueId id, Shape shape) {
  assert(value(id).shape.elements() == shape.elements() && "a reshape keeps the number of elements");
  graph_.values[static_cast<std::size_t>(id)].shape = shape;
}

ValueId Builder::input(std::string name, Shape shape, DType dtype, bool differentiable) {
  const ValueId id = add_value({.name = std::move(name), .shape = shape, .dtype = dtype, .differentiable = differentiable});
  graph_.inputs.push_back(id);
  return id;
}

std::string Builder::scope(std::string prefix) {
  std::swap(prefix, scope_);
  return prefix;
}

Training Builder::training(WeightClass cls) const { return context_.workload.tuning(cls).training; }

std::int64_t Builder::lora_rank(WeightClass cls) const {
  const Tuning& t = context_.workload.tuning(cls);
  return t.training == Training::lora ? t.rank : 0;
}

DType Builder::held(WeightClass cls) const {
  if (training(cls) == Training::full || !is_projection(cls)) return DType::bf16;
  return cls == WeightClass::experts ? context_.expert_storage : context_.linear_storage;
}

Shape Builder::split_shape(const Shape& full, WeightSplit split) const {
  Shape s = full;
  const auto last = static_cast<std::size_t>(full.rank - 1);
  switch (split) {
    case WeightSplit::none:
    case WeightSplit::first: break;
    case WeightSplit::column: s.dim[0] = ceil_div(s.dim[0], context_.tp); break;
    case WeightSplit::row: s.dim[last] = ceil_div(s.dim[last], context_.tp); break;
    case WeightSplit::expert:
      s.dim[0] = ceil_div(s.dim[0], context_.ep);
      s.dim[1] = ceil_div(s.dim[1], context_.etp);
      break;
    case WeightSplit::expert_row:
      s.dim[0] = ceil_div(s.dim[0], context_.ep);
      s.dim[last] = ceil_div(s.dim[last], context_.etp);
      break;
  }
  return s;
}

WeightId Builder::add_weight(Weight w) {
  graph_.weights.push_back(std::move(w));
  return static_cast<WeightId>(graph_.weights.size() - 1);
}

WeightId Builder::weight(WeightClass cls, const std::string& name, Shape shape, WeightSplit split, std::optional<DType> stored) {
  TensorSource source{.name = name, .shape = {}, .dtype = stored.value_or(DType::bf16)};
  for (int i = 0; i < shape.rank; ++i) source.shape.push_back(shape[i]);
  return weight(cls, name, shape, split, std::vector<TensorSource>{std::move(source)});
}

WeightId Builder::weight(WeightClass cls, const std::string& name, Shape shape, WeightSplit split, std::vector<TensorSource> sources) {
  if (graph_.name.empty()) return add_weight({.name = {}, .cls = cls, .shape = split_shape(shape, split), .full_shape = shape, .dtype = held(cls), .split = split,
                                              .trained = training(cls) == Training::full, .sources = std::move(sources)});
  for (TensorSource& s : sources) s.name = scope_ + s.name;
  return add_weight({.name = scope_ + name, .cls = cls, .shape = split_shape(shape, split), .full_shape = shape, .dtype = held(cls),
                     .split = split, .trained = training(cls) == Training::full, .sources = std::move(sources)});
}

void Builder::hold_rows(WeightId id, std::int64_t rows) { graph_.weights[static_cast<std::size_t>(id)].shape.dim[0] = rows; }

void Builder::buffer(WeightId id) {
  Weight& w = graph_.weights[static_cast<std::size_t>(id)];
  w.buffer = true;
  w.trained = false;
  // Routing tables and corrections are held as they ship: rounded to bf16 a correction would choose other experts.
  if (w.cls == WeightClass::router && !w.sources.empty()) w.dtype = w.sources.front().dtype == DType::i64 ? DType::i32 : w.sources.front().dtype;
}

void Builder::idle_weight(WeightClass cls, const std::string& name, Shape shape, std::int64_t count, std::optional<DType> stored) {
  TensorSource source{.name = scope_ + name, .shape = {}, .count = count, .dtype = stored.value_or(DType::bf16)};
  for (int i = 0; i < shape.rank; ++i) source.shape.push_back(shape[i]);
  Shape all{count * shape.elements()};
  add_weight({.name = scope_ + name, .cls = cls, .shape = all, .full_shape = all, .dtype = DType::bf16, .sources = {std::move(source)}});
}

std::vector<ValueId> Builder::call(const Op& op, std::initializer_list<ValueId> values, std::initializer_list<WeightId> weights) {
  return call(op, std::span(values.begin(), values.size()), std::span(weights.begin(), weights.size()));
}

std::vector<ValueId> Builder::call(const Op& op, std::span<const ValueId> values, std::span<const WeightId> weights) {
  GraphNode node{.call = op, .inputs = {values.begin(), values.end()}, .weights = {weights.begin(), weights.end()}, .outputs = {}};
  std::size_t next_value = 0, next_weight = 0;
  const auto index = static_cast<std::int32_t>(graph_.nodes.size());
  for (const Operand& o : operands(op)) {
    if (o.role == Role::input || o.role == Role::index) {
      assert(next_value < values.size() && "an operator got fewer values than its contract has inputs");
      assert(value(values[next_value]).shape.elements() == o.shape.elements() && "a value's shape differs from the operator's contract");
      ++next_value;
    } else if (o.role == Role::weight) {
      assert(next_weight < weights.size() && "an operator got fewer weights than its contract has");
      assert(graph_.weights[static_cast<std::size_t>(weights[next_weight])].shape.elements() == o.shape.elements() &&
             "a weight's shape differs from the operator's contract");
      ++next_weight;
    } else {
      node.outputs.push_back(add_value({.name = graph_.name.empty() ? std::string() : fmt::format("{}{}.{}", scope_, kind(op), o.name), .shape = o.shape, .dtype = o.dtype, .ragged = o.ragged,
                                        .differentiable = o.role == Role::output, .producer = index}));
    }
  }
  assert(next_value == values.size() && next_weight == weights.size() && "an operator got more values or weights than its contract has");
  std::vector<ValueId> outputs = node.outputs;
  graph_.nodes.push_back(std::move(node));
  return outputs;
}

ValueId Builder::linear(ValueId x, const std::string& name, std::int64_t out, WeightClass cls, WeightSplit split, bool bias) {
  const Shape& xs = value(x).shape;
  const std::int64_t in = xs[xs.rank - 1] * (split == WeightSplit::row ? context_.tp : 1);
  const WeightId w = weight(cls, name + ".weight", {out, in}, split);
  const WeightId b = bias ? weight(cls, name + ".bias", {out}, split == WeightSplit::column ? split : WeightSplit::none) : -1;
  return linear(x, w, split == WeightSplit::column ? ceil_div(out, context_.tp) : out, cls, name, b);
}

ValueId Builder::linear(ValueId x, WeightId w, std::int64_t out_local, WeightClass cls, const std::string& adapter_name, WeightId bias) {
  const Shape& xs = value(x).shape;
  const std::int64_t in = xs[xs.rank - 1], rows = xs.elements() / in, rank = lora_rank(cls);
  const Weight& base = graph_.weights[static_cast<std::size_t>(w)];
  const op::Linear call_op{.tokens = rows, .in = in, .out = out_local, .bias = bias >= 0, .weight = base.dtype, .training = training(cls), .lora_rank = rank,
                           .lora_scale = scale_of(context_.workload.tuning(cls))};
  std::vector<WeightId> weights{w};
  if (bias >= 0) weights.push_back(bias);
  if (rank > 0) {
    const Shape full = base.full_shape;
    const WeightSplit split = base.split;
    const std::vector<DealtRows> dealt = base.dealt;
    const auto adapter = [&](const char* part, Shape local, Shape unsplit, WeightSplit s) {
      return add_weight({.name = scope_ + adapter_name + part, .cls = cls, .shape = local, .full_shape = unsplit, .split = s,
                         .dealt = s == WeightSplit::column ? dealt : std::vector<DealtRows>{}, .trained = true, .adapter = true, .sources = {}});
    };
    weights.push_back(adapter(".lora_A.weight", {rank, in}, {rank, full[full.rank - 1]}, split == WeightSplit::row ? WeightSplit::row : WeightSplit::none));
    weights.push_back(adapter(".lora_B.weight", {out_local, rank}, {full[0], rank}, split == WeightSplit::column ? WeightSplit::column : WeightSplit::none));
  }
  return call(call_op, std::array{x}, weights).front();
}

std::vector<WeightId> Builder::adapters(WeightId w, const std::string& adapter_name, std::int64_t in, std::int64_t out, WeightSplit a_split, WeightSplit b_split) {
  const WeightClass cls = graph_.weights[static_cast<std::size_t>(w)].cls;
  const std::int64_t rank = lora_rank(cls);
  if (rank == 0) return {};
  const auto adapter = [&](const char* part, Shape shape, WeightSplit split) {
    return add_weight({.name = scope_ + adapter_name + part, .cls = cls, .shape = split_shape(shape, split), .full_shape = shape, .split = split, .trained = true, .adapter = true, .sources = {}});
  };
  const WeightId a = adapter(".lora_A.weight", {rank, in}, a_split);
  return {a, adapter(".lora_B.weight", {out, rank}, b_split)};
}

ValueId Builder::grouped_linear(ValueId rows, WeightId w, std::int64_t experts_local, std::int64_t out_local, const std::string& adapter_name, WeightId bias) {
  const Shape& xs = value(rows).shape;
  const std::int64_t in = xs[xs.rank - 1], rank = lora_rank(WeightClass::experts);
  const Weight& base = graph_.weights[static_cast<std::size_t>(w)];
  const bool shared = context_.workload.experts.shared_adapter;
  op::GroupedLinear call_op{};
  call_op.rows = xs[0];
  call_op.experts = experts_local;
  call_op.in = in;
  call_op.out = out_local;
  call_op.bias = bias >= 0;
  call_op.weight = base.dtype;
  call_op.training = training(WeightClass::experts);
  call_op.lora_rank = rank;
  call_op.shared_adapter = shared;
  call_op.lora_scale = scale_of(context_.workload.experts);
  std::vector<WeightId> weights{w};
  if (bias >= 0) weights.push_back(bias);
  if (rank > 0) {
    // Of a matrix cut as row the first factor is cut, else the second; what is not cut is alike on the expert-tensor ranks.
    const std::int64_t local = shared ? 1 : experts_local, all = shared ? 1 : base.full_shape[0], whole_in = base.full_shape[2], whole_out = base.full_shape[1];
    const bool row = base.split == WeightSplit::expert_row;
    const std::vector<DealtRows> dealt = base.dealt;
    const auto adapter = [&](const char* part, Shape here, Shape full, WeightSplit split) {
      return add_weight({.name = scope_ + adapter_name + part, .cls = WeightClass::experts, .shape = here, .full_shape = full, .split = shared ? WeightSplit::none : split,
                         .dealt = split == WeightSplit::expert && !row ? dealt : std::vector<DealtRows>{}, .trained = true, .adapter = true, .sources = {}});
    };
    weights.push_back(adapter(".lora_A.weight", {local, rank, in}, {all, rank, whole_in}, WeightSplit::expert_row));
    weights.push_back(adapter(".lora_B.weight", {local, out_local, rank}, {all, whole_out, rank}, WeightSplit::expert));
  }
  return call(call_op, std::array{rows}, weights).front();
}

ValueId Builder::rms_norm(ValueId x, const std::string& name, WeightClass cls) {
  const Shape& xs = value(x).shape;
  const std::int64_t hidden = xs[xs.rank - 1];
  const op::RmsNorm norm{.tokens = xs.elements() / hidden, .hidden = hidden, .training = training(cls)};
  return call(norm, {x}, {weight(cls, name + ".weight", {hidden})}).front();
}

ValueId Builder::enter_tensor_region(ValueId x) {
  if (context_.tp == 1) return x;
  Value v = value(x);
  v.shape.dim[0] *= context_.tp;
  v.name += ".gathered";
  v.producer = static_cast<std::int32_t>(graph_.nodes.size());
  const Bytes payload = v.bytes();
  const ValueId out = add_value(std::move(v));
  graph_.nodes.push_back({.call = CommCall{.collective = Collective::all_gather, .group = Group::tensor, .payload = payload}, .inputs = {x}, .weights = {}, .outputs = {out}});
  return out;
}

ValueId Builder::leave_tensor_region(ValueId y) {
  if (context_.tp == 1) return y;
  Value v = value(y);
  const Bytes payload = v.bytes();
  v.shape.dim[0] /= context_.tp;
  v.name += ".scattered";
  v.producer = static_cast<std::int32_t>(graph_.nodes.size());
  const ValueId out = add_value(std::move(v));
  graph_.nodes.push_back({.call = CommCall{.collective = Collective::reduce_scatter, .group = Group::tensor, .payload = payload}, .inputs = {y}, .weights = {}, .outputs = {out}});
  return out;
}

ValueId Builder::sum_statistics(ValueId x, std::int64_t bytes_per_row, bool twice) {
  if (context_.tp == 1) return x;
  Value v = value(x);
  const std::int64_t rows = v.shape.rank ? v.shape[0] : 1;
  v.name += ".summed";
  v.producer = static_cast<std::int32_t>(graph_.nodes.size());
  const ValueId out = add_value(std::move(v));
  graph_.nodes.push_back({.call = CommCall{.collective = Collective::all_reduce, .group = Group::tensor, .payload = {rows * bytes_per_row}}, .inputs = {x}, .weights = {}, .outputs = {out}, .in_place = true, .forward_only = !twice});
  return out;
}

ValueId Builder::merge_loss(ValueId loss, std::int64_t tokens) {
  const ValueId out = sum_statistics(loss, 0, false);
  if (context_.tp > 1)
    graph_.nodes.back().call = CommCall{.collective = Collective::all_gather, .group = Group::tensor,
                                        .payload = {context_.tp * (tokens + 1) * static_cast<std::int64_t>(sizeof(float))}};
  return out;
}

ValueId Builder::sum_over_tensor(ValueId x) {
  const Shape& shape = value(x).shape;
  return sum_statistics(x, value(x).bytes().value / std::max<std::int64_t>(1, shape.rank ? shape[0] : 1), true);
}

Bytes Builder::wire_bytes(ValueId rows) const {
  const Value& v = value(rows);
  if (context_.dispatch != DType::fp8) return v.bytes();
  const std::int64_t columns = v.shape[v.shape.rank - 1], n = v.shape.elements() / columns;
  return {n * (columns + 4 * ceil_div(columns, 128))};
}

ValueId Builder::dispatch(ValueId rows, std::int64_t tokens, std::int64_t experts) {
  ValueId out = rows;
  const std::int64_t sent = value(rows).shape[0];
  if (context_.ep > 1) {
    Value v = value(rows);
    v.shape.dim[0] = static_cast<std::int64_t>(std::ceil(static_cast<double>(sent) * context_.routed_scale));
    v.name = scope_ + "dispatched";
    v.ragged = v.dispatch_buffer = true;
    v.producer = static_cast<std::int32_t>(graph_.nodes.size());
    const Bytes payload = wire_bytes(rows), back = value(rows).bytes();   // gradients of these rows are summed: bf16
    out = add_value(std::move(v));
    graph_.nodes.push_back({.call = CommCall{.collective = Collective::dispatch, .group = Group::expert, .payload = payload, .rows = sent, .tokens = tokens, .experts = experts, .direct = context_.direct, .back = payload == back ? Bytes{} : back},
                            .inputs = {rows}, .weights = {}, .outputs = {out}});
    if (context_.dropless) graph_.nodes.push_back({.call = HostWait{}, .inputs = {out}, .weights = {}, .outputs = {}});
  }
  if (context_.etp > 1) {
    Value v = value(out);
    v.shape.dim[0] *= context_.etp;
    v.name += ".gathered";
    v.producer = static_cast<std::int32_t>(graph_.nodes.size());
    const Bytes payload = v.bytes();
    const ValueId gathered = add_value(std::move(v));
    graph_.nodes.push_back({.call = CommCall{.collective = Collective::all_gather, .group = Group::expert_tensor, .payload = payload}, .inputs = {out}, .weights = {}, .outputs = {gathered}});
    out = gathered;
  }
  return out;
}

ValueId Builder::combine(ValueId rows, std::int64_t sent_rows, std::int64_t tokens, std::int64_t experts) {
  ValueId in = rows;
  if (context_.etp > 1) {
    Value v = value(rows);
    const Bytes payload = v.bytes();
    v.shape.dim[0] /= context_.etp;
    v.name += ".scattered";
    v.producer = static_cast<std::int32_t>(graph_.nodes.size());
    in = add_value(std::move(v));
    graph_.nodes.push_back({.call = CommCall{.collective = Collective::reduce_scatter, .group = Group::expert_tensor, .payload = payload}, .inputs = {rows}, .weights = {}, .outputs = {in}});
  }
  if (context_.ep == 1) return in;
  Value v = value(in);
  v.shape.dim[0] = sent_rows;
  v.name = scope_ + "combined";
  v.ragged = false;
  v.dispatch_buffer = true;
  v.producer = static_cast<std::int32_t>(graph_.nodes.size());
  const Bytes payload = v.bytes();
  const ValueId out = add_value(std::move(v));
  const Bytes back = wire_bytes(out);   // its gradient is dispatched
  graph_.nodes.push_back({.call = CommCall{.collective = Collective::combine, .group = Group::expert, .payload = payload, .rows = sent_rows, .tokens = tokens, .experts = experts, .direct = context_.direct, .back = payload == back ? Bytes{} : back},
                          .inputs = {in}, .weights = {}, .outputs = {out}});
  return out;
}

}  // namespace moeplan
