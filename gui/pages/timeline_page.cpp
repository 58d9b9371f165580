#include "gui/pages/timeline_page.hpp"

#include <QComboBox>
#include <QFileDialog>
#include <QFileInfo>
#include <QLabel>
#include <QLineEdit>
#include <QSplitter>
#include <QStandardItemModel>
#include <QToolButton>
#include <QVBoxLayout>
#include <cmath>

#include "core/show.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/plans_model.hpp"
#include "gui/widgets/table_view.hpp"
#include "gui/widgets/timeline_view.hpp"

namespace moeplan::gui {
namespace {

QString words(std::string_view name) { return QString::fromStdString(std::string(name)).replace(QLatin1Char('_'), QLatin1Char(' ')); }

}  // namespace

TimelinePage::TimelinePage(Session* session, QWidget* parent)
    : Page(session, tr("Timeline"), tr("What each rank does when, and what it waits for; a measured step under the predicted one"), parent), read_(new LatestJob(this)), pack_(new LatestJob(this)) {
  auto* column = new QVBoxLayout(this);
  auto* bar = new QHBoxLayout;
  auto* label = new QLabel(tr("Rows"));
  filter_ = new QLineEdit;
  filter_->setPlaceholderText(tr("e.g.  rank 0 compute"));
  filter_->setToolTip(tr("Words that a row's name must hold"));
  filter_->setAccessibleName(tr("Filter of rows"));
  filter_->setClearButtonEnabled(true);
  filter_->setMinimumWidth(fontMetrics().averageCharWidth() * 30);
  filter_->setMaximumWidth(fontMetrics().averageCharWidth() * 36);
  label->setBuddy(filter_);
  bar->addWidget(label);
  bar->addWidget(filter_);
  grouping_ = new QComboBox;
  grouping_->addItems({tr("not grouped"), tr("by node"), tr("by expert group")});
  grouping_->setCurrentIndex(1);
  grouping_->setAccessibleName(tr("Grouping of rows"));
  grouping_->setToolTip(tr("Headings over the rows; a click folds a group (G goes to the next grouping, Space folds the selected row's group)"));
  auto* grouped = new QLabel(tr("Grouped"));
  grouped->setBuddy(grouping_);
  bar->addWidget(grouped);
  bar->addWidget(grouping_);
  legend_ = new QLabel;
  legend_->setTextFormat(Qt::RichText);
  legend_->setWordWrap(true);
  legend_->setAccessibleName(tr("Colours"));
  bar->addWidget(legend_, 1);
  column->addLayout(bar);
  auto* line = new QHBoxLayout;
  state_ = new QLabel;
  state_->setWordWrap(true);
  state_->setAccessibleName(tr("Predicted and measured"));
  cancel_ = new QToolButton;
  cancel_->setText(tr("Cancel"));
  cancel_->setAccessibleName(tr("Cancel reading the file"));
  line->addWidget(state_, 1);
  line->addWidget(cancel_);
  column->addLayout(line);
  auto* splitter = new QSplitter(Qt::Vertical);
  view_ = new TimelineView;
  view_->setGrouping(Grouping::node);
  splitter->addWidget(view_);
  auto* below = new QWidget;
  auto* row = new QHBoxLayout(below);
  row->setContentsMargins(0, 0, 0, 0);
  detail_ = new QLabel;
  detail_->setWordWrap(true);
  detail_->setAlignment(Qt::AlignTop | Qt::AlignLeft);
  detail_->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
  detail_->setAccessibleName(tr("Selected event"));
  detail_->setMargin(4);
  row->addWidget(detail_, 2);
  model_ = new QStandardItemModel(0, 5, this);
  model_->setHorizontalHeaderLabels({tr("Event"), tr("Count"), tr("Sum"), tr("Mean"), tr("Under compute")});
  table_ = new TableView(tr("Sums of the selected span"));
  table_->setModel(model_);
  row->addWidget(table_, 3);
  splitter->addWidget(below);
  splitter->setStretchFactor(0, 4);
  splitter->setStretchFactor(1, 1);
  splitter->setChildrenCollapsible(false);
  column->addWidget(splitter, 1);
  connect(filter_, &QLineEdit::textChanged, view_, &TimelineView::setFilter);
  connect(grouping_, &QComboBox::currentIndexChanged, this, [this](int at) { view_->setGrouping(static_cast<Grouping>(at)); });
  connect(view_, &TimelineView::selectionChanged, this, &TimelinePage::describe);
  connect(view_, &TimelineView::spanSelected, this, &TimelinePage::sumUp);
  connect(session, &Session::playChanged, this, &TimelinePage::refresh);
  for (const auto signal : {&Session::estimateChanged, &Session::pinnedChanged}) connect(session, signal, this, &TimelinePage::told);
  connect(session, &Session::measured, this, &TimelinePage::readMeasured);
  connect(cancel_, &QToolButton::clicked, this, [this] { read_->cancel(); });
  for (LatestJob* job : {read_, pack_}) {
    connect(job, &LatestJob::runningChanged, this, &TimelinePage::told);
    connect(job, &LatestJob::broke, session, &Session::message);
  }
  view_->setErrorText([this](int r, std::int64_t e) { return error(r, e); });
  addPageAction(tr("Filter rows"), QKeySequence(tr("Ctrl+F")), [this] { filter_->setFocus(); filter_->selectAll(); });
  addPageAction(tr("Group rows by node, by expert group, or not"), QKeySequence(tr("G")), [this] { grouping_->setCurrentIndex((grouping_->currentIndex() + 1) % grouping_->count()); });
  addPageAction(tr("Lay a measured step under it …"), QKeySequence(tr("Ctrl+L")), [this] {
    const QString file = QFileDialog::getOpenFileName(this, tr("Measured run, timeline or Chrome trace"), {}, tr("JSON (*.json)"));
    if (file.isEmpty()) return;
    if (!open(file)) Q_EMIT session_->message(tr("%1: holds no timeline; give measured.json of `moeplan run`, a file of `moeplan simulate --timeline`, or a Chrome trace").arg(file));
  });
  addPageAction(tr("Take the measured step away"), {}, [this] { setMeasured(nullptr); });
  addPageAction(tr("Show hidden rows"), {}, [this] { view_->showHidden(); });
  addPageAction(tr("Sum up what is in view"), QKeySequence(tr("Ctrl+U")), [this] { sumUp(std::max<qint64>(0, view_->from()), view_->to()); });
  describe();
  told();
}

bool TimelinePage::open(const QString& file) {
  if (!file.endsWith(QLatin1String(".json")) || !looksLikeTimeline(file.toStdString())) return false;
  readMeasured(file);
  return true;
}

void TimelinePage::readMeasured(const QString& file) {
  file_ = QFileInfo(file).fileName();
  read_->start(
      [this, path = file.toStdString()](const Ticket& ticket) {
        return std::make_shared<const StepTimeline>(readTimeline(path, [&](double share) {
          ticket.stopIfCancelled();
          QMetaObject::invokeMethod(this, [this, ticket, share] { if (!ticket.cancelled()) state_->setText(tr("reading %1: %2 %").arg(file_).arg(std::lround(100 * share))); }, Qt::QueuedConnection);
        }));
      },
      [this](std::shared_ptr<const StepTimeline> t) { setMeasured(std::move(t)); }, [this](const InputError& e) { Q_EMIT session_->message(QString::fromUtf8(e.what())); });
}

void TimelinePage::setMeasured(std::shared_ptr<const StepTimeline> measured) {
  measured_ = std::move(measured);
  refresh();
}

void TimelinePage::refresh() {
  if (!session_->play() && !measured_) {
    pack_->cancel();
    return take({});
  }
  pack_->start([play = session_->play(), measured = measured_](const Ticket& ticket) { return sceneOf(play, measured, ticket); }, [this](TimelineScene s) { take(std::move(s)); },
               [this](const InputError& e) { Q_EMIT session_->message(QString::fromUtf8(e.what())); });
}

void TimelinePage::take(TimelineScene scene) {
  scene_ = std::move(scene);
  view_->setStore(std::move(scene_.store), std::move(scene_.counters));
  scene_.store = {}, scene_.counters = {};
  QString legend;
  for (const auto& [activity, name] : EnumNames<Activity>::names)
    if (scene_.present.contains(activity)) legend += QStringLiteral("<span style='color:%1'>■</span>&nbsp;%2&nbsp; ").arg(activityColour(activity, palette()).name(), words(name).replace(QLatin1Char(' '), QStringLiteral("&nbsp;")));
  legend_->setText(legend);
  // The whole step's sums until a span is chosen; a step of millions of events is summed only when asked.
  if (view_->store().events() < 200'000) sumUp(0, view_->store().end);
  else model_->setRowCount(0);
  describe();
  told();
}

/// The line above the rows: what is being done, or how well prediction and measurement agree.
void TimelinePage::told() {
  cancel_->setVisible(read_->running());
  const auto& pinned = session_->pinned();
  state_->setVisible(read_->running() || measured_ || scene_.measured || (pinned && scene_.play));
  view_->setEmptyText(session_->estimate() && !session_->estimate()->ranked ? tr("no plan is selected, so there is no step to play") : pack_->running() ? tr("packing the step's events …") : tr("playing one step of the selected plan …"));
  if (read_->running()) return state_->setText(tr("reading %1 …").arg(file_));
  if (pack_->running() && measured_) return state_->setText(tr("packing events …"));
  const auto off = [](double predicted, double measured) { return measured > 0 ? QStringLiteral("%1%2 %").arg(predicted > measured ? QStringLiteral("+") : QString()).arg(100 * (predicted / measured - 1), 0, 'f', 1) : QStringLiteral("?"); };
  QString text;
  if (pinned && scene_.play) {
    const double played = to_seconds(scene_.play->timeline.step).value, a = pinned->forecast.step.value;
    text = tr("The step of A takes %1, this one %2 (%3). ").arg(QString::fromStdString(duration(Seconds{a})), timeText(scene_.play->timeline.step), off(played, a));
  }
  if (!scene_.measured) return state_->setText(text);
  const StepTimeline& m = *scene_.measured;
  if (!scene_.play) return state_->setText(tr("Measured step of %1: %L2 events, %3.").arg(timeText(m.step)).arg(m.events.size()).arg(file_));
  const StepTimeline& p = scene_.play->timeline;
  const Counterparts& pairs = scene_.pairs;
  text += tr("Step: %1 predicted, %2 measured (%3). ").arg(timeText(p.step), timeText(m.step), off(static_cast<double>(p.step), static_cast<double>(m.step)));
  text += pairs.matched > 0 ? tr("%L1 of %L2 measured events have a prediction: %3 for what took %4 (%5); select one for its own error.").arg(pairs.matched).arg(m.events.size()).arg(timeText(pairs.predictedTime), timeText(pairs.measuredTime), off(static_cast<double>(pairs.predictedTime), static_cast<double>(pairs.measuredTime)))
                            : tr("No measured event has the rank, lane, name, layer and micro-batch of a predicted one: the lanes can be compared, not the events.");
  state_->setText(text);
}

QString TimelinePage::error(int row, std::int64_t event) const {
  if (!scene_.play || !scene_.measured) return {};
  const TraceRow& r = view_->store().rows[static_cast<std::size_t>(row)];
  const std::int32_t origin = r.events[static_cast<std::size_t>(event)].origin;
  const auto& map = r.measured ? scene_.pairs.toPredicted : scene_.pairs.toMeasured;
  if (origin < 0 || static_cast<std::size_t>(origin) >= map.size() || map[static_cast<std::size_t>(origin)] < 0) return r.measured ? tr("not predicted") : tr("not measured");
  const auto m = static_cast<std::size_t>(r.measured ? origin : map[static_cast<std::size_t>(origin)]);
  const Picoseconds predicted = scene_.pairs.predicted[m], measured = scene_.measured->events[m].duration;
  const std::int32_t pieces = scene_.pairs.stretches[m];
  return tr("predicted %1%2, measured %3: %4%5 %").arg(timeText(predicted), pieces > 1 ? tr(" (in %1 stretches)").arg(pieces) : QString(), timeText(measured), predicted > measured ? QStringLiteral("+") : QString())
      .arg(measured > 0 ? 100.0 * (static_cast<double>(predicted) / static_cast<double>(measured) - 1) : 0, 0, 'f', 1);
}

/// Operator calls inside an event, beside those of its counterpart.
QString TimelinePage::callsOf(const TraceRow& row, std::size_t origin) const {
  const StepTimeline& t = row.measured ? *scene_.measured : scene_.play->timeline;
  const auto times = [](const StepTimeline& of, std::size_t event) {
    std::vector<std::pair<std::string, Picoseconds>> out;   // in order of first appearance
    const TimelineEvent& e = of.events[event];
    if (e.detail < 0 || static_cast<std::size_t>(e.detail) >= of.details.size()) return out;
    for (const TimelinePart& p : of.details[static_cast<std::size_t>(e.detail)].parts) {
      const std::string& name = of.names[static_cast<std::size_t>(p.name)];
      const auto known = std::find_if(out.begin(), out.end(), [&](const auto& x) { return x.first == name; });
      if (known == out.end()) out.emplace_back(name, p.duration);
      else known->second += p.duration;
    }
    return out;
  };
  const auto own = times(t, origin);
  if (own.empty()) return {};
  std::vector<std::pair<std::string, Picoseconds>> other;
  if (scene_.play && scene_.measured) {
    const auto& map = row.measured ? scene_.pairs.toPredicted : scene_.pairs.toMeasured;
    if (origin < map.size() && map[origin] >= 0) other = times(row.measured ? scene_.play->timeline : *scene_.measured, static_cast<std::size_t>(map[origin]));
  }
  QStringList parts;
  for (const auto& [name, time] : own) {
    if (parts.size() == 12) { parts << QStringLiteral("…"); break; }
    QString text = QStringLiteral("%1 %2").arg(QString::fromStdString(name), timeText(time));
    for (const auto& [same, there] : other)
      if (same == name) text += row.measured ? tr(" (predicted %1)").arg(timeText(there)) : tr(" (measured %1)").arg(timeText(there));
    parts << text;
  }
  return tr("<br>calls: ") + parts.join(QStringLiteral(", ")).toHtmlEscaped();
}

void TimelinePage::describe() {
  const auto selected = view_->selected();
  if (selected.row < 0 || selected.event < 0) {
    detail_->setText(tr("%L1 events in %2 rows. Click an event, or press . (next), F (centre, then fit), Shift+drag for sums, ? for all keys.").arg(view_->store().events()).arg(view_->store().rows.size()));
    return;
  }
  const TraceRow& row = view_->store().rows[static_cast<std::size_t>(selected.row)];
  const TraceEvent& e = row.events[static_cast<std::size_t>(selected.event)];
  QString text = tr("<b>%1</b><br>%2<br>%3, from %4 to %5; %6").arg(view_->store().names[static_cast<std::size_t>(e.name)].toHtmlEscaped(), row.label.toHtmlEscaped(), timeText(e.duration), timeText(e.start), timeText(e.end()), words(name_of(e.kind)));
  const StepTimeline* t = row.measured ? scene_.measured.get() : scene_.play ? &scene_.play->timeline : nullptr;
  if (t && e.origin >= 0 && static_cast<std::size_t>(e.origin) < t->events.size()) {
    const TimelineEvent& full = t->events[static_cast<std::size_t>(e.origin)];
    if (full.layer >= 0) text += tr("<br>layer %1").arg(full.layer);
    if (full.micro_batch >= 0) text += tr(", micro-batch %1").arg(full.micro_batch);
    if (full.call >= 0 && static_cast<std::size_t>(full.call) < t->calls.size()) {
      const TimelineCall& call = t->calls[static_cast<std::size_t>(full.call)];
      text += tr("<br>%1 over %2 (%3 ranks): %4 in, %5 out a rank").arg(words(call.collective).toHtmlEscaped(), words(call.group).toHtmlEscaped()).arg(call.group_size).arg(QString::fromStdString(human(Bytes{call.in_bytes})), QString::fromStdString(human(Bytes{call.out_bytes})));
    }
    text += callsOf(row, static_cast<std::size_t>(e.origin));
  }
  const QString off = error(selected.row, selected.event);
  if (!off.isEmpty()) text += QStringLiteral("<br><b>%1</b>").arg(off);
  detail_->setText(text);
}

void TimelinePage::sumUp(qint64 from, qint64 to) {
  model_->setRowCount(0);
  if (to <= from) return;
  for (const SpanSum& sum : sums(view_->store(), view_->visibleRows(), from, to)) {
    QList<QStandardItem*> row;
    const QString under = sum.overlapped > 0 ? QString::fromStdString(percent(static_cast<double>(sum.overlapped) / static_cast<double>(sum.total))) : QString();
    for (const QString& text : {sum.name, QString::number(sum.count), timeText(sum.total), timeText(sum.total / sum.count), under}) {
      auto* item = new QStandardItem(text);
      item->setEditable(false);
      item->setTextAlignment((row.isEmpty() ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
      row << item;
    }
    row[1]->setData(static_cast<double>(sum.count), kNumberRole);
    row[2]->setData(to_seconds(sum.total).value, kNumberRole);
    row[3]->setData(to_seconds(sum.total / sum.count).value, kNumberRole);
    model_->appendRow(row);
  }
  table_->fitColumns();
}

std::vector<Drawing> TimelinePage::drawings() {
  return {{tr("timeline"), view_->viewport(), [this](QPainter& painter, const QSize& size) { view_->paint(painter, QRect(QPoint(0, 0), size)); }}};
}

std::vector<NamedTable> TimelinePage::tables() { return {{tr("sums of a span"), table_}}; }
QWidget* TimelinePage::start() { return view_; }

}  // namespace moeplan::gui
