#include "planner/step_calls.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "planner/exchange_options.hpp"
#include "planner/load_spread.hpp"
#include "sim/cost/price.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

/// Relative, of one class's energy at other shapes: dense products and experts of 125 classes drew 990 to 1,310 W at their full rate (bench/results/calibration_h200.md), a tenth about their middle.
constexpr double kClassSpread = 0.1;
/// Relative, of the energy of a mix: a clock moves by 15 MHz, 0.8 % of an H200's, and power by about its square.
constexpr double kMixSpread = 0.02;
/// Below this share of the boost clock the device slowed the mix (executor/calibrate/power.cpp has the same for calls).
constexpr double kSlowed = 0.95;
/// Steps of the fit; each solves the equations made linear, and what a call reaches moves little between two.
constexpr int kRounds = 4;

/// A call of a mix as far as power goes.
struct Asked {
  OpCall call;
  double times = 0, compute = 0, traffic = 0, seconds = 0;   ///< by the data sheet, and at rest
};

struct Mix {
  std::vector<Asked> calls;
  double clock = 1, watts = 0;   ///< over the boost clock; beyond idle

  /// ln of what is drawn at the clock that was seen over what the law says.
  [[nodiscard]] double missed(const PowerTables& tables) const {
    double joules = 0, seconds = 0;
    for (const Asked& a : calls) {
      const PoweredCall c = tables.call(a.call, a.compute, a.traffic, a.seconds);
      joules += a.times * joules_at(tables.profile(), c, clock), seconds += a.times * seconds_at(c, clock);
    }
    return std::log(watts * seconds / joules);
  }
};

/// x of (A + noise I) x = b, A positive semidefinite: elimination, whose pivots are then positive.
std::vector<double> solved(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i + 1; j < n; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (std::size_t k = i; k < n; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

std::vector<Asked> asked(const MixReading& reading, const Prices& prices, const DeviceSpec& device) {
  std::vector<Asked> out;
  for (const CountedCall& c : step_calls(reading.problem, reading.plan)) {
    const PoweredCall powered = prices.rested(c.call).power;
    if (powered.seconds <= 0) continue;
    const Wants wants = c.call.pass == Pass::backward ? possible(c.call.op, c.call.wants) : Wants{};
    out.push_back({c.call, c.times, flops(c.call.op, c.call.pass, wants).value / device.peak.at("bf16").value,
                   static_cast<double>(bytes_moved(c.call.op, c.call.pass, wants).value) / device.memory_bandwidth.value, powered.seconds});
  }
  return out;
}

}  // namespace

std::vector<CountedCall> step_calls(const Problem& problem, const Plan& of) {
  Plan plan;
  plan.micro_batch = of.micro_batch, plan.recompute = of.recompute;
  if (const std::int64_t experts = routed_experts(problem.model); experts > 0) plan.parallelism.ep = plan.parallelism.dp_shard = static_cast<int>(std::gcd(experts, problem.cluster.devices()));
  const ModelOutline outlined = outline(problem.model, problem.workload);
  const auto layers = static_cast<std::int32_t>(outlined.kinds.size());
  std::map<std::string, std::pair<std::int32_t, double>> kinds;   // the last of them, after all that is trained before, and how many there are
  for (std::int32_t l = -1; l <= layers; ++l) {
    const std::string name = l < 0 ? "embedding" : l == layers ? "head" : outlined.kinds[static_cast<std::size_t>(l)];
    auto& [last, count] = kinds[name];
    last = l, ++count;
  }
  std::vector<CountedCall> out;
  for (const auto& [name, kind] : kinds) {
    const Block block = lower_slot(problem, plan, outlined, kind.first, 1.0);
    for (const auto* pass : {&block.forward, &block.backward})
      for (const BlockNode& n : *pass)
        if (const OpCall* call = std::get_if<OpCall>(&n.call)) out.push_back({*call, kind.second});
  }
  return out;
}

std::optional<PowerProfile> with_mixes(const DeviceProfile& profile, std::span<const MixReading> readings) {
  if (!profile.power || readings.empty()) return profile.power;
  PowerProfile out = *profile.power;
  std::vector<Mix> mixes;
  double held = 0, slowed = 0;
  for (const MixReading& r : readings) {
    const Prices prices(profile.device, profile, r.problem.runtime, load_spread(r.problem));
    Mix mix{.calls = asked(r, prices, profile.device), .clock = std::min(1.0, r.clock / out.boost), .watts = r.watts - out.idle};
    if (mix.watts <= 0 || mix.calls.empty()) continue;
    if (mix.clock < kSlowed) held += r.watts, ++slowed;
    mixes.push_back(std::move(mix));
  }
  if (mixes.empty()) return out;
  if (slowed > 0) out.limit = held / slowed;
  const std::vector<ProfileSample>& times = profile.samples;
  const std::size_t classes = out.samples.size(), n = mixes.size();
  // How a mix's energy goes with that of each class, in logarithms.
  constexpr double kStep = 0.01;
  std::vector<std::vector<double>> share(n, std::vector<double>(classes));
  {
    const PowerTables as_is(out, profile.device, times);
    std::vector<double> before;
    for (const Mix& m : mixes) before.push_back(m.missed(as_is));
    for (std::size_t c = 0; c < classes; ++c) {
      PowerProfile other = out;
      other.samples[c].watts *= std::exp(kStep);
      const PowerTables tables(other, profile.device, times);
      for (std::size_t m = 0; m < n; ++m) share[m][c] = (before[m] - mixes[m].missed(tables)) / kStep;
    }
  }
  std::vector<std::vector<double>> equations(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t c = 0; c < classes; ++c) equations[i][j] += kClassSpread * kClassSpread * share[i][c] * share[j][c];
      if (i == j) equations[i][j] += kMixSpread * kMixSpread;
    }
  std::vector<double> moved(classes);   // ln of each class's energy over its own reading
  for (int round = 0; round < kRounds; ++round) {
    const PowerTables tables(out, profile.device, times);
    std::vector<double> missed;
    for (std::size_t m = 0; m < n; ++m) {
      missed.push_back(mixes[m].missed(tables));
      for (std::size_t c = 0; c < classes; ++c) missed[m] += share[m][c] * moved[c];
    }
    const std::vector<double> weight = solved(equations, missed);
    for (std::size_t c = 0; c < classes; ++c) {
      double to = 0;
      for (std::size_t m = 0; m < n; ++m) to += kClassSpread * kClassSpread * share[m][c] * weight[m];
      moved[c] = to;
      out.samples[c].watts = profile.power->samples[c].watts * std::exp(to);
    }
  }
  return out;
}

}  // namespace moeplan
