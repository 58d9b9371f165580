#include "gui/models/session.hpp"

#include <QThread>
#include <QUndoCommand>
#include <chrono>

#include "planner/rules.hpp"
#include "planner/space.hpp"
#include "sim/engine/engine.hpp"

namespace moeplan::gui {

class EditDraft : public QUndoCommand {
 public:
  EditDraft(Session* session, Draft before, Draft after, const QString& what, int mergeKey)
      : QUndoCommand(what), session_(session), before_(std::move(before)), after_(std::move(after)), mergeKey_(mergeKey) {}
  void undo() override { session_->apply(before_); }
  void redo() override { session_->apply(after_); }
  [[nodiscard]] int id() const override { return mergeKey_ > 0 ? mergeKey_ : -1; }
  bool mergeWith(const QUndoCommand* other) override {
    after_ = static_cast<const EditDraft*>(other)->after_;
    setObsolete(after_ == before_);
    return true;
  }

 private:
  Session* session_;
  Draft before_, after_;
  int mergeKey_;
};

namespace {

constexpr int kMostPlans = 100000;   ///< that the table and the chart hold without blocking

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool agrees(const Plan& plan, const Draft& d) {
  const Parallelism& p = plan.parallelism;
  const auto is = [](const auto& pin, auto value) { return !pin || *pin == value; };
  return is(d.pp, p.pp) && is(d.tp, p.tp) && is(d.cp, p.cp) && is(d.ep, p.ep) && is(d.etp, p.etp) && is(d.dp_replicate, p.dp_replicate) && is(d.dp_shard, p.dp_shard) && is(d.expert_shard, p.expert_shard) &&
         is(d.micro_batch, plan.micro_batch) && is(d.recompute, plan.recompute) && is(d.schedule, plan.schedule) && is(d.virtual_stages, plan.virtual_stages) && is(d.expert_chunks, plan.experts.chunks) && is(d.context_exchange, plan.context_exchange) &&
         is(d.state_passing, plan.state_passing) && is(d.dispatch, plan.experts.dispatch) && is(d.route, plan.experts.route) && (!d.capacity_factor || d.capacity_factor == plan.experts.capacity_factor) &&
         is(d.overflow, plan.experts.overflow) && is(d.expert_replicas, plan.experts.replicas) && is(d.placement, plan.experts.placement) && (d.offload == "auto" || pins_of(d).offload == plan.offload) && is(d.frozen_storage, plan.frozen_storage);
}

/// The plan's decisions on another problem: as many micro-batches as the batch now asks for. Nothing if it cannot mean anything there.
std::optional<Plan> carriedOver(Plan plan, const Problem& problem) {
  if (plan.parallelism.world() != problem.cluster.devices()) return std::nullopt;
  std::int64_t layers = 0;
  for (const std::int64_t n : plan.stage_layers) layers += n;
  if (layers != static_cast<std::int64_t>(problem.model.layers.size())) return std::nullopt;
  const std::int64_t batch = problem.workload.global_batch.value_or(default_global_batch(problem));
  plan.micro_batches = std::max<std::int64_t>(1, batch / (plan.micro_batch * plan.parallelism.dp()));
  return plan;
}

Estimate estimated(const std::filesystem::path& configs, const Draft& draft, const std::optional<Plan>& plan, const Problem* like, const Ticket& ticket) {
  const auto start = Clock::now();
  Estimate out;
  auto problem = std::make_shared<const Problem>(problem_of(configs, draft, like));
  out.problem = problem;
  out.issues = pinIssues(draft, *problem);
  ticket.stopIfCancelled();
  if (plan && out.issues.empty() && agrees(*plan, draft)) {
    if (const auto carried = carriedOver(*plan, *problem)) {
      if (const auto no = first_rejection(*problem, *carried)) out.issues.push_back({.field = {}, .message = QString::fromStdString("the selected plan no longer passes " + no->rule + ": " + no->reason), .fixes = {}});
      else out.ranked = RankedPlan{*carried, forecast(*problem, *carried)};
    }
  }
  out.milliseconds = 1e3 * since(start);
  return out;
}

}  // namespace

Session::Session(std::filesystem::path configs, QObject* parent) : QObject(parent), configs_(std::move(configs)) {
  undo_.setUndoLimit(200);
  debounce_.setSingleShot(true);
  debounce_.setInterval(400);
  connect(&debounce_, &QTimer::timeout, this, &Session::startSearch);
  connect(&search_, &LatestJob::runningChanged, this, &Session::searchChanged);
  for (LatestJob* job : {&estimateJob_, &search_, &playJob_}) connect(job, &LatestJob::broke, this, &Session::message);
}

void Session::edit(Draft next, const QString& what, int mergeKey) {
  if (next == draft_) return;
  undo_.push(new EditDraft(this, draft_, std::move(next), what, mergeKey));
}

void Session::restore(Draft draft, std::optional<Plan> plan, std::optional<RankedPlan> pinned) {
  undo_.clear();
  plan_ = std::move(plan);
  pinned_ = std::move(pinned);
  chosen_ = false;
  selected_ = -1;
  result_.reset();
  play_.reset();
  Q_EMIT pinnedChanged();
  Q_EMIT resultChanged();
  Q_EMIT playChanged();
  apply(draft);
}

void Session::apply(const Draft& draft) {
  draft_ = draft;
  estimateStale_ = estimate_.has_value();
  resultStale_ = result_ != nullptr;
  Q_EMIT draftChanged();
  startEstimate();
  search_.cancel();
  debounce_.start();
  Q_EMIT searchChanged();
}

void Session::startEstimate() {
  estimateJob_.start([configs = configs_, draft = draft_, plan = plan_, like = byDefault_](const Ticket& ticket) { return estimated(configs, draft, plan, like.get(), ticket); },
                     [this, named = draft_.profile.has_value()](Estimate e) {
                       issues_ = e.issues;
                       if (!named) byDefault_ = e.problem;
                       estimate_ = std::move(e);
                       estimateStale_ = false;
                       if (!estimate_->issues.empty() && !pinIssues(draft_, *estimate_->problem).empty()) debounce_.stop();
                       Q_EMIT issuesChanged();
                       Q_EMIT estimateChanged();
                       startPlay();
                     },
                     [this](const InputError& error) {
                       issues_ = {issueOf(error, draft_)};
                       debounce_.stop();
                       Q_EMIT issuesChanged();
                       Q_EMIT estimateChanged();
                       Q_EMIT searchChanged();
                     });
}

void Session::searchNow() {
  debounce_.stop();
  startSearch();
}

void Session::cancelSearch() {
  debounce_.stop();
  search_.cancel();
  Q_EMIT searchChanged();
}

void Session::startSearch() {
  const auto share = std::make_shared<std::atomic<int>>(-1);
  search_.start(
      [this, configs = configs_, draft = draft_, share](const Ticket& ticket) {
        const auto start = Clock::now();
        auto out = std::make_shared<SearchResult>();
        out->draft = draft;
        out->problem = std::make_shared<const Problem>(problem_of(configs, draft));
        SearchOptions options;
        options.pins = pins_of(draft);
        options.search_offload = draft.offload == "auto";
        options.top = kMostPlans;
        // The GUI keeps one core for itself and its estimates.
        options.threads = std::max(1, QThread::idealThreadCount() - 1);
        options.progress = [this, ticket, share](double done) {
          ticket.stopIfCancelled();
          const int now = static_cast<int>(200 * done);
          if (share->exchange(now) == now) return;
          QMetaObject::invokeMethod(this, [this, ticket, done] { if (!ticket.cancelled()) Q_EMIT searchProgress(done); }, Qt::QueuedConnection);
        };
        out->answer = plan(*out->problem, options);
        out->seconds = since(start);
        return std::shared_ptr<const SearchResult>(out);
      },
      [this](std::shared_ptr<const SearchResult> result) { takeResult(std::move(result)); },
      [this](const InputError& error) {
        issues_ = {issueOf(error, draft_)};
        Q_EMIT issuesChanged();
        Q_EMIT message(QString::fromUtf8(error.what()));
      });
}

void Session::show(std::shared_ptr<const SearchResult> result) {
  cancelSearch();
  takeResult(std::move(result));
}

void Session::takeResult(std::shared_ptr<const SearchResult> result) {
  result_ = std::move(result);
  resultStale_ = false;
  const auto& plans = result_->answer.plans;
  int row = plans.empty() ? -1 : 0;
  if (chosen_ && plan_)
    for (std::size_t i = 0; i < plans.size(); ++i)
      if (plans[i].plan == *plan_) { row = static_cast<int>(i); break; }
  if (row < 0 || !plan_ || plans[static_cast<std::size_t>(row)].plan != *plan_) chosen_ = false;
  selected_ = -1;
  Q_EMIT resultChanged();
  const bool chosen = chosen_;
  select(row);
  chosen_ = chosen;
  Q_EMIT searchChanged();
}

void Session::select(int row) {
  if (!result_ || row >= static_cast<int>(result_->answer.plans.size())) return;
  if (row == selected_ && row >= 0) return;
  selected_ = row;
  chosen_ = row >= 0;
  if (row >= 0) {
    const RankedPlan& ranked = result_->answer.plans[static_cast<std::size_t>(row)];
    plan_ = ranked.plan;
    if (!resultStale_) {
      estimateJob_.cancel();
      estimate_ = Estimate{.problem = result_->problem, .ranked = ranked, .issues = {}, .milliseconds = estimate_ ? estimate_->milliseconds : 0};
      estimateStale_ = false;
      issues_.clear();
      Q_EMIT issuesChanged();
      Q_EMIT estimateChanged();
      startPlay();
    } else {
      startEstimate();
    }
  }
  Q_EMIT selectionChanged();
}

void Session::pin(std::optional<RankedPlan> plan) {
  pinned_ = std::move(plan);
  Q_EMIT pinnedChanged();
}

void Session::togglePin() {
  if (pinned_) pin(std::nullopt);
  else if (estimate_ && estimate_->ranked) pin(estimate_->ranked);
}

void Session::startPlay() {
  if (!estimate_ || !estimate_->ranked) return;
  playJob_.start(
      [problem = estimate_->problem, chosen = estimate_->ranked->plan](const Ticket& ticket) {
        auto out = std::make_shared<Play>();
        out->problem = problem;
        out->plan = chosen;
        const Simulation median = simulate(*problem, chosen);
        ticket.stopIfCancelled();
        out->timeline = timeline(median.job, median.played);
        out->memory = memory_timelines(median, *problem, chosen);
        ticket.stopIfCancelled();
        out->memory_p95 = memory_timelines(simulate(*problem, chosen, {.high_load = true}), *problem, chosen);
        return std::shared_ptr<const Play>(out);
      },
      [this](std::shared_ptr<const Play> play) {
        play_ = std::move(play);
        Q_EMIT playChanged();
      },
      [this](const InputError& error) { Q_EMIT message(QString::fromUtf8(error.what())); });
}

Plan workedExample() {
  Plan plan;
  plan.parallelism = {.pp = 32, .tp = 2, .ep = 2, .dp_replicate = 2};
  plan.micro_batch = 1;
  plan.micro_batches = 512;
  plan.stage_layers.assign(32, 3);   // 93 layers: two on the first and the last two stages
  for (const std::size_t stage : {0, 30, 31}) plan.stage_layers[stage] = 2;
  plan.recompute = Recompute::selective;
  plan.frozen_storage = DType::mxfp4;
  return plan;
}

}  // namespace moeplan::gui
