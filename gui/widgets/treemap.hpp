#pragma once
/// Sizes as areas: squarified rectangles (Bruls, Huizing, van Wijk 2000), groups by colour, labels where they fit, the rest in tool
/// tips. Keyboard: arrows walk over the tiles, largest first.

#include <QColor>
#include <QWidget>
#include <vector>

namespace moeplan::gui {

struct Tile {
  QString name = {}, value = {};
  double size = 0;
  QColor colour = {};
  Qt::BrushStyle pattern = Qt::SolidPattern;
};

/// Rectangles of the sizes, in their order (descending), that fill `area`.
[[nodiscard]] std::vector<QRectF> squarified(const std::vector<double>& sizes, const QRectF& area);

class Treemap : public QWidget {
  Q_OBJECT

 public:
  explicit Treemap(const QString& accessibleName, QWidget* parent = nullptr);
  void setTiles(std::vector<Tile> tiles, const QString& title);
  void paint(QPainter& painter, const QRect& area) const;
  [[nodiscard]] QSize minimumSizeHint() const override;

 Q_SIGNALS:
  void tileActivated(int index);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;

 private:
  [[nodiscard]] QRectF map(const QRect& area) const;
  [[nodiscard]] int tileAt(const QPointF& at) const;
  void announce();
  std::vector<Tile> tiles_;
  QString title_;
  int current_ = -1;
};

}  // namespace moeplan::gui
