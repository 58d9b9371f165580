#include "sim/cost/price.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"

namespace moeplan {
namespace {

/// Shapes that answer together.
constexpr std::size_t kNeighbours = 3;
/// A differing switch, type or wanted gradient counts as a shape e times away.
constexpr double kForeign = 1.0;
/// The same 8192^3 product took 1.42 ms and 1.38 ms on two H200 on one day: what one measured time says of another machine.
constexpr double kMachineSpread = 0.03;
/// Tables too small to leave one out, and borrowed tables: the pooled band of the default profile, 0.83-1.32, rounded outward.
constexpr ErrorBand kSmallTable{0.80, 1.35};
/// Operators without a sample: the range of measured over roofline among the default profile's copies, norms and activations.
constexpr ErrorBand kRoofline{0.9, 3.2};
/// Operators that borrow the utilisation of a relative: how far apart KDA and Gated DeltaNet are, both ways.
constexpr ErrorBand kKin{0.5, 2.0};
constexpr std::size_t kEnoughForAnError = 6;

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

bool is_collective(std::string_view key) {
  const std::string_view word = key.substr(0, key.find(' '));
  for (const std::string_view name : {"all_gather", "reduce_scatter", "all_reduce", "dispatch", "send_receive"})
    if (word == name) return true;
  return false;
}

ErrorBand band_of(std::vector<double> ratio) {
  if (ratio.size() < kEnoughForAnError) return kSmallTable;
  std::sort(ratio.begin(), ratio.end());
  const auto at = [&](double q) { return ratio[static_cast<std::size_t>(std::lround(q * static_cast<double>(ratio.size() - 1)))]; };
  return {std::min(1.0, at(0.05)), std::max(1.0, at(0.95))};
}

}  // namespace

Prices::Shape Prices::shape_of(const Op& op, Wants wants) {
  Shape out;
  out.wants = wants;
  std::visit(
      [&]<class T>(const T& o) {
        static_assert(std::tuple_size_v<decltype(T::fields())> <= kFields, "an operator with more fields than a shape holds");
        std::size_t i = 0;
        for_each_field<T>([&](const auto& f) {
          using Member = std::remove_cvref_t<decltype(o.*(f.member))>;
          if constexpr (std::is_same_v<Member, std::int64_t>) out.log[i] = std::log1p(static_cast<float>(o.*(f.member)));
          else if constexpr (std::is_same_v<Member, bool> || std::is_enum_v<Member>) out.tag[i] = static_cast<std::uint8_t>(o.*(f.member));
          ++i;
        });
      },
      op);
  return out;
}

Prices::Limit Prices::limit_on(const DeviceSpec& device, double flops, double bytes) {
  const double compute = flops / device.peak.at("bf16").value, traffic = bytes / device.memory_bandwidth.value;
  return {std::max(compute, traffic), compute >= traffic};
}

Prices::Prices(const DeviceSpec& device, const DeviceProfile& profile, const Runtime& runtime)
    : device_(device), runtime_(runtime), launch_(runtime.launch_overhead.value) {
  if (!device.peak.contains("bf16")) throw InputError(device.name + ": peak", "has no bf16", "give the dense bf16 rate");
  const DeviceSpec& measured_on = profile.device;
  same_device_ = measured_on.name == device.name;
  same_generation_ = measured_on.generation == device.generation;
  if (!profile.samples.empty() && !same_device_) {
    matmul_scale_ = device.achieved_matmul / measured_on.achieved_matmul;
    bandwidth_scale_ = device.achieved_bandwidth / measured_on.achieved_bandwidth;
  }
  for (const ProfileSample& s : profile.samples) {
    if (is_collective(s.key)) continue;
    const std::optional<OpCall> call = parse_key(s.key);
    if (!call) throw InputError("profile " + profile.name, shown(s.key) + " is no call of the catalogue", "see `moeplan ops` for operators and their fields");
    const Wants wants = call->pass == Pass::backward ? possible(call->op, call->wants) : Wants{};
    const Limit l = limit_on(measured_on, flops(call->op, call->pass, wants).value, static_cast<double>(bytes_moved(call->op, call->pass, wants).value));
    if (l.seconds <= 0) throw InputError("profile " + profile.name, shown(s.key) + " does nothing, so its time has no utilisation", "remove it");
    table_[call->op.index()][static_cast<std::size_t>(call->pass)].samples.push_back(
        {shape_of(call->op, wants), l.seconds / s.median.value, s.median.value, s.spread, l.compute_bound});
  }
  for (auto& passes : table_)
    for (Table& t : passes)
      if (!t.samples.empty()) arrange(t);
}

void Prices::arrange(Table& t) {
  t.low = t.high = t.samples.front().shape.log;
  for (const Sample& s : t.samples) {
    for (std::size_t i = 0; i < kFields; ++i) {
      t.low[i] = std::min(t.low[i], s.shape.log[i]);
      t.high[i] = std::max(t.high[i], s.shape.log[i]);
    }
  }
  for (std::size_t i = 0; i < kFields; ++i)
    if (t.high[i] > t.low[i]) t.varying.push_back(i);
  for (const Sample& s : t.samples)
    for (const std::size_t i : t.varying) t.position.push_back(s.shape.log[i]);
  std::vector<double> ratio;
  if (t.samples.size() >= kEnoughForAnError)
    for (const Sample& s : t.samples) ratio.push_back(look_up(t, s.shape, &s).utilisation / s.utilisation);
  t.error = band_of(std::move(ratio));
}

Prices::Answer Prices::look_up(const Table& table, const Shape& shape, const Sample* without) {
  struct Near { double d2; const Sample* sample; bool foreign; };
  std::array<Near, kNeighbours> near;
  near.fill({1e30, nullptr, false});
  std::array<float, kFields> held{};  // outside the table its edge answers
  const std::size_t dims = table.varying.size();
  for (std::size_t i = 0; i < dims; ++i) held[i] = std::clamp(shape.log[table.varying[i]], table.low[table.varying[i]], table.high[table.varying[i]]);
  const auto foreign_to = [&](const Sample& s) {
    int count = s.shape.wants == shape.wants ? 0 : 1;
    if (s.shape.tag != shape.tag)
      for (std::size_t i = 0; i < kFields; ++i) count += s.shape.tag[i] != shape.tag[i];
    return count;
  };
  int common = 1 << 20;  // what every sample differs in says nothing about which is nearer
  for (const Sample& s : table.samples)
    if (common > 0 && &s != without) common = std::min(common, foreign_to(s));
  const float* position = table.position.data();
  for (const Sample& s : table.samples) {
    float square = 0;
    for (std::size_t i = 0; i < dims; ++i) {
      const float d = held[i] - position[i];
      square += d * d;
    }
    position += dims;
    if (&s == without) continue;
    const int foreign = foreign_to(s);
    if (foreign == 0 && square == 0 && !without && s.shape.log == shape.log) return {s.utilisation, &s, false};
    const double d2 = static_cast<double>(square) + kForeign * (foreign - common);
    if (d2 >= near.back().d2) continue;
    std::size_t at = kNeighbours - 1;
    for (; at > 0 && near[at - 1].d2 > d2; --at) near[at] = near[at - 1];
    near[at] = {d2, &s, foreign > 0};
  }
  double weight = 0, sum = 0;
  for (const Near& n : near) {
    if (!n.sample) continue;
    const double w = 1 / std::max(n.d2, 1e-9);
    weight += w;
    sum += w * n.sample->utilisation;
  }
  return {weight > 0 ? sum / weight : 0, nullptr, near[0].foreign};
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
    // A pair of its own: x through dropout (read, written, a mask) and read again, its output written, scaled and added; backward the
    // scaled dy, and dx of the pair written, masked and added.
    if (l->lora_rank > 0) w.besides += forward ? t * (7 * in + 12 * out) : t * (17 * in + 6 * out), w.own = true;
    // A quantised base is written out in bf16 before the product reads it.
    if (l->weight != DType::bf16) w.besides += in * out * 4, w.own = true;
  }
  if (const auto* a = std::get_if<op::Attention>(&call.op); a && runtime_.score_traffic > 0) {
    // Scores of the whole square are computed, written and read; the causal mask saves nothing.
    const double scores = static_cast<double>(a->tokens) * static_cast<double>(a->heads) * static_cast<double>(std::min(a->sequence_length, a->kv_tokens ? a->kv_tokens : a->tokens));
    w.flops = (forward ? 2 : 4) * scores * static_cast<double>(a->d_qk + a->d_v);
    w.besides += scores * (forward ? runtime_.score_traffic : runtime_.score_traffic_backward);
    w.own = true;
  }
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

Estimate Prices::price(const OpCall& call) const {
  if (const auto* head = std::get_if<op::CrossEntropy>(&call.op); head && runtime_.whole_logits) return whole_head(*head, call);
  return price(call, false);
}

Estimate Prices::price(const OpCall& call, bool in_bf16) const {
  if (is_view(call.op)) return {};
  const Wants wants = call.pass == Pass::backward ? possible(call.op, call.wants) : Wants{};
  const Work work = work_of(call, wants, in_bf16);
  const double f = work.flops / work.speed, b = work.bytes;
  const double held = limit_on(device_, f, b).compute_bound ? device_.sustained : 1;
  if (f <= 0 && b <= 0) return {};
  const double beside = work.besides / (device_.memory_bandwidth.value * device_.achieved_bandwidth);
  const auto estimate = [&](double seconds, ErrorBand e, Basis basis) -> Estimate {
    const double t = seconds / held;
    return {{t + beside + launch_}, {t * e.low + beside + launch_}, {t * e.high + beside + launch_}, basis};
  };
  const auto& passes = table_[call.op.index()];
  const Table* table = &passes[static_cast<std::size_t>(call.pass)];
  const bool borrowed = table->samples.empty();
  if (borrowed) table = &passes[1 - static_cast<std::size_t>(call.pass)];
  if (table->samples.empty()) {
    const Table& kin = table_[kin_of(call.op.index())][static_cast<std::size_t>(call.pass)];
    if (kin.samples.empty()) return estimate(roofline(f, b), kRoofline, Basis::roofline);
    double inverse = 0;  // mean time over limit
    for (const Sample& s : kin.samples) inverse += 1 / s.utilisation;
    const Limit l = limit_on(device_, f, b);
    return estimate(l.seconds * inverse / static_cast<double>(kin.samples.size()) / (l.compute_bound ? matmul_scale_ : bandwidth_scale_), kKin, Basis::roofline);
  }

  const Answer a = look_up(*table, shape_of(call.op, wants), nullptr);
  if (a.exact && !borrowed && same_device_ && !work.own) {
    const double spread = std::max(a.exact->spread, kMachineSpread);
    return estimate(a.exact->seconds, {1 - std::min(spread, 1.0), 1 + spread}, Basis::measured);
  }
  const Limit l = limit_on(device_, f, b);
  const double u = a.utilisation * (l.compute_bound ? matmul_scale_ : bandwidth_scale_);
  ErrorBand e = table->error;
  if (borrowed || a.foreign || !same_generation_) e = {std::min(e.low, kSmallTable.low), std::max(e.high, kSmallTable.high)};
  return estimate(l.seconds / u, e, same_generation_ ? Basis::interpolated : Basis::roofline);
}

std::vector<double> Prices::left_out() const {
  std::vector<double> ratio;
  for (const auto& passes : table_)
    for (const Table& t : passes)
      if (t.samples.size() > 1)
        for (const Sample& s : t.samples) ratio.push_back(look_up(t, s.shape, &s).utilisation / s.utilisation);
  return ratio;
}

std::vector<double> Prices::against_roofline() const {
  std::vector<double> ratio;
  for (const auto& passes : table_)
    for (const Table& t : passes)
      for (const Sample& s : t.samples) ratio.push_back((s.compute_bound ? device_.achieved_matmul : device_.achieved_bandwidth) / s.utilisation);
  return ratio;
}

}  // namespace moeplan
