/// moeplan run PLAN: the plan, executed.

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "cli/backends.hpp"
#include "cli/forecast_text.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"
#include "core/write.hpp"
#include "executor/adapter/peft.hpp"
#include "executor/checkpoint/checkpoint.hpp"
#include "executor/data/packer.hpp"
#include "executor/monitor/monitor.hpp"
#include "executor/train/measured.hpp"
#include "executor/weights/load.hpp"
#include "planner/planner.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan::cli {
namespace {

constexpr int kInfeasible = 3, kFailed = 4, kInterrupted = 5;

struct Options {
  std::string plan, backend = "cpu", weights, data = "synthetic", adapter, from_adapter, dialect = "D3", checkpoint, output, prometheus;
  bool resume = false, no_packing = false, float32 = false;
  std::int64_t save_every = 0;
  std::optional<std::int64_t> stop_after;
  TrainOptions train;
};

/// TERM, USR1 and INT are held back while this lives, so that a step is finished before they are looked at; once one came, the next acts at once.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&set_);
    for (const int s : {SIGTERM, SIGUSR1, SIGINT}) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  /// The signal that waits, 0 without.
  [[nodiscard]] int pending() {
    const timespec none{};
    const int s = sigtimedwait(&set_, nullptr, &none);
    if (s > 0) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    return std::max(s, 0);
  }

 private:
  sigset_t set_{}, before_{};
};

std::int64_t peak_resident() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

Json provenance(const Options& options, const Context& context, const OpenBackend& opened) {
  Json out = Json::object();
  out["device"] = opened.device;
  out["backend"] = options.backend;
  out["arithmetic"] = options.float32 ? "f32" : "f32, stored as planned";
  out["version"] = MOEPLAN_VERSION;
  out["threads"] = context.threads > 0 ? context.threads : static_cast<int>(std::thread::hardware_concurrency());
  out["date"] = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  out["seed"] = options.train.seed;
  out["peak_resident_bytes"] = peak_resident();
  return out;
}

/// The certificate where the plan needs more than this machine has left.
std::optional<Output> too_large(const MemoryBreakdown& need, std::int64_t factor, const OpenBackend& opened) {
  const std::int64_t have = opened.free_bytes;
  if (need.peak().value * factor <= have) return std::nullopt;
  std::vector<std::pair<std::int64_t, std::string_view>> parts;
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names) parts.emplace_back(need[category].value * factor, name);
  std::sort(parts.rbegin(), parts.rend());
  Json largest = Json::array();
  for (std::size_t i = 0; i < 3; ++i) largest.push_back({{"name", std::string(parts[i].second)}, {"bytes", parts[i].first}});
  Output out;
  out.exit_code = kInfeasible;
  out.text = Json{{"infeasible", {{"binding", "memory of " + opened.where}, {"need_bytes", need.peak().value * factor}, {"have_bytes", have}, {"largest", largest},
                                 {"nearest_fix", "a shorter sequence, a smaller micro-batch or a smaller model; or a machine with more memory"}}}}.dump(2) + "\n";
  return out;
}

std::string step_line(const StepReport& r) {
  return fmt::format("step {:>5}  loss {:<9.5g} grad norm {:<9.4g} lr {:<9.3g} {:>7.0f} tokens/s{}{}\n", r.step, r.loss, r.gradient_norm, r.learning_rate, r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0,
                     r.routing.empty() ? "" : fmt::format("  max/mean load {:.2f}", r.max_over_mean), r.drop_rate > 0 ? fmt::format("  dropped {}", percent(r.drop_rate)) : "");
}

std::string memory_text(const Context& context, const MemoryBreakdown& predicted, const MemoryBreakdown& measured) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names) {
    if (predicted[category].value == 0 && measured[category].value == 0) continue;
    std::string words(name);
    std::replace(words.begin(), words.end(), '_', ' ');
    rows.push_back({category == MemoryCategory::allocator_reserve ? "gaps of the arena" : words, human(predicted[category]), human(measured[category])});
  }
  rows.push_back({"peak", human(predicted.peak()), human(measured.peak())});
  return heading(context, "memory, predicted beside measured") + "\n" + table({{""}, {"predicted", true}, {"measured", true}}, rows);
}

void say_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Output run(const Context& context, Options options) {
  const LoadedPlan loaded = read_plan_file(load_json(options.plan), options.plan);
  const Problem& problem = loaded.problem;
  if (loaded.plan.parallelism.world() != 1)
    throw InputError(options.plan, fmt::format("the plan has {} ranks, `run` executes one", loaded.plan.parallelism.world()), "plan for one device: --device cpu --gpus 1");
  const OpenBackend opened = open_backend(options.backend, options.float32);
  Backend* const backend = opened.backend.get();
  const MemoryBreakdown predicted = memory(lower(problem, loaded.plan, 0), problem, loaded.plan);
  if (auto certificate = too_large(predicted, options.float32 ? 2 : 1, opened)) return *std::move(certificate);

  Output out;
  HeldSignals signals;
  Trainer trainer(problem, loaded.plan, *backend, options.train);
  randomise(trainer.parameters(), options.train.seed, problem.model, *backend);
  if (!options.weights.empty()) load_weights(TensorFiles(options.weights), problem.model, trainer.parameters(), *backend);
  else out.notes.emplace_back("no --weights: seeded random weights");
  if (!options.from_adapter.empty()) load_adapter(options.from_adapter, problem, trainer.parameters(), *backend);
  Packer data(open_dataset(options.data, problem.model.vocabulary, options.train.seed), loaded.plan.micro_batch, problem.workload.sequence_length, !options.no_packing, options.train.seed);
  const std::string fingerprint = run_fingerprint(problem, loaded.plan);
  if (options.resume) {
    if (options.checkpoint.empty()) throw InputError("--resume", "needs --checkpoint DIR");
    if (const auto resumed = load_checkpoint(options.checkpoint, fingerprint, trainer.parameters(), *backend)) {
      trainer.set_steps_done(resumed->progress.step);
      data.seek(resumed->progress.data);
      for (const std::string& note : resumed->notes) out.notes.push_back("a save is broken: " + note);
      out.notes.push_back(fmt::format("resumed at step {} from {}", resumed->progress.step, resumed->directory.string()));
    } else {
      out.notes.push_back(options.checkpoint + " holds no save: training begins");
    }
  }

  const auto save = [&] {
    return save_checkpoint(options.checkpoint, fingerprint, {trainer.steps_done(), data.position(), options.train.seed}, trainer.parameters(), *backend);
  };
  Json steps = Json::array();
  std::optional<StepRecorder> recorder;
  Watch watch;
  std::int64_t tokens = 0;
  int signal = 0;
  const std::int64_t last = options.stop_after ? std::min(options.train.steps, trainer.steps_done() + *options.stop_after) : options.train.steps;
  while (trainer.steps_done() < last && signal == 0) {
    std::vector<Batch> batches;
    for (std::int64_t j = 0; j < loaded.plan.micro_batches; ++j) batches.push_back(data.next());
    if (trainer.steps_done() + 1 == last) {   // the last step's calls are timed; the others run undisturbed
      recorder.emplace(trainer.program());
      trainer.walk().time([&](const Instance& i, const BlockNode& n, double begin, double end) { recorder->record(i, n, begin, end); });
    }
    const StepReport report = trainer.step(batches);
    tokens += report.tokens;
    const Json line = step_json(report, trainer.memory());
    for (std::string& warning : watch.warnings(report)) {
      if (context.json) out.notes.push_back(std::move(warning));
      else say_now("warning: " + warning + "\n");
    }
    if (context.json) say_now(line.dump() + "\n");
    else if (!context.quiet) say_now(step_line(report));
    context.show_progress(static_cast<double>(report.step) / static_cast<double>(options.train.steps));
    steps.push_back(line);
    if (!options.prometheus.empty()) write_text_file(options.prometheus, prometheus_text(report, trainer.memory(), predicted, tokens));
    signal = signals.pending();
    if (!options.checkpoint.empty() && signal == 0 && options.save_every > 0 && trainer.steps_done() % options.save_every == 0) (void)save();
  }
  if (!options.checkpoint.empty()) {
    const Saved saved = save();
    if (signal != 0) out.notes.push_back(fmt::format("interrupted by signal {}: saved at step {} in {}", signal, trainer.steps_done(), saved.directory.string()));
  } else if (signal != 0) {
    out.notes.push_back(fmt::format("interrupted by signal {} at step {}; nothing is saved without --checkpoint", signal, trainer.steps_done()));
  }
  if (!options.adapter.empty() && signal == 0) {
    save_adapter(options.adapter, export_adapter(trainer.parameters(), problem, [&](const Parameter& p) { return values_of(p, *backend); }, options.dialect == "D1" ? AdapterDialect::per_expert : AdapterDialect::param_wrapper));
    out.notes.push_back(options.adapter + ": adapter, dialect " + options.dialect);
  }
  const MemoryBreakdown measured = trainer.memory();
  if (!options.output.empty()) {
    Json file = Json::object();
    file["format"] = "moeplan.measured.v1";
    file["timeline"] = recorder ? to_json(recorder->timeline()) : Json(nullptr);
    file["memory"] = memory_json(measured);
    file["predicted_memory"] = memory_json(predicted);
    file["steps"] = steps;
    file["provenance"] = provenance(options, context, opened);
    write_text_file(options.output, file.dump(1) + "\n");
  }
  out.exit_code = signal == 0 ? 0 : options.checkpoint.empty() ? kFailed : kInterrupted;
  if (!context.json) out.text = "\n" + memory_text(context, predicted, measured);
  return out;
}

}  // namespace

Command run_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("run", "executes a plan on this machine: training steps, adapter, checkpoints, what was measured");
  app->footer("Example: moeplan plan kimi-k3-tiny --device cpu --gpus 1 --runtime cpu -o plan.json && moeplan run plan.json --steps 5 -o measured.json");
  const auto o = std::make_shared<Options>();
  app->add_option("PLAN", o->plan, "a plan file for one device, as `moeplan plan ... -o` writes it")->required();
  app->add_option("--backend", o->backend, "cpu, cuda (where it was built in), or null (walks the program and computes nothing)")->check(CLI::IsMember(backend_names()));
  app->add_option("--steps", o->train.steps, "training steps of the whole run (default 10)")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  app->add_option("--stop-after", o->stop_after, "stop after this many steps; the schedule stays that of --steps")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  app->add_option("--seed", o->train.seed, "of random weights, data order (default 1)")->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 52));
  app->add_option("--weights", o->weights, "directory with safetensors (single, or shards with their index); random without");
  app->add_option("--data", o->data, "x.jsonl with input_ids, x.bin beside x.idx, or synthetic (default)");
  app->add_flag("--no-packing", o->no_packing, "one document a sequence, padded");
  app->add_option("--from-adapter", o->from_adapter, "start from this PEFT adapter");
  app->add_option("--adapter", o->adapter, "write the adapter to this directory at the end");
  app->add_option("--adapter-dialect", o->dialect, "of the experts' pairs: D3 (PEFT 0.19, default) or D1 (one by one)")->check(CLI::IsMember({"D1", "D3"}));
  app->add_option("--checkpoint", o->checkpoint, "save here at the end, on SIGTERM, SIGUSR1 and SIGINT");
  app->add_option("--save-every", o->save_every, "and after every so many steps")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  app->add_flag("--resume", o->resume, "continue from the newest save in --checkpoint");
  app->add_option("-o,--output", o->output, "write what was measured: timeline, memory, steps");
  app->add_option("--prometheus", o->prometheus, "keep a Prometheus text file up to date");
  app->add_option("--lr", o->train.learning_rate, "peak learning rate (default 1e-4)")->check(CLI::Range(0.0, 10.0));
  app->add_option("--warmup", o->train.warmup, "steps of linear warm-up")->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  app->add_option("--clip", o->train.clip, "largest gradient norm (default 1; 0: no clipping)")->check(CLI::Range(0.0, 1e9));
  app->add_option("--weight-decay", o->train.weight_decay, "default 0")->check(CLI::Range(0.0, 10.0));
  app->add_option("--capacity-factor", o->train.walk.capacity_factor, "drop copies beyond this multiple of an expert's mean (default: dropless)")->check(CLI::Range(0.0, 1e6));
  app->add_option("--aux-loss", o->train.walk.auxiliary, "weight of the load-balancing loss")->check(CLI::Range(0.0, 1e3));
  app->add_flag("--float32", o->float32, "hold bf16 buffers as f32 (twice the memory), for comparisons");
  return {app, [o](const Context& context) { return run(context, *o); }};
}

}  // namespace moeplan::cli
