#include "executor/train/train.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace moeplan {
namespace {

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

}  // namespace

double learning_rate(const TrainOptions& o, std::int64_t step) {
  if (step <= o.warmup) return o.learning_rate * static_cast<double>(step) / static_cast<double>(o.warmup);
  const double rest = static_cast<double>(std::max<std::int64_t>(1, o.steps - o.warmup)), at = std::min(1.0, static_cast<double>(step - o.warmup - 1) / rest);
  return o.learning_rate * (o.final_share + (1 - o.final_share) * (1 + std::cos(std::numbers::pi * at)) / 2);
}

Trainer::Trainer(const Problem& problem, const Plan& plan, Backend& backend, const TrainOptions& options)
    : problem_(problem), plan_(plan), backend_(backend), options_(options), program_(lower(problem, plan, 0)) {
  parameters_.emplace(program_, problem, backend);
  walk_.emplace(program_, problem, plan, *parameters_, backend, options.walk);
  std::int64_t largest = 1;
  for (const Parameter& p : parameters_->all()) if (p.trained) largest = std::max(largest, p.shape.elements());
  scratch_elements_ = largest;
  scratch_ = backend.allocate({64 + 4 * largest}, "optimizer scratch");
}

void Trainer::zero_gradients() {
  for (Parameter& p : parameters_->all())
    if (p.trained) backend_.clear(p.gradient_view());
}

double Trainer::gradient_norm() {
  const TensorView sum{scratch_.get(), DType::f32, {1}};
  double total = 0;
  for (const Parameter& p : parameters_->all()) {
    if (!p.trained) continue;
    const std::int64_t n = p.shape.elements();
    TensorView gradient = p.gradient_view();
    gradient.shape = {n};
    backend_.call({op::GradNorm{.elements = n}, Pass::forward, {}}, std::array{gradient, sum}, std::array<TensorView, 2>{}, {});
    float squares = 0;
    backend_.wait();
    backend_.read(sum, std::span(&squares, 1));
    total += static_cast<double>(squares);
  }
  return std::sqrt(total);
}

void Trainer::update(double rate, double clipping) {
  const bool null = backend_.name() == "null";
  const TensorView step_size{scratch_.get(), DType::f32, {3}};
  backend_.write(step_size, std::array{static_cast<float>(rate), static_cast<float>(clipping), static_cast<float>(done_ + 1)});
  for (Parameter& p : parameters_->all()) {
    if (!p.trained) continue;
    const std::int64_t n = p.shape.elements();
    const op::AdamW call{.elements = n, .weight = DType::f32, .beta1 = options_.beta1, .beta2 = options_.beta2, .epsilon = options_.epsilon, .weight_decay = options_.weight_decay};
    const Shape flat{n};
    const TensorView g{p.gradient.get(), DType::f32, flat}, w{p.value.get(), p.held, flat}, m{p.first_moment.get(), DType::f32, flat}, v{p.second_moment.get(), DType::f32, flat};
    const TensorView written{scratch_.get() + (null ? 0 : 64), DType::f32, flat};
    backend_.call({call, Pass::forward, {}}, std::array{g, step_size, w, m, v, w, m, v, written}, std::array<TensorView, 9>{}, {});
  }
}

float Trainer::differentiate(const Batch& batch) {
  zero_gradients();
  return walk_->run(0, batch, 1);
}

StepReport Trainer::step(const std::vector<Batch>& batches) {
  if (static_cast<std::int64_t>(batches.size()) != plan_.micro_batches) throw InputError("data", fmt::format("{} micro-batches, the plan has {}", batches.size(), plan_.micro_batches));
  const auto start = std::chrono::steady_clock::now();
  StepReport report{.step = done_ + 1, .learning_rate = learning_rate(options_, done_ + 1), .routing = {}};
  for (const Batch& b : batches) report.labelled += b.labelled(), report.tokens += static_cast<std::int64_t>(b.tokens.size());
  zero_gradients();
  for (std::size_t j = 0; j < batches.size(); ++j) {
    // The step's loss is the mean over all its labels, however they fall on the micro-batches.
    const double share = report.labelled > 0 ? static_cast<double>(batches[j].labelled()) / static_cast<double>(report.labelled) : 0;
    report.loss += share * static_cast<double>(walk_->run(static_cast<std::int32_t>(j), batches[j], static_cast<float>(share)));
    merge(report.routing, walk_->routing(), share);
  }
  report.gradient_norm = gradient_norm();
  report.applied = std::isfinite(report.loss) && std::isfinite(report.gradient_norm);
  if (report.applied) update(report.learning_rate, options_.clip > 0 && report.gradient_norm > options_.clip ? options_.clip / report.gradient_norm : 1.0);
  backend_.wait();
  ++done_;
  std::int64_t copies = 0, dropped = 0;
  for (const RoutingReport& r : report.routing) {
    std::int64_t sum = 0, most = 0;
    for (const auto c : r.counts) sum += c, most = std::max(most, c);
    copies += sum;
    dropped += r.dropped;
    if (sum > 0) report.max_over_mean = std::max(report.max_over_mean, static_cast<double>(most) * static_cast<double>(r.counts.size()) / static_cast<double>(sum));
    report.balance += r.balance / static_cast<double>(report.routing.size());
  }
  report.drop_rate = copies > 0 ? static_cast<double>(dropped) / static_cast<double>(copies) : 0;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

MemoryBreakdown Trainer::memory() const {
  MemoryBreakdown out;
  const StateBytes state = parameters_->bytes();
  out.at_peak = walk_->arena().at_peak;
  out[MemoryCategory::weights] += state.weights;
  out[MemoryCategory::adapters] += state.adapters;
  out[MemoryCategory::gradients] += state.gradients;
  out[MemoryCategory::optimizer] += state.optimizer;
  out[MemoryCategory::allocator_reserve] = walk_->arena().size - walk_->arena().peak;
  out.peak_at = walk_->arena().peak_at;
  return out;
}

}  // namespace moeplan
