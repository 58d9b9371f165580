#include "gui/pages/timeline_page.hpp"

#include <QFileDialog>
#include <QLabel>
#include <QLineEdit>
#include <QSplitter>
#include <QStandardItemModel>
#include <QToolButton>
#include <QVBoxLayout>
#include <set>

#include "core/show.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/measured.hpp"
#include "gui/models/memory_area.hpp"
#include "gui/models/plans_model.hpp"
#include "gui/widgets/table_view.hpp"
#include "gui/widgets/timeline_view.hpp"

namespace moeplan::gui {
namespace {

QString words(std::string_view name) { return QString::fromStdString(std::string(name)).replace(QLatin1Char('_'), QLatin1Char(' ')); }

}  // namespace

TimelinePage::TimelinePage(Session* session, QWidget* parent)
    : Page(session, tr("Timeline"), tr("What each rank does when, and what it waits for; a measured step under the predicted one"), parent) {
  auto* column = new QVBoxLayout(this);
  auto* bar = new QHBoxLayout;
  auto* label = new QLabel(tr("Rows"));
  filter_ = new QLineEdit;
  filter_->setPlaceholderText(tr("words of a row's name, e.g.  rank 0 compute"));
  filter_->setAccessibleName(tr("Filter of rows"));
  filter_->setClearButtonEnabled(true);
  filter_->setMinimumWidth(fontMetrics().averageCharWidth() * 44);
  filter_->setMaximumWidth(fontMetrics().averageCharWidth() * 52);
  label->setBuddy(filter_);
  bar->addWidget(label);
  bar->addWidget(filter_);
  legend_ = new QLabel;
  legend_->setTextFormat(Qt::RichText);
  legend_->setWordWrap(true);
  legend_->setAccessibleName(tr("Colours"));
  bar->addWidget(legend_, 1);
  column->addLayout(bar);
  auto* splitter = new QSplitter(Qt::Vertical);
  view_ = new TimelineView;
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
  connect(view_, &TimelineView::selectionChanged, this, &TimelinePage::describe);
  connect(view_, &TimelineView::spanSelected, this, &TimelinePage::sumUp);
  connect(session, &Session::playChanged, this, &TimelinePage::refresh);
  connect(session, &Session::measured, this, [this](const QString& file) {
    try {
      setMeasured(timelineFile(file.toStdString()));
    } catch (const InputError& e) {
      Q_EMIT session_->message(QString::fromUtf8(e.what()));
    }
  });
  view_->setErrorText([this](int r, std::int64_t e) { return error(r, e); });
  addPageAction(tr("Filter rows"), QKeySequence(tr("Ctrl+F")), [this] { filter_->setFocus(); filter_->selectAll(); });
  addPageAction(tr("Lay a measured step under it …"), QKeySequence(tr("Ctrl+L")), [this] {
    const QString file = QFileDialog::getOpenFileName(this, tr("Measured run or timeline"), {}, tr("JSON (*.json)"));
    if (file.isEmpty()) return;
    try {
      if (!open(file)) Q_EMIT session_->message(tr("%1: holds no timeline; give measured.json of `moeplan run` or a file of `moeplan simulate --timeline`").arg(file));
    } catch (const InputError& e) {
      Q_EMIT session_->message(QString::fromUtf8(e.what()));
    }
  });
  addPageAction(tr("Take the measured step away"), {}, [this] { setMeasured(std::nullopt); });
  addPageAction(tr("Show hidden rows"), {}, [this] { view_->showHidden(); });
  addPageAction(tr("Sum up what is in view"), QKeySequence(tr("Ctrl+U")), [this] { sumUp(std::max<qint64>(0, view_->from()), view_->to()); });
  describe();
}

bool TimelinePage::open(const QString& file) {
  if (!file.endsWith(QLatin1String(".json"))) return false;
  // A model's config or a broken file is for others to judge.
  std::optional<StepTimeline> t;
  try {
    t = timelineFile(file.toStdString());
  } catch (const InputError& e) {
    if (e.where().find("events") == std::string::npos && e.where().find("timeline") == std::string::npos) return false;
    throw;
  }
  if (!t) return false;
  setMeasured(std::move(t));
  return true;
}

void TimelinePage::setMeasured(std::optional<StepTimeline> measured) {
  measured_ = std::move(measured);
  refresh();
}

void TimelinePage::refresh() {
  const auto& play = session_->play();
  toMeasured_.clear();
  toPredicted_.clear();
  if (!play && !measured_) return view_->setStore({}, {});
  std::vector<Counter> counters;
  TraceStore store;
  if (play) {
    store = storeOf(play->timeline, false);
    std::size_t worst = 0;
    for (std::size_t r = 1; r < play->memory.size(); ++r)
      if (play->memory[r].peak.peak() > play->memory[worst].peak.peak()) worst = r;
    if (!play->memory.empty()) {
      const MemoryArea area = areaOf(play->memory[worst]);
      Counter c{tr("memory of rank %1").arg(play->memory[worst].rank), tr("GB"), area.seconds, {}};
      for (const double v : area.total) c.values.push_back(v / 1e9);
      counters.push_back(std::move(c));
    }
  }
  if (measured_) {
    if (play) {
      toMeasured_ = counterparts(play->timeline, *measured_);
      toPredicted_ = counterparts(*measured_, play->timeline);
    }
    TraceStore m = storeOf(*measured_, true);
    store = play ? beside(std::move(store), std::move(m)) : std::move(m);
  }
  view_->setStore(std::move(store), std::move(counters));
  QString legend;
  std::set<Activity> present;
  for (const StepTimeline* t : std::initializer_list<const StepTimeline*>{play ? &play->timeline : nullptr, measured_ ? &*measured_ : nullptr})
    if (t)
      for (const TimelineEvent& e : t->events) present.insert(e.kind);
  for (const auto& [activity, name] : EnumNames<Activity>::names)
    if (present.contains(activity)) legend += QStringLiteral("<span style='color:%1'>■</span>&nbsp;%2&nbsp; ").arg(activityColour(activity, palette()).name(), words(name).replace(QLatin1Char(' '), QStringLiteral("&nbsp;")));
  legend_->setText(legend);
  // The whole step's sums until a span is chosen; a step of millions of events is summed only when asked.
  if (view_->store().events() < 200'000) sumUp(0, view_->store().end);
  else model_->setRowCount(0);
  describe();
}

QString TimelinePage::error(int row, std::int64_t event) const {
  const auto& play = session_->play();
  if (!play || !measured_) return {};
  const TraceRow& r = view_->store().rows[static_cast<std::size_t>(row)];
  const std::int32_t origin = r.events[static_cast<std::size_t>(event)].origin;
  const auto& map = r.measured ? toPredicted_ : toMeasured_;
  if (origin < 0 || static_cast<std::size_t>(origin) >= map.size() || map[static_cast<std::size_t>(origin)] < 0) return r.measured ? tr("not predicted") : tr("not measured");
  const auto other = static_cast<std::size_t>(map[static_cast<std::size_t>(origin)]);
  const Picoseconds predicted = r.measured ? play->timeline.events[other].duration : r.events[static_cast<std::size_t>(event)].duration;
  const Picoseconds measured = r.measured ? r.events[static_cast<std::size_t>(event)].duration : measured_->events[other].duration;
  return tr("predicted %1, measured %2: %3%4 %").arg(timeText(predicted), timeText(measured), predicted > measured ? QStringLiteral("+") : QString()).arg(measured > 0 ? 100.0 * (static_cast<double>(predicted) / static_cast<double>(measured) - 1) : 0, 0, 'f', 1);
}

void TimelinePage::describe() {
  const auto selected = view_->selected();
  if (selected.row < 0 || selected.event < 0) {
    detail_->setText(tr("%L1 events in %2 rows. Click an event, or press . (next), F (centre, then fit), Shift+drag for sums, ? for all keys.").arg(view_->store().events()).arg(view_->store().rows.size()));
    return;
  }
  const TraceRow& row = view_->store().rows[static_cast<std::size_t>(selected.row)];
  const TraceEvent& e = row.events[static_cast<std::size_t>(selected.event)];
  QString text = tr("<b>%1</b><br>%2<br>%3, from %4 to %5; %6").arg(view_->store().names[static_cast<std::size_t>(e.name)].toHtmlEscaped(), row.label, timeText(e.duration), timeText(e.start), timeText(e.end()), words(name_of(e.kind)));
  const StepTimeline* t = row.measured ? (measured_ ? &*measured_ : nullptr) : session_->play() ? &session_->play()->timeline : nullptr;
  if (t && e.origin >= 0 && static_cast<std::size_t>(e.origin) < t->events.size()) {
    const TimelineEvent& full = t->events[static_cast<std::size_t>(e.origin)];
    if (full.layer >= 0) text += tr("<br>layer %1").arg(full.layer);
    if (full.micro_batch >= 0) text += tr(", micro-batch %1").arg(full.micro_batch);
    if (full.call >= 0 && static_cast<std::size_t>(full.call) < t->calls.size()) {
      const TimelineCall& call = t->calls[static_cast<std::size_t>(full.call)];
      text += tr("<br>%1 over %2 (%3 ranks): %4 in, %5 out a rank").arg(words(call.collective), words(call.group)).arg(call.group_size).arg(QString::fromStdString(human(Bytes{call.in_bytes})), QString::fromStdString(human(Bytes{call.out_bytes})));
    }
    if (full.detail >= 0 && static_cast<std::size_t>(full.detail) < t->details.size()) {
      QStringList parts;
      for (const TimelinePart& p : t->details[static_cast<std::size_t>(full.detail)].parts) {
        if (parts.size() == 12) { parts << QStringLiteral("…"); break; }
        parts << QStringLiteral("%1 %2").arg(QString::fromStdString(t->names[static_cast<std::size_t>(p.name)]), timeText(p.duration));
      }
      text += tr("<br>calls: ") + parts.join(QStringLiteral(", ")).toHtmlEscaped();
    }
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
