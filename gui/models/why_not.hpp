#pragma once
/// Why a plan is not the first: what it loses where, against the best plan or the pinned one, in numbers. Why others were rejected.

#include <QAbstractTableModel>
#include <QString>

#include "gui/models/session.hpp"

namespace moeplan::gui {

/// Simple HTML. `plan`: index into the result.
[[nodiscard]] QString whyNot(const SearchResult& result, int plan, const std::optional<RankedPlan>& pinned);

/// Rejected candidates by rule: rule, number, one reason in numbers.
class RejectedModel : public QAbstractTableModel {
  Q_OBJECT

 public:
  using QAbstractTableModel::QAbstractTableModel;
  void setResult(std::shared_ptr<const SearchResult> result);
  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  struct Row { QString rule; std::int64_t number; QString reason; };
  std::vector<Row> rows_;
};

}  // namespace moeplan::gui
