/// moeplan calibrate: the calls that plans would make, timed on this machine.

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ctime>
#include <set>

#include "cli/backends.hpp"
#include "cli/calibrate_links.hpp"
#include "cli/calibrate_mix.hpp"
#include "cli/command.hpp"
#include "cli/output_files.hpp"
#include "cli/table.hpp"
#include "core/configs.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/spec/profile_keys.hpp"
#include "core/write.hpp"
#include "executor/calibrate/calibrate.hpp"
#include "executor/calibrate/power.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "sim/cost/price.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan::cli {
namespace {

constexpr int kFailed = 4;
/// Above this the times say little about the next run.
constexpr double kTooNoisy = 0.25;

struct Options {
  std::vector<std::string> plans, models, targets, only;
  std::vector<std::int64_t> sequences, micro_batches{1}, ranks;
  std::string output, backend = "cpu", name, device, runtime, method, links_most;
  int ep = 1, links = 0;
  std::optional<double> busy_milliseconds;
  bool again = false, no_power = false;
  TimingOptions timing;
};

/// Before each sample where no meter says what a clock follows, so that it is about that of a step.
constexpr double kBusyMilliseconds = 2;
/// After each sample, over what it took: an H200 that works half of the time stays at its boost clock.
constexpr double kRest = 1;

/// How long the device multiplied before each sample of a profile's calls; nothing where it holds no call.
std::optional<double> busy_of(const DeviceProfile& profile) {
  std::optional<double> out;
  for (const ProfileSample& s : profile.samples) {
    if (s.key == kBusyKey) return s.median.value;
    if (parse_key(s.key)) out = 0;
  }
  return out;
}
constexpr double kWritten = 1e-3;   ///< files give four digits
/// Of a device's free memory, what the steps of a mix may be predicted to need.
constexpr double kMixRoom = 0.97;
std::string taken(double busy) { return busy > 0 ? fmt::format("behind {} of products", duration({busy})) : "without products before"; }

/// The device of configs/devices that is meant: by flag, "cpu", or the one whose name the driver's holds ("NVIDIA H200": h200).
std::string device_name(const Context& context, const Options& options, const std::string& opened) {
  if (!options.device.empty()) return options.device;
  if (options.backend != "cuda") return "cpu";
  std::string words;
  for (const char c : opened) words += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c))) : ' ';
  words = " " + words + " ";
  for (const std::string& name : config_names(context.configs, "devices"))
    if (words.find(" " + name + " ") != std::string::npos) return name;
  throw InputError("--device", opened + " is none of configs/devices", "name the nearest, or a file that describes it");
}

using Calls = std::map<std::string, OpCall>;   ///< by key

/// What a step of a plan holds beside the driver's context, which is what it touches.
Bytes touched(const Program& program, const Problem& problem, const Plan& plan) {
  const MemoryBreakdown m = memory(program, problem, plan);
  return m.peak() - m[MemoryCategory::runtime_context] - m[MemoryCategory::communication];
}

/// Leaves the calls of the named operators. Throws InputError for a name that no call has.
void keep_only(const std::vector<std::string>& names, std::map<std::string, Calls>& of_model) {
  if (names.empty()) return;
  std::set<std::string> known;
  for (auto& [model, calls] : of_model)
    std::erase_if(calls, [&](const auto& each) {
      const std::string name(kind(each.second.op));
      known.insert(name);
      return std::find(names.begin(), names.end(), name) == names.end();
    });
  for (const std::string& name : names)
    if (!known.contains(name)) throw InputError("--only", shown(name) + " is no operator that is called", fmt::format("there are {}", fmt::join(known, ", ")));
}

/// One model at one length, on `ep` expert ranks, cut for nothing else. `profile`: with which it is priced; the default's where there is none.
LoadedPlan model_plan(const Context& context, const Options& options, const std::string& model, std::optional<std::int64_t> sequence, std::int64_t micro_batch, std::optional<std::int64_t> rank, const std::string& device, const std::optional<std::string>& profile = {}) {
  ProblemRequest request;
  request.model = model;
  request.device = device;
  request.gpus = options.ep;
  request.runtime = options.runtime;
  request.profile = profile;
  request.sequence_length = sequence;
  request.targets = options.targets;
  request.rank = rank;
  if (options.method == "full") request.method = Training::full;
  LoadedPlan out{make_problem(context.configs, request), {}};
  out.plan.parallelism.ep = out.plan.parallelism.dp_shard = options.ep;
  out.plan.micro_batch = micro_batch;
  out.plan.stage_layers = {static_cast<std::int64_t>(out.problem.model.layers.size())};
  check_micro_batch(out.problem, micro_batch, "--micro-batch");
  return out;
}

/// The calls of its layers, and those on routed rows at other loads. Returns what its step touches.
Bytes add_model(const LoadedPlan& model, bool tiles, Calls& calls) {
  const Program program = lower(model.problem, model.plan, 0);
  Calls mine = calls_of(program);
  add_update(mine, program);
  add_loads(mine, tiles);
  calls.merge(mine);
  return touched(program, model.problem, model.plan);
}

/// What `--seq` and `--micro-batch` name, the shortest step first; a model's own length where no other is given.
std::vector<std::pair<std::optional<std::int64_t>, std::int64_t>> sizes(const Options& options) {
  std::vector<std::pair<std::optional<std::int64_t>, std::int64_t>> out;
  for (const std::int64_t micro_batch : options.micro_batches) {
    if (options.sequences.empty()) out.emplace_back(std::nullopt, micro_batch);
    for (const std::int64_t length : options.sequences) out.emplace_back(length, micro_batch);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first.value_or(1) * a.second < b.first.value_or(1) * b.second; });
  return out;
}

std::vector<std::optional<std::int64_t>> ranks(const Options& options) {
  if (options.ranks.empty()) return {std::nullopt};
  return {options.ranks.begin(), options.ranks.end()};
}

/// Steps of these models, or of the plans, as the device runs them one after the other; what was read, and what was not, is said in the notes.
std::vector<MixReading> read_mixes(const Context& context, const Options& options, const std::string& device, const std::vector<LoadedPlan>& plans, const PowerMeter& meter, Output& out) {
  std::map<std::string, std::vector<LoadedPlan>> of_model;
  for (const LoadedPlan& p : plans) of_model[p.problem.model_name].push_back(p);
  for (const std::string& model : options.models) {
    if (options.ep > 1 || !options.only.empty()) break;   // a rank alone is no step, and of some operators there is none
    const LoadedPlan base = model_plan(context, options, model, options.sequences.empty() ? std::nullopt : std::optional(options.sequences.front()), 1, ranks(options).front(), device, options.output);
    for (const Recompute recompute : {Recompute::none, Recompute::full})   // from the shortest steps to the longest
      for (const auto& [length, micro_batch] : sizes(options)) {
        LoadedPlan& mix = of_model[model].emplace_back(base);
        mix.problem.workload.sequence_length = length.value_or(base.problem.workload.sequence_length);
        mix.plan.micro_batch = micro_batch, mix.plan.recompute = recompute;
      }
  }
  std::vector<MixReading> read;
  const Bytes room{static_cast<std::int64_t>(kMixRoom * static_cast<double>(open_backend(options.backend, false).free_bytes))};
  for (const auto& [model, candidates] : of_model)
    for (const LoadedPlan& mix : chosen_mixes(candidates, room)) {
      try {
        if (std::optional<MixReading> reading = read_mix(options.backend, meter, mix)) {
          out.notes.push_back(fmt::format("{}: {:.0f} MHz at {:.0f} W, step after step", mix_name(mix), reading->clock, reading->watts));
          read.push_back(std::move(*reading));
        } else {
          out.notes.push_back(mix_name(mix) + ": the meters said nothing of its steps");
        }
      } catch (const InputError& e) {
        out.notes.push_back(fmt::format("{}: not run step after step: {}", mix_name(mix), e.what()));
      }
    }
  return read;
}

/// What the meters said, from which the section follows.
Json readings_json(const PowerReadings& readings) {
  const auto held = [](const Held& h) { return Json{{"seconds", h.seconds}, {"clock_mhz", h.clock}, {"watts", h.watts}, {"calls_per_second", h.rate}}; };
  Json out = Json::array();
  for (const PowerReading& r : readings.calls)
    out.push_back({{"key", key(r.call.op, r.call.pass, r.call.wants)}, {"sustained", held(r.sustained)}, {"rested", r.rested ? held(*r.rested) : Json(nullptr)}, {"share_behind_products", r.share ? Json(*r.share) : Json(nullptr)}});
  return {{"idle_watts", readings.idle}, {"boost_mhz", readings.boost}, {"calls", std::move(out)}};
}

Json mixes_json(const std::vector<MixReading>& mixes) {
  Json out = Json::array();
  for (const MixReading& m : mixes) out.push_back({{"mix", mix_name({m.problem, m.plan})}, {"clock_mhz", m.clock}, {"watts", m.watts}});
  return out;
}

/// How far interpolation is off at what was measured: samples of each operator left out in turn (at most about 24 of each), their time over that which the others give.
struct LeftOut {
  double median = 0, p90 = 0;
  std::size_t samples = 0;
};
LeftOut left_out(const Context& context, const DeviceProfile& profile, const std::string& runtime) {
  std::vector<double> off;
  for (const double ratio : Prices(profile.device, profile, load_runtime(context.configs, runtime)).left_out()) off.push_back(std::abs(ratio - 1));
  if (off.empty()) return {};
  std::sort(off.begin(), off.end());
  return {off[off.size() / 2], off[off.size() * 9 / 10], off.size()};
}

std::string power_note(const std::optional<PowerProfile>& p, std::size_t asked, std::size_t read) {
  if (asked > 0 && read == 0) return fmt::format("power: the meters said nothing of {} calls", asked);
  if (!p) return fmt::format("power: none of {} calls lowered the clock: times hold at any", read);
  return fmt::format("power: {} of {} calls read; {:.0f} W held, {:.0f} W at most, {:.0f} W idle at {:.0f} MHz, energy by the {:.2f}th power of the clock, {} classes", read, asked, p->limit, p->peak,
                     p->idle, p->boost, p->exponent, p->samples.size());
}

Output run(const Context& context, Options options) {
  if (options.links > 0)
    return calibrate_links(context, {.ranks = options.links, .backend = options.backend, .output = options.output, .name = options.name, .most = options.links_most, .again = options.again,
                                     .device_name = [&](const std::string& opened) { return device_name(context, options, opened); }});
  if (options.plans.empty() == options.models.empty()) throw InputError("calibrate", options.plans.empty() ? "nothing to measure" : "plans and models together", "give plan files, or --model NAME");
  std::map<std::string, Calls> of_model;
  std::optional<DeviceSpec> device;
  Bytes most{};   // of the steps, what one touches
  const OpenBackend opened = open_backend(options.backend, false);
  std::string described;   // the device of configs/devices
  if (!options.models.empty()) {
    described = device_name(context, options, opened.device);
    device = load_device(context.configs, described).device;
    for (const std::string& model : options.models)
      for (const auto& [length, micro_batch] : sizes(options))
        for (const auto& rank : ranks(options)) most = std::max(most, add_model(model_plan(context, options, model, length, micro_batch, rank, described), options.backend == "cuda", of_model[model]));
  }
  std::vector<LoadedPlan> plans;
  for (const std::string& file : options.plans) {
    const LoadedPlan& loaded = plans.emplace_back(read_plan_file(load_json(file), file));
    if (device && !(*device == loaded.problem.cluster.device))
      throw InputError(file, fmt::format("is for {}, the plans before it for {}", loaded.problem.cluster.device.name, device->name), "calibrate one device at a time");
    device = loaded.problem.cluster.device;
    const Parallelism& p = loaded.plan.parallelism;
    for (int stage = 0; stage < p.pp; ++stage) {
      const Program program = lower(loaded.problem, loaded.plan, stage * p.stage_ranks());
      Calls& mine = of_model[loaded.problem.model.name];
      mine.merge(calls_of(program));
      add_update(mine, program);
      most = std::max(most, touched(program, loaded.problem, loaded.plan));
    }
  }
  keep_only(options.only, of_model);
  Calls calls;
  for (const auto& [model, mine] : of_model) calls.insert(mine.begin(), mine.end());
  const OpenMeter meter = open_meter(options.backend);
  const bool at_rest = meter.meter && options.busy_milliseconds.value_or(0) == 0;
  options.timing.busy = {options.busy_milliseconds.value_or(options.backend == "cuda" && !at_rest ? kBusyMilliseconds : 0.0) * 1e-3};
  options.timing.rest = at_rest ? kRest : 0;
  options.timing.touched = most;
  OutputFiles files({options.output});
  DeviceProfile profile{.name = options.name, .driver = calibration_origin(opened.device, MOEPLAN_VERSION, options.backend), .date = fmt::format("{:%F}", fmt::gmtime(std::time(nullptr))), .source = "", .device = *device, .samples = {}, .power = {}};
  Output out;
  if (!options.again && std::filesystem::exists(options.output)) {
    const DeviceProfile before = load_profile(context.configs, options.output);
    if (before.driver != profile.driver || !(before.device == profile.device))
      throw InputError(options.output, fmt::format("was measured on {} ({}), this is {} ({})", before.driver, before.device.name, profile.driver, profile.device.name), "another -o, or --again to measure everything anew");
    if (before.power && !at_rest)
      throw InputError(options.output, "holds samples taken at rest, and these would not be", meter.meter ? "leave --busy out, or another -o" : "another -o, or --again: " + meter.absent);
    if (const auto busy = busy_of(before); busy && std::abs(*busy - options.timing.busy.value) > kWritten * *busy)
      throw InputError(options.output, fmt::format("holds samples taken {}, and these would be {}", taken(*busy), taken(options.timing.busy.value)),
                       fmt::format("--busy {:g}, another -o, or --again to measure everything anew", *busy * 1e3));
    (void)left_out(context, before, options.runtime);   // refuses what no call is, before anything is measured
    profile.samples = before.samples, profile.power = before.power;
    out.notes.push_back(fmt::format("{}: {} samples kept", options.output, before.samples.size()));
  }
  if (options.timing.busy.value > 0 && !busy_of(profile).value_or(0)) profile.samples.push_back({.key = std::string(kBusyKey), .median = options.timing.busy, .spread = 0, .count = 1});
  std::string of = options.models.empty() ? fmt::format("{} plan{}", options.plans.size(), options.plans.size() == 1 ? "" : "s") : fmt::format("{}", fmt::join(options.models, ", "));
  profile.source = fmt::format("moeplan calibrate: {} calls of {}, medians of {} to {} samples, caches as {} of a step leave them, inputs just written", calls.size(), of, options.timing.least, options.timing.most, human(std::min(most, kMostCleared)));
  const auto save = [&](const std::vector<ProfileSample>& samples) {
    profile.samples = samples;
    files.write(options.output, to_json(profile).dump(1) + "\n");
  };
  const Calibration c = calibrate(*opened.backend, calls, profile.samples, options.timing, [&](std::size_t done, std::size_t all, const std::vector<ProfileSample>& samples) {
    if (context.show_progress) context.show_progress(static_cast<double>(done) / static_cast<double>(all));
    if (done % 16 == 0) save(samples);   // what an interruption leaves is the start of the next run
  });
  std::vector<ProfileSample> samples = c.samples;
  if (std::none_of(samples.begin(), samples.end(), [](const ProfileSample& s) { return s.key.starts_with(kToDeviceKey); }))
    for (ProfileSample& s : host_link_samples(options.backend)) samples.push_back(std::move(s));
  std::sort(samples.begin(), samples.end(), [](const ProfileSample& a, const ProfileSample& b) { return a.key < b.key; });
  save(samples);
  Json read = nullptr;
  if (at_rest && !options.no_power) {
    const std::vector<PowerSample> known = profile.power ? profile.power->samples : std::vector<PowerSample>{};
    Calls chosen;   // of each model its own, whichever is named first
    for (const auto& [model, mine] : of_model)
      for (const OpCall& call : power_calls(mine, samples, known, *device)) chosen.emplace(key(call.op, call.pass, call.wants), call);
    std::vector<OpCall> classes;
    for (const auto& [name, call] : chosen) classes.push_back(call);
    const PowerReadings readings = read_power(*opened.backend, *meter.meter, classes, [&](std::size_t done, std::size_t all) {
      if (context.show_progress) context.show_progress(static_cast<double>(done) / static_cast<double>(all));
    });
    read = readings_json(readings);
    profile.power = fit_power(readings, meter.meter->limit, *device, profile.power);
    save(samples);
    out.notes.push_back(power_note(profile.power, classes.size(), readings.calls.size()));
    if (profile.power) {
      const std::vector<MixReading> mixes = read_mixes(context, options, described, plans, *meter.meter, out);
      read["mixes"] = mixes_json(mixes);
      profile.power = with_mixes(profile, mixes);
      save(samples);
      if (!mixes.empty()) out.notes.push_back(fmt::format("power of {} mixes: {:.0f} W held", mixes.size(), profile.power->limit));
    }
  } else if (options.backend == "cuda" && !options.no_power) {
    out.notes.push_back("no power section: " + (meter.meter ? std::string("--busy keeps the clock down") : meter.absent));
  }
  files.done();
  for (const std::string& why : c.refused) out.notes.push_back("not measured: " + why);
  out.notes.push_back(fmt::format("{}: {} samples", options.output, samples.size()));
  if (c.median_spread > kTooNoisy) {
    out.notes.push_back(fmt::format("this machine is too noisy: half of the calls spread by more than {:.0f} % of their median (at most {:.0f} % is usable); close what else runs and use --again", 100 * c.median_spread, 100 * kTooNoisy));
    out.exit_code = kFailed;
  }
  const LeftOut held_out = left_out(context, profile, options.runtime);
  if (context.json) {
    out.text = Json{{"profile", options.output}, {"samples", c.samples.size()}, {"refused", c.refused}, {"median_spread", c.median_spread}, {"worst_spread", c.worst_spread}, {"left_out", {{"median_error", held_out.median}, {"p90_error", held_out.p90}, {"samples", held_out.samples}}}, {"power_readings", std::move(read)}}.dump(2) + "\n";
    return out;
  }
  std::map<std::string, std::pair<std::int64_t, double>> kinds;
  for (const ProfileSample& s : c.samples) {
    auto& [count, seconds] = kinds[s.key.substr(0, s.key.find(' ')) + (s.key.find(" backward") != std::string::npos ? " backward" : " forward")];
    ++count, seconds += s.median.value;
  }
  std::vector<std::pair<double, std::vector<std::string>>> rows;
  for (const auto& [kind, v] : kinds) rows.push_back({v.second, {kind, std::to_string(v.first), duration({v.second})}});
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::vector<std::string>> lines;
  for (auto& [seconds, line] : rows) lines.push_back(std::move(line));
  out.text = heading(context, fmt::format("measured on {}", opened.device)) + "\n" + table({{"calls"}, {"shapes", true}, {"once each", true}}, lines) +
             fmt::format("\nspread: half of the calls within {:.1f} %, the worst {:.1f} % of the median\n", 100 * c.median_spread, 100 * c.worst_spread);
  if (held_out.samples > 0)
    out.text += fmt::format("interpolation: {} samples left out in turn, each from the others: half within {:.0f} %, 90 % within {:.0f} %\n", held_out.samples, 100 * held_out.median, 100 * held_out.p90);
  return out;
}

}  // namespace

Command calibrate_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("calibrate", "times every operator call of plans on this machine and writes a device profile, which `plan --profile` reads");
  app->footer("Example: moeplan calibrate --model kimi-k3-tiny -o here.json\nplan ... --profile here.json then says \"measured\". An interrupted run goes on where it was.");
  const auto o = std::make_shared<Options>();
  app->add_option("PLAN", o->plans, "plan files, as `moeplan plan ... -o` writes them, all for one device");
  app->add_option("--model", o->models, "instead of plans: every call of this model's layers on one rank, experts at other rows too; may be repeated");
  app->add_option("--links", o->links, "instead of calls: the collectives between so many ranks of this machine (cuda: one for each device; under a launcher of several), and between 2, 4, 8 and so on of them as far as that divides their number, and how much they hold up what is computed beside them")->check(CLI::Range(2, 1024));
  app->add_option("--links-most", o->links_most, "with --links: the largest payload (default 512 MiB, on the cpu backend 16 MiB)");
  app->add_option("--seq", o->sequences, "with --model: lengths, e.g. 2048,4096 (default: the workload's)")->delimiter(',')->check(CLI::Range(1, 1 << 24));
  app->add_option("--ep", o->ep, "with --model: expert ranks that share the experts (default 1)")->check(CLI::Range(1, 1 << 16));
  app->add_option("--micro-batch", o->micro_batches, "with --model: sequences, e.g. 1,2 (default 1)")->delimiter(',')->check(CLI::Range(1, 1 << 16));
  app->add_option("--targets", o->targets, "with --model: weight classes to train, as for `plan`")->delimiter(',');
  app->add_option("--rank", o->ranks, "with --model: of LoRA, e.g. 16,64")->delimiter(',')->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  app->add_option("--method", o->method, "with --model: lora (default) or full")->check(CLI::IsMember({"lora", "full"}));
  app->add_option("--only", o->only, "of the calls those of these operators, e.g. linear,grouped_linear")->delimiter(',');
  app->add_option("--device", o->device, "with --model: which of configs/devices this is (default: cpu, or by the driver's name)");
  app->add_option("--runtime", o->runtime, "with --model (default: moeplan, on the cpu backend cpu)");
  app->add_option("-o,--output", o->output, "the profile; samples that it has already are kept")->required();
  app->add_option("--name", o->name, "of the profile (default: here)")->default_val("here");
  app->add_option("--backend", o->backend, "cpu, or cuda where it was built in")->check(CLI::IsMember(backend_names()));
  app->add_flag("--again", o->again, "measure everything anew");
  app->add_option("--noise", o->timing.noise, "enough samples when the median is known to this share (default 0.02)")->check(CLI::Range(1e-4, 1.0));
  app->add_option("--busy", o->busy_milliseconds, "before each sample the device multiplies matrices for so many milliseconds (default: 0; 2 on a device whose power cannot be read)")->check(CLI::Range(0.0, 1000.0));
  app->add_flag("--no-power", o->no_power, "leave out what classes of calls draw, about 0.8 s each, and steps, about 4 s each: after a first run that measured them");
  app->add_option("--samples", o->timing.most, "of one call at most (default 50)")->check(CLI::Range(std::int64_t{5}, std::int64_t{100000}));
  return {app, [o](const Context& context) {
            if (o->runtime.empty()) o->runtime = o->backend == "cpu" ? "cpu" : "moeplan";
            if (!o->links_most.empty() && !o->links) throw InputError("--links-most", "bounds the payloads of --links, which is not given", "--links 2 --links-most " + shown(o->links_most));
            return run(context, *o);
          }};
}

}  // namespace moeplan::cli
