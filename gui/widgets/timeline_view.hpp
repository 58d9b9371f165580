#pragma once
/// Rows of events over time, drawn from a TraceStore: any zoom costs what the pixels cost. Keys and mouse are on the cheat sheet (?).

#include <QAbstractScrollArea>
#include <optional>
#include <set>

#include "gui/models/trace_store.hpp"

namespace moeplan::gui {

/// Headings over rows, which fold them away.
enum class Grouping : std::uint8_t { none, node, expert_group };

class TimelineView : public QAbstractScrollArea {
  Q_OBJECT

 public:
  explicit TimelineView(QWidget* parent = nullptr);
  void setStore(TraceStore store, std::vector<Counter> counters);
  [[nodiscard]] const TraceStore& store() const { return store_; }
  [[nodiscard]] const std::vector<Counter>& counters() const { return counters_; }
  struct Selected { int row = -1; std::int64_t event = -1; };
  [[nodiscard]] Selected selected() const { return selected_; }
  void select(int row, std::int64_t event);
  void fit();
  void zoomTo(Picoseconds from, Picoseconds to);
  [[nodiscard]] Picoseconds from() const { return from_; }
  [[nodiscard]] Picoseconds to() const { return to_; }
  /// Rows whose label holds every word; empty: all.
  void setFilter(const QString& words);
  [[nodiscard]] const std::vector<int>& visibleRows() const { return visible_; }
  void setGrouping(Grouping grouping);
  [[nodiscard]] Grouping grouping() const { return grouping_; }
  /// Headings in order, whether their rows are shown or folded away.
  [[nodiscard]] QStringList groups() const;
  void toggleGroup(int group);
  void togglePinned(int row);
  void toggleHidden(int row);
  void showHidden();
  void paint(QPainter& painter, const QRect& area);
  /// Shown while there is nothing to draw.
  void setEmptyText(const QString& text);
  void setErrorText(std::function<QString(int row, std::int64_t event)> text) { errorText_ = std::move(text); }

 Q_SIGNALS:
  void selectionChanged();
  void spanSelected(qint64 from, qint64 to);   ///< picoseconds; both 0: cleared

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void scrollContentsBy(int dx, int dy) override;
  bool viewportEvent(QEvent* event) override;
  void changeEvent(QEvent* event) override;

 private:
  void arrange();
  void zoom(double factor, double at);
  void pan(double share);
  [[nodiscard]] int rowHeight() const;
  [[nodiscard]] int labelWidth() const { return labelWidth_; }
  [[nodiscard]] int headHeight() const;
  [[nodiscard]] int counterHeight() const;
  [[nodiscard]] int bandHeight() const;
  struct Line { int row = -1, group = -1; };   ///< a row, or the heading of a group
  [[nodiscard]] Line lineAt(int y) const;
  [[nodiscard]] int rowAt(int y) const { return lineAt(y).row; }
  [[nodiscard]] int yOfLine(int line) const;
  [[nodiscard]] int yOf(int row) const;
  [[nodiscard]] const QString& groupOf(int row) const;
  [[nodiscard]] double xOf(Picoseconds t, const QRect& area) const;
  [[nodiscard]] Picoseconds timeAt(double x) const;
  void paintAxis(QPainter& painter, const QRect& area) const;
  void paintCounters(QPainter& painter, const QRect& area) const;
  void paintGroup(QPainter& painter, const QRect& area, int group, int y) const;
  void paintRow(QPainter& painter, const QRect& area, int row, int y) const;
  void paintFlows(QPainter& painter, const QRect& area) const;
  void reveal();

  TraceStore store_;
  std::vector<Counter> counters_;
  std::vector<int> visible_, place_;   ///< rows shown, in order; per row its line, or -1
  std::vector<Line> lines_;
  struct Group { QString name; int rows = 0; bool folded = false; };
  std::vector<Group> groups_;
  std::set<QString> folded_;
  Grouping grouping_ = Grouping::none;
  std::set<int> pinned_, hidden_;
  QStringList words_;
  QString empty_;
  Picoseconds from_ = 0, to_ = 1;
  Selected selected_;
  std::optional<std::pair<Picoseconds, Picoseconds>> span_;
  enum class Drag : std::uint8_t { none, pan, span } drag_ = Drag::none;
  QPoint pressed_, last_;
  std::function<QString(int, std::int64_t)> errorText_;
  int labelWidth_ = 0;               ///< of this width and font
};

/// "12.3 ms" for a span of time.
[[nodiscard]] QString timeText(Picoseconds t);

}  // namespace moeplan::gui
