#pragma once
/// A table as text: CSV and JSON of the whole model with full digits, tab-separated text of the selection as it is shown.

#include <QElapsedTimer>
#include <QTimer>

#include "gui/widgets/table_view.hpp"

namespace moeplan::gui {

enum class TableFormat { csv, json, tsv };

class TableText {
 public:
  /// `csv`, `json`: all rows and columns; `tsv`: selected rows, shown columns.
  TableText(const TableView& table, TableFormat format);
  [[nodiscard]] std::size_t rows() const { return rows_.size(); }
  [[nodiscard]] QByteArray head() const;
  [[nodiscard]] QByteArray row(std::size_t i) const;
  [[nodiscard]] QByteArray tail() const { return format_ == TableFormat::json ? "]\n" : ""; }
  [[nodiscard]] QByteArray whole() const;

 private:
  const QAbstractItemModel* model_;
  TableFormat format_;
  std::vector<int> rows_, columns_;
};

/// Makes the text a few rows at a time between turns of the event loop: 100,000 rows take seconds to put into words. Deletes itself when it
/// has said `done`, or `failed` because the rows changed under it.
class TableTextJob : public QObject {
  Q_OBJECT

 public:
  TableTextJob(const TableView& table, TableFormat format, QObject* parent);

 Q_SIGNALS:
  void progress(int percent);
  void done(const QByteArray& text);
  void failed(const QString& line);

 private:
  void some();
  TableText text_;
  QByteArray out_;
  std::size_t next_ = 0;
  QTimer timer_;
};

/// Quoted where a CSV reader needs it; cells of spreadsheets cannot start a formula.
[[nodiscard]] QString csvCell(const QString& text);

}  // namespace moeplan::gui
