#pragma once
/// All plans that fit: a chart on two axes linked with a table, why a plan is not the first, and the rejected ones by rule.

#include "gui/pages/page.hpp"

class QComboBox;
class QLabel;
class QLineEdit;
class QTextBrowser;

namespace moeplan::gui {

class ParetoChart;
class PlansModel;
class RejectedModel;

class PlansPage : public Page {
  Q_OBJECT

 public:
  explicit PlansPage(Session* session, QWidget* parent = nullptr);
  std::vector<Drawing> drawings() override;
  std::vector<NamedTable> tables() override;
  QWidget* start() override;
  [[nodiscard]] PlansModel* model() { return model_; }
  [[nodiscard]] ParetoChart* chart() { return chart_; }
  [[nodiscard]] TableView* table() { return table_; }
  [[nodiscard]] QLineEdit* filter() { return filter_; }
  [[nodiscard]] QString why() const;

 private:
  void takeResult();
  void refreshChart(bool fit);
  void refreshSelection();
  void refreshWhy();
  void applyFilter();
  void brush(const std::vector<int>& plans);

  PlansModel* model_;
  RejectedModel* rejected_;
  ParetoChart* chart_;
  TableView *table_, *rejectedTable_;
  QComboBox *x_, *y_;
  QLineEdit* filter_;
  QLabel *count_, *problem_;
  QTextBrowser* why_;
  bool following_ = false;
};

}  // namespace moeplan::gui
