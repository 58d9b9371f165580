#pragma once
/// The numbers that a chart draws, as a table: for those who do not see it, to search, to copy and to export.

#include <QAbstractTableModel>

#include "gui/widgets/chart.hpp"

namespace moeplan::gui {

/// A copy of what the visible series of a chart hold; a colour map gives a row per cell. Empty series are left out.
class ChartNumbers : public QAbstractTableModel {
  Q_OBJECT

 public:
  explicit ChartNumbers(const Chart& chart, QObject* parent = nullptr);
  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  struct Row {
    int series;
    std::array<double, 3> numbers;   ///< across, up, and of a colour map what the colour says
  };
  QStringList series_, titles_;
  std::vector<Row> rows_;
};

}  // namespace moeplan::gui
