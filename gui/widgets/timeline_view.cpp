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
  setEmptyText(tr("playing one step of the selected plan …"));
}

void TimelineView::setEmptyText(const QString& text) {
  empty_ = text;
  viewport()->update();
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
  return std::clamp(lines_.empty() ? least : room / static_cast<int>(lines_.size()), least, least * 3 / 2);
}
int TimelineView::headHeight() const { return fontMetrics().height() * 2; }
int TimelineView::bandHeight() const { return counters_.empty() ? 0 : counterHeight() / static_cast<int>(counters_.size()); }
int TimelineView::counterHeight() const {
  if (counters_.empty()) return 0;
  const int em = fontMetrics().height(), n = static_cast<int>(counters_.size()), rows = static_cast<int>(lines_.size()) * em * 9 / 4;
  return n * std::clamp((viewport()->height() - headHeight() - rows) / n, 3 * em, 8 * em);
}

const QString& TimelineView::groupOf(int row) const {
  static const QString none;
  const TraceRow& r = store_.rows[static_cast<std::size_t>(row)];
  return grouping_ == Grouping::node ? r.node : grouping_ == Grouping::expert_group ? r.expertGroup : none;
}

void TimelineView::arrange() {
  // Asked for every mark of a frame, and font metrics are slow to answer.
  labelWidth_ = std::min(viewport()->width() / 3, fontMetrics().averageCharWidth() * 42);
  visible_.clear();
  lines_.clear();
  groups_.clear();
  place_.assign(store_.rows.size(), -1);
  const auto show = [&](int r) {
    place_[static_cast<std::size_t>(r)] = static_cast<int>(lines_.size());
    lines_.push_back({.row = r});
    visible_.push_back(r);
  };
  for (const int r : pinned_)
    if (!hidden_.contains(r)) show(r);
  for (int r = 0; r < static_cast<int>(store_.rows.size()); ++r) {
    if (pinned_.contains(r) || hidden_.contains(r)) continue;
    const TraceRow& row = store_.rows[static_cast<std::size_t>(r)];
    if (!std::all_of(words_.begin(), words_.end(), [&](const QString& w) { return row.label.contains(w, Qt::CaseInsensitive); })) continue;
    const QString& group = groupOf(r);
    if (!group.isEmpty() && (groups_.empty() || groups_.back().name != group)) {
      lines_.push_back({.group = static_cast<int>(groups_.size())});
      groups_.push_back({.name = group, .rows = 0, .folded = folded_.contains(group)});
    }
    if (!group.isEmpty()) ++groups_.back().rows;
    if (group.isEmpty() || !groups_.back().folded) show(r);
  }
  const int room = viewport()->height() - headHeight() - counterHeight();
  verticalScrollBar()->setRange(0, std::max(0, static_cast<int>(lines_.size()) * rowHeight() - room));
  verticalScrollBar()->setPageStep(std::max(1, room));
  verticalScrollBar()->setSingleStep(rowHeight());
  viewport()->update();
}

void TimelineView::setGrouping(Grouping grouping) {
  grouping_ = grouping;
  arrange();
}

QStringList TimelineView::groups() const {
  QStringList out;
  for (const Group& g : groups_) out << g.name;
  return out;
}

void TimelineView::toggleGroup(int group) {
  if (group < 0 || group >= static_cast<int>(groups_.size())) return;
  const QString name = groups_[static_cast<std::size_t>(group)].name;
  if (!folded_.erase(name)) folded_.insert(name);
  arrange();
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

int TimelineView::yOfLine(int line) const { return headHeight() + counterHeight() + line * rowHeight() - verticalScrollBar()->value(); }

int TimelineView::yOf(int row) const {
  const int place = place_[static_cast<std::size_t>(row)];
  return place < 0 ? -1 : yOfLine(place);
}

TimelineView::Line TimelineView::lineAt(int y) const {
  if (y < headHeight() + counterHeight()) return {};
  const int place = (y - headHeight() - counterHeight() + verticalScrollBar()->value()) / rowHeight();
  return place >= 0 && place < static_cast<int>(lines_.size()) ? lines_[static_cast<std::size_t>(place)] : Line{};
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
  const int band = bandHeight();
  for (std::size_t c = 0; c < counters_.size(); ++c) {
    const Counter& counter = counters_[c];
    const int top = area.top() + headHeight() + static_cast<int>(c) * band, h = band - 6;
    painter.setPen(gridColour(palette()));
    painter.drawLine(area.left(), top + h + 3, area.right(), top + h + 3);
    if (counter.values.empty()) continue;
    const double most = std::max(1e-12, *std::max_element(counter.values.begin(), counter.values.end()));
    const QColor colour = seriesColour(static_cast<int>(c) * 3, palette());
    QPolygonF line;
    const auto y = [&](double v) { return top + h - v / most * (h - 2); };
    const double left = area.left() + labelWidth();
    const auto first = std::upper_bound(counter.seconds.begin(), counter.seconds.end(), to_seconds(from_).value);
    auto at = static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, first - counter.seconds.begin() - 1));
    double before = first == counter.seconds.begin() ? 0 : counter.values[at];
    if (first != counter.seconds.begin()) ++at;
    line << QPointF(std::max(left, xOf(0, area)), y(before));
    // Of the changes inside one pixel the lowest, the highest and the last are drawn.
    while (at < counter.seconds.size() && counter.seconds[at] <= to_seconds(to_).value) {
      const double x = std::max(left, xOf(static_cast<Picoseconds>(counter.seconds[at] * 1e12), area));
      double low = std::min(before, counter.values[at]), high = std::max(before, counter.values[at]), last = counter.values[at];
      std::size_t next = at + 1;
      for (; next < counter.seconds.size() && xOf(static_cast<Picoseconds>(counter.seconds[next] * 1e12), area) < x + 1; ++next) {
        last = counter.values[next];
        low = std::min(low, last), high = std::max(high, last);
      }
      line << QPointF(x, y(before));
      if (next > at + 1) line << QPointF(x, y(high)) << QPointF(x, y(low));
      line << QPointF(x, y(last));
      before = last;
      at = next;
    }
    line << QPointF(std::min<double>(area.right(), xOf(store_.end, area)), y(before));
    // A pen wider than a pixel would stroke thousands of upright lines as one outline: a third of a second a frame.
    painter.setPen(QPen(colour, 0));
    painter.drawPolyline(line);
    const int row = painter.fontMetrics().height();
    painter.fillRect(QRect(area.left() + 4, top + row / 3, row / 2, row / 2), colour);
    painter.setPen(palette().color(QPalette::Text));
    const QRect text(area.left() + 8 + row / 2, top, labelWidth() - 12 - row / 2, row);
    painter.drawText(text, Qt::AlignLeft | Qt::AlignVCenter, painter.fontMetrics().elidedText(counter.name, Qt::ElideRight, text.width()));
    painter.setPen(mutedColour(palette()));
    painter.drawText(text.translated(0, row), Qt::AlignLeft | Qt::AlignVCenter, tr("0 to %1 %2").arg(most, 0, 'g', 4).arg(counter.unit));
  }
}

void TimelineView::paintGroup(QPainter& painter, const QRect& area, int g, int y) const {
  const Group& group = groups_[static_cast<std::size_t>(g)];
  painter.fillRect(QRect(area.left(), y, area.width(), rowHeight()), palette().color(QPalette::Button));
  painter.setPen(palette().color(QPalette::ButtonText));
  QFont bold = painter.font(), plain = painter.font();
  bold.setBold(true);
  painter.setFont(bold);
  painter.drawText(QRect(area.left() + 4, y, area.width() - 8, rowHeight()), Qt::AlignVCenter | Qt::AlignLeft,
                   (group.folded ? QStringLiteral("▸ ") : QStringLiteral("▾ ")) + group.name + (group.folded ? tr(" (%n row(s) folded)", nullptr, group.rows) : QString()));
  painter.setFont(plain);
}

void TimelineView::paintRow(QPainter& painter, const QRect& area, int r, int y) const {
  const TraceRow& row = store_.rows[static_cast<std::size_t>(r)];
  const int h = rowHeight();
  if (selected_.row == r) painter.fillRect(QRect(area.left(), y, area.width(), h), palette().color(QPalette::AlternateBase));
  painter.setPen(gridColour(palette()));
  painter.drawLine(area.left(), y + h - 1, area.right(), y + h - 1);
  painter.setPen(palette().color(QPalette::Text));
  const QString label = (pinned_.contains(r) ? QStringLiteral("▲ ") : QString()) + row.label + (row.note.isEmpty() ? QString() : QLatin1Char(' ') + row.note) + row.origin;
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
    const bool chosen = (selected_.row == f.fromRow && selected_.event == f.from) || (selected_.row == f.toRow && selected_.event == f.to);
    // Zoomed out, arrows would only blacken the picture: those of the selected event stay. Asked first, since a step has hundreds of thousands.
    const double wide = static_cast<double>(f.length) / static_cast<double>(to_ - from_) * area.width();
    if (!chosen && wide < 24) continue;
    if (f.lands < from_ || f.leaves > to_ || place_[static_cast<std::size_t>(f.fromRow)] < 0 || place_[static_cast<std::size_t>(f.toRow)] < 0) continue;
    if (!chosen && ++drawn > 400) continue;
    const double x1 = xOf(f.leaves, area), x2 = xOf(f.lands, area);
    const int y1 = area.top() + yOf(f.fromRow) + rowHeight() / 2, y2 = area.top() + yOf(f.toRow) + rowHeight() / 2;
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
    painter.drawText(area, Qt::AlignCenter, empty_);
    return;
  }
  painter.save();
  painter.setClipRect(area);
  paintAxis(painter, area);
  if (counterHeight()) paintCounters(painter, area);
  painter.setClipRect(area.adjusted(0, headHeight() + counterHeight(), 0, 0));
  for (int l = 0; l < static_cast<int>(lines_.size()); ++l) {
    const int y = area.top() + yOfLine(l);
    if (y + rowHeight() < area.top() + headHeight() || y > area.bottom()) continue;
    const Line line = lines_[static_cast<std::size_t>(l)];
    if (line.row >= 0) paintRow(painter, area, line.row, y);
    else paintGroup(painter, area, line.group, y);
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
