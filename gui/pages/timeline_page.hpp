#pragma once
/// One step over time: rows by rank and lane, arrows, memory and tokens on the same axis; a measured step lies under the predicted rows.
/// Files are read and steps are packed on jobs' threads.

#include "gui/models/timeline_scene.hpp"
#include "gui/pages/page.hpp"

class QComboBox;
class QToolButton;
class QLabel;
class QLineEdit;
class QStandardItemModel;

namespace moeplan::gui {

class TimelineView;

class TimelinePage : public Page {
  Q_OBJECT

 public:
  explicit TimelinePage(Session* session, QWidget* parent = nullptr);
  std::vector<Drawing> drawings() override;
  std::vector<NamedTable> tables() override;
  QWidget* start() override;
  /// A Chrome trace, a timeline or a measured run: read on a job's thread; what is wrong with it comes as a message.
  bool open(const QString& file) override;
  void setMeasured(std::shared_ptr<const StepTimeline> measured);
  [[nodiscard]] const TimelineScene& scene() const { return scene_; }
  /// Something is being read or packed.
  [[nodiscard]] bool busy() const override { return read_->running() || pack_->running(); }
  [[nodiscard]] TimelineView* view() { return view_; }

 private:
  void readMeasured(const QString& file);
  void refresh();
  void take(TimelineScene scene);
  void describe();
  void sumUp(qint64 from, qint64 to);
  void told();
  [[nodiscard]] QString error(int row, std::int64_t event) const;
  [[nodiscard]] QString callsOf(const TraceRow& row, std::size_t origin) const;

  LatestJob *read_, *pack_;
  TimelineView* view_;
  TableView* table_;
  QStandardItemModel* model_;
  QLineEdit* filter_;
  QComboBox* grouping_;
  QLabel *detail_, *legend_, *state_;
  QToolButton* cancel_;
  TimelineScene scene_;
  std::shared_ptr<const StepTimeline> measured_;
  QString file_;
};

}  // namespace moeplan::gui
