#include <QHelpEvent>
#include <QKeyEvent>
#include <QScrollBar>
#include <QToolTip>
#include <algorithm>
#include <cmath>

#include "gui/widgets/timeline_view.hpp"

namespace moeplan::gui {

void TimelineView::select(int row, std::int64_t event) {
  if (row == selected_.row && event == selected_.event) return;
  selected_ = {row, event};
  if (row >= 0 && event >= 0) {
    const TraceEvent& e = store_.rows[static_cast<std::size_t>(row)].events[static_cast<std::size_t>(event)];
    setAccessibleDescription(QStringLiteral("%1: %2, %3").arg(store_.rows[static_cast<std::size_t>(row)].label, store_.names[static_cast<std::size_t>(e.name)], timeText(e.duration)));
  }
  viewport()->update();
  Q_EMIT selectionChanged();
}

/// Scrolls and pans until the selected event is in view.
void TimelineView::reveal() {
  if (selected_.row < 0 || selected_.event < 0) return;
  const TraceEvent& e = store_.rows[static_cast<std::size_t>(selected_.row)].events[static_cast<std::size_t>(selected_.event)];
  if (e.end() < from_ || e.start > to_) {
    const Picoseconds size = to_ - from_, centre = e.start + e.duration / 2;
    zoomTo(centre - size / 2, centre + size / 2);
  }
  const int y = yOf(selected_.row), top = headHeight() + counterHeight();
  if (place_[static_cast<std::size_t>(selected_.row)] < 0) return;
  if (y < top) verticalScrollBar()->setValue(verticalScrollBar()->value() + y - top);
  if (y + rowHeight() > viewport()->height()) verticalScrollBar()->setValue(verticalScrollBar()->value() + y + rowHeight() - viewport()->height());
}

void TimelineView::keyPressEvent(QKeyEvent* event) {
  if (event->modifiers() & ~(Qt::KeypadModifier | Qt::ShiftModifier)) return QAbstractScrollArea::keyPressEvent(event);
  const auto step = [&](std::int64_t by) {
    if (visible_.empty()) return;
    if (selected_.row < 0) return select(visible_.front(), store_.rows[static_cast<std::size_t>(visible_.front())].eventAt(from_ + (to_ - from_) / 2) < 0 ? 0 : store_.rows[static_cast<std::size_t>(visible_.front())].eventAt(from_ + (to_ - from_) / 2));
    const auto n = static_cast<std::int64_t>(store_.rows[static_cast<std::size_t>(selected_.row)].events.size());
    select(selected_.row, std::clamp<std::int64_t>(selected_.event + by, 0, n - 1));
    reveal();
  };
  const auto row = [&](int by) {
    if (visible_.empty()) return;
    if (selected_.row < 0) return step(0);
    const auto now_at = std::find(visible_.begin(), visible_.end(), selected_.row);
    const auto place = now_at == visible_.end() ? 0 : std::clamp<std::ptrdiff_t>(now_at - visible_.begin() + by, 0, static_cast<std::ptrdiff_t>(visible_.size()) - 1);
    const int next = visible_[static_cast<std::size_t>(place)];
    const TraceRow& r = store_.rows[static_cast<std::size_t>(next)];
    const TraceEvent* now = selected_.event >= 0 ? &store_.rows[static_cast<std::size_t>(selected_.row)].events[static_cast<std::size_t>(selected_.event)] : nullptr;
    const auto after = std::partition_point(r.events.begin(), r.events.end(), [&](const TraceEvent& e) { return now && e.end() <= now->start; });
    select(next, std::min<std::int64_t>(after - r.events.begin(), static_cast<std::int64_t>(r.events.size()) - 1));
    reveal();
  };
  switch (event->key()) {
    case Qt::Key_W: case Qt::Key_Plus: zoom(0.7, 0.5); return;
    case Qt::Key_S: case Qt::Key_Minus: zoom(1 / 0.7, 0.5); return;
    case Qt::Key_A: case Qt::Key_Left: pan(-0.15); return;
    case Qt::Key_D: case Qt::Key_Right: pan(0.15); return;
    case Qt::Key_Up: row(-1); return;
    case Qt::Key_Down: row(1); return;
    case Qt::Key_PageUp: case Qt::Key_PageDown: verticalScrollBar()->setValue(verticalScrollBar()->value() + (event->key() == Qt::Key_PageUp ? -1 : 1) * verticalScrollBar()->pageStep()); return;
    case Qt::Key_Period: step(1); return;
    case Qt::Key_Comma: step(-1); return;
    case Qt::Key_0: case Qt::Key_Home: fit(); return;
    case Qt::Key_Space:
      if (selected_.row >= 0)
        for (int g = 0; g < static_cast<int>(groups_.size()); ++g)
          if (groups_[static_cast<std::size_t>(g)].name == groupOf(selected_.row)) return toggleGroup(g);
      return;
    case Qt::Key_P: togglePinned(selected_.row); return;
    case Qt::Key_H: if (event->modifiers() & Qt::ShiftModifier) showHidden(); else toggleHidden(selected_.row); return;
    case Qt::Key_F: {
      if (selected_.row < 0 || selected_.event < 0) return;
      const TraceEvent& e = store_.rows[static_cast<std::size_t>(selected_.row)].events[static_cast<std::size_t>(selected_.event)];
      // First press centres; when it is centred already, the event fills the view.
      const Picoseconds centre = e.start + e.duration / 2, size = to_ - from_;
      const bool centred = std::abs(from_ + size / 2 - centre) < size / 50;
      if (centred) zoomTo(e.start - std::max<Picoseconds>(1000, e.duration) / 4, e.end() + std::max<Picoseconds>(1000, e.duration) / 4);
      else zoomTo(centre - size / 2, centre + size / 2);
      return;
    }
    case Qt::Key_Escape:
      span_.reset();
      Q_EMIT spanSelected(0, 0);
      select(-1, -1);
      viewport()->update();
      return;
    default: QAbstractScrollArea::keyPressEvent(event);
  }
}

void TimelineView::mousePressEvent(QMouseEvent* event) {
  pressed_ = last_ = event->pos();
  setFocus(Qt::MouseFocusReason);
  if (event->button() != Qt::LeftButton) return;
  drag_ = event->modifiers() & Qt::ShiftModifier ? Drag::span : Drag::pan;
}

void TimelineView::mouseMoveEvent(QMouseEvent* event) {
  if (drag_ == Drag::pan && (event->pos() - pressed_).manhattanLength() > 3) {
    pan(-static_cast<double>(event->pos().x() - last_.x()) / std::max(1, viewport()->width() - labelWidth()));
    verticalScrollBar()->setValue(verticalScrollBar()->value() - (event->pos().y() - last_.y()));
  } else if (drag_ == Drag::span) {
    const Picoseconds a = timeAt(pressed_.x()), b = timeAt(event->pos().x());
    span_ = {std::max<Picoseconds>(0, std::min(a, b)), std::max<Picoseconds>(0, std::max(a, b))};
    viewport()->update();
  }
  last_ = event->pos();
}

void TimelineView::mouseReleaseEvent(QMouseEvent* event) {
  const bool moved = (event->pos() - pressed_).manhattanLength() > 3;
  if (drag_ == Drag::span && span_ && moved) Q_EMIT spanSelected(span_->first, span_->second);
  if (drag_ == Drag::pan && !moved) {
    const auto [row, group] = lineAt(event->pos().y());
    if (group >= 0) {
      drag_ = Drag::none;
      return toggleGroup(group);
    }
    const auto slack = static_cast<Picoseconds>(4.0 * static_cast<double>(to_ - from_) / std::max(1, viewport()->width() - labelWidth()));
    select(row, row < 0 ? -1 : store_.rows[static_cast<std::size_t>(row)].eventAt(timeAt(event->pos().x()), slack));
  }
  drag_ = Drag::none;
}

void TimelineView::mouseDoubleClickEvent(QMouseEvent*) { fit(); }

void TimelineView::wheelEvent(QWheelEvent* event) {
  const double turns = event->angleDelta().y() / 120.0;
  if (event->modifiers() & Qt::ShiftModifier) {
    verticalScrollBar()->setValue(verticalScrollBar()->value() - static_cast<int>(turns * 3 * rowHeight()));
  } else {
    zoom(std::pow(0.8, turns), std::clamp((event->position().x() - labelWidth()) / std::max(1, viewport()->width() - labelWidth()), 0.0, 1.0));
  }
  event->accept();
}

void TimelineView::scrollContentsBy(int, int) { viewport()->update(); }

void TimelineView::resizeEvent(QResizeEvent* event) {
  QAbstractScrollArea::resizeEvent(event);
  arrange();
}

void TimelineView::changeEvent(QEvent* event) {
  QAbstractScrollArea::changeEvent(event);
  if (event->type() == QEvent::FontChange || event->type() == QEvent::ApplicationFontChange) arrange();
}

bool TimelineView::viewportEvent(QEvent* event) {
  if (event->type() != QEvent::ToolTip) return QAbstractScrollArea::viewportEvent(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  if (const int band = bandHeight(); band > 0 && help->pos().x() > labelWidth() && help->pos().y() >= headHeight() && help->pos().y() < headHeight() + counterHeight()) {
    const Counter& c = counters_[static_cast<std::size_t>(std::min<int>((help->pos().y() - headHeight()) / band, static_cast<int>(counters_.size()) - 1))];
    const double t = to_seconds(timeAt(help->pos().x())).value;
    const auto after = std::upper_bound(c.seconds.begin(), c.seconds.end(), t) - c.seconds.begin();
    const double v = after > 0 ? c.values[static_cast<std::size_t>(after - 1)] : 0;
    QToolTip::showText(help->globalPos(), QStringLiteral("%1: %2 %3\n%4").arg(c.name).arg(v, 0, 'g', 6).arg(c.unit, timeText(timeAt(help->pos().x()))), this);
    return true;
  }
  const int row = rowAt(help->pos().y());
  if (row < 0) return true;
  const TraceRow& r = store_.rows[static_cast<std::size_t>(row)];
  const std::int64_t i = r.eventAt(timeAt(help->pos().x()), (to_ - from_) / std::max(1, viewport()->width()));
  if (i < 0) return true;
  const TraceEvent& e = r.events[static_cast<std::size_t>(i)];
  QString text = QStringLiteral("%1\n%2 from %3\n%4").arg(store_.names[static_cast<std::size_t>(e.name)], timeText(e.duration), timeText(e.start), r.label);
  if (errorText_) {
    const QString error = errorText_(row, i);
    if (!error.isEmpty()) text += QLatin1Char('\n') + error;
  }
  QToolTip::showText(help->globalPos(), text, this);
  return true;
}

}  // namespace moeplan::gui
