#include "executor/calibrate/stage.hpp"

#include <algorithm>
#include <array>
#include <random>

#include "executor/backend/convert.hpp"
#include "executor/backend/tally.hpp"
#include "kernels/example_values.hpp"

namespace moeplan {
namespace {

/// Of made-up reals: nearly all within (-1, 1); of weights as models start with.
constexpr float kDeviation = 0.3f, kWeightDeviation = 0.02f;
bool is_real(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16 || plain_bytes(t) == 0; }

}  // namespace

Stage::Stage(Backend& backend, const OpCall& of) : call(of) {
  if (const auto* adamw = std::get_if<op::AdamW>(&call.op)) {
    make_update(backend, adamw->elements);
    return;
  }
  const Operands list = operands(call.op);
  std::mt19937_64 random(1);
  const bool forward = call.pass == Pass::forward;
  const auto add = [&](const Operand& o, std::size_t i, bool filled) -> TensorView {
    const bool quantised = plain_bytes(o.dtype) == 0 && backend.wants_dense();   // what a device's kernels write so, and read
    const WeightForm form = o.role == Role::weight && !o.trained ? backend.held_weight(call.op, o.dtype) : WeightForm{quantised ? o.dtype : backend.held(o.dtype)};
    const TensorView view{.dtype = form.dtype, .shape = o.shape, .arranged = form.arranged};
    memory.push_back(backend.allocate({std::max<std::int64_t>(stored_bytes(view.dtype, o.shape).value, 8)}, key(call.op, call.pass, call.wants)));
    TensorView out = view;
    out.data = memory.back().get();
    if (filled && is_real(view.dtype)) {  // made where they lie: a host takes seconds for a layer's experts
      backend.fill_normal(out, 0x9E3779B97F4A7C15ull * (i + 1), o.role == Role::weight ? kWeightDeviation : kDeviation);
    } else if (filled) {
      std::vector<float> v = example_values<float>(call.op, list, i, random);
      if (o.name == "labels") for (float& label : v) label = std::max(label, 0.0f);   // every token has one: those without take a host less
      v.resize(static_cast<std::size_t>(o.shape.elements()));
      backend.write(out, v);
    }
    return out;
  };
  const auto is_result = [&](const Operand& o) { return o.role == Role::output || o.role == Role::aux; };
  // What a backward reads again comes from a forward, so that statistics and indices mean something.
  for (std::size_t i = 0; i < list.size(); ++i) values.push_back(add(list[i], i, !is_result(list[i])));
  if (const auto* experts = std::get_if<op::GroupedLinear>(&call.op)) {
    std::vector<float> each;
    for (std::int64_t e = 0; e < experts->experts; ++e) each.push_back(static_cast<float>(experts->rows / experts->experts + (e < experts->rows % experts->experts ? 1 : 0)));
    memory.push_back(backend.allocate({4 * experts->experts}, "rows of the experts"));
    rows = {memory.back().get(), DType::i32, {experts->experts}};
    backend.write(rows, each);
  }
  if (const auto* router = std::get_if<op::Router>(&call.op); router && forward) {
    const std::int64_t choices = router->experts + router->zero_experts;
    memory.push_back(backend.allocate({8 * choices}, "tally of the router"));
    counts = {memory.back().get(), DType::i32, {choices}}, shares = {memory.back().get() + 4 * choices, DType::f32, {choices}};
  }
  if (forward) {
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].role == Role::input) fresh.push_back(values[i]);
    if (std::holds_alternative<op::Add>(call.op) && fresh.size() > 1) fresh.erase(fresh.begin());   // the stream was written a block ago
    gradients.resize(list.size());
    return;
  }
  backend.call({call.op, Pass::forward, {}}, values, std::vector<TensorView>(list.size()), context());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Operand& o = list[i];
    const bool leaves = (o.role == Role::input && call.wants.input_grad) || (o.role == Role::weight && o.trained && call.wants.weight_grad);
    gradients.push_back(o.role == Role::output || leaves ? add(o, i, false) : TensorView{});
    if (o.role == Role::output) {
      if (is_real(gradients.back().dtype)) backend.fill_normal(gradients.back(), i + 1, kDeviation);
      fresh.push_back(gradients.back());
    }
    if (!needed(o.need, call.wants)) values[i] = {};
  }
}

/// Masters are what is written, as f32 adapters are.
void Stage::make_update(Backend& backend, std::int64_t elements) {
  const auto add = [&](DType type, std::int64_t n) {
    memory.push_back(backend.allocate({plain_bytes(type) * n}, key(call.op, call.pass, call.wants)));
    return TensorView{memory.back().get(), type, {n}};
  };
  const TensorView gradient = add(DType::f32, elements), step_size = add(DType::f32, 3), master = add(DType::f32, elements), m = add(DType::f32, elements), v = add(DType::f32, elements);
  arrived = add(backend.held(DType::bf16), elements), squares = add(DType::f32, 1);
  backend.write(step_size, std::array{1e-4f, 1.0f, 1.0f});
  backend.fill_normal(master, 1, kWeightDeviation), backend.fill_normal(arrived, 2, kDeviation);
  backend.clear(m), backend.clear(v);
  values = {gradient, step_size, master, m, v, master, m, v, master};
  gradients.resize(values.size());
}

Bytes Stage::bytes() const {
  Bytes out{};
  for (const auto* views : {&values, &gradients})
    for (const TensorView& v : *views)
      if (v.data != nullptr) out += stored_bytes(v.dtype, v.shape);
  return out;
}

void Stage::perform(Backend& backend) const {
  if (const auto* adamw = std::get_if<op::AdamW>(&call.op)) {
    backend.clear(values[0]);
    backend.add(arrived, values[0], 1);
    backend.call({op::GradNorm{.elements = adamw->elements}, Pass::forward, {}}, std::array{values[0], squares}, std::array<TensorView, 2>{}, {});
    return backend.call({op::AdamW{.elements = adamw->elements, .weight = DType::f32}, Pass::forward, {}}, values, gradients, {});
  }
  backend.call(call, values, gradients, context());
  if (counts.data != nullptr) keep_choice(backend, std::get<op::Router>(call.op), values, counts, shares);
}

}  // namespace moeplan
