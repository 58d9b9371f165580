#include "gui/pages/run_page.hpp"

#include <QComboBox>
#include <QFileInfo>
#include <QGridLayout>
#include <QLabel>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QSplitter>
#include <QStandardItemModel>
#include <QTabWidget>
#include <QToolButton>
#include <cmath>

#include "core/show.hpp"
#include "gui/app/export.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/run_model.hpp"
#include "gui/models/session.hpp"
#include "gui/widgets/chart.hpp"
#include "gui/widgets/table_view.hpp"

namespace moeplan::gui {

RunPage::RunPage(Session* session, QString program, QWidget* parent)
    : Page(session, tr("Run"), tr("Run the plan or calibrate this machine in a child process, and watch it beside the forecast"), parent), program_(std::move(program)) {
  auto* column = new QVBoxLayout(this);
  auto* bar = new QHBoxLayout;
  column->addLayout(bar);
  what_ = new QComboBox;
  what_->addItems({tr("run the selected plan"), tr("calibrate this machine")});
  what_->setAccessibleName(tr("What to start"));
  arguments_ = new QLineEdit;
  arguments_->setAccessibleName(tr("Options"));
  arguments_->setToolTip(tr("Options of the command; `moeplan run --help` lists them"));
  auto* label = new QLabel(tr("Options"));
  label->setBuddy(arguments_);
  start_ = new QToolButton;
  start_->setText(tr("Start"));
  start_->setAccessibleName(tr("Start the child process"));
  cancel_ = new QToolButton;
  cancel_->setText(tr("Cancel"));
  cancel_->setAccessibleName(tr("Cancel the child process"));
  cancel_->setEnabled(false);
  bar->addWidget(what_);
  bar->addWidget(label);
  bar->addWidget(arguments_, 1);
  auto* tiny = new QToolButton;
  tiny->setText(tr("Tiny example"));
  tiny->setToolTip(tr("Plans a tiny model that runs on this machine's CPU in seconds"));
  tiny->setAccessibleName(tiny->toolTip());
  connect(tiny, &QToolButton::clicked, this, &RunPage::planTiny);
  bar->addWidget(tiny);
  bar->addWidget(start_);
  bar->addWidget(cancel_);
  told_ = new QLabel;
  told_->setWordWrap(true);
  told_->setTextFormat(Qt::PlainText);
  told_->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
  told_->setAccessibleName(tr("State of the run"));
  column->addWidget(told_);
  auto* splitter = new QSplitter(Qt::Vertical);
  column->addWidget(splitter, 1);
  auto* charts = new QWidget;
  auto* grid = new QGridLayout(charts);
  grid->setContentsMargins(0, 0, 0, 0);
  const auto chart = [&](const QString& name, const QString& y, int at) {
    auto* c = new Chart(name);
    c->xAxis->setLabel(tr("step"));
    c->countAlong(c->xAxis);
    c->yAxis->setLabel(y);
    c->addGraph()->setName(tr("measured"));
    c->addGraph()->setName(tr("forecast"));
    c->setEmptyText(tr("nothing has run yet"));
    grid->addWidget(c, at / 2, at % 2);
    return c;
  };
  loss_ = chart(tr("Loss"), tr("loss [nats a token]"), 0);
  speed_ = chart(tr("Tokens per second"), tr("tokens/s"), 1);
  memory_ = chart(tr("Peak memory"), tr("memory [GB]"), 2);
  experts_ = chart(tr("Expert load"), tr("tokens"), 3);
  experts_->xAxis->setLabel(tr("expert, latest step, all layers together"));
  for (Chart* c : {speed_, memory_}) c->showLegend();
  splitter->addWidget(charts);
  auto* tabs = new QTabWidget;
  model_ = new RunModel(this);
  table_ = new TableView(tr("Steps"));
  table_->setModel(model_);
  log_ = new QPlainTextEdit;
  log_->setReadOnly(true);
  log_->setMaximumBlockCount(2000);
  log_->setAccessibleName(tr("Log"));
  tabs->addTab(table_, tr("Steps"));
  tabs->addTab(log_, tr("Log"));
  splitter->addWidget(tabs);
  splitter->setStretchFactor(0, 3);
  splitter->setStretchFactor(1, 1);
  splitter->setChildrenCollapsible(false);
  redraw_.setSingleShot(true);
  redraw_.setInterval(100);
  connect(&redraw_, &QTimer::timeout, this, &RunPage::draw);
  connect(start_, &QToolButton::clicked, this, &RunPage::begin);
  connect(cancel_, &QToolButton::clicked, &child_, &Child::cancel);
  connect(what_, &QComboBox::currentIndexChanged, this, &RunPage::refreshCommand);
  connect(&child_, &Child::object, this, [this](const Json& line) {
    if (!model_->add(line)) log_->appendPlainText(QString::fromStdString(line.dump(-1, ' ', false, Json::error_handler_t::replace)).left(3000));
    if (!redraw_.isActive()) redraw_.start();
  });
  connect(&child_, &Child::text, log_, &QPlainTextEdit::appendPlainText);
  connect(&child_, &Child::runningChanged, this, [this] {
    start_->setEnabled(!child_.running());
    cancel_->setEnabled(child_.running());
    if (child_.running()) told_->setText(tr("running …"));
  });
  connect(&child_, &Child::ended, this, [this](bool ok, const QString& line) {
    draw();
    told_->setText(ok ? tr("done: %1 steps").arg(model_->rowCount()) : line);
    log_->appendPlainText(line);
    if (!ok) Q_EMIT session_->message(line);
    const QString measured = folder_.filePath(QStringLiteral("measured.json"));
    if (ok && what_->currentIndex() == 1) {
      const QString profile = folder_.filePath(QStringLiteral("profile.json"));
      told_->setText(tr("done: plans are now priced with the times of this machine; undo goes back"));
      Draft next = session_->draft();
      next.profile = profile.toStdString();
      session_->edit(next, tr("calibrated times"));
    }
    if (ok && what_->currentIndex() == 0 && QFileInfo::exists(measured)) Q_EMIT session_->measured(measured);
  });
  connect(session_, &Session::estimateChanged, this, &RunPage::refreshHint);
  addPageAction(tr("Plan the tiny example"), {}, [this] { planTiny(); });
  addPageAction(tr("Start"), QKeySequence(tr("Ctrl+Return")), [this] { begin(); });
  addPageAction(tr("Cancel the run"), QKeySequence(tr("Ctrl+Backspace")), [this] { child_.cancel(); });
  // Offered only where the program has it: asked once, without waiting.
  connect(&probe_, &QProcess::finished, this, [this](int code) {
    if (code == 0) return;
    what_->setItemText(1, tr("calibrate (not in this build)"));
    if (auto* items = qobject_cast<QStandardItemModel*>(what_->model())) items->item(1)->setEnabled(false);
  });
  refreshCommand();
  draw();
}

void RunPage::refreshCommand() {
  arguments_->setText(what_->currentIndex() == 0 ? QStringLiteral("--backend cpu --steps 10") : QString());
  if (what_->currentIndex() == 1 && !child_.running()) told_->setText(tr("Start times every operator call of the selected plan on this machine; the plan is then priced with what was measured."));
  refreshHint();
}

RunPage::~RunPage() {
  probe_.disconnect(this);
  probe_.kill();
  probe_.waitForFinished(1000);
}

void RunPage::showEvent(QShowEvent* event) {
  Page::showEvent(event);
  if (std::exchange(asked_, true)) return;
  probe_.start(program_, {QStringLiteral("calibrate"), QStringLiteral("--help")});
}

void RunPage::planTiny() {
  Draft next;
  next.model = "kimi-k3-tiny";
  next.cluster.reset();
  next.device = "cpu";
  next.gpus = 1;
  next.runtime = "cpu";
  next.workload = "lora-experts";
  next.rank = 8;
  next.sequence_length = 128;
  next.global_batch = 2;
  session_->edit(next, tr("tiny example"));
  session_->searchNow();
}

/// Before anything ran, the line says what Start would do; a plan of many ranks is refused by `run`, so it says that first.
void RunPage::refreshHint() {
  if (child_.running() || model_->rowCount() > 0 || what_->currentIndex() != 0) return;
  const auto& e = session_->estimate();
  if (!e || !e->ranked) return told_->setText(tr("There is no plan to run yet."));
  const int world = e->ranked->plan.parallelism.world();
  told_->setText(world == 1 ? tr("Start runs plan %1 of %2 in a child process; the last step's timeline is then laid under the predicted one.").arg(std::max(0, session_->selected()) + 1).arg(QString::fromStdString(e->problem->model_name))
                            : tr("The selected plan is for %L1 devices, and the window runs one rank (`moeplan run --ranks N` runs several as threads). \"Tiny example\" plans a model of the same shape that runs here in seconds.").arg(world));
}

void RunPage::begin() {
  if (child_.running()) return;
  const auto& e = session_->estimate();
  if (!e || !e->ranked) {
    told_->setText(tr("there is no plan to run"));
    return;
  }
  const QString plan = folder_.filePath(QStringLiteral("plan.json"));
  try {
    writeText(plan, QByteArray::fromStdString(plan_file(*e->problem, *e->ranked).dump(1) + "\n"));
  } catch (const InputError& error) {
    Q_EMIT session_->message(QString::fromUtf8(error.what()));
    return;
  }
  QStringList arguments;
  if (what_->currentIndex() == 0) arguments << QStringLiteral("run") << plan << QStringLiteral("-o") << folder_.filePath(QStringLiteral("measured.json"));
  else arguments << QStringLiteral("calibrate") << plan << QStringLiteral("-o") << folder_.filePath(QStringLiteral("profile.json"));
  arguments << QProcess::splitCommand(arguments_->text()) << QStringLiteral("--json");
  QFile::remove(folder_.filePath(QStringLiteral("measured.json")));
  model_->clear();
  log_->clear();
  log_->appendPlainText(program_ + QLatin1Char(' ') + arguments.join(QLatin1Char(' ')));
  child_.start(program_, arguments);
}

QString RunPage::told() const { return told_->text(); }

void RunPage::draw() {
  const auto& steps = model_->steps();
  const QPalette p = palette();
  const auto plot = [&](Chart* chart, auto&& value, std::optional<double> forecast) {
    QVector<double> x, y;
    for (const RunStep& s : steps)
      if (const double v = value(s); !std::isnan(v)) x << static_cast<double>(s.step), y << v;
    chart->setEmptyText(x.isEmpty() ? tr("nothing has run yet") : QString());
    const qreal unit = fontMetrics().height() / 15.0;
    chart->graph(0)->setPen(QPen(seriesColour(0, p), 2 * unit));
    chart->graph(0)->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, 5 * unit));
    chart->graph(0)->setData(x, y);
    chart->graph(1)->setPen(QPen(seriesColour(3, p), 2 * unit, Qt::DashLine));
    chart->graph(1)->data()->clear();
    if (forecast && !x.isEmpty()) chart->graph(1)->setData({x.front(), std::max(x.back(), x.front() + 1)}, {*forecast, *forecast});
    chart->setFitter([chart] {
      chart->rescaleAxes();
      chart->xAxis->scaleRange(1.05);
      chart->yAxis->scaleRange(1.15);
    });
    if (!x.isEmpty()) chart->fit();
    else chart->replot();
    chart->setReadout([x, y](double at, double) -> QString {
      if (x.isEmpty()) return {};
      const auto i = std::clamp<qsizetype>(std::lower_bound(x.begin(), x.end(), at - 0.5) - x.begin(), 0, x.size() - 1);
      return tr("step %1: %2").arg(x[i]).arg(y[i], 0, 'g', 5);
    });
  };
  const auto& e = session_->estimate();
  const Forecast* f = e && e->ranked ? &e->ranked->forecast : nullptr;
  plot(loss_, [](const RunStep& s) { return s.loss; }, std::nullopt);
  plot(speed_, [](const RunStep& s) { return s.tokensPerSecond; }, f ? std::optional(f->tokens_per_second) : std::nullopt);
  plot(memory_, [](const RunStep& s) { return s.memory / 1e9; }, f ? std::optional(static_cast<double>(f->memory.peak().value) / 1e9) : std::nullopt);
  QVector<double> x, y;
  for (const auto& [layer, counts] : model_->experts()) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (static_cast<qsizetype>(i) >= y.size()) x << static_cast<double>(i), y << 0;
      y[static_cast<qsizetype>(i)] += counts[i];
    }
  }
  experts_->setEmptyText(x.isEmpty() ? tr("no expert counts yet") : QString());
  experts_->graph(0)->setLineStyle(QCPGraph::lsStepCenter);
  experts_->graph(0)->setPen(QPen(seriesColour(0, p), 1.5));
  experts_->graph(0)->setData(x, y);
  experts_->setFitter([this] { experts_->rescaleAxes(); experts_->yAxis->setRangeLower(0); experts_->yAxis->setRangeUpper(1.1 * std::max(1.0, experts_->yAxis->range().upper)); });
  if (!x.isEmpty()) experts_->fit();
  else experts_->replot();
  table_->fitColumns();
  table_->scrollToBottom();
  if (child_.running() && !steps.empty()) {
    const RunStep& last = steps.back();
    QString text = tr("step %1: loss %2, %3 tokens/s").arg(last.step).arg(last.loss, 0, 'g', 5).arg(QString::fromStdString(short_count(last.tokensPerSecond)));
    if (f && last.tokensPerSecond > 0) text += tr("; the forecast says %1 (%2%3 %)").arg(QString::fromStdString(short_count(f->tokens_per_second)), f->tokens_per_second > last.tokensPerSecond ? QStringLiteral("+") : QString()).arg(100 * (f->tokens_per_second / last.tokensPerSecond - 1), 0, 'f', 1);
    told_->setText(text);
  }
}

std::vector<Drawing> RunPage::drawings() {
  const auto plot = [](const QString& name, Chart* chart) { return Drawing{name, chart, [chart](QPainter& painter, const QSize& size) { chart->toPainter(static_cast<QCPPainter*>(&painter), size.width(), size.height()); }}; };
  return {plot(tr("loss"), loss_), plot(tr("tokens per second"), speed_), plot(tr("peak memory"), memory_), plot(tr("expert load"), experts_)};
}

std::vector<NamedTable> RunPage::tables() { return {{tr("steps"), table_}}; }
QWidget* RunPage::start() { return start_; }

}  // namespace moeplan::gui
