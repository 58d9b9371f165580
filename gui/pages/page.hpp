#pragma once
/// What every page is: a widget over the session that names its charts and tables for export, and its own actions for the menu,
/// the palette and the cheat sheet.

#include <QAction>
#include <QWidget>
#include <functional>
#include <vector>

class QPainter;

namespace moeplan::gui {

class Session;
class TableView;

/// Something that can be written as PNG, SVG or PDF.
struct Drawing {
  QString name;                                             ///< also the file name that is proposed
  QWidget* widget = nullptr;
  std::function<void(QPainter&, const QSize&)> paint;       ///< vector drawing at this size
};

struct NamedTable {
  QString name;
  TableView* table = nullptr;
};

class Page : public QWidget {
  Q_OBJECT

 public:
  Page(Session* session, const QString& title, const QString& purpose, QWidget* parent = nullptr);
  [[nodiscard]] const QString& title() const { return title_; }
  [[nodiscard]] const QString& purpose() const { return purpose_; }
  [[nodiscard]] virtual std::vector<Drawing> drawings() { return {}; }
  [[nodiscard]] virtual std::vector<NamedTable> tables() { return {}; }
  /// Work for what it shows is under way.
  [[nodiscard]] virtual bool busy() const { return false; }
  /// Where the keyboard starts.
  [[nodiscard]] virtual QWidget* start() { return this; }
  /// A file dropped on the window or opened; true if this page took it. Throws InputError if it is the page's kind of file, but bad.
  virtual bool open(const QString&) { return false; }

 protected:
  QAction* addPageAction(const QString& text, const QKeySequence& keys, std::function<void()> run);
  Session* session_;

 private:
  QString title_, purpose_;
};

}  // namespace moeplan::gui
