#pragma once
/// The state behind the window: the draft with its undo history, the live estimate of the selected plan, the search's answer, the
/// selected and the pinned plan, the played step. Pages read it and listen; none of them talks to another.

#include <QObject>
#include <QTimer>
#include <QUndoStack>
#include <filesystem>
#include <memory>

#include "gui/jobs/latest_job.hpp"
#include "gui/models/issues.hpp"
#include "planner/simulation.hpp"

namespace moeplan::gui {

/// A plan priced on the problem of the moment.
struct Estimate {
  std::shared_ptr<const Problem> problem;
  std::optional<RankedPlan> ranked;    ///< nothing while no plan fits the problem's devices
  std::vector<Issue> issues;           ///< of the pins, and the rule that rejects the plan
  double milliseconds = 0;             ///< it took
};

/// All plans of a search, best first.
struct SearchResult {
  std::shared_ptr<const Problem> problem;
  Draft draft;
  Answer answer;
  double seconds = 0;
};

/// One step of a plan, played.
struct Play {
  std::shared_ptr<const Problem> problem;
  Plan plan;
  StepTimeline timeline;
  std::vector<MemoryTimeline> memory, memory_p95;   ///< per played rank
};

class Session : public QObject {
  Q_OBJECT

 public:
  explicit Session(std::filesystem::path configs, QObject* parent = nullptr);

  [[nodiscard]] const std::filesystem::path& configs() const { return configs_; }
  [[nodiscard]] const Draft& draft() const { return draft_; }
  [[nodiscard]] QUndoStack* undoStack() { return &undo_; }
  [[nodiscard]] const std::optional<Estimate>& estimate() const { return estimate_; }
  [[nodiscard]] const std::vector<Issue>& issues() const { return issues_; }
  [[nodiscard]] const std::shared_ptr<const SearchResult>& result() const { return result_; }
  [[nodiscard]] const std::shared_ptr<const Play>& play() const { return play_; }
  [[nodiscard]] const std::optional<RankedPlan>& pinned() const { return pinned_; }
  /// Row of the result; -1: none, or the selected plan is not among them.
  [[nodiscard]] int selected() const { return selected_; }
  [[nodiscard]] const std::optional<Plan>& selectedPlan() const { return plan_; }
  /// The numbers shown belong to an earlier draft.
  [[nodiscard]] bool estimateStale() const { return estimateStale_; }
  [[nodiscard]] bool resultStale() const { return resultStale_; }
  [[nodiscard]] bool searching() const { return search_.running() || debounce_.isActive(); }
  [[nodiscard]] std::string command() const { return command_of(draft_); }

  /// One undoable step; consecutive edits with the same `mergeKey` become one (slider moves). 0 never merges.
  void edit(Draft next, const QString& what, int mergeKey = 0);
  void select(int row);
  /// Freezes the selected plan as A: deltas everywhere are against it. Again: lets it go.
  void togglePin();
  void pin(std::optional<RankedPlan> plan);
  void cancelSearch();
  void searchNow();
  /// Starts from this state with an empty history. `plan`: priced at once, before any search.
  void restore(Draft draft, std::optional<Plan> plan, std::optional<RankedPlan> pinned);
  /// Shows a result without searching (tests, 100,000 plans).
  void show(std::shared_ptr<const SearchResult> result);

 Q_SIGNALS:
  void draftChanged();
  void estimateChanged();
  void issuesChanged();
  void searchChanged();              ///< started, ended, cancelled
  void searchProgress(double share);
  void resultChanged();
  void selectionChanged();
  void pinnedChanged();
  void playChanged();
  void message(const QString& line);
  void measured(const QString& file);   ///< a run wrote what it measured

 private:
  friend class EditDraft;
  void apply(const Draft& draft);
  void startEstimate();
  void startSearch();
  void startPlay();
  void takeResult(std::shared_ptr<const SearchResult> result);

  std::filesystem::path configs_;
  Draft draft_;
  QUndoStack undo_;
  std::optional<Estimate> estimate_;
  std::shared_ptr<const Problem> byDefault_;   ///< of the last draft that named no profile
  std::vector<Issue> issues_;
  std::shared_ptr<const SearchResult> result_;
  std::shared_ptr<const Play> play_;
  std::optional<RankedPlan> pinned_;
  std::optional<Plan> plan_;
  int selected_ = -1;
  bool chosen_ = false;              ///< the user picked the plan; a new search keeps it if it is still there
  bool estimateStale_ = false, resultStale_ = false;
  LatestJob estimateJob_, search_, playJob_;
  QTimer debounce_;
};

/// The worked example of the first start: what the search finds best for K3 on 128 H200. A decision, priced live like any other.
[[nodiscard]] Plan workedExample();

}  // namespace moeplan::gui
