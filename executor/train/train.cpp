#include "executor/train/train.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "core/checked.hpp"
#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/ranks/runnable.hpp"
#include "executor/rendezvous/rank_process.hpp"
#include "executor/train/finite.hpp"

namespace moeplan {
namespace {

/// The routers of the model in order: decoder layer, and the experts that its report counts.
std::vector<std::pair<std::int32_t, std::size_t>> routers(const ModelSpec& model) {
  std::vector<std::pair<std::int32_t, std::size_t>> out;
  for (std::size_t l = 0; l < model.layers.size(); ++l)
    for (const Sublayer& s : model.layers[l].sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer))
        out.emplace_back(static_cast<std::int32_t>(l), static_cast<std::size_t>(f->experts + f->zero_experts));
  return out;
}

/// Adds a micro-batch's routing to the step's, layer by layer in the order of the calls.
void merge(std::vector<RoutingReport>& into, const std::vector<RoutingReport>& from, double share) {
  if (into.empty()) {
    into = from;
    for (RoutingReport& r : into) r.balance *= share;
    return;
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (std::size_t e = 0; e < from[i].counts.size(); ++e) into[i].counts[e] += from[i].counts[e];
    into[i].dropped += from[i].dropped;
    into[i].balance += share * from[i].balance;
  }
}

/// Elements of one call of the optimizer: whole runs, but not beyond what a call counts; where values are converted,
/// what that takes is held.
constexpr std::int64_t kMostElements = std::int64_t{1} << 30, kMostConverted = std::int64_t{1} << 24;
constexpr std::int64_t kSquares = 64;  ///< bytes of the step size; the sums of squares lie behind it

Program rank_program(const Problem& problem, const Plan& plan, const WalkOptions& options, int rank) {
  Program out = lower_for_run(problem, plan, options, rank);
  exchange_once(out, problem, plan, options);
  return out;
}

}  // namespace

double learning_rate(const TrainOptions& o, std::int64_t step) {
  if (step <= o.warmup) return o.learning_rate * static_cast<double>(step) / static_cast<double>(o.warmup);
  const double rest = static_cast<double>(std::max<std::int64_t>(1, o.steps - o.warmup)),
               at = std::min(1.0, static_cast<double>(step - o.warmup - 1) / rest);
  return o.learning_rate * (o.final_share + (1 - o.final_share) * (1 + std::cos(std::numbers::pi * at)) / 2);
}

Trainer::Trainer(const Problem& problem, const Plan& plan, Backend& backend, const TrainOptions& options,
                 Communicator* world, Progress* progress)
    : problem_(problem),
      plan_(plan),
      backend_(backend),
      options_(options),
      program_((refuse_what_cannot_run(problem, plan, backend, options.walk, world ? world->size() : 1),
                rank_program(problem, plan, options.walk, world ? world->rank() : 0))),
      progress_(progress) {
  if (world && world->size() > 1) ranks_.emplace(*world, plan.parallelism, tensor_neighbours(problem, plan));
  parameters_.emplace(program_, problem, backend, ranks_ ? ranks_->place() : RankPlace{}, Keep::all,
                      expected_slots(problem, plan), plan.offload);
  walk_.emplace(program_, problem, plan, *parameters_, backend, options.walk, ranks(), progress);
  // Values held as f32 are updated where they lie; others pass through memory of a piece's size.
  std::int64_t written = 0;
  for (std::size_t r = 0; r < parameters_->runs().size(); ++r) {
    const TrainedRun& run = parameters_->runs()[r];
    const std::int64_t most = run.held == DType::f32 ? kMostElements : kMostConverted;
    for (std::int64_t at = 0; at < run.elements; at += most) {
      pieces_.push_back({r, at, std::min(most, run.elements - at)});
      if (run.held != DType::f32) written = std::max(written, pieces_.back().count);
    }
  }
  scratch_bytes_ = {kSquares + 4 * static_cast<std::int64_t>(pieces_.size()) + 256 + 4 * written};
  scratch_ = backend.allocate(scratch_bytes_, "optimizer scratch");
  place_window();
  device_peak_ = backend.device_memory();
}

TensorView Trainer::piece_view(const Piece& piece, const Backend::Memory& memory, DType type) const {
  return {memory.get() + (backend_.name() == "null" ? 0 : piece.first * plain_bytes(type)), type, {piece.count}};
}

void Trainer::zero_gradients() {
  for (TrainedRun& run : parameters_->runs()) backend_.clear({run.gradient.get(), DType::f32, {run.elements}});
}

/// Of what this rank answers for: each element of the model counts on one rank.
double Trainer::squared_gradients() {
  const bool null = backend_.name() == "null";
  std::vector<float> squares(pieces_.size());
  const TensorView sums{
      scratch_.get() + (null ? 0 : kSquares), DType::f32, {static_cast<std::int64_t>(pieces_.size())}};
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const TrainedRun& run = parameters_->runs()[pieces_[i].run];
    const TensorView sum{sums.data + (null ? 0 : 4 * i), DType::f32, {1}};
    backend_.call({op::GradNorm{.elements = pieces_[i].count}, Pass::forward, {}},
                  std::array{piece_view(pieces_[i], run.gradient, DType::f32), sum}, std::array<TensorView, 2>{}, {});
  }
  backend_.wait();
  if (!squares.empty()) backend_.read(sums, squares);
  double total = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (parameters_->runs()[pieces_[i].run].counts) total += static_cast<double>(squares[i]);
  return total;
}

/// From what this rank saw to what all saw. Losses come from the ranks with the head; routing from the ranks that each
/// held some of the tokens: of those that share a micro-batch's the first speaks, but for what each has dropped.
void Trainer::reduce_report(StepReport& report, double& squares) {
  if (!ranks_) return;
  const RankPlace& place = ranks_->place();
  const bool head = place.stage() + 1 == plan_.parallelism.pp && place.index(Group::tensor) == 0;
  std::vector<double> sums{head ? report.loss : 0, squares};
  // Each layer's counts at its place, so that all ranks add the same words whatever their stage.
  std::vector<std::int64_t> words;
  std::size_t next = 0;
  const bool speaks = place.index(Group::tensor) == 0 && place.index(Group::context) == 0;
  const auto all = routers(problem_.model);
  for (const auto& [layer, experts] : all) {
    const RoutingReport* mine =
        next < report.routing.size() && report.routing[next].layer == layer ? &report.routing[next++] : nullptr;
    for (std::size_t e = 0; e < experts; ++e) words.push_back(mine && speaks ? mine->counts[e] : 0);
    words.push_back(mine ? mine->dropped : 0);
    sums.push_back(mine && speaks ? mine->balance : 0);
  }
  sums = sum_over_ranks(ranks_->world(), sums);
  words = sum_over_ranks(ranks_->world(), words);
  report.loss = sums[0];
  squares = sums[1];
  report.routing.clear();
  std::size_t balance = 2;
  auto at = words.begin();
  for (const auto& [layer, experts] : all) {
    const auto end = at + static_cast<std::ptrdiff_t>(experts);
    report.routing.push_back({.layer = layer, .counts = {at, end}, .dropped = *end, .balance = sums[balance++]});
    at = end + 1;
  }
}

void Trainer::update(double rate, double clipping) {
  const TensorView step_size{scratch_.get(), DType::f32, {3}};
  backend_.write(step_size,
                 std::array{static_cast<float>(rate), static_cast<float>(clipping), static_cast<float>(done_ + 1)});
  if (window_) return update_through_window();
  for (const Piece& piece : pieces_) {
    const TrainedRun& run = parameters_->runs()[piece.run];
    update_elements(piece, piece_view(piece, run.first_moment, DType::f32), piece_view(piece, run.second_moment, DType::f32));
  }
}

void Trainer::update_elements(const Piece& piece, const TensorView& m, const TensorView& v) {
  const std::int64_t behind_sums = (kSquares + 4 * static_cast<std::int64_t>(pieces_.size()) + 255) / 256 * 256;
  const TrainedRun& run = parameters_->runs()[piece.run];
  const op::AdamW call{.elements = piece.count,
                       .weight = DType::f32,
                       .beta1 = options_.beta1,
                       .beta2 = options_.beta2,
                       .epsilon = options_.epsilon,
                       .weight_decay = options_.weight_decay};
  const TensorView step_size{scratch_.get(), DType::f32, {3}}, g = piece_view(piece, run.gradient, DType::f32),
                   w = piece_view(piece, run.value, run.held);
  // The weights written are the master's: the same numbers to the same place.
  const TensorView written =
      run.held == DType::f32
          ? w
          : TensorView{scratch_.get() + (backend_.name() == "null" ? 0 : behind_sums), DType::f32, {piece.count}};
  backend_.call({call, Pass::forward, {}}, std::array{g, step_size, w, m, v, w, m, v, written},
                std::array<TensorView, 9>{}, {});
}

/// Device memory through which moments in host memory pass: two windows of what the plan says.
void Trainer::place_window() {
  if (!offloads_optimizer(plan_.offload)) return;
  const std::int64_t most = ceil_div(optimizer_window(parameters_->bytes()).value, std::int64_t{2 * 2 * 4 * 256}) * 256;
  for (const Piece& piece : pieces_)
    for (std::int64_t at = 0; at < piece.count; at += most)
      windows_.push_back({piece.run, piece.first + at, std::min(most, piece.count - at)});
  window_bytes_ = {2 * 2 * 4 * most};
  window_ = backend_.allocate(window_bytes_, "moments on their way");
}

/// One window is updated while the next comes and the one before goes back: a lane each way.
void Trainer::update_through_window() {
  const bool null = backend_.name() == "null";
  const std::int64_t half = window_bytes_.value / 4;
  std::array<Backend::CopyPoint, 2> there{}, gone{};
  const auto moment = [&](std::size_t k, bool second) {
    return TensorView{window_.get() + (null ? 0 : (2 * static_cast<std::int64_t>(k % 2) + second) * half), DType::f32, {windows_[k].count}};
  };
  const auto copy = [&](std::size_t k, bool back) {
    const TrainedRun& run = parameters_->runs()[windows_[k].run];
    const Bytes bytes{4 * windows_[k].count};
    Backend::CopyPoint last;
    for (const bool second : {false, true}) {
      std::byte* const host = piece_view(windows_[k], second ? run.second_moment : run.first_moment, DType::f32).data;
      std::byte* const here = moment(k, second).data;
      last = back ? backend_.copy_beside(here, host, bytes, CopyLane::back) : backend_.copy_beside(host, here, bytes);
    }
    (back ? gone : there)[k % 2] = std::move(last);
  };
  const auto fetch = [&](std::size_t k) {
    if (k >= windows_.size()) return;
    if (gone[k % 2]) backend_.await(gone[k % 2]);
    copy(k, false);
  };
  fetch(0);
  for (std::size_t k = 0; k < windows_.size(); ++k) {
    fetch(k + 1);
    backend_.await(there[k % 2]);
    update_elements(windows_[k], moment(k, false), moment(k, true));
    copy(k, true);
  }
  for (const Backend::CopyPoint& point : gone)
    if (point) backend_.await(point);
}

float Trainer::differentiate(const Batch& batch) {
  zero_gradients();
  return walk_->run(0, batch, 1);
}

std::vector<Batch> Trainer::own_tokens(const std::vector<Batch>& batches) const {
  std::vector<Batch> out;
  const std::int64_t rank = ranks_ ? ranks_->place().index(Group::context) : 0;
  for (const Batch& b : batches) out.push_back(context_share(b, context_runs_of(problem_, plan_), rank));
  return out;
}

StepReport Trainer::step(const std::vector<Batch>& together) {
  const std::vector<Batch> apart = plan_.parallelism.cp > 1 ? own_tokens(together) : std::vector<Batch>{},
                           &batches = plan_.parallelism.cp > 1 ? apart : together;
  if (static_cast<std::int64_t>(batches.size()) != plan_.micro_batches)
    throw InputError("data", fmt::format("{} micro-batches, the plan has {}", batches.size(), plan_.micro_batches));
  const auto start = std::chrono::steady_clock::now();
  StepReport report{.step = done_ + 1, .learning_rate = learning_rate(options_, done_ + 1), .routing = {}};
  for (const Batch& b : batches)
    report.labelled += b.labelled(), report.tokens += static_cast<std::int64_t>(b.tokens.size());
  if (options_.walk.slice) {  // every data rank has as many
    report.labelled *= plan_.parallelism.dp(), report.tokens *= plan_.parallelism.dp();
  } else if (ranks_) {
    tell("labels");
    const bool speaks = ranks_->place().speaks_for_data();
    const std::vector<std::int64_t> mine{speaks ? report.labelled : 0, speaks ? report.tokens : 0},
        all = sum_over_ranks(ranks_->world(), mine);
    report.labelled = all[0], report.tokens = all[1];
  }
  zero_gradients();
  // The step's loss is the mean over all its labels, however they fall on micro-batches and ranks.
  const auto shares_of = [&](const std::vector<Batch>& of) {
    std::vector<double> out;
    for (const Batch& b : of)
      out.push_back(report.labelled > 0 ? static_cast<double>(b.labelled()) / static_cast<double>(report.labelled) : 0);
    return out;
  };
  const std::vector<double> shares = shares_of(batches), balance_shares = shares_of(together);
  const std::vector<MicroBatchResult> results =
      walk_->run_all(batches, std::vector<float>(shares.begin(), shares.end()),
                     std::vector<float>(balance_shares.begin(), balance_shares.end()));
  for (std::size_t j = 0; j < results.size(); ++j) {
    report.loss += shares[j] * static_cast<double>(results[j].loss);
    merge(report.routing, results[j].routing, balance_shares[j]);
  }
  if (ranks_) {
    tell("replica reduce");
    reduce_replicas(*parameters_, *ranks_, backend_, moving_);
  }
  tell("gradient norm");
  if (ranks_) ranks_->wait();  // with a limit, which the device's own wait has not
  const double own_loss = report.loss;
  double squares = squared_gradients();
  const bool own_finite = std::isfinite(squares);
  walk_->apart([&] { reduce_report(report, squares); });
  report.gradient_norm = std::sqrt(squares);
  report.applied = std::isfinite(report.loss) && std::isfinite(report.gradient_norm);
  if (ranks_) {
    tell("replica spread");
    spread_replicas(*parameters_, *ranks_, backend_);
  }
  if (!report.applied) {
    const StepFault mine{.state = first_not_finite(*parameters_, backend_, true), .loss = !std::isfinite(own_loss), .gradient = !walk_->gave_finite().value_or(own_finite)};
    if (ranks_) report.fault = agree_on_fault(ranks_->world(), mine);
    else if (mine.state) throw RankBlamed(0, *mine.state + " is not finite: no later step can be");
  }
  tell("optimizer");
  if (report.applied)
    update(report.learning_rate,
           options_.clip > 0 && report.gradient_norm > options_.clip ? options_.clip / report.gradient_norm : 1.0);
  if (ranks_) {
    tell("check of the order");
    ranks_->check_order();
  }
  backend_.wait();
  ++done_;
  rebalance(report);
  device_peak_.value = std::max(device_peak_.value, backend_.device_memory().value);
  std::int64_t copies = 0, dropped = 0;
  for (const RoutingReport& r : report.routing) {
    std::int64_t sum = 0, most = 0;
    for (const auto c : r.counts) sum += c, most = std::max(most, c);
    copies += sum;
    dropped += r.dropped;
    if (sum > 0)
      report.max_over_mean =
          std::max(report.max_over_mean,
                   static_cast<double>(most) * static_cast<double>(r.counts.size()) / static_cast<double>(sum));
    report.balance += r.balance / static_cast<double>(report.routing.size());
  }
  report.drop_rate = copies > 0 ? static_cast<double>(dropped) / static_cast<double>(copies) : 0;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

/// Counts, and from time to time places the experts anew.
void Trainer::rebalance(StepReport& report) {
  const int ranks = plan_.parallelism.ep;
  if (ranks == 1 || options_.walk.slice) return;
  const std::int64_t every = options_.walk.rebalance_every;
  for (const RoutingReport& r : report.routing) {
    std::int64_t experts = 0;
    for (const Sublayer& s : problem_.model.layers[static_cast<std::size_t>(r.layer)].sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) experts = f->experts;
    const std::span<const std::int64_t> routed(r.counts.data(), static_cast<std::size_t>(experts));
    report.rank_max_over_mean =
        std::max(report.rank_max_over_mean, rank_max_over_mean(routed, parameters_->slots(r.layer), ranks));
    if (every == 0) continue;
    auto& sum = counted_[r.layer];
    sum.resize(routed.size(), 0);
    for (std::size_t e = 0; e < routed.size(); ++e) sum[e] += routed[e];
  }
  if (every == 0 || done_ % every != 0) return;
  tell("expert placement");
  const ExpertSlots fresh = slots_by_counts(problem_, plan_, counted_, parameters_->slots());
  const std::int64_t sent = moving_volume(*parameters_, ranks_->place(), fresh).sent;
  move_experts(*parameters_, fresh, *ranks_, backend_, moving_);
  counted_.clear();
  report.moved_bytes = sum_over_ranks(ranks_->world(), std::span(&sent, 1)).front();
}

std::vector<std::int64_t> Trainer::placement() const {
  std::vector<std::int64_t> words;
  for (const auto& [layer, slots] : parameters_->slots()) {
    const auto counts = counted_.find(layer);
    const std::size_t n = counts == counted_.end() ? 0 : counts->second.size();
    words.insert(words.end(), {layer, static_cast<std::int64_t>(slots->size()), static_cast<std::int64_t>(n)});
    words.insert(words.end(), slots->begin(), slots->end());
    if (n > 0) words.insert(words.end(), counts->second.begin(), counts->second.end());
  }
  return words;
}

bool Trainer::place(std::span<const std::int64_t> words) {
  const auto experts_in = [](std::vector<std::int64_t> slots) {
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    return slots;
  };
  ExpertSlots to = parameters_->slots();
  ExpertCounts counts;
  while (!words.empty()) {
    const auto here = words.size() < 3 ? to.end() : to.find(static_cast<std::int32_t>(words[0]));
    if (here == to.end()) return false;
    const std::vector<std::int64_t> known = experts_in(*here->second);  // every expert must have a slot
    const std::size_t slots = here->second->size(), counted = words[2] == 0 ? 0 : known.size();
    if (words[1] != static_cast<std::int64_t>(slots) || words[2] != static_cast<std::int64_t>(counted) ||
        words.size() < 3 + slots + counted)
      return false;
    const auto at = words.begin() + 3, end = at + static_cast<std::ptrdiff_t>(slots);
    if (experts_in({at, end}) != known) return false;
    here->second = std::make_shared<const std::vector<std::int64_t>>(at, end);
    if (counted > 0) counts[here->first].assign(end, end + static_cast<std::ptrdiff_t>(counted));
    words = words.subspan(3 + slots + counted);
  }
  if (to.empty()) return true;
  move_experts(*parameters_, to, *ranks_, backend_, moving_);
  counted_ = std::move(counts);
  return true;
}

void Trainer::tell(const char* phase) {
  if (progress_) progress_->set_phase(phase);
}

MemoryBreakdown Trainer::memory() const {
  MemoryBreakdown out;
  const StateBytes state = parameters_->bytes();
  out.at_peak = walk_->arena().at_peak;
  out[MemoryCategory::weights] += state.weights;
  out[MemoryCategory::adapters] += state.adapters;
  out[MemoryCategory::gradients] += state.gradients;
  out[MemoryCategory::optimizer] += state.optimizer + window_bytes_;
  out.host = state.host_weights + state.host_optimizer + walk_->host();
  out[MemoryCategory::allocator_reserve] = walk_->arena().size - walk_->arena().peak;
  out[MemoryCategory::communication] += walk_->staged() + moving_.bytes;
  out[MemoryCategory::workspace] += backend_.beside();
  if (device_peak_.value > 0) out[MemoryCategory::runtime_context] += device_peak_ - out.peak();
  out.peak_at = walk_->arena().peak_at;
  return out;
}

}  // namespace moeplan
