#pragma once
/// The steps that a run has reported, as a table and as columns for charts.

#include <QAbstractTableModel>
#include <vector>

#include "core/json.hpp"

namespace moeplan::gui {

struct RunStep {
  std::int64_t step = 0;
  double loss = 0, gradNorm = 0, seconds = 0, tokensPerSecond = 0, memory = 0, imbalance = 0;   ///< not a number where not reported
};

class RunModel : public QAbstractTableModel {
  Q_OBJECT

 public:
  using QAbstractTableModel::QAbstractTableModel;
  void clear();
  /// A line of `moeplan run --json`; false if it is none (no integer "step").
  bool add(const Json& line);
  [[nodiscard]] const std::vector<RunStep>& steps() const { return steps_; }
  /// Latest counts, layer by layer; empty if none came.
  [[nodiscard]] const std::vector<std::pair<int, std::vector<double>>>& experts() const { return experts_; }

  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  [[nodiscard]] static double value(const RunStep& step, int column);
  std::vector<RunStep> steps_;
  std::vector<std::pair<int, std::vector<double>>> experts_;
};

}  // namespace moeplan::gui
