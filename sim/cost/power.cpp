#include "sim/cost/power.hpp"

#include <algorithm>
#include <map>
#include <string_view>

#include "core/error.hpp"

namespace moeplan {
namespace {

double distance2(const CallShape& a, const CallShape& b) {
  double sum =
      a.wants == b.wants
          ? 0
          : 1;  // a differing switch, type or wanted gradient counts as a shape e times away, as in utilisation.cpp
  for (std::size_t i = 0; i < CallShape::kFields; ++i) {
    const auto d = static_cast<double>(a.log[i] - b.log[i]);
    sum += d * d + (a.tag[i] == b.tag[i] ? 0 : 1);
  }
  return sum;
}

}  // namespace

PowerTables::PowerTables(const PowerProfile& profile, const DeviceSpec& device, std::span<const ProfileSample> times) : profile_(profile) {
  std::map<std::string_view, double> seconds;
  for (const ProfileSample& s : times) seconds.emplace(s.key, s.median.value);
  std::array<double, 2> count{};
  for (const PowerSample& s : profile.samples) {
    const std::optional<OpCall> call = parse_key(s.key);
    if (!call)
      throw InputError("profile: power.samples", shown(s.key) + " is no call of the catalogue",
                       "see `moeplan ops` for operators and their fields");
    const Wants wants = call->pass == Pass::backward ? possible(call->op, call->wants) : Wants{};
    const PowerBound bound{
        flops(call->op, call->pass, wants).value / device.peak.at("bf16").value,
        static_cast<double>(bytes_moved(call->op, call->pass, wants).value) / device.memory_bandwidth.value};
    if (std::max(bound.compute, bound.traffic) <= 0)
      throw InputError("profile: power.samples", shown(s.key) + " does nothing, so what it draws has no measure",
                       "remove it");
    const bool products = bound.has_products();
    const auto timed = std::holds_alternative<op::GroupedLinear>(call->op) ? seconds.find(s.key) : seconds.end();
    of_[call->op.index()][static_cast<std::size_t>(call->pass)].push_back(
        {shape_of(call->op, wants), s.watts, s.clock_share, bound, timed == seconds.end() ? 0 : timed->second, products, bound.by_products()});
    Class& mean = mean_[products];
    mean.watts = products       ? mean.watts + s.watts
                 : count[0] > 0 ? std::min(mean.watts, s.watts)
                                : s.watts;  // what bytes alone take is what those take that do least beside
    mean.clock_share += s.clock_share, ++count[products];
  }
  if (count[1] > 0) mean_[1].watts /= count[1];
  for (const std::size_t bound : {0, 1}) {
    if (count[bound] > 0) mean_[bound].clock_share /= count[bound];
    mean_[bound].products = mean_[bound].by_products = bound == 1;
  }
  if (count[0] > 0) memory_ = mean_[0].watts;
  for (const std::size_t bound : {0, 1})
    if (count[bound] == 0)
      mean_[bound].watts = mean_[1 - bound].watts, mean_[bound].clock_share = static_cast<double>(bound);
}

PoweredCall PowerTables::call(const OpCall& call, double compute, double traffic, double seconds) const {
  const auto& passes = of_[call.op.index()];
  const auto& own = passes[static_cast<std::size_t>(call.pass)];
  const auto& samples = own.empty() ? passes[1 - static_cast<std::size_t>(call.pass)] : own;
  const PowerBound bound{compute, traffic};
  const bool alike =
      std::any_of(samples.begin(), samples.end(), [&](const Class& c) { return c.by_products == bound.by_products(); });
  double joules = 0, share = 0, weights = 0;
  const auto add = [&](const Class& c, double weight) {
    const auto drawn = [&](const PowerBound& by) { return c.products ? c.watts * by.compute + memory_ * by.traffic : c.watts * by.traffic; };
    joules += weight * (c.seconds > 0 ? drawn(c.bound) / c.seconds * seconds : drawn(bound)), share += weight * c.clock_share, weights += weight;
  };
  if (samples.empty()) {
    add(mean_[bound.has_products()], 1);
  } else {
    const CallShape shape = shape_of(call.op, call.pass == Pass::backward ? possible(call.op, call.wants) : Wants{});
    for (const Class& c : samples)
      if (!alike || c.by_products == bound.by_products()) add(c, 1 / std::max(distance2(shape, c.shape), 1e-6));
  }
  PoweredCall out{.seconds = seconds, .joules = joules / weights, .clock_share = share / weights};
  if (out.joules > 0 && seconds > 0) out.reached = reached_clock(profile_, out.clock_share, out.joules, seconds);
  return out;
}

double sustained_clock(const PowerProfile& profile, std::span<const Repeated> calls) {
  const auto within = [&](double x) {
    double joules = 0, seconds = 0;
    for (const Repeated& r : calls) {
      const double t = seconds_at(r.call, x);
      seconds += r.times * t, joules += r.times * (profile.idle * t + joules_at(profile, r.call, x));
    }
    return joules <= profile.limit * seconds;
  };
  if (within(1)) return 1;
  double low = kLeastClock, high = 1;
  for (int i = 0; i < 24; ++i) {
    const double middle = (low + high) / 2;
    (within(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace moeplan
