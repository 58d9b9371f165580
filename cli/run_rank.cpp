#include "cli/run_rank.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "cli/backends.hpp"
#include "cli/forecast_text.hpp"
#include "cli/table.hpp"
#include "core/write.hpp"
#include "executor/adapter/peft.hpp"
#include "executor/comm/watchdog.hpp"
#include "executor/data/packer.hpp"
#include "executor/monitor/monitor.hpp"
#include "executor/slice/slice.hpp"
#include "executor/train/finite.hpp"
#include "executor/train/measured.hpp"
#include "executor/weights/load.hpp"

namespace moeplan::cli {
namespace {

/// Words of a placement: a thousand layers of some thousand slots.
constexpr std::int64_t kMostPlaced = std::int64_t{1} << 24;
/// Taken as the least that a CPU rank makes of a call, with a share of a core too. Below 4 GFLOP the call has `kStalled` anyway.
constexpr FlopsPerSecond kSlowest{1e8};

std::int64_t peak_resident() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

Json provenance(const RunOptions& options, const Context& context, const std::string& device) {
  Json out = Json::object();
  out["device"] = device;
  out["backend"] = options.backend;
  out["arithmetic"] = options.float32 ? "f32" : "f32, stored as planned";
  out["version"] = MOEPLAN_VERSION;
  out["threads"] = context.threads > 0 ? context.threads : static_cast<int>(std::thread::hardware_concurrency());
  out["date"] = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  out["seed"] = options.train.seed;
  out["peak_resident_bytes"] = peak_resident();
  return out;
}

/// How NCCL gets at what it moves.
std::string registered_text(const RunOptions& options, const Walk::Registered& registered) {
  if (!options.train.walk.registers) return "none, as asked";
  if (!registered.refused.empty()) return (registered.communicators > 0 ? "in part: " : "none: ") + registered.refused;
  return fmt::format("{} with {} communicators", human(registered.bytes), registered.communicators);
}

std::string step_line(const StepReport& r, double mfu) {
  return fmt::format("step {:>5}  loss {:<9.5g} grad norm {:<9.4g} lr {:<9.3g} {:>7.0f} tokens/s{}{}{}\n", r.step, r.loss,
                     r.gradient_norm, r.learning_rate, r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0,
                     mfu > 0 ? fmt::format("  MFU {}", percent(mfu)) : "",
                     r.routing.empty() ? "" : fmt::format("  max/mean load {:.2f}", r.max_over_mean),
                     (r.rank_max_over_mean > 0 ? fmt::format("  busiest rank {:.2f}", r.rank_max_over_mean) : "") +
                         (r.drop_rate > 0 ? fmt::format("  dropped {}", percent(r.drop_rate)) : "") +
                         (r.moved_bytes > 0 ? fmt::format("  experts moved: {}", human(Bytes{r.moved_bytes})) : ""));
}

std::string memory_text(const Context& context, const MemoryBreakdown& predicted, const MemoryBreakdown& measured) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names) {
    if (predicted[category].value == 0 && measured[category].value == 0) continue;
    std::string words(name);
    std::replace(words.begin(), words.end(), '_', ' ');
    rows.push_back({category == MemoryCategory::allocator_reserve ? "gaps of the arena" : words,
                    human(predicted[category]), human(measured[category])});
  }
  rows.push_back({"peak", human(predicted.peak()), human(measured.peak())});
  if (predicted.host.value > 0 || measured.host.value > 0) rows.push_back({"in host memory", human(predicted.host), human(measured.host)});
  return heading(context, "memory, predicted beside measured") + "\n" +
         table({{""}, {"predicted", true}, {"measured", true}}, rows);
}

/// What rank 0 put on the network in the last steps: calls and bytes by kind.
Json communication_json(Trainer& trainer) {
  Json out = Json::object();
  const CommCounters counters = trainer.ranks()->counters();
  for (const auto& [kind, name] : EnumNames<CommKind>::names)
    if (const CommCounter& c = counters[static_cast<std::size_t>(kind)]; c.calls > 0)
      out[std::string(name)] = {{"calls", c.calls}, {"payload_bytes", c.payload}, {"sent_bytes", c.sent}};
  return out;
}

/// Calls between ranks that others' computing may hide, in the step that was timed.
Json overlap_json(const Overlaps& overlaps) {
  Json out = Json::object();
  for (const auto& [name, of] : {std::pair{"exchange", overlaps.exchange}, std::pair{"gather", overlaps.gather}})
    if (of.seconds > 0) out[name] = {{"seconds", of.seconds}, {"waited_s", of.waited}, {"hidden", of.hidden()}};
  return out;
}
std::string overlap_text(const Overlaps& overlaps) {
  std::string out;
  for (const auto& [name, of] : {std::pair{"rows to experts and back", overlaps.exchange}, std::pair{"weights gathered", overlaps.gather}})
    if (of.seconds > 0)
      out += fmt::format("{}: {} on their way, {} of it waited for: {} hidden under computing\n", name, duration({of.seconds}), duration({of.waited}), percent(of.hidden()));
  return out.empty() ? out : out + "\n";
}

void say_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// Training as one rank: alone, or with the others over `world`.
class RankRun {
 public:
  RankRun(Session& session, Communicator* world, Progress* progress)
      : s_(session),
        o_(session.options),
        problem_(session.loaded.problem),
        plan_(session.loaded.plan),
        first_(!world || world->rank() == 0),
        opened_(open_backend(o_.backend, o_.float32, o_.device)),
        backend_(opened_.backend.get()),
        alone_(session.slice ? slice_world({session.slice->rank, plan_.parallelism}, *backend_) : nullptr),
        world_(alone_ ? alone_.get() : world),
        progress_(progress),
        trainer_(problem_, plan_, *backend_, o_.train, world_, progress),
        data_(open_dataset(o_.data, problem_.model.vocabulary, o_.train.seed, problem_.workload.sequence_length), plan_.micro_batch,
              problem_.workload.sequence_length, !o_.no_packing, o_.train.seed) {
    if (!progress_) return;
    const auto told = [p = progress_](Flops work) { p->advance(Duration{static_cast<Duration::rep>(std::min(work.value / kSlowest.value, 1e6) * 1000)}); };
    backend_->on_work(told);
    if (first_ && s_.whole) s_.whole->backend().on_work(told);
  }

  void run() {
    watch_work(true);
    start();
    Watch watch;
    int signal = 0;
    const std::int64_t last =
        o_.stop_after ? std::min(o_.train.steps, trainer_.steps_done() + *o_.stop_after) : o_.train.steps;
    while (trainer_.steps_done() < last && signal == 0) {
      if (first_ && trainer_.steps_done() + 1 == last) {  // the last step's calls are timed; the others run undisturbed
        recorder_.emplace(trainer_.program(), stamp_seconds(*backend_));
        trainer_.walk().time([&](const Instance& i, const BlockNode& n, double begin, double end) {
          recorder_->record(i, n, begin, end);
        });
      }
      const StepReport report = step();
      if (first_) show(report, watch);
      signal = agreed(first_ || o_.processes ? s_.signals.pending() : 0);
      if (!o_.checkpoint.empty() && signal == 0 && o_.save_every > 0 && trainer_.steps_done() % o_.save_every == 0)
        (void)save();
    }
    finish(signal);
    watch_work(false);
  }

 private:
  StepReport step() {
    const Duration most{static_cast<Duration::rep>(o_.rank_timeout * 1000)};
    try {
      limit_calls(step_limit(s_.predicted_step.value, longest_, most), longest_ > 0 ? Duration{0} : most);   // the first makes NCCL's connections
      watch_work(s_.predicted_step.value <= 0 && longest_ <= 0);
      StepReport report = trainer_.step(batches());
      limit_calls(most);
      longest_ = std::max(longest_, report.seconds);
      return report;
    } catch (const OutOfMemory& e) {
      throw OutOfMemory(e.where(), fmt::format("step {}: {}", trainer_.steps_done() + 1, e.reason()), e.fix());
    }
  }

  Parameters& whole() { return world_ ? s_.whole->parameters() : trainer_.parameters(); }
  Backend& of_whole() { return world_ ? s_.whole->backend() : *backend_; }
  void tell(const char* phase) {
    if (progress_) progress_->set_phase(phase);
  }
  void limit_calls(Duration limit, Duration together = Duration{0}) {
    if (progress_ && !o_.timeout_given) progress_->set_limit(limit, together);
  }
  /// Whether the others may take this rank for one that hangs when it has no work done to tell of (`kStalled`).
  void watch_work(bool on) {
    if (progress_) progress_->set_stall(on ? stall_of(o_) : Duration{0});
  }
  [[nodiscard]] std::function<void()> work_told() const {
    if (!progress_) return {};
    return [p = progress_] { p->advance(); };
  }
  void gather_state() {
    if (world_) collect(trainer_, problem_, first_ ? &*s_.whole : nullptr);
  }
  void hand_out_state() {
    if (world_) distribute(first_ ? &*s_.whole : nullptr, trainer_, problem_);
  }

  void start() {
    randomise(trainer_.parameters(), o_.train.seed, problem_.model, *backend_);
    if (!o_.weights.empty()) {
      TensorFiles files(o_.weights);
      files.on_read(work_told());
      load_weights(files, problem_.model, trainer_.parameters(), *backend_);
    } else if (first_)
      s_.out.notes.emplace_back("no --weights: seeded random weights");
    if (!o_.from_adapter.empty()) {
      gather_state();
      if (first_) load_adapter(o_.from_adapter, problem_, whole(), of_whole());
      hand_out_state();
    }
    if (!o_.resume) return;
    tell("load");
    std::optional<Resumed> found;
    if (first_) found = load_checkpoint(o_.checkpoint, s_.fingerprint, whole(), of_whole(), work_told());
    const TrainingProgress at = found ? found->progress : TrainingProgress{};
    const std::vector<std::int64_t> word = told({found ? 1 : 0, at.step, at.data.epoch, at.data.document, at.data.token});
    if (word[0] == 0) {
      if (first_) s_.out.notes.push_back(o_.checkpoint + " holds no save: training begins");
      return;
    }
    std::vector<std::int64_t> placement = at.placement;
    placement.resize(static_cast<std::size_t>(told({static_cast<std::int64_t>(placement.size())}, kMostPlaced).front()));
    const bool fits = trainer_.place(told(placement));
    if (first_ && !fits) s_.out.notes.emplace_back("experts begin where the plan's load puts them: the save had other expert ranks");
    hand_out_state();
    require_finite_state(world_, trainer_.parameters(), *backend_, "after the load");
    trainer_.set_steps_done(word[1]);
    data_.seek({word[2], word[3], word[4]});
    if (!first_) return;
    for (const std::string& note : found->notes) s_.out.notes.push_back("a save is broken: " + note);
    s_.out.notes.push_back(fmt::format("resumed at step {} from {}", at.step, found->directory.string()));
  }

  /// Every rank draws the step's data and keeps its share: number j of data rank d is j x ranks + d.
  std::vector<Batch> batches() {
    std::vector<Batch> out;
    const int ranks = plan_.parallelism.dp(), mine = trainer_.parameters().place().data_index();
    for (std::int64_t i = 0; i < plan_.micro_batches * ranks; ++i)
      if (Batch b = data_.next(); i % ranks == mine) out.push_back(std::move(b));
    return out;
  }

  /// What rank 0 says: numbers from 0 on, of a save and its steps.
  std::vector<std::int64_t> told(std::vector<std::int64_t> words, std::int64_t most = std::int64_t{1} << 53) {
    if (!world_) return words;
    std::vector<std::int64_t> all = world_->gather_words(words);
    std::fill(all.begin() + static_cast<std::ptrdiff_t>(words.size()), all.end(), 0);
    require_counts(*world_, all, most, "what is in the save");
    all.resize(words.size());
    return all;
  }
  /// The largest that any rank says.
  int agreed(int mine) {
    if (!world_) return mine;
    watch_work(true);
    const std::int64_t word = mine;
    const std::vector<std::int64_t> all = world_->gather_words(std::span(&word, 1));
    require_counts(*world_, all, 64, "the number of a signal");
    return static_cast<int>(*std::max_element(all.begin(), all.end()));
  }

  void show(const StepReport& report, Watch& watch) {
    tokens_ += report.tokens;
    const double mfu = report.seconds > 0 ? s_.at_peak.value / report.seconds : 0;
    Json line = step_json(report, trainer_.memory(), mfu);
    if (s_.slice) line["communication_s"] = trainer_.walk().communication_seconds() - std::exchange(communicated_, trainer_.walk().communication_seconds());
    for (std::string& warning : watch.warnings(report)) {
      if (s_.context.json)
        s_.out.notes.push_back(std::move(warning));
      else
        say_now("warning: " + warning + "\n");
    }
    if (s_.context.json)
      say_now(line.dump() + "\n");
    else if (!s_.context.quiet)
      say_now(step_line(report, mfu));
    s_.context.show_progress(static_cast<double>(report.step) / static_cast<double>(o_.train.steps));
    steps_.push_back(line);
    if (!o_.prometheus.empty())
      write_text_file(o_.prometheus, prometheus_text(report, trainer_.memory(), s_.predicted, tokens_, mfu));
  }

  std::optional<Saved> save() {
    tell("save");
    watch_work(true);
    require_finite_state(world_, trainer_.parameters(), *backend_, "before the save");
    gather_state();
    std::optional<Saved> saved;
    if (first_ && world_) require_finite_pieces(whole(), of_whole(), trainer_.parameters());
    if (first_)
      saved = save_checkpoint(o_.checkpoint, s_.fingerprint, {trainer_.steps_done(), data_.position(), o_.train.seed, trainer_.placement()},
                              whole(), of_whole(), 2, work_told());
    if (world_) world_->barrier();
    return saved;
  }

  void finish(int signal) {
    if (!o_.checkpoint.empty()) {
      const auto saved = save();
      if (first_ && signal != 0)
        s_.out.notes.push_back(fmt::format("interrupted by signal {}: saved at step {} in {}", signal,
                                           trainer_.steps_done(), saved->directory.string()));
    } else if (first_ && signal != 0) {
      s_.out.notes.push_back(fmt::format("interrupted by signal {} at step {}; nothing is saved without --checkpoint",
                                         signal, trainer_.steps_done()));
    }
    if (!o_.adapter.empty() && signal == 0) {
      gather_state();
      if (first_) {
        save_adapter(o_.adapter, export_adapter(
                                     whole(), problem_, [&](const Parameter& p) { return values_of(p, of_whole()); },
                                     o_.dialect == "D1" ? AdapterDialect::per_expert : AdapterDialect::param_wrapper), work_told());
        s_.out.notes.push_back(o_.adapter + ": adapter, dialect " + o_.dialect);
      }
    }
    if (!first_) return;
    const MemoryBreakdown measured = trainer_.memory();
    std::optional<SlicePrediction> slice;   // at the clock of calls with just such copies between
    if (s_.slice) slice = *s_.slice, slice->time = slice_forecast(problem_, plan_, slice->rank, slice->draw, Seconds{median_of(&copies_of)});
    if (!o_.output.empty()) {
      Json file = Json::object();
      file["format"] = "moeplan.measured.v1";
      file["timeline"] = recorder_ ? to_json(recorder_->timeline()) : Json(nullptr);
      file["memory"] = memory_json(measured);
      file["memory_over_step"] = recorder_ ? held_json(recorder_->memory(trainer_.walk().arena(), measured.peak())) : Json(nullptr);
      file["predicted_memory"] = memory_json(s_.predicted);
      file["ranks"] = plan_.parallelism.world();
      if (world_) file["communication"] = communication_json(trainer_);
      if (world_ && !s_.slice) file["overlap"] = overlap_json(trainer_.walk().overlaps());
      if (slice) file["rank_slice"] = slice_json(*slice);
      file["steps"] = steps_;
      file["provenance"] = provenance(o_, s_.context, opened_.device);
      if (world_ && o_.backend == "cuda" && !s_.slice) file["provenance"]["registered_memory"] = registered_text(o_, trainer_.walk().registered());
      write_text_file(o_.output, file.dump(1) + "\n");
    }
    s_.out.exit_code = signal == 0 ? 0 : o_.checkpoint.empty() ? kFailed : kInterrupted;
    if (s_.context.json) return;
    s_.out.text = "\n";
    if (s_.slice) s_.out.text += slice_text(*slice, median_of(&computing_of), median_of(&copies_of)) + "\n";
    if (world_ && !s_.slice) s_.out.text += overlap_text(trainer_.walk().overlaps());
    s_.out.text += memory_text(s_.context, s_.predicted, measured);
  }

  static double computing_of(const Json& step) { return computing_seconds(step, "steps"); }
  static double copies_of(const Json& step) { return copied_seconds(step, "steps"); }
  /// Over the undisturbed steps: the first warms up (nothing of a rank alone is recorded), the last is timed call by call.
  double median_of(double (*of)(const Json&)) const {
    std::vector<double> v;
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if ((i > 0 && i + 1 < steps_.size()) || steps_.size() < 3) v.push_back(of(steps_[i]));
    std::sort(v.begin(), v.end());
    return v.empty() ? 0 : v[v.size() / 2];
  }

  Session& s_;
  const RunOptions& o_;
  const Problem& problem_;
  const Plan& plan_;
  const bool first_;
  OpenBackend opened_;
  Backend* backend_;
  std::unique_ptr<Communicator> alone_;  ///< the world of a rank without others
  Communicator* world_;
  Progress* progress_;
  double longest_ = 0;   ///< s, of a step so far
  Trainer trainer_;
  Packer data_;
  std::optional<StepRecorder> recorder_;
  Json steps_ = Json::array();
  std::int64_t tokens_ = 0;
  double communicated_ = 0;  ///< seconds until the step before
};

}  // namespace

Duration stall_of(const RunOptions& o) { return o.timeout_given ? Duration{static_cast<Duration::rep>(o.rank_timeout * 1000)} : kStalled; }

void run_rank(Session& session, Communicator* world, Progress* progress) {
  if (progress) progress->set_stall(stall_of(session.options));   // from the opening of the device and the taking of memory on
  RankRun(session, world, progress).run();
}

}  // namespace moeplan::cli
