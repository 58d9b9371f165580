#include "gui/widgets/timeline_view.hpp"

#include <QHelpEvent>
#include <QKeyEvent>
#include <QPainter>
#include <QPainterPath>
#include <QScrollBar>
#include <QToolTip>
#include <algorithm>
#include <array>
#include <cmath>

#include "core/show.hpp"
#include "gui/app/theme.hpp"

namespace moeplan::gui {

QString timeText(Picoseconds t) { return QString::fromStdString(duration(to_seconds(t))); }

TimelineView::TimelineView(QWidget* parent) : QAbstractScrollArea(parent) {
  setAccessibleName(tr("Timeline"));
  setFocusPolicy(Qt::StrongFocus);
  viewport()->setMouseTracking(true);
  setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  setFrameShape(QFrame::NoFrame);
}

void TimelineView::setStore(TraceStore store, std::vector<Counter> counters) {
  store_ = std::move(store);
  counters_ = std::move(counters);
  pinned_.clear();
  hidden_.clear();
  selected_ = {};
  span_.reset();
  arrange();
  fit();
  Q_EMIT selectionChanged();
}

int TimelineView::rowHeight() const {
  // Few rows share the room, up to a height that still reads as a row.
  const int least = fontMetrics().height() * 3 / 2, room = viewport()->height() - headHeight() - counterHeight();
  return std::clamp(visible_.empty() ? least : room / static_cast<int>(visible_.size()), least, least * 3 / 2);
}
int TimelineView::headHeight() const { return fontMetrics().height() * 2; }
int TimelineView::counterHeight() const {
  const int em = fontMetrics().height(), rows = static_cast<int>(visible_.size()) * em * 9 / 4;
  return counters_.empty() ? 0 : std::clamp(viewport()->height() - headHeight() - rows, 4 * em, 12 * em);
}

void TimelineView::arrange() {
  // Asked for every mark of a frame, and font metrics are slow to answer.
  labelWidth_ = std::min(viewport()->width() / 3, fontMetrics().averageCharWidth() * 42);
  visible_.clear();
  place_.assign(store_.rows.size(), -1);
  for (const bool pinned : {true, false}) {
    for (int r = 0; r < static_cast<int>(store_.rows.size()); ++r) {
      if (pinned_.contains(r) != pinned || hidden_.contains(r)) continue;
      const QString& label = store_.rows[static_cast<std::size_t>(r)].label;
      const bool shown = pinned || std::all_of(words_.begin(), words_.end(), [&](const QString& w) { return label.contains(w, Qt::CaseInsensitive); });
      if (!shown) continue;
      place_[static_cast<std::size_t>(r)] = static_cast<int>(visible_.size());
      visible_.push_back(r);
    }
  }
  const int room = viewport()->height() - headHeight() - counterHeight();
  verticalScrollBar()->setRange(0, std::max(0, static_cast<int>(visible_.size()) * rowHeight() - room));
  verticalScrollBar()->setPageStep(std::max(1, room));
  verticalScrollBar()->setSingleStep(rowHeight());
  viewport()->update();
}

void TimelineView::setFilter(const QString& words) {
  words_ = words.split(QLatin1Char(' '), Qt::SkipEmptyParts);
  arrange();
}

void TimelineView::togglePinned(int row) {
  if (row < 0) return;
  if (!pinned_.erase(row)) pinned_.insert(row);
  arrange();
}

void TimelineView::toggleHidden(int row) {
  if (row < 0) return;
  if (!hidden_.erase(row)) hidden_.insert(row);
  arrange();
}

void TimelineView::showHidden() {
  hidden_.clear();
  arrange();
}

void TimelineView::fit() { zoomTo(0, std::max<Picoseconds>(1, store_.end)); }

void TimelineView::zoomTo(Picoseconds from, Picoseconds to) {
  const Picoseconds whole = std::max<Picoseconds>(1000, store_.end);
  const Picoseconds size = std::clamp<Picoseconds>(to - from, 1000, whole + whole / 5);
  from_ = std::clamp<Picoseconds>(from, -whole / 10, whole);
  to_ = from_ + size;
  viewport()->update();
}

void TimelineView::zoom(double factor, double at) {
  const auto size = static_cast<double>(to_ - from_);
  const Picoseconds centre = from_ + static_cast<Picoseconds>(at * size);
  const double next = size * factor;
  zoomTo(centre - static_cast<Picoseconds>(at * next), centre + static_cast<Picoseconds>((1 - at) * next));
}

void TimelineView::pan(double share) {
  const auto by = static_cast<Picoseconds>(share * static_cast<double>(to_ - from_));
  zoomTo(from_ + by, to_ + by);
}

double TimelineView::xOf(Picoseconds t, const QRect& area) const { return area.left() + labelWidth() + static_cast<double>(t - from_) / static_cast<double>(to_ - from_) * (area.width() - labelWidth()); }
Picoseconds TimelineView::timeAt(double x) const {
  const double share = (x - labelWidth()) / std::max(1, viewport()->width() - labelWidth());
  return from_ + static_cast<Picoseconds>(share * static_cast<double>(to_ - from_));
}

int TimelineView::yOf(int row) const {
  const int place = place_[static_cast<std::size_t>(row)];
  return place < 0 ? -1 : headHeight() + counterHeight() + place * rowHeight() - verticalScrollBar()->value();
}

int TimelineView::rowAt(int y) const {
  if (y < headHeight() + counterHeight()) return -1;
  const int place = (y - headHeight() - counterHeight() + verticalScrollBar()->value()) / rowHeight();
  return place >= 0 && place < static_cast<int>(visible_.size()) ? visible_[static_cast<std::size_t>(place)] : -1;
}

void TimelineView::paintAxis(QPainter& painter, const QRect& area) const {
  painter.setPen(palette().color(QPalette::Text));
  const double span = to_seconds(to_ - from_).value, target = span * fontMetrics().averageCharWidth() * 16 / std::max(1, area.width() - labelWidth());
  double step = std::pow(10, std::floor(std::log10(std::max(1e-15, target))));
  for (const double m : {1.0, 2.0, 5.0, 10.0})
    if (step * m >= target) { step *= m; break; }
  painter.drawText(QRect(area.left() + 4, area.top(), labelWidth() - 8, headHeight()), Qt::AlignVCenter | Qt::AlignLeft, tr("time in the step"));
  const double first = std::ceil(to_seconds(std::max<Picoseconds>(0, from_)).value / step) * step;
  const QString unit = step >= 1 ? QStringLiteral("s") : step >= 1e-3 ? QStringLiteral("ms") : step >= 1e-6 ? QStringLiteral("µs") : QStringLiteral("ns");
  const double scale = step >= 1 ? 1 : step >= 1e-3 ? 1e3 : step >= 1e-6 ? 1e6 : 1e9;
  for (double t = first; t <= to_seconds(to_).value; t += step) {
    const double x = xOf(static_cast<Picoseconds>(t * 1e12), area);
    painter.setPen(gridColour(palette()));
    painter.drawLine(QPointF(x, area.top() + headHeight() - 4), QPointF(x, area.bottom()));
    painter.setPen(palette().color(QPalette::Text));
    painter.drawText(QRectF(x - 80, area.top(), 160, headHeight() - 4), Qt::AlignHCenter | Qt::AlignVCenter, QStringLiteral("%1 %2").arg(t * scale, 0, 'g', 6).arg(unit));
  }
}

void TimelineView::paintCounters(QPainter& painter, const QRect& area) const {
  const int h = counterHeight() - 6, top = area.top() + headHeight();
  for (std::size_t c = 0; c < counters_.size(); ++c) {
    const Counter& counter = counters_[c];
    if (counter.values.empty()) continue;
    const double most = std::max(1e-12, *std::max_element(counter.values.begin(), counter.values.end()));
    const QColor colour = seriesColour(static_cast<int>(c) * 3, palette());
    QPolygonF line;
    const auto y = [&](double v) { return top + h - v / most * (h - 2); };
    auto at = static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, std::lower_bound(counter.seconds.begin(), counter.seconds.end(), to_seconds(from_).value) - counter.seconds.begin() - 1));
    double before = counter.values[at];
    for (; at < counter.seconds.size() && counter.seconds[at] <= to_seconds(to_).value; ++at) {
      const double x = std::max<double>(area.left() + labelWidth(), xOf(static_cast<Picoseconds>(counter.seconds[at] * 1e12), area));
      line << QPointF(x, y(before)) << QPointF(x, y(counter.values[at]));
      before = counter.values[at];
    }
    line << QPointF(std::min<double>(area.right(), xOf(store_.end, area)), y(before));
    painter.setPen(QPen(colour, 1.5));
    painter.drawPolyline(line);
    const int row = painter.fontMetrics().height();
    painter.fillRect(QRect(area.left() + 4, top + static_cast<int>(c) * row + row / 3, row / 2, row / 2), colour);
    painter.setPen(palette().color(QPalette::Text));
    painter.drawText(QRect(area.left() + 8 + row / 2, top + static_cast<int>(c) * row, labelWidth() - 12 - row / 2, row), Qt::AlignLeft | Qt::AlignVCenter,
                     painter.fontMetrics().elidedText(QStringLiteral("%1, to %2 %3").arg(counter.name).arg(most, 0, 'g', 4).arg(counter.unit), Qt::ElideRight, labelWidth() - 12 - row / 2));
  }
  painter.setPen(gridColour(palette()));
  painter.drawLine(area.left(), top + h + 3, area.right(), top + h + 3);
}

void TimelineView::paintRow(QPainter& painter, const QRect& area, int r, int y) const {
  const TraceRow& row = store_.rows[static_cast<std::size_t>(r)];
  const int h = rowHeight();
  if (selected_.row == r) painter.fillRect(QRect(area.left(), y, area.width(), h), palette().color(QPalette::AlternateBase));
  painter.setPen(gridColour(palette()));
  painter.drawLine(area.left(), y + h - 1, area.right(), y + h - 1);
  painter.setPen(palette().color(QPalette::Text));
  const QString label = (pinned_.contains(r) ? QStringLiteral("▲ ") : QString()) + row.label + (row.note.isEmpty() ? QString() : QLatin1Char(' ') + row.note) + (row.measured ? tr(" (measured)") : QString());
  painter.drawText(QRect(area.left() + 4, y, labelWidth() - 8, h), Qt::AlignVCenter | Qt::AlignLeft, painter.fontMetrics().elidedText(label, Qt::ElideMiddle, labelWidth() - 8));
  painter.save();
  painter.setClipRect(QRect(area.left() + labelWidth(), y, area.width() - labelWidth(), h));
  const auto pixel = static_cast<Picoseconds>(static_cast<double>(to_ - from_) / std::max(1, area.width() - labelWidth()));
  const QFontMetrics fm = painter.fontMetrics();
  const int letters = fm.averageCharWidth() * 5;
  std::array<QColor, kActivities> colours;
  for (std::size_t k = 0; k < kActivities; ++k) colours[k] = activityColour(static_cast<Activity>(k), palette());
  const QColor between = palette().color(QPalette::Base);
  const bool dark = isDark(palette());
  row.marks(from_, to_, std::max<Picoseconds>(1, pixel), [&](const TraceMark& m) {
    const double a = xOf(m.start, area), b = xOf(m.end, area);
    QColor colour = colours[static_cast<std::size_t>(m.kind)];
    const QRectF box(a, y + 2, std::max(1.0, b - a), h - 5);
    if (m.events > 1) {
      // Many events in a pixel: the filled height says how much of it is busy, never less than a visible sliver.
      const double filled = std::clamp(m.density, 0.15, 1.0) * box.height();
      painter.fillRect(QRectF(box.left(), box.bottom() - filled, box.width(), filled), colour);
      return;
    }
    if (row.measured) colour = colour.lighter(dark ? 80 : 125);
    painter.fillRect(box, colour);
    if (box.width() > 3) {
      painter.setPen(between);
      painter.drawLine(QPointF(box.right(), box.top()), QPointF(box.right(), box.bottom()));
    }
    if (box.width() > letters) {
      const double left = std::max<double>(box.left(), area.left() + labelWidth());
      painter.setPen(textOn(colour));
      const QRectF inside(left + 3, box.top(), box.right() - left - 6, box.height());
      painter.drawText(inside, Qt::AlignVCenter | Qt::AlignLeft, fm.elidedText(store_.names[static_cast<std::size_t>(row.events[static_cast<std::size_t>(m.index)].name)], Qt::ElideRight, static_cast<int>(inside.width())));
    }
  });
  if (selected_.row == r && selected_.event >= 0) {
    const TraceEvent& e = row.events[static_cast<std::size_t>(selected_.event)];
    painter.setPen(QPen(palette().color(QPalette::Text), 2));
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(QRectF(xOf(e.start, area), y + 1, std::max(2.0, xOf(e.end(), area) - xOf(e.start, area)), h - 3));
  }
  painter.restore();
}

void TimelineView::paintFlows(QPainter& painter, const QRect& area) const {
  painter.save();
  painter.setClipRect(area.adjusted(labelWidth(), headHeight() + counterHeight(), 0, 0));
  painter.setRenderHint(QPainter::Antialiasing);
  int drawn = 0;
  for (const TraceFlow& f : store_.flows) {
    if (place_[static_cast<std::size_t>(f.fromRow)] < 0 || place_[static_cast<std::size_t>(f.toRow)] < 0) continue;
    const TraceEvent& a = store_.rows[static_cast<std::size_t>(f.fromRow)].events[static_cast<std::size_t>(f.from)];
    const TraceEvent& b = store_.rows[static_cast<std::size_t>(f.toRow)].events[static_cast<std::size_t>(f.to)];
    if (b.start < from_ || a.end() > to_) continue;
    const bool chosen = (selected_.row == f.fromRow && selected_.event == f.from) || (selected_.row == f.toRow && selected_.event == f.to);
    const double x1 = xOf(a.end(), area), x2 = xOf(b.start, area);
    // Zoomed out, arrows would only blacken the picture: those of the selected event stay.
    const double long_enough = static_cast<double>(a.duration + b.duration) / static_cast<double>(to_ - from_) * area.width();
    if (!chosen && (long_enough < 24 || ++drawn > 400)) continue;
    const int y1 = yOf(f.fromRow) + rowHeight() / 2, y2 = yOf(f.toRow) + rowHeight() / 2;
    QColor colour = chosen ? palette().color(QPalette::Text) : mutedColour(palette());
    painter.setPen(QPen(colour, chosen ? 2 : 1));
    QPainterPath path(QPointF(x1, y1));
    const double bend = std::clamp(std::abs(x2 - x1) / 2, 8.0, 40.0);
    path.cubicTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    painter.drawPath(path);
    painter.setBrush(colour);
    painter.drawPolygon(QPolygonF{QPointF(x2, y2), QPointF(x2 - 5, y2 - 3), QPointF(x2 - 5, y2 + 3)});
    painter.setBrush(Qt::NoBrush);
  }
  painter.restore();
}

void TimelineView::paint(QPainter& painter, const QRect& area) {
  painter.fillRect(area, palette().color(QPalette::Base));
  if (store_.rows.empty()) {
    painter.setPen(mutedColour(palette()));
    painter.drawText(area, Qt::AlignCenter, tr("playing one step of the selected plan …"));
    return;
  }
  painter.save();
  painter.setClipRect(area);
  paintAxis(painter, area);
  if (counterHeight()) paintCounters(painter, area);
  painter.setClipRect(area.adjusted(0, headHeight() + counterHeight(), 0, 0));
  for (const int r : visible_) {
    const int y = area.top() + yOf(r);
    if (y + rowHeight() < area.top() + headHeight() || y > area.bottom()) continue;
    paintRow(painter, area, r, y);
  }
  paintFlows(painter, area);
  painter.setClipRect(area);
  if (span_) {
    QColor fill = palette().color(QPalette::Highlight);
    fill.setAlpha(60);
    painter.fillRect(QRectF(QPointF(xOf(span_->first, area), area.top() + headHeight()), QPointF(xOf(span_->second, area), area.bottom())), fill);
  }
  if (hasFocus()) {
    painter.setPen(QPen(palette().color(QPalette::Highlight), 2));
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(area.adjusted(1, 1, -1, -1));
  }
  painter.restore();
}

void TimelineView::paintEvent(QPaintEvent*) {
  QPainter painter(viewport());
  painter.setFont(font());
  paint(painter, viewport()->rect());
}

}  // namespace moeplan::gui
