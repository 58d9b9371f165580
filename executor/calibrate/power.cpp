#include "executor/calibrate/power.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "core/error.hpp"
#include "core/spec/power_bound.hpp"
#include "executor/calibrate/machine.hpp"
#include "executor/calibrate/stage.hpp"

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;

/// Until a device has settled, and for how long it is watched then: an H200 settles in 0.15 s and counts energy in
/// steps of 0.1 s.
constexpr double kSettle = 0.16, kWatched = 0.36;
/// The same of steps, of tenths of seconds each: power within a step comes and goes.
constexpr double kStepsSettle = 0.2, kStepsWatched = 0.8;
constexpr int kFewestSteps = 3;
/// Work queued at once: without rest, and before each rest. An H200 looks at its power about every 25 ms.
constexpr double kBurst = 0.01, kShortBurst = 0.002;
constexpr double kLongestCall = 1e-2, kShortestCall = 3e-5;
/// Of the time of the longest call of a class: a second one, that fills the device less. Chosen, not fitted: three doublings, so that a class says whether what it draws
/// follows its size; on one H200 dense and expert products of both sizes drew within 990 to 1,310 W at their full rate (docs/cost.md).
constexpr double kSmaller = 0.125;
/// Calls whose every dimension is within this factor draw alike: products drew 990 to 1,310 W, a third apart, over shapes that were many times as far from each other.
constexpr double kAlike = 1.3;
/// Below this share of the boost clock a call was slowed. Clocks are set in steps of 15 MHz, 0.8 % of an H200's 1,980, so that this is six of them; chosen, with the steps of
/// bench/results/calibration_h200.md in sight: most were held at 1,510 to 1,877 MHz (0.95), some are called unslowed at 1,939 and 1,956.
constexpr double kSlowed = 0.95;
/// Power from this share of the highest on counts as at the device's peak. Chosen; from 0.90 to 0.98 the exponent of 34 slowed calls stays at 0.834 to
/// 0.837 (bench/results/calibration_h200.md).
constexpr double kNearPeak = 0.95;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// The meters read beside the work.
class Log {
 public:
  Log(const PowerMeter& meter, Clock::time_point start)
      : thread_([this, &meter, start](const std::stop_token& stop) {
          std::optional<double> last = meter.joules();
          for (int i = 0; !stop.stop_requested(); ++i, rest(1e-3)) {
            const std::optional<double> now = meter.joules();
            if (now && last && *now != *last) energy_.emplace_back(seconds_since(start), *now);
            if (now) last = now;
            if (i % 4 != 0) continue;
            if (const std::optional<double> clock = meter.clock()) clock_.emplace_back(seconds_since(start), *clock);
          }
        }) {}
  void stop() {
    thread_.request_stop();
    thread_.join();
  }
  /// Mean power between the first and the last step of the counter after `from`; nothing where it took no two.
  [[nodiscard]] std::optional<double> watts(double from) const {
    const auto first = std::find_if(energy_.begin(), energy_.end(), [&](const auto& e) { return e.first >= from; });
    if (first == energy_.end() || first + 1 == energy_.end()) return std::nullopt;
    return (energy_.back().second - first->second) / (energy_.back().first - first->first);
  }
  [[nodiscard]] std::optional<double> clock(double from) const {
    double sum = 0, count = 0;
    for (const auto& [when, clock] : clock_)
      if (when >= from) sum += clock, ++count;
    return count > 0 ? std::optional(sum / count) : std::nullopt;
  }

 private:
  std::vector<std::pair<double, double>> energy_, clock_;  ///< seconds; J, MHz
  std::jthread thread_;
};

/// `work` over and over, each time `times` calls, then at rest for `share` of what it took and `least` seconds. Nothing
/// where the meters said too little.
std::optional<Held> hold(Backend& backend, const PowerMeter& meter, const std::function<void()>& work,
                         std::int64_t times, double share, double least) {
  const auto start = Clock::now();
  Log log(meter, start);
  double seconds = 0, first = 0, last = 0, bursts = 0;
  for (;;) {
    const double began = seconds_since(start);
    if (began >= kSettle + kWatched) {
      last = began;
      break;
    }
    const double took = backend.time(work).value;
    if (began >= kSettle) {
      if (bursts == 0) first = began;
      seconds += took, ++bursts;
    }
    if (const double idle = std::max(share * took, least); idle > 0) rest(idle);
  }
  log.stop();
  const double calls = bursts * static_cast<double>(times);
  const std::optional<double> clock = log.clock(kSettle), watts = log.watts(kSettle);
  if (!clock || !watts || *clock <= 0 || *watts <= 0 || bursts == 0) return std::nullopt;
  return Held{.seconds = seconds / calls, .clock = *clock, .watts = *watts, .rate = calls / (last - first)};
}

bool are_alike(const Op& a, const Op& b) {
  if (a.index() != b.index()) return false;
  bool near = true;
  std::visit(
      [&]<class T>(const T& x) {
        const T& y = std::get<T>(b);
        for_each_field<T>([&](const auto& f) {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(x.*(f.member))>, std::int64_t>) {
            const auto u = std::max(static_cast<double>(x.*(f.member)), 0.75),
                       v = std::max(static_cast<double>(y.*(f.member)), 0.75);  // none is not within it of one
            near = near && u < kAlike * v && v < kAlike * u;
          }
        });
      },
      a);
  return near;
}

PowerBound bounds_of(const OpCall& call, const DeviceSpec& device) {
  const Wants wants = call.pass == Pass::backward ? possible(call.op, call.wants) : Wants{};
  return {flops(call.op, call.pass, wants).value / device.peak.at("bf16").value,
          static_cast<double>(bytes_moved(call.op, call.pass, wants).value) / device.memory_bandwidth.value};
}

/// Operator, pass, type of its weights, attention to a window, bound by products.
using Kind = std::tuple<std::size_t, Pass, DType, bool, bool>;
Kind kind_of(const OpCall& call, const DeviceSpec& device) {
  DType weight = DType::bf16;
  if (const auto* l = std::get_if<op::Linear>(&call.op)) weight = l->weight;
  if (const auto* g = std::get_if<op::GroupedLinear>(&call.op)) weight = g->weight;
  const auto* attention = std::get_if<op::Attention>(&call.op);
  return {call.op.index(), call.pass, weight, attention != nullptr && attention->window > 0, bounds_of(call, device).by_products()};
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// Of a call that does not slow the device by itself: how its time grows where products have slowed it.
std::optional<double> share_behind_products(Backend& backend, const PowerMeter& meter,
                                            const std::function<void()>& work, double seconds, double boost,
                                            const TensorView& flush) {
  const auto timed = [&] {
    backend.clear(flush);
    return backend.time(work).value;
  };
  std::vector<double> alone, behind;
  for (int i = 0; i < 5; ++i) alone.push_back(timed());
  const Busy busy(backend, {std::max(kLongestCall, 3 * seconds)});
  const auto products = busy.work();
  const auto start = Clock::now();
  Log log(meter, start);
  while (seconds_since(start) < kSettle + kWatched / 2) {
    products();
    const double t = timed();
    if (seconds_since(start) > kSettle) behind.push_back(t);
  }
  log.stop();
  const std::optional<double> clock = log.clock(kSettle);
  if (behind.empty() || !clock || *clock <= 0 || *clock > kSlowed * boost) return std::nullopt;
  return std::clamp((median(behind) / median(alone) - 1) / (boost / *clock - 1), 0.0, 1.0);
}

}  // namespace

std::vector<OpCall> power_calls(const std::map<std::string, OpCall>& calls, const std::vector<ProfileSample>& samples,
                                const std::vector<PowerSample>& known, const DeviceSpec& device) {
  std::map<std::string, double> seconds;
  for (const ProfileSample& s : samples) seconds.emplace(s.key, s.median.value);
  std::map<Kind, std::vector<std::pair<double, OpCall>>> classes;
  for (const auto& [name, call] : calls) {
    const auto it = seconds.find(name);
    if (it != seconds.end() && it->second >= kShortestCall &&
        std::max(bounds_of(call, device).compute, bounds_of(call, device).traffic) > 0)
      classes[kind_of(call, device)].emplace_back(it->second, call);
  }
  std::vector<OpCall> out;
  for (const auto& [kind, of_kind] : classes) {
    const auto longest_within = [&](double most) {
      const std::pair<double, OpCall>* best = nullptr;
      for (const auto& each : of_kind)
        if (each.first <= most && (best == nullptr || each.first > best->first)) best = &each;
      return best;
    };
    const auto stands_for = [&](const OpCall& call, const OpCall& other) {
      return kind_of(other, device) == kind && (!bounds_of(call, device).by_products() || are_alike(call.op, other.op));
    };
    const auto* longest = longest_within(kLongestCall);
    if (longest == nullptr)
      longest = &*std::min_element(of_kind.begin(), of_kind.end(),
                                   [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto* smaller =
        bounds_of(longest->second, device).by_products() ? longest_within(longest->first * kSmaller) : nullptr;
    for (const auto* each : {longest, smaller}) {
      if (each == nullptr) continue;
      const bool stands = std::any_of(known.begin(), known.end(), [&](const PowerSample& s) {
        const std::optional<OpCall> other = parse_key(s.key);
        return other && stands_for(each->second, *other);
      });
      if (!stands) out.push_back(each->second);
    }
  }
  return out;
}

PowerReadings read_power(Backend& backend, const PowerMeter& meter, std::span<const OpCall> calls,
                         const std::function<void(std::size_t, std::size_t)>& progress) {
  PowerReadings out;
  const Backend::Memory memory = backend.allocate(kMostCleared, "cache flush");
  const TensorView flush{memory.get(), DType::f32, {kMostCleared.value / 4}}, little{memory.get(), DType::f32, {64}};
  const std::optional<Held> awake = hold(
      backend, meter, [&] { backend.clear(little); }, 1, 0, 1e-3);
  if (!awake) return out;
  out.idle = awake->watts, out.boost = awake->clock;
  std::size_t done = 0;
  for (const OpCall& call : calls) {
    progress(done++, calls.size());
    try {
      const Stage stage(backend, call);
      const auto once = [&] { stage.perform(backend); };
      once();
      backend.wait();
      const double seconds = std::max(1e-6, backend.time(once).value);
      const auto burst = [&](double length) { return std::max<std::int64_t>(1, std::llround(length / seconds)); };
      const auto repeated = [&](std::int64_t times) {
        return [&once, times] {
          for (std::int64_t i = 0; i < times; ++i) once();
        };
      };
      const std::optional<Held> sustained = hold(backend, meter, repeated(burst(kBurst)), burst(kBurst), 0, 0);
      if (!sustained) continue;
      PowerReading reading{.call = call, .sustained = *sustained, .rested = {}, .share = {}};
      if (sustained->clock < kSlowed * out.boost) {
        reading.rested = hold(backend, meter, repeated(burst(kShortBurst)), burst(kShortBurst), 1, 0);
        if (!reading.rested) continue;
      } else {
        reading.share = share_behind_products(backend, meter, once, seconds, out.boost, flush);
      }
      out.calls.push_back(reading);
    } catch (const InputError&) {
      // Its sample was refused for the same reason, and said so.
    }
  }
  return out;
}

std::optional<Held> hold_steps(const PowerMeter& meter, const std::function<void()>& step) {
  const auto start = Clock::now();
  Log log(meter, start);
  double first = 0, last = 0;
  int steps = 0;
  for (;;) {
    const double began = seconds_since(start);
    if (steps >= kFewestSteps && began >= kStepsSettle + kStepsWatched) {
      last = began;
      break;
    }
    step();
    if (began < kStepsSettle) continue;
    if (steps++ == 0) first = began;
  }
  log.stop();
  const std::optional<double> clock = log.clock(first), watts = log.watts(first);
  if (!clock || !watts || *clock <= 0 || *watts <= 0) return std::nullopt;
  return Held{.seconds = (last - first) / steps, .clock = *clock, .watts = *watts, .rate = steps / (last - first)};
}

std::optional<PowerProfile> fit_power(const PowerReadings& readings, double limit, const DeviceSpec& device,
                                      const std::optional<PowerProfile>& before) {
  const double idle = before ? before->idle : readings.idle, boost = before ? before->boost : readings.boost;
  if (boost <= 0 || readings.boost <= 0) return before;
  std::map<std::string, const PowerReading*> by_key;
  for (const PowerReading& r : readings.calls) by_key.emplace(key(r.call.op, r.call.pass, r.call.wants), &r);
  const auto energy = [&](const Held& h) { return (h.watts - idle) / h.rate; };
  const auto power = [&](const PowerReading& r) { return idle + energy(*r.rested) / r.rested->seconds; };
  PowerProfile out = before.value_or(
      PowerProfile{.limit = limit, .peak = 0, .idle = idle, .boost = boost, .exponent = 1, .samples = {}});
  if (!before) {
    double most = 0;
    for (const auto& [name, r] : by_key)
      if (r->rested) most = std::max(most, power(*r));
    if (most <= 0) return std::nullopt;
    std::vector<double> near;
    for (const auto& [name, r] : by_key)
      if (r->rested && power(*r) >= kNearPeak * most) near.push_back(power(*r));
    out.peak = median(near);
    double energies = 0, clocks = 0;  // the larger the fall, the more it says
    for (const auto& [name, r] : by_key)
      if (r->rested && power(*r) < kNearPeak * out.peak)
        energies += std::log(energy(r->sustained) / energy(*r->rested)),
            clocks += std::log(r->sustained.clock / r->rested->clock);
    if (clocks != 0) out.exponent = std::clamp(energies / clocks, 0.0, 4.0);
  }
  struct Fitted {
    std::string key;
    double joules = 0, share = 0;
    PowerBound bounds;
  };
  std::vector<Fitted> fitted;
  double memory = 0;  // W at the full rate of memory, of the calls that do least beside
  const auto count_memory = [&](double watts) { memory = memory > 0 ? std::min(memory, watts) : watts; };
  for (const PowerSample& s : out.samples)
    if (const auto call = parse_key(s.key); call && !bounds_of(*call, device).has_products()) count_memory(s.watts);
  const double memory_before = memory;
  for (const auto& [name, reading] : by_key) {
    const PowerReading& r = *reading;
    Fitted f{.key = name,
             .joules = 0,
             .share = r.rested ? 1 : r.share.value_or(bounds_of(r.call, device).by_products() ? 1.0 : 0.0),
             .bounds = bounds_of(r.call, device)};
    const double x = std::min(1.0, r.sustained.clock / boost);
    const auto at_boost = [&] { return energy(r.sustained) / energy_at(out, f.share, x); };
    for (int i = 0; r.rested && i < 16; ++i) {  // what it reaches at rest depends on its share, and the share on that
      const double reached = reached_clock(out, f.share, at_boost(), r.rested->seconds);
      f.share = reached < 1.02 * x
                    ? 1
                    : std::clamp((r.sustained.seconds / r.rested->seconds - 1) / (reached / x - 1), 0.0, 1.0);
    }
    f.joules = at_boost();
    if (!f.bounds.has_products() && f.joules > 0) count_memory(f.joules / f.bounds.traffic);
    fitted.push_back(f);
  }
  for (PowerSample& s : out.samples)  // a call's energy is what was read, however it is told apart
    if (const auto call = parse_key(s.key)) {
      const PowerBound b = bounds_of(*call, device);
      if (b.has_products()) s.watts += (memory_before - memory) * b.traffic / b.compute;
    }
  std::erase_if(out.samples, [](const PowerSample& s) { return s.watts <= 0; });
  for (const Fitted& f : fitted) {
    const double watts = f.bounds.has_products() ? (f.joules - memory * f.bounds.traffic) / f.bounds.compute
                                                 : f.joules / f.bounds.traffic;
    if (watts > 0 && watts <= 1e6) out.samples.push_back({.key = f.key, .watts = watts, .clock_share = f.share});
  }
  return out;
}

}  // namespace moeplan
