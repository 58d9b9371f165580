/// moeplan bench [NAME]: operators at the shapes of real models, timed on this machine beside what the device's data
/// sheet allows.

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <numeric>

#include "cli/backends.hpp"
#include "cli/command.hpp"
#include "cli/output_files.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"
#include "core/read.hpp"
#include "core/write.hpp"
#include "executor/calibrate/calibrate.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "sim/cost/price.hpp"
#include "sim/program/program.hpp"

namespace moeplan::cli {
namespace {

constexpr std::int64_t kGpus = 64;

struct Options {
  std::string name, output, backend, device = "h200";
  std::vector<std::string> models{"kimi-linear-48b-a3b", "kimi-k3",         "deepseek-v3",
                                  "qwen3-30b-a3b",       "qwen3-235b-a22b", "gpt-oss-120b"};
  std::int64_t sequence = 4096;
  TimingOptions timing;
};

void check_name(const std::string& name) {
  if (name.empty()) return;
  const std::vector<Op> all = examples();
  std::vector<std::string_view> known;
  for (const Op& op : all) known.push_back(kind(op));
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  const auto near = nearest_name(name, known);
  throw InputError("bench", shown(name) + " is not an operator",
                   near.empty() ? "`moeplan ops` lists them" : "did you mean \"" + std::string(near) + "\"?");
}

/// The problem of one model on 64 devices, and the plan whose calls are timed: nothing split but the experts, one
/// sequence a micro-batch.
Problem problem_of(const Context& context, const Options& options, const std::string& model) {
  ProblemRequest request{.model = model,
                         .cluster = {},
                         .device = options.device,
                         .gpus = kGpus,
                         .profile = {},
                         .sequence_length = options.sequence,
                         .global_batch = kGpus,
                         .rank = {},
                         .tokens = {},
                         .method = {},
                         .targets = {},
                         .optimizer = {},
                         .frozen_storage = {}};
  return make_problem(context.configs, request);
}
/// Experts of the first routed layer; 0 for a dense model.
std::int64_t experts_of(const ModelSpec& model) {
  for (const LayerSpec& layer : model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* routed = std::get_if<MoeFfn>(&s.mixer)) return routed->experts;
  return 0;
}
Plan plan_of(const Context& context, const Problem& problem, const std::string& model) {
  SearchOptions search{.pins = {}, .top = 1, .threads = context.threads, .progress = {}};
  search.pins.pp = search.pins.tp = search.pins.cp = search.pins.etp = 1, search.pins.micro_batch = 1,
  search.pins.offload = Offload::none;
  if (const std::int64_t experts = experts_of(problem.model); experts > 0)
    search.pins.ep = static_cast<int>(std::gcd(kGpus, experts));
  const Answer answer = plan(problem, search);
  if (answer.plans.empty())
    throw InputError(model, fmt::format("does not fit {} {}", kGpus, problem.cluster.device.name),
                     "leave it out of --models");
  return answer.plans.front().plan;
}

/// What a step and the reading of weights call outside of the layers, at this model's sizes: the update of what the rank trains and its norm (no more
/// than a piece of 2^28 parameters at a time), and casts, block quantisation and its reverse of the largest dense weight.
void add_beside_layers(std::map<std::string, OpCall>& calls, const Problem& problem, const Program& program) {
  StateBytes state = program.resident;
  for (const Slot& s : program.slots) state += s.state;
  const auto add = [&](const OpCall& call) { calls.emplace(key(call.op, call.pass, call.wants), call); };
  state.trained_elements = std::min(state.trained_elements, std::int64_t{1} << 28);
  if (state.trained_elements > 0) {
    add(optimizer_call(state, problem.workload.optimizer));
    add({op::GradNorm{.elements = state.trained_elements}, Pass::forward, {}});
  }
  std::int64_t rows = 0, columns = 0;
  for (const auto& [name, call] : calls)
    if (const auto* linear = std::get_if<op::Linear>(&call.op); linear != nullptr && linear->out * linear->in > rows * columns) rows = linear->out, columns = linear->in;
  if (rows == 0) return;
  add({op::Cast{rows, columns, DType::f32, DType::bf16}, Pass::forward, {}});
  for (const DType type : {DType::fp8, DType::mxfp4}) {
    add({op::Quantise{rows, columns, DType::bf16, type}, Pass::forward, {}});
    add({op::Dequantise{rows, columns, type}, Pass::forward, {}});
  }
}

/// What the memory gives: tokens and width of a large model's activation, read and written.
const OpCall kCopy{op::Cast{8192, 7168, DType::bf16, DType::bf16}, Pass::forward, {}};

bool bound_by_memory(const DeviceSpec& device, const OpCall& call) {
  return static_cast<double>(bytes_moved(call.op, call.pass, call.wants).value) / device.memory_bandwidth.value >= flops(call.op, call.pass, call.wants).value / device.peak.at("bf16").value;
}
/// A time's place between the limits of the data sheet: bytes or operations a second, whichever bounds the call.
std::string rate(const DeviceSpec& device, const OpCall& call, Seconds time) {
  return bound_by_memory(device, call) ? fmt::format("{:.0f} GB/s", static_cast<double>(bytes_moved(call.op, call.pass, call.wants).value) / time.value / 1e9)
                                       : fmt::format("{:.0f} TFLOP/s", flops(call.op, call.pass, call.wants).value / time.value / 1e12);
}

Output run(const Context& context, const Options& options) {
  check_name(options.name);
  std::map<std::string, OpCall> calls;
  std::optional<Problem> problem;
  for (const std::string& model : options.models) {
    problem = problem_of(context, options, model);
    const Program program = lower(*problem, plan_of(context, *problem, model), 0);
    std::map<std::string, OpCall> all = calls_of(program);
    add_beside_layers(all, *problem, program);
    for (auto& [name, call] : all)
      if (options.name.empty() || kind(call.op) == options.name) calls.emplace(name, call);
  }
  if (calls.empty())
    throw InputError("bench", fmt::format("no layer of {} models calls {}", options.models.size(), options.name),
                     "give --models that do");
  OutputFiles files(options.output.empty() ? std::vector<std::string>{} : std::vector{options.output});
  const OpenBackend opened = open_backend(options.backend, false);
  const std::string copy_key = key(kCopy.op, kCopy.pass);
  const bool copy_is_asked = !calls.emplace(copy_key, kCopy).second;
  Calibration measured =
      calibrate(*opened.backend, calls, {}, options.timing,
                [&](std::size_t done, std::size_t all, const std::vector<ProfileSample>&) {
                  if (context.show_progress)
                    context.show_progress(static_cast<double>(done) / static_cast<double>(all));
                });
  double copy_rate = 0;   // bytes/s
  for (const ProfileSample& s : measured.samples)
    if (s.key == copy_key) copy_rate = static_cast<double>(bytes_moved(kCopy.op, kCopy.pass, {}).value) / s.median.value;
  if (!copy_is_asked) std::erase_if(measured.samples, [&](const ProfileSample& s) { return s.key == copy_key; });
  const DeviceSpec& device = problem->cluster.device;
  const Prices prices(device, problem->profile, problem->runtime);
  Output out;
  for (const std::string& why : measured.refused) out.notes.push_back("not measured: " + why);
  if (!options.output.empty()) {
    const DeviceProfile profile{
        .name = "bench",
        .driver = fmt::format("{}; moeplan {}, {} backend", opened.device, MOEPLAN_VERSION, options.backend),
        .date = fmt::format("{:%F}", fmt::gmtime(std::time(nullptr))),
        .source = fmt::format("moeplan bench: {} calls of {} models, medians of {} to {} samples, weights from memory, "
                              "inputs just written",
                              calls.size(), options.models.size(), options.timing.least, options.timing.most),
        .device = device,
        .samples = measured.samples};
    files.write(options.output, to_json(profile).dump(1) + "\n");
    files.done();
  }
  Json rows = Json::array();
  std::vector<std::vector<std::string>> lines;
  for (const ProfileSample& s : measured.samples) {
    const auto found = calls.find(s.key);
    if (found == calls.end()) continue;   // what belongs to no operator: launches, allocations, copies of columns
    const OpCall& call = found->second;
    const Seconds floor = prices.limit(call);
    const double bytes = static_cast<double>(bytes_moved(call.op, call.pass, call.wants).value);
    const double of_copy = copy_rate > 0 && bound_by_memory(device, call) ? bytes / s.median.value / copy_rate : 0;
    rows.push_back({{"key", s.key},
                    {"seconds", s.median.value},
                    {"spread", s.spread},
                    {"count", s.count},
                    {"floor_seconds", floor.value},
                    {"of_floor", floor.value / s.median.value},
                    {"flops", flops(call.op, call.pass, call.wants).value},
                    {"bytes", bytes}});
    if (of_copy > 0) rows.back()["of_copy"] = of_copy;
    lines.push_back({duration(s.median), fmt::format("{:.0f} %", 100 * floor.value / s.median.value),
                     of_copy > 0 ? fmt::format("{:.0f} %", 100 * of_copy) : "", rate(device, call, s.median), s.key});
  }
  if (context.json) {
    out.text = Json{{"device", opened.device},
                    {"floor_of", device.name},
                    {"calls", std::move(rows)},
                    {"refused", measured.refused}}
                   .dump(2) +
               "\n";
    return out;
  }
  out.text = heading(context, fmt::format("measured on {}, against the data sheet of {}", opened.device, device.name)) +
             "\n" + table({{"time", true}, {"of floor", true}, {"of a copy", true}, {"rate", true}, {"call"}}, lines);
  if (copy_rate > 0)
    out.text += fmt::format("a copy of 117 MB in this run: {:.0f} GB/s. Kernels of the device are meant to reach 88 % of it (norms, activations, convolution, "
                            "glue) and 88 % of their floor (loss)\n", copy_rate / 1e9);
  return out;
}

}  // namespace

Command bench_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "bench",
      "times operators at the shapes of real models on this machine, beside the least time that the data sheet allows");
  app->footer(
      "Example: moeplan bench attention --backend cuda -o bench.json\nShapes: rank 0 of each model on 64 devices, one "
      "sequence a micro-batch, split by experts alone; weights as the plan stores them. `moeplan calibrate` times the "
      "calls of a plan "
      "of yours.");
  const auto o = std::make_shared<Options>();
  std::vector<std::string> backends = backend_names();
  std::erase(backends, "null");  // it computes nothing
  o->backend = backends.back();
  app->add_option("NAME", o->name, "one operator (default: all that the models call)");
  app->add_option("--models", o->models, "whose shapes (default: six)")->delimiter(',');
  app->add_option("--device", o->device, "whose data sheet makes the floor (default h200)");
  app->add_option("--seq", o->sequence, "tokens of the sequence (default 4096)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  app->add_option("--backend", o->backend, "cpu, or cuda where it was built in (the default there)")
      ->check(CLI::IsMember(backends));
  app->add_option("-o,--output", o->output, "a device profile, which `plan --profile` reads");
  app->add_option("--samples", o->timing.most, "of one call at most (default 50)")
      ->check(CLI::Range(std::int64_t{5}, std::int64_t{100000}));
  return {app, [o](const Context& context) { return run(context, *o); }};
}

}  // namespace moeplan::cli
