#include "executor/calibrate/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "kernels/example_values.hpp"

namespace moeplan {
namespace {

/// More than any last cache here: 50 MB on H200, 126 MB on B200.
constexpr Bytes kFlush{192 << 20};

/// Of made-up reals: nearly all within (-1, 1).
constexpr float kDeviation = 0.3f;
bool is_real(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16 || plain_bytes(t) == 0; }

/// Operands of a call in the backend's memory.
struct Stage {
  std::vector<Backend::Memory> memory;
  std::vector<TensorView> values, gradients;
  std::vector<std::int64_t> rows;   ///< of each expert

  Stage(Backend& backend, const OpCall& call) {
    const Operands list = operands(call.op);
    std::mt19937_64 random(1);
    const bool forward = call.pass == Pass::forward;
    const auto add = [&](const Operand& o, std::size_t i, bool filled) -> TensorView {
      const TensorView view{nullptr, o.role == Role::weight && !o.trained ? backend.held_weight(call.op, o.dtype) : backend.held(o.dtype), o.shape};
      memory.push_back(backend.allocate({std::max<std::int64_t>(stored_bytes(view.dtype, o.shape).value, 8)}, key(call.op, call.pass, call.wants)));
      TensorView out = view;
      out.data = memory.back().get();
      if (filled && is_real(view.dtype)) {  // made where they lie: a host takes seconds for a layer's experts
        backend.fill_normal(out, 0x9E3779B97F4A7C15ull * (i + 1), kDeviation);
      } else if (filled) {
        std::vector<float> v = example_values<float>(call.op, list, i, random);
        v.resize(static_cast<std::size_t>(o.shape.elements()));
        backend.write(out, v);
      }
      return out;
    };
    const auto is_result = [&](const Operand& o) { return o.role == Role::output || o.role == Role::aux; };
    // What a backward reads again comes from a forward, so that statistics and indices mean something.
    for (std::size_t i = 0; i < list.size(); ++i) values.push_back(add(list[i], i, !is_result(list[i])));
    if (const auto* experts = std::get_if<op::GroupedLinear>(&call.op))
      for (std::int64_t e = 0; e < experts->experts; ++e) rows.push_back(experts->rows / experts->experts + (e < experts->rows % experts->experts ? 1 : 0));
    if (forward) {
      for (std::size_t i = 0; i < list.size(); ++i)
        if (list[i].role == Role::input) fresh.push_back(values[i]);
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
  [[nodiscard]] CallContext context() const { return {.rows_of_expert = rows}; }
  /// What has just been written when the call comes: a forward's inputs, the gradients that arrive at a backward.
  std::vector<TensorView> fresh;
};

double quantile(const std::vector<double>& sorted, double q) { return sorted[static_cast<std::size_t>(std::lround(q * static_cast<double>(sorted.size() - 1)))]; }

}  // namespace

std::map<std::string, OpCall> calls_of(const Program& program) {
  std::map<std::string, OpCall> out;
  for (const Block& b : program.blocks)
    for (const auto* pass : {&b.forward, &b.backward})
      for (const BlockNode& n : *pass) {
        const OpCall* call = std::get_if<OpCall>(&n.call);
        if (call == nullptr || is_view(call->op)) continue;
        OpCall possible_call = *call;
        if (call->pass == Pass::backward) possible_call.wants = possible(call->op, call->wants);
        if (call->pass == Pass::backward && possible_call.wants == Wants{false, false}) continue;
        out.emplace(key(possible_call.op, possible_call.pass, possible_call.wants), possible_call);
      }
  return out;
}

void add_loads(std::map<std::string, OpCall>& calls, std::span<const double> factors) {
  std::map<std::string, OpCall> more;
  for (const auto& [name, call] : calls)
    for (const double factor : factors) {
      OpCall other = call;
      const auto scale = [&](std::int64_t& rows) {
        rows = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::lround(static_cast<double>(rows) * factor)));
      };
      if (auto* linear = std::get_if<op::GroupedLinear>(&other.op)) scale(linear->rows);
      else if (auto* glu = std::get_if<op::Glu>(&other.op); glu && glu->ragged) scale(glu->tokens);
      else if (auto* activate = std::get_if<op::Activate>(&other.op); activate && activate->ragged) scale(activate->tokens);
      else continue;
      more.emplace(key(other.op, other.pass, other.wants), other);
    }
  calls.merge(more);
}

ProfileSample time_call(Backend& backend, const OpCall& call, const TimingOptions& options, const TensorView& flush) {
  const Stage stage(backend, call);
  const auto work = [&] { backend.call(call, stage.values, stage.gradients, stage.context()); };
  work();   // buffers grow, algorithms are chosen
  backend.wait();
  std::vector<double> times;
  double spent = 0;
  while (static_cast<std::int64_t>(times.size()) < options.most) {
    backend.clear(flush);
    for (const TensorView& t : stage.fresh) backend.copy(t, t);
    times.push_back(backend.time(work).value);
    spent += times.back();
    if (static_cast<std::int64_t>(times.size()) < options.least) continue;
    double mean = 0, squares = 0;
    for (const double t : times) mean += t / static_cast<double>(times.size());
    for (const double t : times) squares += (t - mean) * (t - mean) / static_cast<double>(times.size() - 1);
    // The standard error of a median is 1.2533 that of the mean (normal samples).
    if (1.2533 * std::sqrt(squares / static_cast<double>(times.size())) < options.noise * mean || spent > options.limit.value) break;
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {.key = key(call.op, call.pass, call.wants), .median = {median}, .spread = std::min(10.0, (quantile(times, 0.95) - quantile(times, 0.05)) / 2 / median), .count = static_cast<std::int64_t>(times.size())};
}

Calibration calibrate(Backend& backend, const std::map<std::string, OpCall>& calls, const std::vector<ProfileSample>& known, const TimingOptions& options,
                      const std::function<void(std::size_t, std::size_t, const std::vector<ProfileSample>&)>& progress) {
  std::map<std::string, ProfileSample> samples;
  for (const ProfileSample& s : known) samples.emplace(s.key, s);
  const auto listed = [&] {
    std::vector<ProfileSample> out;
    for (const auto& [name, s] : samples) out.push_back(s);
    return out;
  };
  const Backend::Memory memory = backend.allocate(kFlush, "cache flush");
  const TensorView flush{memory.get(), DType::f32, {kFlush.value / 4}};
  Calibration out;
  std::size_t done = 0;
  for (const auto& [name, call] : calls) {
    ++done;
    if (samples.contains(name)) continue;
    if (const std::string why = backend.refusal(call.op); !why.empty()) {
      out.refused.push_back(fmt::format("{}: not on the {} backend: {}", name, backend.name(), why));
      continue;
    }
    try {
      samples.emplace(name, time_call(backend, call, options, flush));
    } catch (const InputError& e) {
      out.refused.push_back(fmt::format("{}: {}", name, e.what()));
    }
    progress(done, calls.size(), listed());
  }
  out.samples = listed();
  std::vector<double> spreads;
  for (const ProfileSample& s : out.samples) spreads.push_back(s.spread);
  std::sort(spreads.begin(), spreads.end());
  if (!spreads.empty()) out.median_spread = spreads[spreads.size() / 2], out.worst_spread = spreads.back();
  return out;
}

}  // namespace moeplan
