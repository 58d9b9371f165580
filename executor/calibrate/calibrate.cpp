#include "executor/calibrate/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "core/error.hpp"
#include "core/spec/profile_keys.hpp"
#include "executor/calibrate/machine.hpp"
#include "executor/calibrate/stage.hpp"

namespace moeplan {
namespace {

/// Rows of an expert beside those of the calls themselves, and rows in all of few experts that have more.
constexpr std::array kRows{8, 32, 64, 96, 128, 144, 192, 256, 320, 384, 512};
constexpr std::array kManyRows{1024, 2048, 4096, 8192};
constexpr std::int64_t kFewExperts = 8;
constexpr std::array kRoutedRows{0.5, 2.0};

constexpr std::int64_t kMostUpdated = std::int64_t{1} << 30;

/// No time is shorter: the device's clock counts half microseconds.
constexpr double kLeast = 5e-7;

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

void add_update(std::map<std::string, OpCall>& calls, const Program& program) {
  StateBytes state = program.resident;
  for (const Slot& s : program.slots) state += s.state;
  state.trained_elements = std::min(state.trained_elements, kMostUpdated);
  if (program.optimizer != OptimizerKind::adamw || state.trained_elements == 0) return;
  const OpCall update = optimizer_call(state, program.optimizer);
  calls.emplace(key(update.op, update.pass, update.wants), update);
}

void add_loads(std::map<std::string, OpCall>& calls, bool tiles) {
  std::map<std::string, OpCall> more;
  const auto add = [&](const OpCall& call) { more.emplace(key(call.op, call.pass, call.wants), call); };
  for (const auto& [name, call] : calls) {
    OpCall other = call;
    if (auto* linear = std::get_if<op::GroupedLinear>(&other.op); linear && tiles) {
      const std::int64_t experts = linear->experts;
      for (const std::int64_t rows : kRows) linear->rows = rows * experts, add(other);
      linear->experts = std::min(experts, kFewExperts);
      for (const std::int64_t rows : kManyRows) linear->rows = rows * linear->experts, add(other);
      continue;
    }
    for (const double factor : kRoutedRows) {
      other = call;
      const auto scale = [&](std::int64_t& rows) { rows = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::lround(static_cast<double>(rows) * factor))); };
      if (auto* linear = std::get_if<op::GroupedLinear>(&other.op)) scale(linear->rows), add(other);
      if (auto* glu = std::get_if<op::Glu>(&other.op); glu && glu->ragged) scale(glu->tokens), add(other);
      if (auto* activate = std::get_if<op::Activate>(&other.op); activate && activate->ragged) scale(activate->tokens), add(other);
    }
  }
  calls.merge(more);
}

ProfileSample time_call(Backend& backend, const OpCall& call, const TimingOptions& options, const Surroundings& around) {
  const Stage stage(backend, call);
  // Operands larger than any cache are out of it again by themselves, and need not be there twice.
  std::optional<Stage> apart;
  const bool host = backend.queue() == nullptr;
  if (host && stage.bytes() <= kMostCleared) apart.emplace(backend, call);
  const auto work = [&] { stage.perform(backend); };
  work();   // buffers grow, algorithms are chosen
  backend.wait();
  std::vector<double> times;
  double spent = 0;
  while (static_cast<std::int64_t>(times.size()) < options.most) {
    if (around.busy) around.busy();
    backend.clear(around.flush);
    if (host) spent += backend.time([&] { (apart ? *apart : stage).perform(backend); }).value;
    for (const TensorView& t : stage.fresh) backend.copy(t, t);
    times.push_back(std::max(kLeast, backend.time(work).value - around.bare.value));
    spent += times.back();
    if (options.rest > 0) std::this_thread::sleep_for(std::chrono::duration<double>(options.rest * times.back()));
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
  const Bytes cleared{std::clamp<std::int64_t>(options.touched.value / 4 * 4, 4, kMostCleared.value)};
  const Backend::Memory memory = backend.allocate(cleared, "cache flush");
  Busy busy(backend, options.busy);
  const Surroundings around{.flush = {memory.get(), DType::f32, {cleared.value / 4}}, .bare = bare_seconds(backend), .busy = busy.work()};
  Calibration out;
  if (!samples.contains(std::string(kLaunchKey)))
    for (const ProfileSample& s : machine_samples(backend, around)) samples.emplace(s.key, s);
  std::size_t done = 0;
  for (const auto& [name, call] : calls) {
    ++done;
    if (samples.contains(name)) continue;
    if (const std::string why = backend.refusal(call.op); !why.empty()) {
      out.refused.push_back(fmt::format("{}: not on the {} backend: {}", name, backend.name(), why));
      continue;
    }
    try {
      samples.emplace(name, time_call(backend, call, options, around));
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
