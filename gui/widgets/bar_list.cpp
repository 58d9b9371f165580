#include "gui/widgets/bar_list.hpp"

#include <QEvent>
#include <QHelpEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <cmath>

#include "gui/app/theme.hpp"

namespace moeplan::gui {

BarList::BarList(const QString& title, QWidget* parent) : QWidget(parent), title_(title) {
  setAccessibleName(title);
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Fixed);
}

int BarList::rowHeight() const { return fontMetrics().height() * 3 / 2; }

void BarList::setBars(std::vector<Bar> bars) {
  bars_ = std::move(bars);
  QString told = title_ + QStringLiteral(": ");
  for (const Bar& bar : bars_) told += QStringLiteral("%1 %2 (%3 %); ").arg(bar.name, bar.value).arg(100 * bar.share, 0, 'f', 1);
  setAccessibleDescription(told);
  updateGeometry();
  update();
}

void BarList::setStale(bool stale) {
  stale_ = stale;
  update();
}

QSize BarList::sizeHint() const { return {fontMetrics().averageCharWidth() * 64, rowHeight() * (static_cast<int>(bars_.size()) + 1) + 4}; }
QSize BarList::minimumSizeHint() const { return {fontMetrics().averageCharWidth() * 48, sizeHint().height()}; }

void BarList::paint(QPainter& painter, const QRect& area) const {
  const int h = rowHeight();
  const QFontMetrics fm(painter.font());
  QFont bold = painter.font();
  bold.setBold(true);
  const QFontMetrics strong(bold);
  int names = 0, values = 0, deltas = 0;
  for (const Bar& bar : bars_) {
    const QFontMetrics& m = bar.total ? strong : fm;
    names = std::max(names, m.horizontalAdvance(bar.name));
    values = std::max(values, m.horizontalAdvance(bar.value));
    deltas = std::max(deltas, m.horizontalAdvance(bar.delta));
  }
  const int gap = fm.averageCharWidth() * 2, shares = strong.horizontalAdvance(QStringLiteral("100.0 %"));
  names += gap, deltas += deltas ? gap : 0;
  const int barWidth = std::max(20, area.width() - names - values - shares - deltas - 3 * gap);
  const QFont plain = painter.font();
  painter.setFont(bold);
  painter.setPen(palette().color(QPalette::Text));
  painter.drawText(QRect(area.left(), area.top(), area.width(), h), Qt::AlignVCenter | Qt::AlignLeft, title_);
  int y = area.top() + h;
  for (const Bar& bar : bars_) {
    painter.setFont(bar.total ? bold : plain);
    painter.setPen(palette().color(QPalette::Text));
    if (bar.total) {
      painter.save();
      painter.setPen(gridColour(palette()));
      painter.drawLine(area.left(), y, area.right(), y);
      painter.restore();
    }
    int x = area.left();
    painter.drawText(QRect(x, y, names, h), Qt::AlignVCenter | Qt::AlignLeft, bar.name);
    x += names;
    const QRect track(x, y + h / 5, barWidth, h - 2 * (h / 5));
    painter.fillRect(track, gridColour(palette()));
    QRect filled = track;
    filled.setWidth(std::clamp(static_cast<int>(std::lround(track.width() * bar.share)), bar.share > 0 ? 1 : 0, track.width()));
    painter.fillRect(filled, bar.pattern == Qt::SolidPattern ? QBrush(bar.colour) : QBrush(bar.colour.lighter(160)));
    if (bar.pattern != Qt::SolidPattern) painter.fillRect(filled, QBrush(bar.colour, bar.pattern));
    x += barWidth + gap;
    painter.drawText(QRect(x, y, values, h), Qt::AlignVCenter | Qt::AlignRight, bar.value);
    x += values + gap;
    painter.setPen(mutedColour(palette()));
    painter.drawText(QRect(x, y, shares, h), Qt::AlignVCenter | Qt::AlignRight, QStringLiteral("%1 %").arg(100 * bar.share, 0, 'f', 1));
    x += shares + gap;
    if (!bar.delta.isEmpty()) {
      painter.setPen(palette().color(QPalette::Text));
      painter.drawText(QRect(x, y, deltas, h), Qt::AlignVCenter | Qt::AlignRight, bar.delta);
    }
    y += h;
  }
  painter.setFont(plain);
}

void BarList::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.setFont(font());
  if (stale_) painter.setOpacity(0.45);
  paint(painter, rect().adjusted(0, 2, 0, -2));
}

bool BarList::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const int row = (help->pos().y() - 2) / rowHeight() - 1;
    if (row >= 0 && row < static_cast<int>(bars_.size())) QToolTip::showText(help->globalPos(), bars_[static_cast<std::size_t>(row)].why, this);
    return true;
  }
  return QWidget::event(event);
}

void BarList::changeEvent(QEvent* event) {
  if (event->type() == QEvent::FontChange || event->type() == QEvent::ApplicationFontChange) updateGeometry();
  QWidget::changeEvent(event);
}

}  // namespace moeplan::gui
