#pragma once
/// All plans as points on two chosen axes; the front as squares, what is best on these two axes as a line, the selected plan ringed, the pinned plan marked A.

#include "gui/models/plans_model.hpp"
#include "gui/widgets/chart.hpp"

namespace moeplan::gui {

class ParetoChart : public Chart {
  Q_OBJECT

 public:
  explicit ParetoChart(QWidget* parent = nullptr);
  void setAxes(int xColumn, int yColumn);
  void setModel(const PlansModel* model);
  /// Draws again what the model now holds.
  void refresh(int selectedPlan, const std::optional<RankedPlan>& pinned);
  /// Moves the two rings only.
  void mark(int selectedPlan, const std::optional<RankedPlan>& pinned);
  /// Plan whose point is nearest to axis coordinates, within a few pixels; -1: none.
  [[nodiscard]] int planNear(double x, double y) const;
  [[nodiscard]] std::vector<int> plansIn(const QRectF& area) const;

 private:
  [[nodiscard]] QVector<double> shownColumn(int column) const;
  void thin();
  void drawBest(const QVector<double>& xs, const QVector<double>& ys, bool lowX, bool lowY);
  [[nodiscard]] static double scaled(const PlanColumn& column, double v);
  const PlansModel* model_ = nullptr;
  int x_, y_;
  QVector<double> xs_, ys_;              ///< of every visible plan
  QCPGraph *all_, *best_, *front_, *selected_, *pinned_;
};

}  // namespace moeplan::gui
