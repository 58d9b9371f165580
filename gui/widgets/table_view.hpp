#pragma once
/// A table with the manners of this program: sorting, column chooser, Ctrl+C copies the selection as tab-separated text with headers,
/// everything exports as CSV with full digits.

#include <QTableView>

namespace moeplan::gui {

class TableView : public QTableView {
  Q_OBJECT

 public:
  explicit TableView(const QString& accessibleName, QWidget* parent = nullptr);
  /// Rows as tall as the font, columns as wide as the first rows and the header.
  void fitColumns();
  [[nodiscard]] QString selectionAsTsv() const;
  /// The whole model; numbers as JSON writes them. Cells of spreadsheets cannot start a formula.
  [[nodiscard]] QString asCsv() const;
  void setColumnShown(int column, bool shown);

 protected:
  void keyPressEvent(QKeyEvent* event) override;
  void changeEvent(QEvent* event) override;

 private:
  void chooseColumns(const QPoint& at);
};

/// Quoted where a CSV reader needs it.
[[nodiscard]] QString csvCell(const QString& text);

}  // namespace moeplan::gui
