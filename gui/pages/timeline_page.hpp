#pragma once
/// One step over time: rows by rank and lane, arrows, memory on the same axis; a measured step lies under the predicted rows.

#include "core/spec/timeline.hpp"
#include "gui/pages/page.hpp"

class QComboBox;
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
  bool open(const QString& file) override;
  void setMeasured(std::optional<StepTimeline> measured);
  [[nodiscard]] TimelineView* view() { return view_; }

 private:
  void refresh();
  void describe();
  void sumUp(qint64 from, qint64 to);
  [[nodiscard]] QString error(int row, std::int64_t event) const;

  TimelineView* view_;
  TableView* table_;
  QStandardItemModel* model_;
  QLineEdit* filter_;
  QLabel *detail_, *legend_;
  std::optional<StepTimeline> measured_;
  std::vector<std::int32_t> toMeasured_, toPredicted_;
};

}  // namespace moeplan::gui
