#include "gui/pages/plans_page.hpp"

#include <QComboBox>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QPushButton>
#include <QSplitter>
#include <QTabWidget>
#include <QTextBrowser>
#include <QVBoxLayout>

#include "core/show.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/plans_model.hpp"
#include "gui/models/why_not.hpp"
#include "gui/widgets/pareto_chart.hpp"
#include "gui/widgets/table_view.hpp"

namespace moeplan::gui {

PlansPage::PlansPage(Session* session, QWidget* parent)
    : Page(session, tr("Plans"), tr("Every plan that fits, on two axes and in a table; why a plan is not the first; the rejected ones by rule"), parent) {
  auto* column = new QVBoxLayout(this);
  auto* bar = new QHBoxLayout;
  column->addLayout(bar);
  const auto axis = [&](const QString& label, const QString& first) {
    auto* box = new QComboBox;
    for (const PlanColumn& c : planColumns())
      if (c.axis) box->addItem(c.unit.isEmpty() ? c.title : QStringLiteral("%1 [%2]").arg(c.title, c.unit), planColumn(c.title));
    box->setCurrentIndex(box->findData(planColumn(first)));
    box->setAccessibleName(label);
    auto* text = new QLabel(label);
    text->setBuddy(box);
    bar->addWidget(text);
    bar->addWidget(box);
    connect(box, &QComboBox::currentIndexChanged, this, [this] { refreshChart(true); });
    return box;
  };
  x_ = axis(tr("Across"), tr("Step"));
  y_ = axis(tr("Up"), tr("Peak"));
  bar->addSpacing(fontMetrics().height());
  auto* filterLabel = new QLabel(tr("Filter"));
  filter_ = new QLineEdit;
  filter_->setPlaceholderText(tr("e.g.  ep64 peak<120 step<=45 front"));
  filter_->setToolTip(tr("Words that must all match: a degree (ep64), a recompute or storage name, \"front\", or a column with <, <=, >, >=, = and a number in the column's unit"));
  filter_->setAccessibleName(tr("Filter of plans"));
  filter_->setClearButtonEnabled(true);
  filterLabel->setBuddy(filter_);
  bar->addWidget(filterLabel);
  bar->addWidget(filter_, 1);
  count_ = new QLabel;
  count_->setAccessibleName(tr("Number of plans"));
  bar->addWidget(count_);
  problem_ = new QLabel;
  problem_->setWordWrap(true);
  problem_->hide();
  column->addWidget(problem_);

  auto* splitter = new QSplitter(Qt::Vertical);
  column->addWidget(splitter, 1);
  auto* top = new QSplitter;
  model_ = new PlansModel(this);
  rejected_ = new RejectedModel(this);
  chart_ = new ParetoChart;
  chart_->setModel(model_);
  top->addWidget(chart_);
  auto* tabs = new QTabWidget;
  why_ = new QTextBrowser;
  why_->setAccessibleName(tr("Why not this one"));
  why_->setFrameShape(QFrame::NoFrame);
  tabs->addTab(why_, tr("Why not this one"));
  rejectedTable_ = new TableView(tr("Rejected candidates by rule"));
  rejectedTable_->setModel(rejected_);
  tabs->addTab(rejectedTable_, tr("Rejected"));
  tabs->setMinimumWidth(fontMetrics().averageCharWidth() * 44);
  top->addWidget(tabs);
  top->setSizes({700, 300});
  splitter->addWidget(top);
  table_ = new TableView(tr("Plans"));
  table_->setModel(model_);
  table_->setSortingEnabled(true);
  table_->horizontalHeader()->setSortIndicator(0, Qt::AscendingOrder);
  for (std::size_t c = 0; c < planColumns().size(); ++c)
    if (!planColumns()[c].shown) table_->setColumnShown(static_cast<int>(c), false);
  splitter->addWidget(table_);
  splitter->setStretchFactor(0, 3);
  splitter->setStretchFactor(1, 2);
  splitter->setChildrenCollapsible(false);

  connect(filter_, &QLineEdit::textChanged, this, &PlansPage::applyFilter);
  connect(table_->selectionModel(), &QItemSelectionModel::currentRowChanged, this, [this](const QModelIndex& now) {
    if (!following_ && now.isValid()) session_->select(model_->planAt(now.row()));
  });
  connect(chart_, &Chart::clicked, this, [this](double x, double y) {
    if (const int plan = chart_->planNear(x, y); plan >= 0) session_->select(plan);
  });
  connect(chart_, &Chart::brushed, this, [this](const QRectF& area) { brush(chart_->plansIn(area)); });
  connect(table_->selectionModel(), &QItemSelectionModel::selectionChanged, this, [this] {
    // Counted by ranges of whole rows: a list of 100,000 rows takes a frame to make.
    qsizetype rows = 0;
    for (const QItemSelectionRange& range : table_->selectionModel()->selection()) rows += range.height();
    const qsizetype all = model_->rowCount();
    count_->setText(rows > 1 ? tr("%L1 of %L2 plans selected").arg(rows).arg(all) : tr("%L1 plans").arg(all));
  });
  connect(session, &Session::resultChanged, this, &PlansPage::takeResult);
  connect(session, &Session::selectionChanged, this, &PlansPage::refreshSelection);
  connect(session, &Session::pinnedChanged, this, [this] {
    model_->setPinned(session_->pinned());
    chart_->mark(session_->selected(), session_->pinned());
    chart_->replot(QCustomPlot::rpQueuedReplot);
    refreshWhy();
  });
  const auto stale = [this] {
    const bool on = session_->resultStale() || session_->searching();
    table_->setEnabled(true);
    problem_->setVisible(session_->resultStale());
    problem_->setText(tr("<span style='color:%1'>▲ stale: these plans belong to the inputs before the last change%2</span>").arg(warnColour(palette()).name(), session_->searching() ? tr("; searching …") : tr("; Ctrl+R searches")));
    if (on && !session_->result()) count_->setText(session_->searching() ? tr("searching …") : QString());
  };
  connect(session, &Session::draftChanged, this, stale);
  connect(session, &Session::searchChanged, this, stale);
  connect(session, &Session::resultChanged, this, stale);
  addPageAction(tr("Filter plans"), QKeySequence(tr("Ctrl+F")), [this] { filter_->setFocus(); filter_->selectAll(); });
  addPageAction(tr("Next plan"), QKeySequence(tr(".")), [this] { if (session_->selected() >= 0) { const int r = model_->rowOf(session_->selected()) + 1; if (r > 0 && r < model_->rowCount()) session_->select(model_->planAt(r)); } });
  addPageAction(tr("Previous plan"), QKeySequence(tr(",")), [this] { const int r = model_->rowOf(session_->selected()) - 1; if (r >= 0) session_->select(model_->planAt(r)); });
  refreshChart(false);
}

void PlansPage::takeResult() {
  following_ = true;
  model_->setResult(session_->result());
  rejected_->setResult(session_->result());
  table_->fitColumns();
  rejectedTable_->fitColumns();
  following_ = false;
  count_->setText(tr("%L1 plans").arg(model_->rowCount()));
  if (session_->result()) count_->setToolTip(tr("%L1 searched in %2 s, %L3 fit").arg(session_->result()->answer.searched).arg(session_->result()->seconds, 0, 'f', 1).arg(session_->result()->answer.feasible));
  refreshChart(true);
  refreshSelection();
}

void PlansPage::refreshChart(bool fit) {
  chart_->setAxes(x_->currentData().toInt(), y_->currentData().toInt());
  chart_->refresh(session_->selected(), session_->pinned());
  if (fit) chart_->fit();
  else chart_->replot(QCustomPlot::rpQueuedReplot);
}

void PlansPage::refreshSelection() {
  following_ = true;
  const int row = model_->rowOf(session_->selected());
  if (row >= 0 && table_->currentIndex().row() != row) {
    table_->setCurrentIndex(model_->index(row, 0));
    table_->scrollTo(model_->index(row, 0));
  }
  following_ = false;
  chart_->mark(session_->selected(), session_->pinned());
  chart_->replot(QCustomPlot::rpQueuedReplot);
  refreshWhy();
}

void PlansPage::refreshWhy() { why_->setHtml(why()); }

QString PlansPage::why() const {
  const auto& result = session_->result();
  if (!result) return tr("The search has not ended yet.");
  if (result->answer.infeasible) {
    const Infeasible& no = *result->answer.infeasible;
    QString out = tr("<b>Nothing fits.</b><br>%1: the closest plan needs %2, there are %3.<br>Largest:").arg(QString::fromStdString(no.binding), QString::fromStdString(human(no.need)), QString::fromStdString(human(no.have)));
    for (const auto& each : no.largest) out += QStringLiteral(" %1 %2;").arg(QString::fromStdString(each.name), QString::fromStdString(human(each.bytes)));
    return out + tr("<br>What would do: %1").arg(QString::fromStdString(no.nearest_fix).toHtmlEscaped());
  }
  return whyNot(*result, session_->selected(), session_->pinned());
}

void PlansPage::applyFilter() {
  following_ = true;
  const QString bad = model_->setFilter(filter_->text());
  following_ = false;
  problem_->setVisible(!bad.isEmpty() || session_->resultStale());
  if (!bad.isEmpty()) {
    problem_->setText(tr("<span style='color:%1'>✘ filter: \"%2\" means nothing; write a column, a comparison and a number (peak&lt;120), a degree (ep64) or a name</span>").arg(badColour(palette()).name(), bad.toHtmlEscaped()));
    return;
  }
  count_->setText(tr("%L1 plans").arg(model_->rowCount()));
  refreshChart(false);
  refreshSelection();
}

void PlansPage::brush(const std::vector<int>& plans) {
  // Qt compares every range of the old selection with every range of the new one: with thousands of them it would be at it for seconds.
  constexpr std::size_t kRanges = 200;
  following_ = true;
  table_->clearSelection();
  model_->setFirst({});
  std::vector<int> rows;
  for (const int plan : plans) rows.push_back(model_->rowOf(plan));
  std::sort(rows.begin(), rows.end());
  std::vector<std::pair<int, int>> ranges;
  for (const int row : rows) {
    if (ranges.empty() || ranges.back().second + 1 != row) ranges.emplace_back(row, row);
    ranges.back().second = row;
  }
  if (ranges.size() > kRanges) {
    model_->setFirst(plans);   // together at the top, still in the table's order
    ranges = {{0, static_cast<int>(plans.size()) - 1}};
  }
  QItemSelection selection;
  for (const auto& [first, last] : ranges) selection.append(QItemSelectionRange(model_->index(first, 0), model_->index(last, model_->columnCount() - 1)));
  table_->selectionModel()->select(selection, QItemSelectionModel::ClearAndSelect);
  if (!ranges.empty()) table_->scrollTo(model_->index(ranges.front().first, 0));
  following_ = false;
}

std::vector<Drawing> PlansPage::drawings() {
  return {{tr("plans"), chart_, [this](QPainter& painter, const QSize& size) { auto* p = static_cast<QCPPainter*>(&painter); chart_->toPainter(p, size.width(), size.height()); }}};
}

std::vector<NamedTable> PlansPage::tables() { return {{tr("plans"), table_}, {tr("rejected"), rejectedTable_}}; }
QWidget* PlansPage::start() { return table_; }

}  // namespace moeplan::gui
