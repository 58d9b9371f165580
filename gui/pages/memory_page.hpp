#pragma once
/// One step's memory as a stacked area, the buffers that live at a moment as a treemap and a table, the ranks' peaks side by side.

#include "gui/models/memory_area.hpp"
#include "gui/pages/page.hpp"

class QComboBox;
class QStandardItemModel;
class QCPItemStraightLine;

namespace moeplan::gui {

class Chart;
class Treemap;

class MemoryPage : public Page {
  Q_OBJECT

 public:
  explicit MemoryPage(Session* session, QWidget* parent = nullptr);
  std::vector<Drawing> drawings() override;
  std::vector<NamedTable> tables() override;
  QWidget* start() override;
  /// Shows what lives at a moment, in seconds; the nearest change counts.
  void showMoment(double seconds);
  void showPeak();
  [[nodiscard]] const std::vector<LiveBuffer>& live() const { return live_; }
  [[nodiscard]] const MemoryArea& area() const { return area_; }

 private:
  void refresh();
  void drawArea();
  void drawRanks();
  void drawLimits();
  void showAt(std::size_t index);
  [[nodiscard]] const MemoryTimeline* timeline() const;

  Chart *chart_, *ranks_;
  Treemap* map_;
  TableView* table_;
  QStandardItemModel* model_;
  QComboBox *rank_, *load_;
  MemoryArea area_;
  std::vector<LiveBuffer> live_;
  QCPItemStraightLine* cursor_ = nullptr;
};

}  // namespace moeplan::gui
