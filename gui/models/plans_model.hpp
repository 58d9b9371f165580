#pragma once
/// The plans of a search as a table. Sorting and filtering rearrange indices over precomputed columns of numbers (100,000 rows take
/// a few milliseconds, where QSortFilterProxyModel calls back a million times). A plan keeps its rank whatever is filtered out.

#include <QAbstractTableModel>

#include "gui/models/session.hpp"

namespace moeplan::gui {

/// Role of the number behind a cell (double, or nothing); what is exported and compared with `--json`.
inline constexpr int kNumberRole = Qt::UserRole + 1;

struct PlanColumn {
  QString title, unit, json;                                             ///< `json`: path in an element of `plans`; empty where there is none
  QString why;
  std::function<std::optional<double>(const RankedPlan&, const Problem&)> number;   ///< sorts and draws
  std::function<QString(const RankedPlan&, const Problem&)> text;
  bool lowerIsBetter = true;
  bool axis = false;                                                     ///< offered on the Pareto chart
  bool shown = true;                                                     ///< at first; the column chooser changes it
};
[[nodiscard]] const std::vector<PlanColumn>& planColumns();
[[nodiscard]] int planColumn(const QString& title);
/// Number as the axis of a chart shows it.
[[nodiscard]] QString axisNumber(const PlanColumn& column, double value);

class PlansModel : public QAbstractTableModel {
  Q_OBJECT

 public:
  explicit PlansModel(QObject* parent = nullptr) : QAbstractTableModel(parent) {}

  void setResult(std::shared_ptr<const SearchResult> result);
  void setPinned(const std::optional<RankedPlan>& pinned);
  /// Words that must all match: "ep64" (in layout, recompute or storage), "peak<120" (GB), "step<=40", "front". Empty: all plans.
  /// Returns the first word that means nothing.
  QString setFilter(const QString& filter);
  /// These plans first, otherwise in the order of the sort; until the next sort, filter or result. Empty: lets them go back.
  void setFirst(const std::vector<int>& plans);
  [[nodiscard]] int planAt(int row) const { return order_[static_cast<std::size_t>(row)]; }
  [[nodiscard]] int rowOf(int plan) const;
  [[nodiscard]] const std::vector<int>& order() const { return order_; }
  /// Numbers of a column by plan; computed when first asked for.
  [[nodiscard]] const std::vector<double>& column(int c) const;
  [[nodiscard]] const std::shared_ptr<const SearchResult>& result() const { return result_; }
  [[nodiscard]] bool onFront(int plan) const { return front_[static_cast<std::size_t>(plan)]; }

  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] QVariant headerData(int section, Qt::Orientation orientation, int role) const override;
  void sort(int column, Qt::SortOrder order) override;

 private:
  void arrange();
  /// `change` between the signals that views and selections follow.
  void rearrange(const std::function<void()>& change);
  std::shared_ptr<const SearchResult> result_;
  std::optional<RankedPlan> pinned_;
  mutable std::vector<std::vector<double>> numbers_;   ///< column x plan, empty until asked for; not a number where there is none
  std::vector<bool> front_, first_;                    ///< by plan; `first_` is empty while none is
  std::vector<int> order_, row_of_;
  QString filter_;
  int sortColumn_ = 0;
  Qt::SortOrder sortOrder_ = Qt::AscendingOrder;
};

}  // namespace moeplan::gui
