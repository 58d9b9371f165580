#include "gui/widgets/pareto_chart.hpp"

#include <cmath>

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
  front_ = add(tr("Pareto front"));
  front_->setLineStyle(QCPGraph::lsStepLeft);
  pinned_ = add(tr("A (pinned)"));
  selected_ = add(tr("selected"));
  showLegend();
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
  for (QCPGraph* g : {all_, front_, selected_, pinned_}) g->data()->clear();
  const bool any = model_ && model_->result() && !model_->order().empty();
  const bool nothing = model_ && model_->result() && model_->result()->answer.plans.empty();
  setEmptyText(any ? QString() : nothing ? tr("no plan fits") : model_ && model_->result() ? tr("no plan passes the filter") : tr("searching …"));
  const QPalette p = palette();
  const qreal em = fontMetrics().height();
  QColor dot = mutedColour(p);
  dot.setAlpha(140);
  all_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, QPen(dot), dot, em / 3));
  front_->setPen(QPen(seriesColour(0, p), 2));
  front_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssSquare, QPen(seriesColour(0, p), 1.5), seriesColour(0, p), em / 2));
  selected_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssCircle, QPen(seriesColour(3, p), 3), Qt::NoBrush, em));
  pinned_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDiamond, QPen(seriesColour(2, p), 2.5), Qt::NoBrush, em));
  if (any) {
    const QVector<double> xs = shownColumn(x_), ys = shownColumn(y_);
    all_->setData(xs, ys);
    QVector<double> fx, fy;
    for (qsizetype i = 0; i < xs.size(); ++i)
      if (model_->onFront(model_->order()[static_cast<std::size_t>(i)])) fx << xs[i], fy << ys[i];
    front_->setData(fx, fy);
    const auto point = [&](QCPGraph* graph, const RankedPlan& r) {
      const auto x = cx.number(r, *model_->result()->problem), y = cy.number(r, *model_->result()->problem);
      if (x && y) graph->addData(scaled(cx, *x), scaled(cy, *y));
    };
    if (selectedPlan >= 0) point(selected_, model_->result()->answer.plans[static_cast<std::size_t>(selectedPlan)]);
    if (pinned) point(pinned_, *pinned);
    // Ranges above a factor of 100 get a logarithmic axis.
    for (auto [axis, values] : {std::pair{xAxis, &xs}, std::pair{yAxis, &ys}}) {
      const auto [low, high] = std::minmax_element(values->begin(), values->end());
      const bool logarithmic = *low > 0 && *high / *low > 100;
      axis->setScaleType(logarithmic ? QCPAxis::stLogarithmic : QCPAxis::stLinear);
      axis->setTicker(logarithmic ? QSharedPointer<QCPAxisTicker>(new QCPAxisTickerLog) : QSharedPointer<QCPAxisTicker>(new QCPAxisTicker));
    }
  }
  setFitter([this, any] {
    if (!any) return;
    rescaleAxes();
    for (QCPAxis* axis : {xAxis, yAxis})
      if (axis->scaleType() == QCPAxis::stLinear) axis->scaleRange(1.1);
  });
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
