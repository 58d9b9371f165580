#pragma once
/// A table with the manners of this program: sorting, column chooser, Ctrl+C copies the selection as tab-separated text with headers.

#include <QTableView>

namespace moeplan::gui {

class TableView : public QTableView {
  Q_OBJECT

 public:
  explicit TableView(const QString& accessibleName, QWidget* parent = nullptr);
  /// Rows as tall as the font, columns as wide as the first rows and the header.
  void fitColumns();
  void setColumnShown(int column, bool shown);

 protected:
  void keyPressEvent(QKeyEvent* event) override;
  void changeEvent(QEvent* event) override;

 private:
  void chooseColumns(const QPoint& at);
};

}  // namespace moeplan::gui
