#include "gui/widgets/chart.hpp"

#include "gui/app/theme.hpp"

namespace moeplan::gui {

Chart::Chart(const QString& accessibleName, QWidget* parent) : QCustomPlot(parent) {
  setAccessibleName(accessibleName);
  setFocusPolicy(Qt::StrongFocus);
  setMouseTracking(true);
  setInteractions(QCP::iRangeDrag | QCP::iRangeZoom);
  setSelectionRectMode(QCP::srmNone);
  setNoAntialiasingOnDrag(true);
  vertical_ = new QCPItemStraightLine(this);
  horizontal_ = new QCPItemStraightLine(this);
  text_ = new QCPItemText(this);
  text_->setLayer(QStringLiteral("overlay"));
  text_->setPadding(QMargins(5, 3, 5, 3));
  text_->position->setType(QCPItemPosition::ptAbsolute);
  for (QCPAbstractItem* item : {static_cast<QCPAbstractItem*>(vertical_), static_cast<QCPAbstractItem*>(horizontal_), static_cast<QCPAbstractItem*>(text_)}) item->setVisible(false);
  for (QCPItemStraightLine* line : {vertical_, horizontal_}) {
    line->setLayer(QStringLiteral("overlay"));
    line->point1->setType(QCPItemPosition::ptAbsolute);
    line->point2->setType(QCPItemPosition::ptAbsolute);
  }
  empty_ = new QCPItemText(this);
  empty_->position->setType(QCPItemPosition::ptAxisRectRatio);
  empty_->position->setCoords(0.5, 0.5);
  empty_->setVisible(false);
  if (QCPLayer* overlay = layer(QStringLiteral("overlay"))) overlay->setMode(QCPLayer::lmBuffered);
  connect(this, &QCustomPlot::legendClick, this, [this](QCPLegend*, QCPAbstractLegendItem* item, QMouseEvent*) {
    auto* plottableItem = qobject_cast<QCPPlottableLegendItem*>(item);
    if (!plottableItem) return;
    QCPAbstractPlottable* plot = plottableItem->plottable();
    plot->setVisible(!plot->visible());
    item->setTextColor(plot->visible() ? palette().color(QPalette::Text) : mutedColour(palette()));
    QFont font = item->font();
    font.setStrikeOut(!plot->visible());
    item->setFont(font);
    replot(rpQueuedReplot);
  });
  connect(this, &QCustomPlot::beforeReplot, this, &Chart::wrapLegend);   // entries come and go
  restyle();
}

void Chart::setZoomAxes(bool horizontal, bool vertical) {
  axisRect()->setRangeDragAxes(horizontal ? xAxis : nullptr, vertical ? yAxis : nullptr);
  axisRect()->setRangeZoomAxes(horizontal ? xAxis : nullptr, vertical ? yAxis : nullptr);
}

void Chart::countAlong(QCPAxis* axis) {
  auto ticker = QSharedPointer<QCPAxisTickerFixed>::create();
  ticker->setTickStep(1);
  ticker->setScaleStrategy(QCPAxisTickerFixed::ssMultiples);
  axis->setTicker(ticker);
}

void Chart::setEmptyText(const QString& text) {
  empty_->setText(text);
  empty_->setVisible(!text.isEmpty());
}

void Chart::addLimit(double y, const QString& name, const QColor& colour, double band, const QString& bandName) {
  if (band > 0) {
    auto* area = new QCPItemRect(this);
    area->setPen(Qt::NoPen);
    QColor fill = colour;
    fill.setAlpha(45);
    area->setBrush(fill);
    for (QCPItemPosition* position : {area->topLeft, area->bottomRight}) position->setTypeX(QCPItemPosition::ptAxisRectRatio), position->setTypeY(QCPItemPosition::ptPlotCoords);
    area->topLeft->setCoords(0, y);
    area->bottomRight->setCoords(1, y - band);
    limits_.push_back(area);
  }
  auto* line = new QCPItemLine(this);
  line->setPen(QPen(colour, 2));
  for (QCPItemPosition* position : {line->start, line->end}) position->setTypeX(QCPItemPosition::ptAxisRectRatio), position->setTypeY(QCPItemPosition::ptPlotCoords);
  line->start->setCoords(0, y);
  line->end->setCoords(1, y);
  limits_.push_back(line);
  const auto text = [&](const QString& what, double at, Qt::Alignment vertical) {
    if (what.isEmpty()) return;
    auto* label = new QCPItemText(this);
    label->setText(what);
    label->setColor(colour);
    label->setFont(font());
    label->setPositionAlignment(Qt::AlignRight | vertical);
    // A name stays readable where the line is close to the frame.
    label->setClipToAxisRect(false);
    QColor behind = palette().color(QPalette::Base);
    behind.setAlpha(200);
    label->setBrush(behind);
    label->setPadding(QMargins(3, 0, 3, 0));
    label->position->setTypeX(QCPItemPosition::ptAxisRectRatio);
    label->position->setTypeY(QCPItemPosition::ptPlotCoords);
    label->position->setCoords(0.995, at);
    limits_.push_back(label);
  };
  text(name, y, Qt::AlignBottom);
  text(bandName, y - band, Qt::AlignTop);
}

void Chart::clearItemsButOwn() {
  for (QCPAbstractItem* item : limits_) removeItem(item);
  limits_.clear();
}

void Chart::fit() {
  if (fitter_) fitter_();
  else rescaleAxes(true);
  remember();
  replot(rpQueuedReplot);
}

void Chart::remember() {
  history_.resize(history_.empty() ? 0 : at_ + 1);
  const View now{xAxis->range(), yAxis->range()};
  if (!history_.empty() && history_.back().x == now.x && history_.back().y == now.y) return;
  history_.push_back(now);
  if (history_.size() > 100) history_.erase(history_.begin());
  at_ = history_.size() - 1;
}

void Chart::show(const View& view) {
  xAxis->setRange(view.x);
  yAxis->setRange(view.y);
  replot(rpQueuedReplot);
}

void Chart::back() {
  if (at_ > 0 && !history_.empty()) show(history_[--at_]);
}

void Chart::forward() {
  if (at_ + 1 < history_.size()) show(history_[++at_]);
}

void Chart::zoom(double factor) {
  if (axisRect()->rangeZoomAxis(Qt::Horizontal)) xAxis->scaleRange(factor);
  if (axisRect()->rangeZoomAxis(Qt::Vertical)) yAxis->scaleRange(factor);
  remember();
  replot(rpQueuedReplot);
}

void Chart::pan(double x, double y) {
  if (axisRect()->rangeDragAxis(Qt::Horizontal)) xAxis->moveRange(x * xAxis->range().size());
  if (axisRect()->rangeDragAxis(Qt::Vertical)) yAxis->moveRange(y * yAxis->range().size());
  remember();
  replot(rpQueuedReplot);
}

void Chart::showLegend(bool below) {
  legend->setVisible(true);
  setInteraction(QCP::iSelectLegend, false);
  legendBelow_ = below;
  if (below) {
    auto* row = new QCPLayoutGrid;
    plotLayout()->addElement(plotLayout()->rowCount(), 0, row);
    row->addElement(0, 0, legend);
    legend->setFillOrder(QCPLegend::foColumnsFirst);
    legend->setBorderPen(Qt::NoPen);
    row->setMargins(QMargins(4, 0, 4, 4));
    // A legend without entries says it is no wider than nothing, and the axes above would shrink to that.
    row->setMaximumSize(QWIDGETSIZE_MAX - 1, QWIDGETSIZE_MAX);
    plotLayout()->setRowStretchFactor(plotLayout()->rowCount() - 1, 0.001);
  }
}

/// As many legend entries beside each other as the width takes; the legend never makes the window wider.
void Chart::wrapLegend() {
  if (!legendBelow_ || legend->itemCount() == 0) return;
  int widest = 1;
  for (int i = 0; i < legend->itemCount(); ++i)
    if (auto* item = qobject_cast<QCPPlottableLegendItem*>(legend->item(i))) widest = std::max(widest, legend->iconSize().width() + legend->iconTextPadding() + fontMetrics().horizontalAdvance(item->plottable()->name()));
  const int entry = widest + legend->columnSpacing() + fontMetrics().averageCharWidth(), room = width() - legend->margins().left() - legend->margins().right() - 8;
  if (const int wrap = std::max(1, room / entry); wrap != legend->wrap()) {
    legend->setWrap(wrap);
    legend->setFillOrder(legend->fillOrder(), true);   // lays out again what is there
  }
}

QSize Chart::minimumSizeHint() const { return {fontMetrics().averageCharWidth() * 28, fontMetrics().height() * 8}; }

void Chart::keyPressEvent(QKeyEvent* event) {
  if (event->modifiers() == Qt::AltModifier && event->key() == Qt::Key_Left) return back();
  if (event->modifiers() == Qt::AltModifier && event->key() == Qt::Key_Right) return forward();
  if (event->modifiers() & ~(Qt::ShiftModifier | Qt::KeypadModifier)) return QCustomPlot::keyPressEvent(event);
  switch (event->key()) {
    case Qt::Key_W: case Qt::Key_Plus: zoom(0.8); return;
    case Qt::Key_S: case Qt::Key_Minus: zoom(1.25); return;
    case Qt::Key_A: case Qt::Key_Left: pan(-0.1, 0); return;
    case Qt::Key_D: case Qt::Key_Right: pan(0.1, 0); return;
    case Qt::Key_Up: pan(0, 0.1); return;
    case Qt::Key_Down: pan(0, -0.1); return;
    case Qt::Key_0: case Qt::Key_F: fit(); return;
    default: QCustomPlot::keyPressEvent(event);
  }
}

void Chart::mousePressEvent(QMouseEvent* event) {
  pressed_ = event->pos();
  dragging_ = false;
  const bool brush = event->modifiers() & Qt::ControlModifier, box = event->modifiers() & Qt::ShiftModifier;
  setSelectionRectMode(brush || box ? QCP::srmCustom : QCP::srmNone);
  if (brush || box) {
    selectionRect()->setPen(QPen(palette().color(QPalette::Highlight)));
    QColor fill = palette().color(QPalette::Highlight);
    fill.setAlpha(50);
    selectionRect()->setBrush(fill);
  }
  QCustomPlot::mousePressEvent(event);
}

void Chart::mouseMoveEvent(QMouseEvent* event) {
  if (event->buttons() && (event->pos() - pressed_).manhattanLength() > 4) dragging_ = true;
  QCustomPlot::mouseMoveEvent(event);
  if (!event->buttons()) readAt(event->pos());
}

void Chart::mouseReleaseEvent(QMouseEvent* event) {
  const bool rectangle = selectionRectMode() == QCP::srmCustom;
  QCustomPlot::mouseReleaseEvent(event);
  const auto coordinates = [this](const QPoint& p) { return QPointF(xAxis->pixelToCoord(p.x()), yAxis->pixelToCoord(p.y())); };
  if (rectangle && dragging_) {
    const QPointF a = coordinates(pressed_), b = coordinates(event->pos());
    const QRectF area(QPointF(std::min(a.x(), b.x()), std::min(a.y(), b.y())), QPointF(std::max(a.x(), b.x()), std::max(a.y(), b.y())));
    if (event->modifiers() & Qt::ControlModifier) {
      Q_EMIT brushed(area);
    } else if (area.width() > 0 && area.height() > 0) {
      if (axisRect()->rangeZoomAxis(Qt::Horizontal)) xAxis->setRange(area.left(), area.right());
      if (axisRect()->rangeZoomAxis(Qt::Vertical)) yAxis->setRange(area.top(), area.bottom());
      remember();
    }
  } else if (!dragging_ && event->button() == Qt::LeftButton && axisRect()->rect().contains(event->pos())) {
    const QPointF p = coordinates(event->pos());
    Q_EMIT clicked(p.x(), p.y(), event->modifiers());
  } else if (dragging_) {
    remember();
  }
  setSelectionRectMode(QCP::srmNone);
  replot(rpQueuedReplot);
}

void Chart::mouseDoubleClickEvent(QMouseEvent* event) {
  QCustomPlot::mouseDoubleClickEvent(event);
  fit();
}

void Chart::wheelEvent(QWheelEvent* event) {
  QCustomPlot::wheelEvent(event);
  remember();
}

void Chart::leaveEvent(QEvent* event) {
  for (QCPAbstractItem* item : {static_cast<QCPAbstractItem*>(vertical_), static_cast<QCPAbstractItem*>(horizontal_), static_cast<QCPAbstractItem*>(text_)}) item->setVisible(false);
  layer(QStringLiteral("overlay"))->replot();
  QCustomPlot::leaveEvent(event);
}

void Chart::readAt(const QPoint& at) {
  const QRect area = axisRect()->rect();
  const QString text = readout_ && area.contains(at) ? readout_(xAxis->pixelToCoord(at.x()), yAxis->pixelToCoord(at.y())) : QString();
  const bool on = !text.isEmpty();
  if (!on && !text_->visible()) return;
  for (QCPAbstractItem* item : {static_cast<QCPAbstractItem*>(vertical_), static_cast<QCPAbstractItem*>(horizontal_), static_cast<QCPAbstractItem*>(text_)}) item->setVisible(on);
  if (on) {
    vertical_->point1->setCoords(at.x(), area.top());
    vertical_->point2->setCoords(at.x(), area.bottom());
    horizontal_->point1->setCoords(area.left(), at.y());
    horizontal_->point2->setCoords(area.right(), at.y());
    text_->setText(text);
    const bool left = at.x() > area.center().x(), high = at.y() > area.center().y();
    text_->setPositionAlignment((left ? Qt::AlignRight : Qt::AlignLeft) | (high ? Qt::AlignBottom : Qt::AlignTop));
    text_->setTextAlignment(Qt::AlignLeft);
    text_->position->setCoords(at.x() + (left ? -10 : 10), at.y() + (high ? -10 : 10));
  }
  layer(QStringLiteral("overlay"))->replot();
}

void Chart::focusInEvent(QFocusEvent* event) {
  QCustomPlot::focusInEvent(event);
  restyle();
  replot(rpQueuedReplot);
}

void Chart::focusOutEvent(QFocusEvent* event) {
  QCustomPlot::focusOutEvent(event);
  restyle();
  replot(rpQueuedReplot);
}

void Chart::changeEvent(QEvent* event) {
  QCustomPlot::changeEvent(event);
  if (event->type() != QEvent::PaletteChange && event->type() != QEvent::FontChange && event->type() != QEvent::ApplicationFontChange) return;
  restyle();
  replot(rpQueuedReplot);
}

void Chart::restyle() {
  const QPalette p = palette();
  setBackground(p.color(QPalette::Base));
  const QPen text(p.color(QPalette::Text)), grid(gridColour(p)), muted(mutedColour(p));
  for (QCPAxis* axis : {xAxis, yAxis, xAxis2, yAxis2}) {
    axis->setBasePen(muted);
    axis->setTickPen(muted);
    axis->setSubTickPen(Qt::NoPen);
    axis->setTickLabelColor(text.color());
    axis->setLabelColor(text.color());
    axis->setTickLabelFont(font());
    axis->setLabelFont(font());
    axis->grid()->setPen(grid);
    axis->grid()->setZeroLinePen(Qt::NoPen);
  }
  legend->setBrush(Qt::NoBrush);
  legend->setTextColor(text.color());
  legend->setFont(font());
  const int em = fontMetrics().height();
  legend->setIconSize(em * 3 / 2, em);
  for (QCPItemStraightLine* line : {vertical_, horizontal_}) line->setPen(QPen(muted.color(), 1, Qt::DashLine));
  text_->setBrush(p.color(QPalette::ToolTipBase));
  text_->setPen(muted);
  text_->setColor(p.color(QPalette::ToolTipText));
  text_->setFont(font());
  empty_->setColor(muted.color());
  empty_->setFont(font());
  // A thin frame shows the keyboard focus.
  axisRect()->setBackground(p.color(QPalette::Base));
  xAxis2->setVisible(hasFocus());
  yAxis2->setVisible(hasFocus());
  for (QCPAxis* axis : {xAxis2, yAxis2}) {
    axis->setTicks(false);
    axis->setTickLabels(false);
    axis->setBasePen(QPen(p.color(QPalette::Highlight), 2));
  }
}

}  // namespace moeplan::gui
