#include "gui/pages/experts_page.hpp"

#include <QComboBox>
#include <QDoubleSpinBox>
#include <QLabel>
#include <QSplitter>
#include <QStandardItemModel>
#include <QVBoxLayout>
#include <limits>
#include <numeric>

#include "core/show.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/plans_model.hpp"
#include "gui/widgets/chart.hpp"
#include "gui/widgets/table_view.hpp"

namespace moeplan::gui {
namespace {

QCPColorMap* colourMap(Chart* chart, const QString& unit) {
  auto* map = new QCPColorMap(chart->xAxis, chart->yAxis);
  map->setInterpolate(false);
  map->setTightBoundary(false);   // the outer cells are as wide as the others
  auto* scale = new QCPColorScale(chart);
  scale->axis()->setLabel(unit);
  scale->setBarWidth(chart->fontMetrics().height() / 2);
  chart->plotLayout()->addElement(0, 1, scale);
  map->setColorScale(scale);
  // After the scale, whose own gradient the map takes over.
  QCPColorGradient gradient;
  gradient.clearColorStops();
  for (int i = 0; i <= 8; ++i) gradient.setColorStopAt(i / 8.0, heatColour(i / 8.0));
  map->setGradient(gradient);
  auto* margins = new QCPMarginGroup(chart);
  chart->axisRect()->setMarginGroup(QCP::msTop | QCP::msBottom, margins);
  scale->setMarginGroup(QCP::msTop | QCP::msBottom, margins);
  const auto style = [chart, scale] {
    scale->axis()->setTickLabelColor(chart->palette().color(QPalette::Text));
    scale->axis()->setLabelColor(chart->palette().color(QPalette::Text));
    scale->axis()->setTickLabelFont(chart->font());
    scale->axis()->setLabelFont(chart->font());
  };
  style();
  QObject::connect(chart, &QCustomPlot::beforeReplot, scale, style);
  return map;
}

}  // namespace

ExpertsPage::ExpertsPage(Session* session, QWidget* parent)
    : Page(session, tr("Experts"), tr("How tokens fall on experts and ranks, before and after a placement, and who sends how much to whom"), parent), job_(new LatestJob(this)) {
  auto* column = new QVBoxLayout(this);
  auto* bar = new QHBoxLayout;
  column->addLayout(bar);
  const auto labelled = [&](const QString& text, auto* w, const QString& why) {
    auto* label = new QLabel(text);
    label->setBuddy(w);
    label->setToolTip(why);
    w->setToolTip(why);
    w->setAccessibleName(text);
    bar->addWidget(label);
    bar->addWidget(w);
    return w;
  };
  layer_ = labelled(tr("Layer"), new QSpinBox, tr("Decoder layer whose ranks are shown"));
  degree_ = labelled(tr("Expert ranks"), new QComboBox, tr("Degree of expert parallelism; the plan's own at first"));
  replicas_ = labelled(tr("Replicas"), new QSpinBox, tr("Extra expert slots, given to the hottest experts"));
  replicas_->setRange(0, 4096);
  capacity_ = labelled(tr("Capacity"), new QDoubleSpinBox, tr("Tokens an expert takes at most, over the mean; what is beyond it is dropped"));
  capacity_->setRange(0, 16);
  capacity_->setSingleStep(0.25);
  capacity_->setSpecialValueText(tr("dropless"));
  heatBox_ = labelled(tr("Map"), new QComboBox, tr("What the upper map lays out from left to right, one row a layer; lines part the ranks, rings mark each layer's busiest one (B: before or after)"));
  heatBox_->addItems({tr("experts before"), tr("slots after"), tr("ranks before"), tr("ranks after")});
  map_ = labelled(tr("Below"), new QComboBox, tr("What the map below shows: what one micro-batch sends between ranks or nodes in a layer, or the ranks' load on the machines"));
  map_->addItems({tr("rank traffic"), tr("node traffic"), tr("cluster map")});
  // Long names must not make the window wider than it is asked to be.
  for (QComboBox* box : {degree_, heatBox_, map_}) {
    box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    box->setMinimumContentsLength(box == degree_ ? 3 : 8);
  }
  bar->addStretch(1);
  told_ = new QLabel;
  told_->setWordWrap(true);
  told_->setAccessibleName(tr("Summary"));
  column->addWidget(told_);
  auto* splitter = new QSplitter(Qt::Vertical);
  column->addWidget(splitter, 1);
  heat_ = new Chart(tr("Load of each expert in each layer"));
  heat_->xAxis->setLabel(tr("expert"));
  heat_->yAxis->setLabel(tr("layer"));
  heatMap_ = colourMap(heat_, tr("load / mean"));
  edges_ = heat_->addGraph();
  busiest_ = heat_->addGraph();
  busiest_->setLineStyle(QCPGraph::lsNone);
  heatMap_->setName(tr("load"));
  edges_->setName(tr("edges of ranks"));
  busiest_->setName(tr("busiest rank"));
  splitter->addWidget(heat_);
  auto* bottom = new QSplitter;
  ranks_ = new Chart(tr("Load of each rank, before and after"));
  ranks_->xAxis->setLabel(tr("expert rank"));
  ranks_->yAxis->setLabel(tr("load over the mean"));
  ranks_->showLegend();
  ranks_->setZoomAxes(true, false);
  traffic_ = new Chart(tr("Traffic of one micro-batch and layer"));
  trafficMap_ = colourMap(traffic_, tr("MB"));
  trafficMap_->setName(tr("traffic"));
  for (Chart* c : {heat_, ranks_, traffic_}) c->countAlong(c->xAxis);
  for (Chart* c : {heat_, traffic_}) c->countAlong(c->yAxis);
  traffic_->xAxis->ticker()->setTickCount(4);
  // A few hot experts must not darken all others: the scale is logarithmic.
  heatMap_->setDataScaleType(QCPAxis::stLogarithmic);
  heatMap_->colorScale()->setDataScaleType(QCPAxis::stLogarithmic);
  heatMap_->colorScale()->axis()->setTicker(QSharedPointer<QCPAxisTickerLog>::create());
  model_ = new QStandardItemModel(0, 5, this);
  model_->setHorizontalHeaderLabels({tr("Expert"), tr("Load"), tr("Share"), tr("Rank"), tr("Slots")});
  table_ = new TableView(tr("Hot experts of the layer"));
  table_->setModel(model_);
  bottom->addWidget(ranks_);
  bottom->addWidget(traffic_);
  bottom->addWidget(table_);
  bottom->setSizes({360, 350, 290});
  splitter->addWidget(bottom);
  splitter->setSizes({400, 600});
  splitter->setChildrenCollapsible(false);
  for (QSpinBox* box : {layer_, replicas_}) connect(box, &QSpinBox::valueChanged, this, &ExpertsPage::request);
  connect(capacity_, &QDoubleSpinBox::valueChanged, this, &ExpertsPage::request);
  connect(degree_, &QComboBox::activated, this, &ExpertsPage::request);
  connect(map_, &QComboBox::activated, this, [this] { drawTraffic(); });
  connect(heatBox_, &QComboBox::currentIndexChanged, this, [this] { drawHeat(); });
  connect(heat_, &Chart::clicked, this, [this](double, double y) { layer_->setValue(static_cast<int>(std::lround(y))); });
  connect(session, &Session::estimateChanged, this, &ExpertsPage::request);
  heat_->setReadout([this](double x, double y) -> QString {
    const auto cell = std::lround(x);
    const auto at = std::find(view_.layers.begin(), view_.layers.end(), std::lround(y)) - view_.layers.begin();
    if (cell < 0 || cell >= heatMap_->data()->keySize() || at >= static_cast<std::ptrdiff_t>(view_.layers.size())) return {};
    const auto layer = static_cast<std::size_t>(at);
    const double load = heatMap_->data()->cell(static_cast<int>(cell), static_cast<int>(view_.layers[layer] - view_.layers.front()));
    const HeatMap map = heatMap();
    const auto expert = expertAt(view_, map, layer, cell);
    if (!expert) return tr("layer %1, rank %2: %3 x the mean rank").arg(view_.layers[layer]).arg(cell).arg(load, 0, 'f', 2);
    const std::int64_t each = heatMap_->data()->keySize() / view_.request.ranks;
    const auto& slots = view_.placements[layer].expert;
    const auto copies = map == HeatMap::slots_after ? std::count(slots.begin(), slots.end(), *expert) : 1;
    return tr("layer %1, expert %2%3 on rank %4: %5 x the mean expert").arg(view_.layers[layer]).arg(*expert).arg(copies > 1 ? tr(" (one of %1 replicas)").arg(copies) : QString()).arg(cell / std::max<std::int64_t>(1, each)).arg(load, 0, 'f', 2);
  });
  addPageAction(tr("Before or after the placement"), QKeySequence(tr("B")), [this] { heatBox_->setCurrentIndex(heatBox_->currentIndex() ^ 1); });
  addPageAction(tr("Next layer"), QKeySequence(tr("]")), [this] { layer_->stepUp(); });
  addPageAction(tr("Previous layer"), QKeySequence(tr("[")), [this] { layer_->stepDown(); });
}

bool ExpertsPage::open(const QString& file) {
  if (!file.endsWith(QLatin1String(".json"))) return false;
  Json json;
  try {
    json = load_json(file.toStdString());
  } catch (const InputError&) {
    return false;   // judged as a model, with the same line
  }
  if (!json.is_object() || !json.contains("distribution")) return false;
  Draft next = session_->draft();
  next.load = file.toStdString();
  (void)problem_of(session_->configs(), next);
  session_->edit(next, tr("open expert load"));
  return true;
}

void ExpertsPage::request() {
  if (filling_ || !session_->estimate()) return;
  const auto problem = session_->estimate()->problem;
  const std::optional<Plan> plan = session_->estimate()->ranked ? std::optional(session_->estimate()->ranked->plan) : std::nullopt;
  filling_ = true;
  const std::vector<std::int64_t> degrees = expertDegrees(*problem);
  QStringList texts;
  for (const std::int64_t d : degrees) texts << QString::number(d);
  QStringList now;
  for (int i = 0; i < degree_->count(); ++i) now << degree_->itemText(i);
  if (texts != now) {
    degree_->clear();
    degree_->addItems(texts);
    // A plan without expert parallelism still has a load to look at: shown for one rank a device of a node group.
    const std::int64_t ep = plan && plan->parallelism.ep > 1 ? plan->parallelism.ep : degrees.empty() ? 1 : std::min<std::int64_t>(64, degrees.back());
    degree_->setCurrentIndex(std::max(0, static_cast<int>(texts.indexOf(QString::number(ep)))));
    layer_->setRange(0, static_cast<int>(problem->model.layers.size()) - 1);
  }
  filling_ = false;
  const int layer = layer_->value();
  const ExpertRequest wanted{.layer = 0, .ranks = degree_->currentText().toLongLong(), .replicas = replicas_->value(), .capacity = capacity_->value()};
  job_->start([problem, plan, wanted, layer](const Ticket&) {
                ExpertRequest r = wanted;
                // From a decoder layer to its place among the MoE layers.
                const ExpertView probe = expertView(*problem, nullptr, {});
                r.layer = std::lower_bound(probe.layers.begin(), probe.layers.end(), layer) - probe.layers.begin();
                return expertView(*problem, plan ? &*plan : nullptr, r);
              },
              [this](ExpertView v) { take(std::move(v)); }, [this](const InputError& e) { told_->setText(QString::fromUtf8(e.what()).toHtmlEscaped()); });
}

void ExpertsPage::take(ExpertView view) {
  view_ = std::move(view);
  const bool any = !view_.shares.empty();
  for (Chart* c : {heat_, ranks_, traffic_}) c->setEmptyText(any ? QString() : tr("this model has no experts"));
  model_->setRowCount(0);
  ranks_->clearPlottables();
  if (!any) {
    told_->setText(tr("This model has no experts."));
    heatMap_->data()->clear();
    edges_->data()->clear();
    busiest_->data()->clear();
    trafficMap_->data()->clear();
    for (Chart* c : {heat_, ranks_, traffic_}) c->replot();
    return;
  }
  const auto layer = static_cast<std::size_t>(view_.request.layer);
  const Shares& shares = view_.shares[layer];
  const auto experts = static_cast<double>(view_.experts);
  const std::int64_t ranks = view_.request.ranks;
  filling_ = true;
  layer_->setValue(static_cast<int>(view_.layers[layer]));
  filling_ = false;
  drawHeat();

  QVector<double> x;
  for (std::int64_t r = 0; r < ranks; ++r) x << static_cast<double>(r);
  const auto line = [&](const std::vector<double>& values, const QString& name, int colour, Qt::PenStyle style, QCPScatterStyle::ScatterShape shape) {
    QCPGraph* g = ranks_->addGraph();
    g->setName(name);
    g->setLineStyle(QCPGraph::lsStepCenter);
    const qreal unit = fontMetrics().height() / 15.0;
    g->setPen(QPen(seriesColour(colour, palette()), 2 * unit, style));
    g->setScatterStyle(QCPScatterStyle(shape, (ranks > 64 ? 3 : 6) * unit));
    g->setData(x, QVector<double>(values.begin(), values.end()), true);
  };
  line(view_.before, tr("before: %1").arg(*std::max_element(view_.before.begin(), view_.before.end()), 0, 'f', 2), 3, Qt::DashLine, QCPScatterStyle::ssCross);
  line(view_.after, tr("after: %1").arg(*std::max_element(view_.after.begin(), view_.after.end()), 0, 'f', 2), 0, Qt::SolidLine, QCPScatterStyle::ssDisc);
  ranks_->setFitter([this, ranks] { ranks_->rescaleAxes(true); ranks_->xAxis->setRange(-0.7, static_cast<double>(ranks) - 0.3); ranks_->yAxis->setRange(0, 1.1 * ranks_->yAxis->range().upper); });
  ranks_->fit();

  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return shares[a] > shares[b]; });
  for (std::size_t i = 0; i < std::min<std::size_t>(64, order.size()); ++i) {
    const std::size_t e = order[i];
    const auto slots = std::count(view_.placements[layer].expert.begin(), view_.placements[layer].expert.end(), static_cast<std::int64_t>(e));
    QList<QStandardItem*> row;
    const std::array<double, 5> numbers{static_cast<double>(e), shares[e] * experts, shares[e], static_cast<double>(static_cast<std::int64_t>(e) * ranks / view_.experts), static_cast<double>(slots)};
    for (const QString& text : {QString::number(e), QStringLiteral("%1 x").arg(shares[e] * experts, 0, 'f', 2), QString::fromStdString(percent(shares[e])), QString::number(numbers[3]), QString::number(slots)}) {
      auto* item = new QStandardItem(text);
      item->setEditable(false);
      item->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
      item->setData(numbers[static_cast<std::size_t>(row.size())], kNumberRole);
      row << item;
    }
    model_->appendRow(row);
  }
  table_->fitColumns();
  QString told = tr("Layer %1: busiest of %2 ranks %3 x the mean, %4 x after balancing%5; over all %6 MoE layers %7 and %8.")
                     .arg(view_.layers[layer]).arg(ranks).arg(*std::max_element(view_.before.begin(), view_.before.end()), 0, 'f', 2).arg(*std::max_element(view_.after.begin(), view_.after.end()), 0, 'f', 2)
                     .arg(view_.request.replicas ? tr(" with %1 replicas").arg(view_.request.replicas) : QString()).arg(view_.layers.size()).arg(view_.worstBefore, 0, 'f', 2).arg(view_.worstAfter, 0, 'f', 2);
  if (view_.request.capacity > 0) told += tr(" Capacity factor %1 drops %2 of the layer's assignments.").arg(view_.request.capacity).arg(QString::fromStdString(percent(view_.dropped)));
  if (session_->estimate() && session_->estimate()->ranked && session_->estimate()->ranked->plan.parallelism.ep == 1) told += tr(" The selected plan itself keeps the experts of a layer together (EP 1): this is what expert parallelism would see.");
  told_->setText(told);
  drawTraffic();
}

bool ExpertsPage::busy() const { return job_->running(); }
HeatMap ExpertsPage::heatMap() const { return static_cast<HeatMap>(heatBox_->currentIndex()); }
void ExpertsPage::setHeatMap(HeatMap map) { heatBox_->setCurrentIndex(static_cast<int>(map)); }

void ExpertsPage::drawHeat() {
  if (view_.shares.empty()) return;
  const HeatMap map = heatMap();
  const auto cells = heatCells(view_, map);
  const auto width = static_cast<int>(cells.front().size());
  const int first = static_cast<int>(view_.layers.front()), last = static_cast<int>(view_.layers.back());
  QCPColorMapData* grid = heatMap_->data();
  grid->setSize(width, last - first + 1);
  // QCustomPlot spreads n cells over n - 1 gaps; one cell alone needs a width of its own.
  grid->setRange(QCPRange(0, std::max(1, width - 1)), QCPRange(first, std::max(first + 1, last)));
  grid->fill(0);
  for (std::size_t l = 0; l < cells.size(); ++l)
    for (int c = 0; c < width; ++c) grid->setCell(c, static_cast<int>(view_.layers[l]) - first, cells[l][static_cast<std::size_t>(c)]);
  // One scale for before and after, so that a colour means the same load in both.
  double low = 1e300, high = 2;
  const bool ofRanks = map == HeatMap::ranks_before || map == HeatMap::ranks_after;
  for (const auto& row : ofRanks ? heatCells(view_, HeatMap::ranks_before) : heatCells(view_, HeatMap::experts_before))
    for (const double v : row) low = std::min(low, v), high = std::max(high, v);
  heatMap_->setDataRange(QCPRange(std::clamp(low, high / 1000, 0.5), high));
  heat_->xAxis->setLabel(map == HeatMap::experts_before ? tr("expert") : map == HeatMap::slots_after ? tr("slot") : tr("rank"));
  heatMap_->colorScale()->axis()->setLabel(ofRanks ? tr("load / mean rank") : tr("load / mean expert"));
  // Lines between ranks, while they leave room for what is between them; a ring on each layer's busiest rank.
  const auto ranks = static_cast<int>(view_.request.ranks);
  const double each = static_cast<double>(width) / ranks;
  QVector<double> x, y, bx, by;
  if (!ofRanks && ranks > 1 && heat_->width() > 6 * ranks)
    for (int r = 1; r < ranks; ++r)
      for (const double v : {first - 0.5, last + 0.5, std::numeric_limits<double>::quiet_NaN()}) x << r * each - 0.5, y << v;
  const qreal unit = fontMetrics().height() / 15.0;
  edges_->setPen(QPen(QColor(255, 255, 255, 150), unit));
  edges_->setData(x, y, true);
  const bool after = map == HeatMap::slots_after || map == HeatMap::ranks_after;
  const auto loads = heatCells(view_, after ? HeatMap::ranks_after : HeatMap::ranks_before);
  for (std::size_t l = 0; l < loads.size() && ranks > 1; ++l) {
    const auto most = std::max_element(loads[l].begin(), loads[l].end()) - loads[l].begin();
    bx << (static_cast<double>(most) + 0.5) * each - 0.5;
    by << static_cast<double>(view_.layers[l]);
  }
  busiest_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssCircle, QPen(Qt::white, 1.5 * unit), Qt::NoBrush, 6 * unit));
  busiest_->setData(bx, by);
  heat_->setFitter([this, width, first, last] { heat_->xAxis->setRange(-0.5, width - 0.5); heat_->yAxis->setRange(first - 0.5, last + 0.5); });
  heat_->fit();
}

void ExpertsPage::drawTraffic() {
  if (view_.shares.empty()) return;
  const auto ranks = static_cast<int>(view_.request.ranks);
  const int perNode = session_->estimate() ? static_cast<int>(session_->estimate()->problem->cluster.devices_per_node) : 8;
  const int nodes = (ranks + perNode - 1) / perNode;
  const double sent = view_.copies * view_.bytesPerCopy / 1e6 / ranks;   // MB from one rank to a rank of mean load
  const int what = map_->currentIndex();
  QCPColorMapData* cells = trafficMap_->data();
  const auto labels = [&](const QString& x, const QString& y, const QString& unit) {
    traffic_->xAxis->setLabel(x);
    traffic_->yAxis->setLabel(y);
    trafficMap_->colorScale()->axis()->setLabel(unit);
  };
  // QCustomPlot spreads n cells over n - 1 gaps; one cell alone needs a width of its own.
  const auto size = [&](int nx, int ny) {
    cells->setSize(nx, ny);
    cells->setRange(QCPRange(0, std::max(1, nx - 1)), QCPRange(0, std::max(1, ny - 1)));
    traffic_->setFitter([this, nx, ny] { traffic_->xAxis->setRange(-0.5, nx - 0.5); traffic_->yAxis->setRange(-0.5, ny - 0.5); });
  };
  const std::vector<double>& load = view_.after;
  if (what == 0) {
    size(ranks, ranks);
    for (int i = 0; i < ranks; ++i)
      for (int j = 0; j < ranks; ++j) cells->setCell(j, i, i == j ? 0 : sent * load[static_cast<std::size_t>(j)]);
    labels(tr("to rank"), tr("from rank"), tr("dispatch [MB]"));
  } else if (what == 1) {
    size(nodes, nodes);
    cells->fill(0);
    for (int i = 0; i < ranks; ++i)
      for (int j = 0; j < ranks; ++j)
        if (i / perNode != j / perNode) cells->setCell(j / perNode, i / perNode, cells->cell(j / perNode, i / perNode) + sent * load[static_cast<std::size_t>(j)]);
    labels(tr("to node"), tr("from node"), tr("dispatch [MB]"));
  } else {
    size(perNode, nodes);
    cells->fill(0);
    for (int r = 0; r < ranks; ++r) cells->setCell(r % perNode, r / perNode, load[static_cast<std::size_t>(r)]);
    labels(tr("device of the node"), tr("node"), tr("load over the mean"));
  }
  traffic_->setReadout([this](double x, double y) -> QString {
    const QCPColorMapData* d = trafficMap_->data();
    const auto i = static_cast<int>(std::lround(x)), j = static_cast<int>(std::lround(y));
    if (i < 0 || j < 0 || i >= d->keySize() || j >= d->valueSize()) return {};
    return QStringLiteral("%1 %2, %3 %4\n%5: %6").arg(traffic_->yAxis->label()).arg(j).arg(traffic_->xAxis->label()).arg(i).arg(trafficMap_->colorScale()->axis()->label()).arg(const_cast<QCPColorMapData*>(d)->cell(i, j), 0, 'g', 4);
  });
  trafficMap_->rescaleDataRange(true);
  traffic_->fit();
}

std::vector<Drawing> ExpertsPage::drawings() {
  const auto plot = [](const QString& name, Chart* chart) { return Drawing{name, chart, [chart](QPainter& painter, const QSize& size) { chart->toPainter(static_cast<QCPPainter*>(&painter), size.width(), size.height()); }}; };
  return {plot(tr("expert load"), heat_), plot(tr("rank load"), ranks_), plot(tr("traffic"), traffic_)};
}

std::vector<NamedTable> ExpertsPage::tables() { return {{tr("hot experts"), table_}}; }
QWidget* ExpertsPage::start() { return heat_; }

}  // namespace moeplan::gui
