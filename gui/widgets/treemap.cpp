#include "gui/widgets/treemap.hpp"

#include <QHelpEvent>
#include <QKeyEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <numeric>

#include "gui/app/theme.hpp"

namespace moeplan::gui {

std::vector<QRectF> squarified(const std::vector<double>& sizes, const QRectF& area) {
  std::vector<QRectF> out;
  const double sum = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  QRectF left = area;
  double rest = sum;
  for (std::size_t i = 0; i < sizes.size();) {
    const double side = std::max(1e-9, std::min(left.width(), left.height()));
    const double scale = rest > 0 ? left.width() * left.height() / rest : 0;
    // Tiles join the row while its worst aspect ratio falls.
    double row = 0, worst = 1e300;
    std::size_t j = i;
    for (; j < sizes.size(); ++j) {
      const double next = (row + sizes[j]) * scale, big = sizes[i] * scale, small = std::max(1e-12, sizes[j] * scale);
      const double ratio = std::max(side * side * big / (next * next), next * next / (side * side * small));
      if (j > i && ratio > worst) break;
      worst = ratio;
      row += sizes[j];
    }
    const double thick = row * scale / side;
    double at = 0;
    const bool columns = left.width() >= left.height();
    for (std::size_t k = i; k < j; ++k) {
      const double length = row > 0 ? side * sizes[k] / row : 0;
      out.push_back(columns ? QRectF(left.left(), left.top() + at, thick, length) : QRectF(left.left() + at, left.top(), length, thick));
      at += length;
    }
    if (columns) left.setLeft(left.left() + thick);
    else left.setTop(left.top() + thick);
    rest -= row;
    i = j;
  }
  return out;
}

Treemap::Treemap(const QString& accessibleName, QWidget* parent) : QWidget(parent) {
  setAccessibleName(accessibleName);
  setFocusPolicy(Qt::StrongFocus);
  setMouseTracking(true);
}

QSize Treemap::minimumSizeHint() const { return {fontMetrics().averageCharWidth() * 30, fontMetrics().height() * 9}; }

void Treemap::setTiles(std::vector<Tile> tiles, const QString& title) {
  tiles_ = std::move(tiles);
  title_ = title;
  current_ = tiles_.empty() ? -1 : 0;
  announce();
  update();
}

void Treemap::announce() {
  setAccessibleDescription(current_ >= 0 ? QStringLiteral("%1: %2 %3").arg(title_, tiles_[static_cast<std::size_t>(current_)].name, tiles_[static_cast<std::size_t>(current_)].value) : title_);
}

QRectF Treemap::map(const QRect& area) const { return QRectF(area).adjusted(1, fontMetrics().height() * 1.6, -1, -1); }

void Treemap::paint(QPainter& painter, const QRect& area) const {
  painter.fillRect(area, palette().color(QPalette::Base));
  painter.setPen(palette().color(QPalette::Text));
  QFont bold = painter.font();
  const QFont plain = bold;
  bold.setBold(true);
  painter.setFont(bold);
  painter.drawText(area.adjusted(4, 0, -4, 0), Qt::AlignLeft | Qt::AlignTop, painter.fontMetrics().elidedText(title_, Qt::ElideRight, area.width() - 8));
  painter.setFont(plain);
  std::vector<double> sizes;
  for (const Tile& tile : tiles_) sizes.push_back(tile.size);
  const auto rects = squarified(sizes, map(area));
  const QFontMetricsF fm(painter.font());
  for (std::size_t i = 0; i < rects.size(); ++i) {
    const Tile& tile = tiles_[i];
    const QRectF r = rects[i].adjusted(0.5, 0.5, -0.5, -0.5);
    if (r.width() < 0.5 || r.height() < 0.5) continue;
    painter.fillRect(r, tile.colour);
    if (tile.pattern != Qt::SolidPattern) painter.fillRect(r, QBrush(tile.colour.darker(150), tile.pattern));
    if (static_cast<int>(i) == current_ && hasFocus()) {
      painter.setPen(QPen(palette().color(QPalette::Text), 2));
      painter.drawRect(r.adjusted(1, 1, -1, -1));
    }
    const QRectF inside = r.adjusted(4, 2, -4, -2);
    if (inside.height() < fm.height() || inside.width() < fm.averageCharWidth() * 4) continue;
    painter.setPen(textOn(tile.colour));
    // Whole words where they fit; a few letters of a name say less than the size alone.
    const QString both = tile.name + QLatin1Char('\n') + tile.value;
    const bool value = fm.horizontalAdvance(tile.value) <= inside.width();
    const QRectF whole = fm.boundingRect(inside, Qt::AlignLeft | Qt::AlignTop | Qt::TextWordWrap, both);
    QString text;
    if (value && whole.height() <= inside.height() && whole.width() <= inside.width()) text = both;
    else if (inside.width() > fm.averageCharWidth() * 14) text = fm.elidedText(tile.name, Qt::ElideMiddle, inside.width()) + (value && inside.height() > 2.1 * fm.height() ? QLatin1Char('\n') + tile.value : QString());
    else if (value) text = tile.value;
    painter.drawText(inside, Qt::AlignLeft | Qt::AlignTop | Qt::TextWordWrap, text);
  }
}

void Treemap::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.setFont(font());
  paint(painter, rect());
}

int Treemap::tileAt(const QPointF& at) const {
  std::vector<double> sizes;
  for (const Tile& tile : tiles_) sizes.push_back(tile.size);
  const auto rects = squarified(sizes, map(rect()));
  for (std::size_t i = 0; i < rects.size(); ++i)
    if (rects[i].contains(at)) return static_cast<int>(i);
  return -1;
}

void Treemap::mousePressEvent(QMouseEvent* event) {
  const int tile = tileAt(event->position());
  if (tile < 0) return;
  current_ = tile;
  announce();
  update();
  Q_EMIT tileActivated(tile);
}

void Treemap::keyPressEvent(QKeyEvent* event) {
  const int step = event->key() == Qt::Key_Right || event->key() == Qt::Key_Down ? 1 : event->key() == Qt::Key_Left || event->key() == Qt::Key_Up ? -1 : 0;
  if (!step || tiles_.empty()) return QWidget::keyPressEvent(event);
  current_ = std::clamp(current_ + step, 0, static_cast<int>(tiles_.size()) - 1);
  announce();
  update();
  Q_EMIT tileActivated(current_);
}

bool Treemap::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    if (const int tile = tileAt(help->pos()); tile >= 0) QToolTip::showText(help->globalPos(), tiles_[static_cast<std::size_t>(tile)].name + QLatin1Char('\n') + tiles_[static_cast<std::size_t>(tile)].value, this);
    return true;
  }
  return QWidget::event(event);
}

}  // namespace moeplan::gui
