#include "gui/widgets/pareto_chart.hpp"

#include <cmath>
#include <limits>
#include <numeric>

#include "gui/app/theme.hpp"

namespace moeplan::gui {

ParetoChart::ParetoChart(QWidget* parent) : Chart(tr("Plans on two axes"), parent), x_(planColumn(tr("Step"))), y_(planColumn(tr("Peak"))) {
  const auto add = [&](const QString& name) {
    QCPGraph* graph = addGraph();
    graph->setName(name);
    graph->setLineStyle(QCPGraph::lsNone);
    graph->setSelectable(QCP::stNone);
    return graph;
  };
  all_ = add(tr("plans"));
  best_ = add(tr("best on these axes"));
  front_ = add(tr("Pareto front of speed and memory"));
  pinned_ = add(tr("A (pinned)"));
  selected_ = add(tr("selected"));
  showLegend();
  connect(this, &QCustomPlot::beforeReplot, this, &ParetoChart::thin);
  setEmptyText(tr("searching …"));
  setReadout([this](double x, double y) -> QString {
    const int plan = planNear(x, y);
    if (plan < 0 || !model_) return {};
    const RankedPlan& r = model_->result()->answer.plans[static_cast<std::size_t>(plan)];
    const auto& columns = planColumns();
    QString out = tr("plan %1: %2").arg(plan + 1).arg(columns[1].text(r, *model_->result()->problem));
    for (const int c : {x_, y_}) out += QStringLiteral("\n%1 %2").arg(columns[static_cast<std::size_t>(c)].title, columns[static_cast<std::size_t>(c)].text(r, *model_->result()->problem));
    return out;
  });
}

double ParetoChart::scaled(const PlanColumn& column, double v) { return column.unit == QLatin1String("GB") ? v / 1e9 : column.unit == QLatin1String("%") ? 100 * v : v; }

QVector<double> ParetoChart::shownColumn(int column) const {
  QVector<double> out;
  out.reserve(static_cast<qsizetype>(model_->order().size()));
  const auto& values = model_->column(column);
  const PlanColumn& c = planColumns()[static_cast<std::size_t>(column)];
  for (const int plan : model_->order()) out << scaled(c, values[static_cast<std::size_t>(plan)]);
  return out;
}

void ParetoChart::setAxes(int xColumn, int yColumn) {
  x_ = xColumn;
  y_ = yColumn;
}

void ParetoChart::setModel(const PlansModel* model) { model_ = model; }

void ParetoChart::refresh(int selectedPlan, const std::optional<RankedPlan>& pinned) {
  const auto& columns = planColumns();
  const PlanColumn &cx = columns[static_cast<std::size_t>(x_)], &cy = columns[static_cast<std::size_t>(y_)];
  xAxis->setLabel(QStringLiteral("%1 [%2]").arg(cx.title, cx.unit));
  yAxis->setLabel(QStringLiteral("%1 [%2]").arg(cy.title, cy.unit));
  for (QCPGraph* g : {all_, best_, front_, selected_, pinned_}) g->data()->clear();
  const bool any = model_ && model_->result() && !model_->order().empty();
  const bool nothing = model_ && model_->result() && model_->result()->answer.plans.empty();
  setEmptyText(any ? QString() : nothing ? tr("no plan fits") : model_ && model_->result() ? tr("no plan passes the filter") : tr("searching …"));
  const QPalette p = palette();
  const qreal em = fontMetrics().height();
  QColor dot = mutedColour(p);
  dot.setAlpha(140);
  all_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, QPen(dot), dot, em / 3));
  best_->setPen(QPen(seriesColour(0, p), em / 9));
  front_->setPen(Qt::NoPen);
  front_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssSquare, QPen(seriesColour(0, p), 1.5), seriesColour(0, p), em / 2));
  selected_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssCircle, QPen(seriesColour(3, p), em / 5), Qt::NoBrush, em * 0.85));
  pinned_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDiamond, QPen(seriesColour(2, p), em / 6), Qt::NoBrush, em * 0.85));
  if (!any) xs_.clear(), ys_.clear();
  if (any) {
    xs_ = shownColumn(x_), ys_ = shownColumn(y_);
    const QVector<double>&xs = xs_, &ys = ys_;
    QVector<double> fx, fy;
    for (qsizetype i = 0; i < xs.size(); ++i)
      if (model_->onFront(model_->order()[static_cast<std::size_t>(i)])) fx << xs[i], fy << ys[i];
    front_->setData(fx, fy);
    drawBest(xs, ys, cx.lowerIsBetter, cy.lowerIsBetter);
    // Ranges above a factor of 100 get a logarithmic axis.
    for (auto [axis, values] : {std::pair{xAxis, &xs}, std::pair{yAxis, &ys}}) {
      const auto [low, high] = std::minmax_element(values->begin(), values->end());
      const bool logarithmic = *low > 0 && *high / *low > 100;
      axis->setScaleType(logarithmic ? QCPAxis::stLogarithmic : QCPAxis::stLinear);
      axis->setTicker(logarithmic ? QSharedPointer<QCPAxisTicker>(new QCPAxisTickerLog) : QSharedPointer<QCPAxisTicker>(new QCPAxisTicker));
    }
  }
  mark(selectedPlan, pinned);
  setFitter([this, any] {
    if (!any) return;
    for (auto [axis, values] : {std::pair{xAxis, &xs_}, std::pair{yAxis, &ys_}}) {
      double low = std::numeric_limits<double>::infinity(), high = -low;   // a QCPRange would order them
      for (const double v : *values)
        if (!std::isnan(v)) low = std::min(low, v), high = std::max(high, v);
      if (low > high) continue;
      QCPRange range(low, high);
      if (axis->scaleType() == QCPAxis::stLogarithmic) range.lower /= 1.2, range.upper *= 1.2;
      else if (range.lower == range.upper) range.lower -= 0.5, range.upper += 0.5;
      axis->setRange(range);
      if (axis->scaleType() == QCPAxis::stLinear) axis->scaleRange(1.1);
    }
  });
}

void ParetoChart::mark(int selectedPlan, const std::optional<RankedPlan>& pinned) {
  for (QCPGraph* g : {selected_, pinned_}) g->data()->clear();
  if (!model_ || !model_->result()) return;
  const PlanColumn &cx = planColumns()[static_cast<std::size_t>(x_)], &cy = planColumns()[static_cast<std::size_t>(y_)];
  const auto point = [&](QCPGraph* graph, const RankedPlan& r) {
    const auto x = cx.number(r, *model_->result()->problem), y = cy.number(r, *model_->result()->problem);
    if (x && y) graph->addData(scaled(cx, *x), scaled(cy, *y));
  };
  if (selectedPlan >= 0) point(selected_, model_->result()->answer.plans[static_cast<std::size_t>(selectedPlan)]);
  if (pinned) point(pinned_, *pinned);
}

/// Points that would cover each other are drawn once: 100,000 of them would take longer than a frame. Brush and read-out know all.
void ParetoChart::thin() {
  constexpr int kCell = 3;   // pixels, less than a mark
  const QRect area = axisRect()->rect();
  const int wide = area.width() / kCell + 1, high = area.height() / kCell + 1;
  if (xs_.isEmpty() || area.isEmpty()) return all_->data()->clear();
  std::vector<bool> taken(static_cast<std::size_t>(wide) * static_cast<std::size_t>(high));
  QVector<QCPGraphData> kept;
  for (qsizetype i = 0; i < xs_.size(); ++i) {
    const double px = xAxis->coordToPixel(xs_[i]) - area.left(), py = yAxis->coordToPixel(ys_[i]) - area.top();
    if (!(px >= 0 && py >= 0 && px < area.width() && py < area.height())) continue;
    const auto cell = static_cast<std::size_t>(py) / kCell * static_cast<std::size_t>(wide) + static_cast<std::size_t>(px) / kCell;
    if (taken[cell]) continue;
    taken[cell] = true;
    kept << QCPGraphData(xs_[i], ys_[i]);
  }
  all_->data()->set(kept, false);
}

/// What no visible plan beats on both chosen axes, as a staircase: between two of its plans the worse one is what can be had.
void ParetoChart::drawBest(const QVector<double>& xs, const QVector<double>& ys, bool lowX, bool lowY) {
  std::vector<qsizetype> order(static_cast<std::size_t>(xs.size()));
  std::iota(order.begin(), order.end(), qsizetype{0});
  std::erase_if(order, [&](qsizetype i) { return std::isnan(xs[i]) || std::isnan(ys[i]); });
  const auto better = [](double a, double b, bool low) { return low ? a < b : a > b; };
  std::sort(order.begin(), order.end(), [&](qsizetype a, qsizetype b) { return xs[a] != xs[b] ? better(xs[a], xs[b], lowX) : better(ys[a], ys[b], lowY); });
  QVector<double> x, y;
  for (const qsizetype i : order)
    if (y.isEmpty() || better(ys[i], y.back(), lowY)) x << xs[i], y << ys[i];
  best_->setLineStyle(lowX ? QCPGraph::lsStepLeft : QCPGraph::lsStepRight);
  best_->setData(x, y);
}

int ParetoChart::planNear(double x, double y) const {
  if (!model_ || !model_->result()) return -1;
  const double px = xAxis->coordToPixel(x), py = yAxis->coordToPixel(y);
  const auto &xs = model_->column(x_), &ys = model_->column(y_);
  const PlanColumn &cx = planColumns()[static_cast<std::size_t>(x_)], &cy = planColumns()[static_cast<std::size_t>(y_)];
  int best = -1;
  double nearest = fontMetrics().height();
  for (const int plan : model_->order()) {
    const auto i = static_cast<std::size_t>(plan);
    const double d = std::hypot(xAxis->coordToPixel(scaled(cx, xs[i])) - px, yAxis->coordToPixel(scaled(cy, ys[i])) - py);
    if (d < nearest) nearest = d, best = plan;
  }
  return best;
}

std::vector<int> ParetoChart::plansIn(const QRectF& area) const {
  std::vector<int> out;
  if (!model_ || !model_->result()) return out;
  const auto &xs = model_->column(x_), &ys = model_->column(y_);
  const PlanColumn &cx = planColumns()[static_cast<std::size_t>(x_)], &cy = planColumns()[static_cast<std::size_t>(y_)];
  for (const int plan : model_->order())
    if (area.contains(scaled(cx, xs[static_cast<std::size_t>(plan)]), scaled(cy, ys[static_cast<std::size_t>(plan)]))) out.push_back(plan);
  return out;
}

}  // namespace moeplan::gui
