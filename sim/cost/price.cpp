#include "sim/cost/price.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "core/error.hpp"
#include "core/spec/profile_keys.hpp"
#include "kernels/grouped_linear/pairs.hpp"
#include "sim/cost/expert_curve.hpp"
#include "sim/cost/pair_traffic.hpp"
#include "sim/cost/utilisation.hpp"

namespace moeplan {
namespace {

/// The same 8192^3 product took 1.42 ms and 1.38 ms on two H200 on one day: what one measured time says of another machine.
constexpr double kMachineSpread = 0.03;
/// Borrowed tables: the pooled band of the profile of public kernels, 0.83-1.32, rounded outward.
constexpr ErrorBand kBorrowed{0.80, 1.35};
/// Operators without a sample: the range of measured over roofline among the default profile's copies, norms and activations.
constexpr ErrorBand kRoofline{0.9, 3.2};
/// Operators that borrow the utilisation of a relative: how far apart KDA and Gated DeltaNet are, both ways.
constexpr ErrorBand kKin{0.5, 2.0};

/// What this project's executor moves of a trained element's gradient besides the update, in a step of one micro-batch: cleared (4), added to (reads 2 and 4, writes 4), read for
/// the norm (4). A sample of the update has it in it (executor/calibrate/stage.hpp).
constexpr double kGradientPasses = 18;

/// Chunked scans reach a tenth of the roofline (ratio 8-45 on H200): one without samples takes Gated DeltaNet's utilisation; attention
/// over compressed keys takes that of sparse attention.
template <class T>
constexpr std::size_t kIndex = [] {
  std::size_t i = 0, at = 0;
  [&]<class... U>(std::type_identity<std::variant<U...>>) { ((std::is_same_v<T, U> ? void(at = i) : void(), ++i), ...); }(std::type_identity<Op>{});
  return at;
}();

std::size_t kin_of(std::size_t op) {
  if (op == kIndex<op::Mamba2> || op == kIndex<op::Mamba1> || op == kIndex<op::LightningAttention> || op == kIndex<op::Kda>) return kIndex<op::GatedDeltaNet>;
  if (op == kIndex<op::GatedDeltaNet>) return kIndex<op::Kda>;
  if (op == kIndex<op::CompressedAttention>) return kIndex<op::SparseAttention>;
  return op;
}

/// What a profile holds besides operator calls: communication, the host link, copies of columns, the device's own constants.
bool is_no_operator(std::string_view key) {
  const std::string_view word = key.substr(0, key.find(' '));
  for (const std::string_view name : {"all_gather", "reduce_scatter", "all_reduce", "dispatch", "send_receive", "counts", "to_device", "to_host", "copy_columns", "launch", "allocate", "busy", "delay"})
    if (word == name) return true;
  return false;
}

struct Limit {
  double seconds = 0;
  bool compute_bound = true;
};

Limit limit_on(const DeviceSpec& device, double flops, double bytes) {
  const double compute = flops / device.peak.at("bf16").value, traffic = bytes / device.memory_bandwidth.value;
  return {std::max(compute, traffic), compute >= traffic};
}

}  // namespace

struct Prices::Tables {
  std::array<std::array<UtilisationTable, 2>, std::variant_size_v<Op>> of;   ///< operator, pass
  std::vector<std::pair<double, double>> copies;                            ///< bytes made dense, seconds; ascending

  /// A grouped product in all but its rows.
  using Shape = std::tuple<std::array<float, CallShape::kFields>, std::array<std::uint8_t, CallShape::kFields>, bool, bool, Pass>;
  mutable std::mutex guard;   ///< of what follows from the samples and is kept because a search asks often
  mutable std::map<std::tuple<Shape, bool, bool>, ExpertCurve> curves;   ///< in pairs, of few rows

  [[nodiscard]] static Shape shape_without_rows(const op::GroupedLinear& op, Wants wants, Pass pass) {
    const CallShape s = shape_of_rows(op, wants, 0);
    return {s.log, s.tag, wants.input_grad, wants.weight_grad, pass};
  }
};

/// Seconds of grouped products under the load's spread, by shape and rows; guarded as the tables are.
struct Prices::UnderLoad {
  std::map<std::pair<Tables::Shape, std::int64_t>, double> seconds;
};

Prices::Prices(const DeviceSpec& device, const DeviceProfile& profile, const Runtime& runtime, std::vector<double> spread)
    : device_(device), runtime_(runtime), spread_(std::move(spread)), launch_(runtime.launch_overhead.value), under_load_(std::make_shared<UnderLoad>()) {
  if (!device.peak.contains("bf16")) throw InputError(device.name + ": peak", "has no bf16", "give the dense bf16 rate");
  const DeviceSpec& measured_on = profile.device;
  same_device_ = measured_on.name == device.name;
  same_generation_ = measured_on.generation == device.generation;
  if (!profile.samples.empty() && !same_device_) {
    matmul_scale_ = device.achieved_matmul / measured_on.achieved_matmul;
    bandwidth_scale_ = device.achieved_bandwidth / measured_on.achieved_bandwidth;
  }
  const auto tables = std::make_shared<Tables>();
  for (const ProfileSample& s : profile.samples) {
    if (is_no_operator(s.key)) {
      if (s.key.starts_with(kLaunchKey) && same_device_ && runtime.own_kernels) launch_ = s.median.value;   // others launch in their own way
      if (const auto bytes = bytes_of_key(s.key, kCopyColumnsKey)) tables->copies.emplace_back(*bytes, s.median.value);
      continue;
    }
    const std::optional<OpCall> call = parse_key(s.key);
    if (!call) throw InputError("profile " + profile.name, shown(s.key) + " is no call of the catalogue", "see `moeplan ops` for operators and their fields");
    const Wants wants = call->pass == Pass::backward ? possible(call->op, call->wants) : Wants{};
    const Limit l = limit_on(measured_on, flops(call->op, call->pass, wants).value, static_cast<double>(bytes_moved(call->op, call->pass, wants).value));
    if (l.seconds <= 0) throw InputError("profile " + profile.name, shown(s.key) + " does nothing, so its time has no utilisation", "remove it");
    tables->of[call->op.index()][static_cast<std::size_t>(call->pass)].add(
        {shape_of(call->op, wants), (l.seconds + kAloneSeconds) / s.median.value, s.median.value, s.spread, l.compute_bound});
  }
  for (auto& passes : tables->of)
    for (UtilisationTable& t : passes)
      if (!t.empty()) t.arrange();
  std::sort(tables->copies.begin(), tables->copies.end());
  tables_ = tables;
  if (profile.power && same_device_) power_ = std::make_shared<const PowerTables>(*profile.power, measured_on, profile.samples);
}

Prices Prices::spread_as(std::vector<double> spread) const {
  Prices out = *this;
  out.spread_ = std::move(spread);
  out.under_load_ = std::make_shared<UnderLoad>();
  return out;
}

/// By the measured copies: ln time over ln bytes between two of them, the edges' rate outside.
Seconds Prices::copies(Bytes dense) const {
  if (!runtime_.own_kernels || dense.value <= 0) return {};
  const auto bytes = static_cast<double>(dense.value);
  const auto& known = tables_->copies;
  if (known.empty()) return {2 * bytes / (device_.memory_bandwidth.value * device_.achieved_bandwidth) + launch_};
  const auto after = std::lower_bound(known.begin(), known.end(), std::pair{bytes, 0.0});
  if (after == known.begin()) return {known.front().second / bandwidth_scale_};
  if (after == known.end()) return {known.back().second * bytes / known.back().first / bandwidth_scale_};
  const auto& [b0, t0] = after[-1];
  const auto& [b1, t1] = *after;
  return {std::exp(std::log(t0) + std::log(t1 / t0) * std::log(bytes / b0) / std::log(b1 / b0)) / bandwidth_scale_};
}

double Prices::roofline(double f, double b) const {
  return std::max(f / (device_.peak.at("bf16").value * device_.achieved_matmul), b / (device_.memory_bandwidth.value * device_.achieved_bandwidth));
}

Seconds Prices::limit(const OpCall& call) const {
  return {limit_on(device_, flops(call.op, call.pass, call.wants).value, static_cast<double>(bytes_moved(call.op, call.pass, call.wants).value)).seconds};
}

Prices::Work Prices::work_of(const OpCall& call, Wants wants, bool in_bf16) const {
  Work w{flops(call.op, call.pass, wants).value, static_cast<double>(bytes_moved(call.op, call.pass, wants).value)};
  const bool forward = call.pass == Pass::forward;
  if (!runtime_.traffic.empty())
    if (const auto it = runtime_.traffic.find(std::string(kind(call.op))); it != runtime_.traffic.end()) w.bytes *= it->second, w.own = it->second != 1;
  double elements = 0;  // of what is brought into the compute type
  if (const auto* l = std::get_if<op::Linear>(&call.op)) elements = static_cast<double>(l->tokens) * static_cast<double>(forward ? l->in : l->out);
  if (const auto* g = std::get_if<op::GroupedLinear>(&call.op)) elements = static_cast<double>(g->rows) * static_cast<double>(forward ? g->in : g->out);
  if (elements > 0 && runtime_.compute != DType::bf16 && !in_bf16) {
    const auto peak = device_.peak.find(runtime_.compute == DType::nvfp4 || runtime_.compute == DType::mxfp4 ? "fp4" : "fp8");
    if (peak != device_.peak.end()) w.speed = peak->second.value / device_.peak.at("bf16").value;
    w.besides += elements * runtime_.cast_traffic;
    w.own = true;
  }
  if (const auto* l = std::get_if<op::Linear>(&call.op); l && !runtime_.fused_lora) {
    const double t = static_cast<double>(l->tokens), in = static_cast<double>(l->in), out = static_cast<double>(l->out);
    if (l->lora_rank > 0) {
      const PairTraffic pair = pair_traffic(runtime_, l->weight);
      w.besides += forward ? t * (pair.in * in + pair.out * out) : t * (pair.in_backward * in + pair.out_backward * out), w.own = true;
    }
    // A quantised base is written out in bf16 before the product reads it.
    if (l->weight != DType::bf16) w.besides += in * out * 4, w.own = true;
  }
  if (const auto* a = std::get_if<op::Attention>(&call.op); a && runtime_.score_traffic > 0) {
    // Scores of the whole square are computed, written and read; the causal mask saves nothing.
    const double scores = static_cast<double>(a->tokens) * static_cast<double>(a->heads) * static_cast<double>(std::min(a->sequence_length, a->kv_tokens ? a->kv_tokens : a->tokens));
    w.flops = (forward ? 2 : 4) * scores * static_cast<double>(a->d_qk + a->d_v);
    w.besides += scores * (forward ? runtime_.score_traffic : runtime_.score_traffic_backward);
    // Rows of heads that are no multiples of 16 bytes: batched products leave the tensor cores and sum in fp32 on the others.
    if (const auto f32 = device_.peak.find("f32"); f32 != device_.peak.end() && (a->d_qk % 8 != 0 || a->d_v % 8 != 0)) w.speed = f32->second.value / device_.peak.at("bf16").value;
    w.own = true;
  }
  if (const auto* update = std::get_if<op::AdamW>(&call.op); update && runtime_.own_kernels && tables_->of[call.op.index()][0].empty())
    w.besides += static_cast<double>(update->elements) * kGradientPasses;
  return w;
}

/// A head whose logits are whole is a linear layer, which has measured shapes of its own, and a loss that streams over the logits.
Estimate Prices::whole_head(const op::CrossEntropy& head, const OpCall& call) const {
  op::Linear linear{};
  linear.tokens = head.tokens, linear.in = head.hidden, linear.out = head.vocabulary, linear.bias = head.bias, linear.training = head.training;
  linear.lora_rank = head.lora_rank;
  const double logits = static_cast<double>(head.tokens) * static_cast<double>(head.vocabulary);
  const auto traffic = runtime_.traffic.find("cross_entropy");   // bytes per logit and pass
  const double loss = logits * (traffic == runtime_.traffic.end() ? 6.0 : traffic->second) / (device_.memory_bandwidth.value * device_.achieved_bandwidth);
  Estimate e = price(OpCall{linear, call.pass, call.wants}, true);
  e.median.value += loss, e.low.value += loss, e.high.value += loss;
  return e;
}

Estimate Prices::price(const OpCall& call) const { return held(rested(call), clock_); }
Prices::Rested Prices::rested(const OpCall& call) const { return rested(call, at_rest(call)); }

/// The optimizer works once a step, outside the passes whose clock is held: alone, and at rest before.
Prices::Rested Prices::rested(const OpCall& call, const Estimate& estimate) const {
  if (!power_ || is_view(call.op) || std::holds_alternative<op::AdamW>(call.op)) return {estimate, {}};
  const Wants wants = call.pass == Pass::backward ? possible(call.op, call.wants) : Wants{};
  const double compute = flops(call.op, call.pass, wants).value / device_.peak.at("bf16").value;
  const double traffic = static_cast<double>(bytes_moved(call.op, call.pass, wants).value) / device_.memory_bandwidth.value;
  return {estimate, power_->call(call, compute, traffic, std::max(0.0, estimate.median.value - launch_))};
}

/// What was measured is called so at any clock: longer by the share of it that follows the clock, which is in its interval and said beside it (`clock()`).
Estimate Prices::held(const Rested& call, const HeldClock& clock) const {
  const Estimate& rest = call.estimate;
  if (!power_ || clock.clock >= 1 || call.power.seconds <= 0) return rest;
  const double longer = seconds_at(call.power, clock.clock) / call.power.seconds, least = seconds_at(call.power, std::max(clock.clock, clock.fastest)) / call.power.seconds,
               most = seconds_at(call.power, std::min(clock.clock, clock.slowest)) / call.power.seconds;
  const auto at = [&](Seconds s, double factor) { return Seconds{(s.value - launch_) * factor + launch_}; };
  return {at(rest.median, longer), at(rest.low, least), at(rest.high, most), rest.basis};
}

Estimate Prices::at_rest(const OpCall& call) const {
  if (const auto* head = std::get_if<op::CrossEntropy>(&call.op); head && runtime_.whole_logits) return whole_head(*head, call);
  return price(call, false);
}

Estimate Prices::price(const OpCall& call, bool in_bf16) const {
  if (is_view(call.op)) return {};
  const Wants wants = call.pass == Pass::backward ? possible(call.op, call.wants) : Wants{};
  const Work work = work_of(call, wants, in_bf16);
  const double f = work.flops / work.speed, b = work.bytes;
  const double held = !power_ && limit_on(device_, f, b).compute_bound ? device_.sustained : 1;
  if (f <= 0 && b <= 0) return {};
  const double beside = work.besides / (device_.memory_bandwidth.value * device_.achieved_bandwidth);
  const auto estimate = [&](double seconds, ErrorBand e, Basis basis) -> Estimate {
    const double t = seconds / held;
    return {{t + beside + launch_}, {t * e.low + beside + launch_}, {t * e.high + beside + launch_}, basis};
  };
  const auto& passes = tables_->of[call.op.index()];
  const UtilisationTable* table = &passes[static_cast<std::size_t>(call.pass)];
  const bool borrowed = table->empty();
  if (borrowed) table = &passes[1 - static_cast<std::size_t>(call.pass)];
  if (table->empty()) {
    const UtilisationTable& kin = tables_->of[kin_of(call.op.index())][static_cast<std::size_t>(call.pass)];
    if (kin.empty()) return estimate(roofline(f, b), kRoofline, Basis::roofline);
    double inverse = 0;  // mean time over limit
    for (const auto& s : kin.samples()) inverse += 1 / s.utilisation;
    const Limit l = limit_on(device_, f, b);
    return estimate((l.seconds + kAloneSeconds) * inverse / static_cast<double>(kin.samples().size()) / (l.compute_bound ? matmul_scale_ : bandwidth_scale_), kKin, Basis::roofline);
  }
  const auto* experts = std::get_if<op::GroupedLinear>(&call.op);
  if (experts && runtime_.own_kernels && !borrowed && !spread_.empty()) return grouped(*experts, call, {}, 0);

  const auto a = table->look_up(shape_of(call.op, wants));
  if (a.exact && !borrowed && same_device_ && !work.own) {
    const double spread = std::max(a.exact->spread, kMachineSpread);
    return estimate(a.exact->seconds, {1 - std::min(spread, 1.0), 1 + spread}, Basis::measured);
  }
  const Limit l = limit_on(device_, f, b);
  const double u = a.utilisation * (l.compute_bound ? matmul_scale_ : bandwidth_scale_);
  ErrorBand e = table->error();
  if (borrowed || a.foreign || !same_generation_) e = {std::min(e.low, kBorrowed.low), std::max(e.high, kBorrowed.high)};
  return estimate((l.seconds + kAloneSeconds) / u, e, same_generation_ ? Basis::interpolated : Basis::roofline);
}

Estimate Prices::price(const OpCall& call, std::span<const std::int64_t> rows_of_expert) const { return held(rested(call, rows_of_expert), clock_); }

Prices::Rested Prices::rested(const OpCall& call, std::span<const std::int64_t> rows_of_expert) const {
  const auto* experts = std::get_if<op::GroupedLinear>(&call.op);
  const bool known = experts && runtime_.own_kernels && !tables_->of[call.op.index()][static_cast<std::size_t>(call.pass)].empty();
  if (!known || static_cast<std::int64_t>(rows_of_expert.size()) != experts->experts) return rested(call);
  return rested(call, grouped(*experts, call, std::vector<double>(rows_of_expert.begin(), rows_of_expert.end()), 1.0 / static_cast<double>(experts->experts)));
}

PoweredCall Prices::copied(double bytes, std::optional<Seconds> taken) const {
  if (!power_) return {};
  return {.seconds = taken ? taken->value : bytes / (device_.memory_bandwidth.value * device_.achieved_bandwidth), .joules = power_->memory() * bytes / device_.memory_bandwidth.value};
}

/// Each expert's rows, `weight` of all experts each, beside those of the others: tiles of one do not wait for another's (sim/cost/expert_curve.hpp).
/// Without rows: as the load spreads the call's.
Estimate Prices::grouped(const op::GroupedLinear& experts, const OpCall& call, std::span<const double> rows, double weight) const {
  const Wants wants = call.pass == Pass::backward ? possible(call.op, call.wants) : Wants{};
  const UtilisationTable& table = tables_->of[call.op.index()][static_cast<std::size_t>(call.pass)];
  const Tables::Shape shape = Tables::shape_without_rows(experts, wants, call.pass);
  const std::lock_guard lock(tables_->guard);
  const auto [it, fresh] = tables_->curves.try_emplace({shape, kernels::grouped_linear::takes_pairs(experts.rows, experts.experts), kernels::grouped_linear::takes_few(experts.rows, experts.experts)});
  if (fresh)
    it->second = expert_curve(experts, wants, table, [&](const op::GroupedLinear& alike, double utilisation) {
      const Limit l = limit_on(device_, flops(Op{alike}, call.pass, wants).value, static_cast<double>(bytes_moved(Op{alike}, call.pass, wants).value));
      return (l.seconds + kAloneSeconds) / (utilisation * (l.compute_bound ? matmul_scale_ : bandwidth_scale_));
    });
  const ExpertCurve& curve = it->second;
  double seconds = 0, spread = kMachineSpread;
  bool measured = same_device_ && weight > 0;   // rows of every expert were
  if (weight > 0) {
    ExpertsTogether together(curve);
    for (const double each : rows) {
      together.add(each, weight);
      const auto* sample = measured && each > 0 ? curve.measured(each) : nullptr;
      measured = measured && (each <= 0 || sample != nullptr);
      if (sample != nullptr) spread = std::max(spread, sample->spread);
    }
    seconds = together.seconds();
  } else {
    const auto [known, first] = under_load_->seconds.try_emplace({shape, experts.rows}, 0.0);
    if (first) {
      ExpertsTogether together(curve);
      for (const double share : spread_) together.add(share * static_cast<double>(experts.rows) / static_cast<double>(experts.experts), 1 / static_cast<double>(spread_.size()));
      known->second = together.seconds();
    }
    seconds = known->second;
  }
  ErrorBand e = table.error();
  if (curve.foreign || !same_generation_) e = {std::min(e.low, kBorrowed.low), std::max(e.high, kBorrowed.high)};
  if (measured) e = {1 - std::min(spread, 1.0), 1 + spread};
  return {{seconds + launch_}, {seconds * e.low + launch_}, {seconds * e.high + launch_}, measured ? Basis::measured : same_generation_ ? Basis::interpolated : Basis::roofline};
}

std::vector<double> Prices::left_out() const {
  std::vector<double> ratio;
  for (const auto& passes : tables_->of)
    for (const UtilisationTable& t : passes) {
      const std::vector<double> mine = t.left_out();
      ratio.insert(ratio.end(), mine.begin(), mine.end());
    }
  return ratio;
}

std::vector<double> Prices::against_roofline() const {
  std::vector<double> ratio;
  for (const auto& passes : tables_->of)
    for (const UtilisationTable& t : passes)
      for (const auto& s : t.samples()) {
        const double limit = s.utilisation * s.seconds - kAloneSeconds;
        ratio.push_back((s.compute_bound ? device_.achieved_matmul : device_.achieved_bandwidth) * s.seconds / limit);
      }
  return ratio;
}

}  // namespace moeplan
