#pragma once
/// A QCustomPlot with the manners of this program: wheel zooms at the cursor, drag pans, Shift+drag zooms a box, double-click or 0
/// fits, Alt+Left/Right walk the zoom history, W/A/S/D and the arrows move, a cross-hair reads out, legend clicks hide a series.
/// Colours follow the palette, sizes the font.

#include "gui/widgets/qcp.hpp"

#include <functional>

namespace moeplan::gui {

class Chart : public QCustomPlot {
  Q_OBJECT

 public:
  explicit Chart(const QString& accessibleName, QWidget* parent = nullptr);

  /// Text at the cursor for axis coordinates; empty hides it.
  void setReadout(std::function<QString(double x, double y)> text) { readout_ = std::move(text); }
  void setZoomAxes(bool horizontal, bool vertical);
  /// All data in view, remembered as a step of the history. `fit` keeps lower bounds at 0 where data is not negative.
  void fit();
  void setFitter(std::function<void()> fitter) { fitter_ = std::move(fitter); }
  void back();
  void forward();
  void zoom(double factor);
  void pan(double x, double y);          ///< shares of the visible range
  void showLegend(bool below = true);
  /// "none" below the axis while there is nothing to draw.
  void setEmptyText(const QString& text);
  /// A horizontal limit with its name, and a band of `band` below it.
  void addLimit(double y, const QString& name, const QColor& colour, double band, const QString& bandName);
  /// Ticks at whole numbers only, for axes that count things.
  void countAlong(QCPAxis* axis);
  /// Takes limits away again.
  void clearItemsButOwn();

 Q_SIGNALS:
  void clicked(double x, double y, Qt::KeyboardModifiers modifiers);
  void brushed(QRectF area);             ///< Ctrl+drag, in axis coordinates

 protected:
  void changeEvent(QEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void focusInEvent(QFocusEvent* event) override;
  void focusOutEvent(QFocusEvent* event) override;
  [[nodiscard]] QSize minimumSizeHint() const override;

 private:
  struct View { QCPRange x, y; };
  void remember();
  void show(const View& view);
  void restyle();
  void wrapLegend();
  void readAt(const QPoint& at);

  std::function<QString(double, double)> readout_;
  std::function<void()> fitter_;
  std::vector<View> history_;
  std::size_t at_ = 0;
  QCPItemStraightLine* vertical_;
  QCPItemStraightLine* horizontal_;
  QCPItemText* text_;
  QCPItemText* empty_;
  std::vector<QCPAbstractItem*> limits_;
  QPoint pressed_;
  bool dragging_ = false, legendBelow_ = false;
};

}  // namespace moeplan::gui
