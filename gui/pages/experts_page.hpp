#pragma once
/// How tokens fall on experts and ranks: a layer x expert heat map, ranks before and after a placement, who sends how much to whom.

#include "gui/models/expert_view.hpp"
#include "gui/pages/page.hpp"

class QComboBox;
class QDoubleSpinBox;
class QLabel;
class QSpinBox;
class QStandardItemModel;
class QCPColorMap;
class QCPGraph;

namespace moeplan::gui {

class Chart;
class LatestJob;

class ExpertsPage : public Page {
  Q_OBJECT

 public:
  explicit ExpertsPage(Session* session, QWidget* parent = nullptr);
  std::vector<Drawing> drawings() override;
  std::vector<NamedTable> tables() override;
  QWidget* start() override;
  /// A file with a "distribution" is an expert load.
  bool open(const QString& file) override;
  [[nodiscard]] bool busy() const override;
  [[nodiscard]] const ExpertView& view() const { return view_; }
  [[nodiscard]] HeatMap heatMap() const;
  void setHeatMap(HeatMap map);

 private:
  void request();
  void take(ExpertView view);
  void drawHeat();
  void drawTraffic();

  LatestJob* job_;
  ExpertView view_;
  Chart *heat_, *ranks_, *traffic_;
  QCPColorMap *heatMap_, *trafficMap_;
  QCPGraph *edges_, *busiest_;
  QComboBox *degree_, *map_, *heatBox_;
  QSpinBox *layer_, *replicas_;
  QDoubleSpinBox* capacity_;
  QLabel* told_;
  TableView* table_;
  QStandardItemModel* model_;
  bool filling_ = false;
};

}  // namespace moeplan::gui
