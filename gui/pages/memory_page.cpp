#include "gui/pages/memory_page.hpp"

#include <QComboBox>
#include <QLabel>
#include <QSplitter>
#include <QStandardItemModel>
#include <QToolButton>

#include "core/show.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/plans_model.hpp"
#include "gui/widgets/chart.hpp"
#include "gui/widgets/table_view.hpp"
#include "gui/widgets/treemap.hpp"

namespace moeplan::gui {
namespace {

QString words(std::string_view name) { return QString::fromStdString(std::string(name)).replace(QLatin1Char('_'), QLatin1Char(' ')); }
constexpr double kReserve = 0.05;   // of the device: below it a plan counts as tight (forecast_panel.cpp)

}  // namespace

MemoryPage::MemoryPage(Session* session, QWidget* parent)
    : Page(session, tr("Memory"), tr("Memory over one step, and which buffers make it; the ranks' peaks side by side"), parent) {
  auto* column = new QVBoxLayout(this);
  auto* bar = new QHBoxLayout;
  const auto labelled = [&](const QString& text, QWidget* w) {
    auto* label = new QLabel(text);
    label->setBuddy(w);
    w->setToolTip(text);
    bar->addWidget(label);
    bar->addWidget(w);
  };
  rank_ = new QComboBox;
  rank_->setAccessibleName(tr("Rank shown"));
  rank_->setSizeAdjustPolicy(QComboBox::AdjustToContents);
  labelled(tr("Rank"), rank_);
  load_ = new QComboBox;
  load_->addItems({tr("median (P50)"), tr("95th percentile (P95)")});
  load_->setAccessibleName(tr("Expert load shown"));
  labelled(tr("Expert load"), load_);
  auto* peak = new QToolButton;
  peak->setText(tr("Go to the peak"));
  bar->addWidget(peak);
  bar->addStretch(1);
  column->addLayout(bar);
  auto* splitter = new QSplitter(Qt::Vertical);
  column->addWidget(splitter, 1);
  auto* top = new QSplitter;
  chart_ = new Chart(tr("Memory over one step"));
  chart_->setEmptyText(tr("playing one step of the selected plan …"));
  chart_->xAxis->setLabel(tr("time in the step [s]"));
  chart_->yAxis->setLabel(tr("memory [GB]"));
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names) {
    QCPGraph* graph = chart_->addGraph();
    graph->setName(words(name));
    graph->setLineStyle(QCPGraph::lsStepLeft);
    graph->setAdaptiveSampling(true);
    // Upright steps gain nothing from smoothing, and filling them takes several times as long with it.
    graph->setAntialiased(false);
    graph->setAntialiasedFill(false);
  }
  for (std::size_t i = 1; i < kMemoryCategories; ++i) chart_->graph(static_cast<int>(i))->setChannelFillGraph(chart_->graph(static_cast<int>(i) - 1));
  chart_->showLegend();
  chart_->setZoomAxes(true, false);
  cursor_ = new QCPItemStraightLine(chart_);
  cursor_->setVisible(false);
  ranks_ = new Chart(tr("Peak memory of each played rank"));
  ranks_->setEmptyText(tr("…"));
  ranks_->xAxis->setLabel(tr("pipeline stage"));
  ranks_->yAxis->setLabel(tr("peak [GB]"));
  ranks_->setZoomAxes(true, false);
  ranks_->countAlong(ranks_->xAxis);
  ranks_->showLegend();
  top->addWidget(chart_);
  top->addWidget(ranks_);
  top->setSizes({800, 200});
  splitter->addWidget(top);
  auto* bottom = new QSplitter;
  map_ = new Treemap(tr("Live buffers"));
  model_ = new QStandardItemModel(0, 4, this);
  model_->setHorizontalHeaderLabels({tr("Bytes"), tr("Category"), tr("Count"), tr("Buffer")});
  table_ = new TableView(tr("Live buffers"));
  table_->setModel(model_);
  table_->setSortingEnabled(false);
  bottom->addWidget(map_);
  bottom->addWidget(table_);
  bottom->setSizes({640, 360});
  splitter->addWidget(bottom);
  splitter->setSizes({520, 480});
  splitter->setChildrenCollapsible(false);
  connect(peak, &QToolButton::clicked, this, &MemoryPage::showPeak);
  connect(rank_, &QComboBox::activated, this, [this] { drawArea(); });
  connect(load_, &QComboBox::activated, this, [this] { refresh(); });
  connect(chart_, &Chart::clicked, this, [this](double x) { showMoment(x); });
  connect(ranks_, &Chart::clicked, this, [this](double x) {
    const int at = static_cast<int>(std::lround(x));
    if (at >= 0 && at < rank_->count()) rank_->setCurrentIndex(at), drawArea();
  });
  connect(map_, &Treemap::tileActivated, this, [this](int tile) { table_->selectRow(tile); });
  connect(session, &Session::playChanged, this, &MemoryPage::refresh);
  connect(session, &Session::pinnedChanged, this, [this] {
    drawRanks();
    drawLimits();
  });
  chart_->setReadout([this](double x, double) -> QString {
    if (area_.seconds.empty()) return {};
    const auto at = std::max<std::ptrdiff_t>(0, std::upper_bound(area_.seconds.begin(), area_.seconds.end(), x) - area_.seconds.begin() - 1);
    return tr("%1 at %2").arg(QString::fromStdString(human(Bytes{static_cast<std::int64_t>(area_.total[static_cast<std::size_t>(at)])})), QString::fromStdString(human(Seconds{x})));
  });
  addPageAction(tr("Show the peak's live buffers"), QKeySequence(tr("P")), [this] { showPeak(); });
  addPageAction(tr("Next rank"), QKeySequence(tr("]")), [this] { if (rank_->currentIndex() + 1 < rank_->count()) rank_->setCurrentIndex(rank_->currentIndex() + 1), drawArea(); });
  addPageAction(tr("Previous rank"), QKeySequence(tr("[")), [this] { if (rank_->currentIndex() > 0) rank_->setCurrentIndex(rank_->currentIndex() - 1), drawArea(); });
  addPageAction(tr("Median or 95th percentile"), QKeySequence(tr("L")), [this] { load_->setCurrentIndex(1 - load_->currentIndex()); refresh(); });
}

const MemoryTimeline* MemoryPage::timeline() const {
  const auto& play = session_->play();
  if (!play) return nullptr;
  const auto& all = load_->currentIndex() == 1 ? play->memory_p95 : play->memory;
  const auto at = static_cast<std::size_t>(std::max(0, rank_->currentIndex()));
  return at < all.size() ? &all[at] : nullptr;
}

void MemoryPage::refresh() {
  const auto& play = session_->play();
  const int before = rank_->currentIndex();
  rank_->clear();
  if (play) {
    int worst = 0;
    for (std::size_t r = 0; r < play->memory.size(); ++r) {
      const auto& ranks = play->timeline.ranks;
      rank_->addItem(tr("rank %1, stage %2 (stands for %3)").arg(ranks[r].rank).arg(ranks[r].stage).arg(ranks[r].stands_for));
      if (play->memory[r].peak.peak() > play->memory[static_cast<std::size_t>(worst)].peak.peak()) worst = static_cast<int>(r);
    }
    rank_->setCurrentIndex(before >= 0 && before < rank_->count() ? before : worst);
  }
  drawRanks();
  drawArea();
}

void MemoryPage::drawArea() {
  const MemoryTimeline* t = timeline();
  area_ = t ? areaOf(*t) : MemoryArea{};
  chart_->setEmptyText(t ? QString() : tr("playing one step of the selected plan …"));
  const QPalette p = palette();
  const auto n = static_cast<qsizetype>(area_.seconds.size());
  const QVector<double> x(area_.seconds.begin(), area_.seconds.end());
  QVector<double> sum(n, 0);
  for (std::size_t k = 0; k < kMemoryCategories; ++k) {
    double most = 0;
    for (qsizetype i = 0; i < n; ++i) {
      sum[i] += area_.bytes[k][static_cast<std::size_t>(i)] / 1e9;
      most = std::max(most, area_.bytes[k][static_cast<std::size_t>(i)]);
    }
    QCPGraph* graph = chart_->graph(static_cast<int>(k));
    graph->setData(x, sum, true);
    const auto category = static_cast<MemoryCategory>(k);
    const QColor colour = categoryColour(category, p);
    graph->setPen(QPen(colour, 1));
    graph->setBrush(QBrush(colour, categoryPattern(category)));
    // Categories that never hold anything would only crowd the legend.
    if (auto* item = chart_->legend->itemWithPlottable(graph); item && most <= 0) chart_->legend->removeItem(item);
    else if (!item && most > 0) graph->addToLegend();
  }
  drawLimits();
  if (t) {
    const double have = static_cast<double>(session_->play()->problem->cluster.device.memory.value) / 1e9;
    const double end = area_.seconds.empty() ? 1 : area_.seconds.back();
    chart_->setFitter([this, have, end] { chart_->xAxis->setRange(0, end); chart_->yAxis->setRange(0, 1.15 * std::max(have, area_.total.empty() ? 0 : area_.total[area_.peak] / 1e9)); });
    chart_->fit();
    showPeak();
  }
  chart_->replot(QCustomPlot::rpQueuedReplot);
}

/// The device's memory with the reserve below it, and how high the pinned plan goes.
void MemoryPage::drawLimits() {
  chart_->clearItemsButOwn();
  if (timeline()) {
    const double have = static_cast<double>(session_->play()->problem->cluster.device.memory.value) / 1e9;
    chart_->addLimit(have, tr("device memory %1 GB").arg(have, 0, 'f', 1), badColour(palette()), have * kReserve, tr("reserve, 5 %"));
    if (const auto& a = session_->pinned()) {
      const double peak = static_cast<double>((load_->currentIndex() == 1 ? a->forecast.memory_p95 : a->forecast.memory).peak().value) / 1e9;
      chart_->addLimit(peak, tr("A's peak %1 GB").arg(peak, 0, 'f', 1), seriesColour(2, palette()), 0, {});
    }
  }
  chart_->replot(QCustomPlot::rpQueuedReplot);
}

void MemoryPage::drawRanks() {
  ranks_->clearPlottables();
  const auto& play = session_->play();
  ranks_->setEmptyText(play ? QString() : tr("…"));
  if (!play) return;
  QVector<double> at, median, high;
  for (std::size_t r = 0; r < play->memory.size(); ++r) {
    at << static_cast<double>(r);
    median << static_cast<double>(play->memory[r].peak.peak().value) / 1e9;
    high << static_cast<double>(play->memory_p95[r].peak.peak().value) / 1e9;
  }
  const auto bars = [&](const QVector<double>& values, const QColor& colour, Qt::BrushStyle style, double width, const QString& name) {
    auto* b = new QCPBars(ranks_->xAxis, ranks_->yAxis);
    b->setData(at, values, true);
    b->setWidth(width);
    b->setPen(QPen(colour));
    b->setBrush(QBrush(colour, style));
    b->setName(name);
  };
  bars(high, warnColour(palette()), Qt::BDiagPattern, 0.8, tr("P95"));
  bars(median, seriesColour(0, palette()), Qt::SolidPattern, 0.5, tr("P50"));
  ranks_->clearItemsButOwn();
  const double have = static_cast<double>(play->problem->cluster.device.memory.value) / 1e9;
  ranks_->addLimit(have, {}, badColour(palette()), 0, {});
  if (const auto& a = session_->pinned()) ranks_->addLimit(static_cast<double>(a->forecast.memory_p95.peak().value) / 1e9, tr("A, P95"), seriesColour(2, palette()), 0, {});
  ranks_->setReadout([at, median, high](double x, double) -> QString {
    const auto i = static_cast<qsizetype>(std::lround(x));
    return i < 0 || i >= at.size() ? QString() : tr("stage %1\nP50 %2 GB\nP95 %3 GB").arg(i).arg(median[i], 0, 'f', 1).arg(high[i], 0, 'f', 1);
  });
  ranks_->setFitter([this, n = at.size(), have] { ranks_->xAxis->setRange(-0.7, static_cast<double>(n) - 0.3); ranks_->yAxis->setRange(0, 1.15 * have); });
  ranks_->fit();
}

void MemoryPage::showMoment(double seconds) {
  if (area_.seconds.empty()) return;
  auto at = std::upper_bound(area_.seconds.begin(), area_.seconds.end(), seconds) - area_.seconds.begin();
  // A click near the peak means the peak: moments are often thinner than a pixel.
  const double pixel = chart_->xAxis->range().size() / std::max(1, chart_->axisRect()->width());
  if (std::abs(area_.seconds[area_.peak] - seconds) < 6 * pixel) return showPeak();
  showAt(static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, at - 1)));
}

void MemoryPage::showPeak() {
  if (!area_.seconds.empty()) showAt(area_.peak);
}

void MemoryPage::showAt(std::size_t index) {
  const MemoryTimeline* t = timeline();
  if (!t) return;
  live_ = liveAt(*t, area_.change[index]);
  const double x = area_.seconds[index];
  cursor_->setPen(QPen(palette().color(QPalette::Text), 1.5, Qt::DotLine));
  cursor_->point1->setCoords(x, 0);
  cursor_->point2->setCoords(x, 1);
  cursor_->setVisible(true);
  std::vector<Tile> tiles;
  model_->setRowCount(0);
  for (const LiveBuffer& b : live_) {
    const QString bytes = QString::fromStdString(human(b.bytes)), category = words(name_of(b.category));
    tiles.push_back({.name = b.name, .value = bytes, .size = static_cast<double>(b.bytes.value), .colour = categoryColour(b.category, palette()), .pattern = categoryPattern(b.category)});
    QList<QStandardItem*> row;
    for (const QString& text : {bytes, category, QString::number(b.count), b.name}) {
      auto* item = new QStandardItem(text);
      item->setEditable(false);
      item->setToolTip(text);
      row << item;
    }
    for (const int c : {0, 2}) row[c]->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
    row[0]->setData(static_cast<double>(b.bytes.value), kNumberRole);
    row[2]->setData(static_cast<double>(b.count), kNumberRole);
    model_->appendRow(row);
  }
  const QString title = tr("%1 live at %2%3").arg(QString::fromStdString(human(Bytes{static_cast<std::int64_t>(area_.total[index])})), QString::fromStdString(human(Seconds{x})), index == area_.peak ? tr(" (the peak)") : QString());
  map_->setTiles(std::move(tiles), title);
  table_->fitColumns();
  chart_->replot(QCustomPlot::rpQueuedReplot);
}

std::vector<Drawing> MemoryPage::drawings() {
  const auto plot = [](const QString& name, Chart* chart) { return Drawing{name, chart, [chart](QPainter& painter, const QSize& size) { chart->toPainter(static_cast<QCPPainter*>(&painter), size.width(), size.height()); }}; };
  return {plot(tr("memory over one step"), chart_), plot(tr("peak of each stage"), ranks_), {tr("live buffers"), map_, [this](QPainter& painter, const QSize& size) { map_->paint(painter, QRect(QPoint(0, 0), size)); }}};
}

std::vector<NamedTable> MemoryPage::tables() { return {{tr("live buffers"), table_}}; }
QWidget* MemoryPage::start() { return chart_; }

}  // namespace moeplan::gui
