/// moeplan calibrate: the calls that plans would make, timed on this machine.

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "cli/backends.hpp"
#include "cli/command.hpp"
#include "cli/output_files.hpp"
#include "cli/table.hpp"
#include "core/configs.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/write.hpp"
#include "executor/calibrate/calibrate.hpp"
#include "planner/planner.hpp"

namespace moeplan::cli {
namespace {

constexpr int kFailed = 4;
/// Above this the times say little about the next run.
constexpr double kTooNoisy = 0.25;

struct Options {
  std::vector<std::string> plans;
  std::string output, backend = "cpu", name;
  bool again = false;
  TimingOptions timing;
};

/// Where the kernels were built and run: samples of another build, device or driver are not mixed in.
std::string origin(const Options& options, const OpenBackend& opened) { return fmt::format("{}; moeplan {}, {} backend", opened.device, MOEPLAN_VERSION, options.backend); }

Output run(const Context& context, const Options& options) {
  std::map<std::string, OpCall> calls;
  std::optional<DeviceSpec> device;
  for (const std::string& file : options.plans) {
    const LoadedPlan loaded = read_plan_file(load_json(file), file);
    if (device && !(*device == loaded.problem.cluster.device))
      throw InputError(file, fmt::format("is for {}, the plans before it for {}", loaded.problem.cluster.device.name, device->name), "calibrate one device at a time");
    device = loaded.problem.cluster.device;
    const Parallelism& p = loaded.plan.parallelism;
    for (int stage = 0; stage < p.pp; ++stage) calls.merge(calls_of(lower(loaded.problem, loaded.plan, stage * p.stage_ranks())));
  }
  OutputFiles files({options.output});
  const OpenBackend opened = open_backend(options.backend, false);
  DeviceProfile profile{.name = options.name, .driver = origin(options, opened), .date = fmt::format("{:%F}", fmt::gmtime(std::time(nullptr))), .source = "", .device = *device, .samples = {}};
  Output out;
  if (!options.again && std::filesystem::exists(options.output)) {
    const DeviceProfile before = load_profile(context.configs, options.output);
    if (before.driver != profile.driver || !(before.device == profile.device))
      throw InputError(options.output, fmt::format("was measured on {} ({}), this is {} ({})", before.driver, before.device.name, profile.driver, profile.device.name), "another -o, or --again to measure everything anew");
    profile.samples = before.samples;
    out.notes.push_back(fmt::format("{}: {} samples kept", options.output, before.samples.size()));
  }
  profile.source = fmt::format("moeplan calibrate: {} calls of {} plan{}, medians of {} to {} samples, weights from memory, inputs just written", calls.size(), options.plans.size(), options.plans.size() == 1 ? "" : "s", options.timing.least, options.timing.most);
  const auto save = [&](const std::vector<ProfileSample>& samples) {
    profile.samples = samples;
    files.write(options.output, to_json(profile).dump(1) + "\n");
  };
  const Calibration c = calibrate(*opened.backend, calls, profile.samples, options.timing, [&](std::size_t done, std::size_t all, const std::vector<ProfileSample>& samples) {
    if (context.show_progress) context.show_progress(static_cast<double>(done) / static_cast<double>(all));
    if (done % 16 == 0) save(samples);   // what an interruption leaves is the start of the next run
  });
  save(c.samples);
  files.done();
  for (const std::string& why : c.refused) out.notes.push_back("not measured: " + why);
  out.notes.push_back(fmt::format("{}: {} samples", options.output, c.samples.size()));
  if (c.median_spread > kTooNoisy) {
    out.notes.push_back(fmt::format("this machine is too noisy: half of the calls spread by more than {:.0f} % of their median (at most {:.0f} % is usable); close what else runs and use --again", 100 * c.median_spread, 100 * kTooNoisy));
    out.exit_code = kFailed;
  }
  if (context.json) {
    out.text = Json{{"profile", options.output}, {"samples", c.samples.size()}, {"refused", c.refused}, {"median_spread", c.median_spread}, {"worst_spread", c.worst_spread}}.dump(2) + "\n";
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
  return out;
}

}  // namespace

Command calibrate_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("calibrate", "times every operator call of plans on this machine and writes a device profile, which `plan --profile` reads");
  app->footer("Example: moeplan plan kimi-k3-tiny --device cpu --gpus 1 --runtime cpu -o plan.json && moeplan calibrate plan.json -o here.json\nplan ... --profile here.json then says \"measured\". An interrupted run goes on where it was.");
  const auto o = std::make_shared<Options>();
  app->add_option("PLAN", o->plans, "plan files, as `moeplan plan ... -o` writes them, all for one device")->required();
  app->add_option("-o,--output", o->output, "the profile; samples that it has already are kept")->required();
  app->add_option("--name", o->name, "of the profile (default: here)")->default_val("here");
  app->add_option("--backend", o->backend, "cpu, or cuda where it was built in")->check(CLI::IsMember(backend_names()));
  app->add_flag("--again", o->again, "measure everything anew");
  app->add_option("--noise", o->timing.noise, "enough samples when the median is known to this share (default 0.02)")->check(CLI::Range(1e-4, 1.0));
  app->add_option("--samples", o->timing.most, "of one call at most (default 50)")->check(CLI::Range(std::int64_t{5}, std::int64_t{100000}));
  return {app, [o](const Context& context) { return run(context, *o); }};
}

}  // namespace moeplan::cli
