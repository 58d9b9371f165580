/// moeplan run PLAN: the plan, executed.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "cli/backends.hpp"
#include "cli/run_job.hpp"
#include "cli/run_launch.hpp"
#include "cli/run_rank.hpp"
#include "core/error.hpp"
#include "executor/ranks/moves.hpp"
#include "executor/ranks/runnable.hpp"
#include "executor/ranks/team.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan::cli {
namespace {

/// The certificate where the plan needs more than this machine has left.
std::optional<Output> too_large(const MemoryBreakdown& need, std::int64_t factor, const OpenBackend& opened) {
  // Without a device apart, what is to be in host memory lies beside the rest.
  const bool apart = opened.host_bytes > 0, host = apart && need.host.value * factor > opened.host_bytes;
  const std::int64_t have = host ? opened.host_bytes : opened.free_bytes;
  const std::int64_t wanted = host ? need.host.value : need.peak().value + (apart ? 0 : need.host.value);
  if (wanted * factor <= have) return std::nullopt;
  std::vector<std::pair<std::int64_t, std::string_view>> parts{{apart && !host ? 0 : need.host.value * factor, "host"}};
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names)
    parts.emplace_back(host ? 0 : need[category].value * factor, name);
  std::sort(parts.rbegin(), parts.rend());
  Json largest = Json::array();
  for (std::size_t i = 0; i < 3; ++i)
    largest.push_back({{"name", std::string(parts[i].second)}, {"bytes", parts[i].first}});
  Output out;
  out.exit_code = kInfeasible;
  out.text = Json{{"infeasible",
                   {{"binding", host ? "memory of the host" : "memory of " + opened.where},
                    {"need_bytes", wanted * factor},
                    {"have_bytes", have},
                    {"largest", largest},
                    {"nearest_fix",
                     "a shorter sequence, a smaller micro-batch or a smaller model; or a machine with more memory"}}}}
                 .dump(2) +
             "\n";
  return out;
}

Duration limit_of(const RunOptions& options) {
  return Duration{static_cast<Duration::rep>(options.rank_timeout * 1000)};
}

/// What decides which calls a rank makes, and with which numbers: options that all ranks of a run must have alike. Where their files are is theirs.
std::string options_of_all(const RunOptions& o) {
  const TrainOptions& t = o.train;
  const WalkOptions& w = t.walk;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", o.backend, o.float32, o.resume, o.no_packing, o.save_every, o.stop_after.value_or(0), o.overflow, o.dialect, o.weights.empty(), o.adapter.empty(),
                     o.from_adapter.empty(), o.checkpoint.empty(), t.steps, t.seed, t.learning_rate, t.warmup, t.clip, t.weight_decay, w.capacity_factor, w.rebalance_every, w.auxiliary, w.routed_bound, w.registers);
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] ? name.data() : "this host";
}

/// What a rank alone cannot do: it holds a part of the model, and its numbers are not the model's.
void refuse_with_slice(const RunOptions& o) {
  const auto refuse = [](bool is, const char* what) {
    if (is) throw InputError("--rank-slice", fmt::format("does not go with {}: one rank alone has made-up weights and neighbours", what), "leave one of them out");
  };
  refuse(o.ranks > 1, "--ranks");
  refuse(!o.weights.empty(), "--weights");
  refuse(!o.adapter.empty(), "--adapter");
  refuse(!o.from_adapter.empty(), "--from-adapter");
  refuse(!o.checkpoint.empty(), "--checkpoint");
}

void say_fault(Output& out, const std::exception& e) {
  out.notes.emplace_back(e.what());
  out.exit_code = kFailed;
  out.text.clear();
}

Output run_slice(const Context& context, RunOptions options, const LoadedPlan& loaded, const OpenBackend& opened) {
  refuse_with_slice(options);
  const SliceRows none;
  options.train.walk.slice = &none;  // refusals are those of a rank alone
  const Backend& backend = *opened.backend;
  if (*options.rank_slice >= loaded.plan.parallelism.world())
    throw InputError("--rank-slice", fmt::format("rank {} is outside the plan's {} ranks", *options.rank_slice, loaded.plan.parallelism.world()));
  refuse_what_cannot_run(loaded.problem, loaded.plan, backend, options.train.walk, loaded.plan.parallelism.world());
  const SlicePrediction slice =
      predict_slice(loaded, *options.rank_slice,
                    options.bound_given ? std::optional(options.train.walk.routed_bound) : std::nullopt,
                    options.train.walk, [&](DType t) { return backend.held(t); });
  options.train.walk.slice = &slice.draw.rows;
  options.train.walk.routed_bound = slice.routed_bound;
  if (auto certificate = too_large(slice.memory, options.float32 ? 2 : 1, opened)) return *std::move(certificate);
  HeldSignals signals;
  Session session{.context = context,
                  .options = options,
                  .loaded = loaded,
                  .predicted = slice.memory,
                  .signals = signals,
                  .slice = &slice,
                  .whole = {},
                  .fingerprint = {},
                  .predicted_step = {},
                  .at_peak = {},
                  .out = {}};
  try {
    run_rank(session, nullptr, nullptr);
  } catch (const RankBlamed& e) {
    say_fault(session.out, e);
  }
  return std::move(session.out);
}

/// One rank alone, all ranks as threads, or (`world`) this process's rank among those of others.
Output run_ranks_here(const Context& context, const RunOptions& options, const LoadedPlan& loaded, const OpenBackend& opened, Communicator* world, Progress* progress) {
  const Problem& problem = loaded.problem;
  refuse_what_cannot_run(problem, loaded.plan, *opened.backend, options.train.walk, options.ranks);
  Program program = lower_for_run(problem, loaded.plan, options.train.walk, world ? world->rank() : 0);
  exchange_once(program, problem, loaded.plan, options.train.walk);
  // The scratch and copies of this backend's kernels and the executor's buffer, whatever runtime the plan names.
  Problem priced = problem;
  priced.runtime.own_kernels = opened.backend->wants_dense();
  priced.runtime.workspace = opened.backend->beside();
  priced.runtime.staged = true;
  MemoryBreakdown predicted = memory(program, priced, loaded.plan);
  const bool away = offloads_weights(loaded.plan.offload);
  (away ? predicted.host : predicted[MemoryCategory::weights]) += held_beyond_plan(program, problem, loaded.plan.parallelism, *opened.backend);
  if (away) predicted[MemoryCategory::gathered_weights] += fetched_beyond_plan(program, problem, loaded.plan, *opened.backend);
  predicted[MemoryCategory::communication] += moving_room(program, problem, loaded.plan, *opened.backend, options.resume || options.train.walk.rebalance_every > 0);
  const std::int64_t here = world ? 1 : options.ranks;
  if (auto certificate = too_large(predicted, (options.float32 ? 2 : 1) * here, opened)) return *std::move(certificate);
  if (options.resume && options.checkpoint.empty()) throw InputError("--resume", "needs --checkpoint DIR");

  HeldSignals signals;
  Session session{.context = context,
                  .options = options,
                  .loaded = loaded,
                  .predicted = predicted,
                  .signals = signals,
                  .slice = nullptr,
                  .whole = {},
                  .fingerprint = run_fingerprint(problem, one_rank_plan(problem, loaded.plan)),
                  .predicted_step = {},
                  .at_peak = {},
                  .out = {}};
  if (progress) progress->advance(limit_of(options));   // rank 0 alone makes ready what it writes, and tells of nothing meanwhile
  if (opened.backend->name() == "cuda") {
    const Forecast expected = forecast(problem, loaded.plan);
    session.predicted_step = expected.step;
    session.at_peak = {expected.mfu * expected.step.value};
  }
  const bool keeps = !options.checkpoint.empty() || !options.adapter.empty() || !options.from_adapter.empty();
  if (options.ranks > 1 && keeps && (!world || world->rank() == 0))
    session.whole.emplace(problem, loaded.plan, options.float32 ? CpuStorage::wide : CpuStorage::as_planned);
  if (world) {
    run_rank(session, world, progress);
    return std::move(session.out);
  }
  try {
    if (options.ranks == 1) {
      run_rank(session, nullptr, nullptr);
      return std::move(session.out);
    }
    run_team(options.ranks, [&](Communicator& all, Progress& mine) { run_rank(session, &all, &mine); },
             {.host = host_name(), .limit = limit_of(options)});
  } catch (const RankBlamed& e) {
    say_fault(session.out, e);
  } catch (const RankFailed& e) {
    say_fault(session.out, e);
  }
  return std::move(session.out);
}

Output run(const Context& context, const RunOptions& options, const CLI::App& app) {
  if (options.launch.explain_env) return explain_environment(options.launch);
  if (options.plan.empty()) throw InputError("PLAN", "is missing", "a plan file, as `moeplan plan ... -o` writes it");
  if (!options.overflow.empty() && options.train.walk.capacity_factor == 0)
    throw InputError("--overflow", "says what becomes of copies beyond a capacity, and there is none", "--capacity-factor 1.25");
  const Json file = load_json(options.plan);
  const LoadedPlan loaded = read_plan_file(file, options.plan);
  if (!options.launch.kind.empty()) return write_launch(app, options.launch, loaded);
  if (options.rank_slice) return run_slice(context, options, loaded, open_backend(options.backend, options.float32));
  std::optional<int> ended;
  if (const std::optional<Job> job = options.backend == "null" ? std::nullopt : find_job(options.ranks, options.backend == "cuda", options.launch.flags, options.launch.token_file, ended)) {
    if (ended) return {{}, {}, *ended};
    RunOptions mine = options;
    mine.ranks = job->place.world_size;
    mine.device = job->place.local_rank;
    mine.processes = true;
    std::optional<OpenBackend> opened;   // once all have joined, so that one that has no device, or hangs opening it, is named
    const Transport transport = transport_of(mine.backend, [&] { opened = open_backend(mine.backend, mine.float32, mine.device); });
    return run_job(*job, limit_of(mine), stall_of(mine), transport, {{"plan", file.dump()}, {"options", options_of_all(mine)}}, [&](Communicator& world, Progress& progress) {
      return run_ranks_here(context, mine, loaded, *opened, &world, &progress);
    });
  }
  return run_ranks_here(context, options, loaded, open_backend(options.backend, options.float32), nullptr, nullptr);
}

}  // namespace

Command run_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "run", "executes a plan on this machine: training steps, adapter, checkpoints, what was measured");
  app->footer(
      "Example: moeplan plan kimi-k3-tiny --device cpu --gpus 1 --runtime cpu -o plan.json && moeplan run plan.json "
      "--steps 5 -o measured.json");
  const auto o = std::make_shared<RunOptions>();
  app->add_option("PLAN", o->plan, "a plan file, as `moeplan plan ... -o` writes it");
  app->add_option("--ranks", o->ranks, "run the plan's ranks here: as threads (cpu), or one process for each device (cuda); default 1")
      ->check(CLI::Range(1, 256));
  app->add_option("--rank-slice", o->rank_slice,
                  "run this one rank of the plan alone: its shapes, its share of the experts, rows drawn from the load; "
                  "communication is copied in place and charged from the model")
      ->check(CLI::Range(0, 1 << 24));
  app->add_option("--rank-timeout", o->rank_timeout,
                  "seconds that a rank waits for the others in one call (default 300; within a step, on devices, if that is less: 5 times what one is predicted to take, or took, and at least 20, but 42 at most or 1.5 times a step; the first may take 42 or 5 steps, and 300 where all have come to a call and none stands still in it; a rank that reads or writes files is waited for while it goes on, and may stand still for 40)")
      ->each([o](const std::string&) { o->timeout_given = true; })
      ->check(CLI::Range(0.01, 1e6));
  app->add_flag("!--no-registered-memory", o->train.walk.registers,
                "NCCL copies what it moves through buffers of its own, instead of knowing the memory of exchanges, gathers and reductions beforehand");
  app->add_option("--backend", o->backend,
                  "cpu, cuda (where it was built in), or null (walks the program and computes nothing)")
      ->check(CLI::IsMember(backend_names()));
  app->add_option("--steps", o->train.steps, "training steps of the whole run (default 10)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  app->add_option("--stop-after", o->stop_after, "stop after this many steps; the schedule stays that of --steps")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  app->add_option("--seed", o->train.seed, "of random weights, data order (default 1)")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 52));
  app->add_option("--weights", o->weights,
                  "directory with safetensors (single, or shards with their index); random without");
  app->add_option("--data", o->data, "x.jsonl with input_ids, x.bin beside x.idx, synthetic (default), or random: whole sequences, as priced");
  app->add_flag("--no-packing", o->no_packing, "one document a sequence, padded");
  app->add_option("--from-adapter", o->from_adapter, "start from this PEFT adapter");
  app->add_option("--adapter", o->adapter, "write the adapter to this directory at the end");
  app->add_option("--adapter-dialect", o->dialect, "of the experts' pairs: D3 (PEFT 0.19, default) or D1 (one by one)")
      ->check(CLI::IsMember({"D1", "D3"}));
  app->add_option("--checkpoint", o->checkpoint, "save here at the end, on SIGTERM, SIGUSR1 and SIGINT");
  app->add_option("--save-every", o->save_every, "and after every so many steps")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  app->add_flag("--resume", o->resume, "continue from the newest save in --checkpoint");
  app->add_option("-o,--output", o->output, "write what was measured: timeline, memory, steps");
  app->add_option("--prometheus", o->prometheus, "keep a Prometheus text file up to date");
  app->add_option("--lr", o->train.learning_rate, "peak learning rate (default 1e-4)")->check(CLI::Range(0.0, 10.0));
  app->add_option("--warmup", o->train.warmup, "steps of linear warm-up")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  app->add_option("--clip", o->train.clip, "largest gradient norm (default 1; 0: no clipping)")
      ->check(CLI::Range(0.0, 1e9));
  app->add_option("--weight-decay", o->train.weight_decay, "default 0")->check(CLI::Range(0.0, 10.0));
  app->add_option("--capacity-factor", o->train.walk.capacity_factor,
                  "most copies of an expert, as a multiple of the mean (default: dropless)")
      ->check(CLI::Range(0.0, 1e6));
  app->add_option("--rebalance-every", o->train.walk.rebalance_every,
                  "every so many steps place the experts (and their copies) anew by what was routed to them since; for plans with --placement balanced or hierarchical")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  app->add_option("--overflow", o->overflow,
                  "of copies beyond --capacity-factor: drop_position (default), drop_probability, or reroute (to the next expert with room)")
      ->check(CLI::IsMember({"drop_position", "drop_probability", "reroute"}));
  app->add_option("--aux-loss", o->train.walk.auxiliary, "weight of the load-balancing loss")
      ->check(CLI::Range(0.0, 1e3));
  app->add_option("--routed-bound", o->train.walk.routed_bound,
                  "rows that a rank's experts may take over the balanced share (default 2; what was drawn, for a slice); "
                  "beyond it the run stops")
      ->each([o](const std::string&) { o->bound_given = true; })
      ->check(CLI::Range(1.0, 1e4));
  app->add_flag("--float32", o->float32, "hold bf16 buffers as f32 (twice the memory), for comparisons");
  add_launch_options(*app, o->launch);
  return {app, [o, app](const Context& context) {
            for (const auto& [action, name] : EnumNames<Overflow>::names)
              if (name == o->overflow) o->train.walk.overflow = action;
            return run(context, *o, *app);
          }};
}

}  // namespace moeplan::cli
