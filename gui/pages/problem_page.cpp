#include "gui/pages/problem_page.hpp"

#include <QComboBox>
#include <QFileDialog>
#include <QGridLayout>
#include <QGroupBox>
#include <QLabel>
#include <QLineEdit>
#include <QPainter>
#include <QScrollArea>
#include <QSlider>
#include <QSplitter>
#include <QToolButton>
#include <cmath>

#include "core/configs.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/problem_fields.hpp"
#include "gui/models/session.hpp"
#include "gui/pages/forecast_panel.hpp"
#include "gui/widgets/bar_list.hpp"
#include "gui/widgets/elided_label.hpp"

namespace moeplan::gui {
namespace {

QString qs(const std::string& s) { return QString::fromStdString(s); }

/// Combo boxes and sliders change only with the keyboard focus: scrolling the page must not edit it.
class QuietWheel : public QObject {
 public:
  using QObject::QObject;
  bool eventFilter(QObject* watched, QEvent* event) override {
    if (event->type() != QEvent::Wheel || static_cast<QWidget*>(watched)->hasFocus()) return false;
    event->ignore();
    return true;
  }
};

QString shortened(const QString& text, int most) { return text.size() <= most ? text : text.left(most - 1) + QStringLiteral("…"); }

}  // namespace

ProblemPage::ProblemPage(Session* session, QWidget* parent)
    : Page(session, tr("Problem"), tr("What is trained, on which machines, and what the selected plan then needs"), parent) {
  auto* layout = new QHBoxLayout(this);
  auto* splitter = new QSplitter(this);
  layout->addWidget(splitter);
  auto* scroll = new QScrollArea(this);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setWidget(fields());
  scroll->setAccessibleName(tr("Fields"));
  auto* right = new QScrollArea(this);
  right->setWidgetResizable(true);
  right->setFrameShape(QFrame::NoFrame);
  right->setAccessibleName(tr("Forecast"));
  auto* column = new QWidget;
  auto* stack = new QVBoxLayout(column);
  panel_ = new ForecastPanel(session, column);
  stack->addWidget(whatIf());
  stack->addWidget(panel_, 1);
  right->setWidget(column);
  splitter->addWidget(scroll);
  splitter->addWidget(right);
  splitter->setStretchFactor(0, 5);
  splitter->setStretchFactor(1, 5);
  splitter->setChildrenCollapsible(false);
  addPageAction(tr("Choose a model file …"), QKeySequence(tr("Ctrl+M")), [this] {
    const QString file = QFileDialog::getOpenFileName(this, tr("Model"), {}, tr("Model configuration (*.json)"));
    if (!file.isEmpty()) commit(problemFields().front(), file);
  });
  connect(session, &Session::draftChanged, this, &ProblemPage::refreshDraft);
  connect(session, &Session::estimateChanged, this, &ProblemPage::refreshEffective);
  connect(session, &Session::issuesChanged, this, &ProblemPage::refreshIssues);
  refreshDraft();
}

QWidget* ProblemPage::fields() {
  auto* page = new QWidget;
  auto* column = new QVBoxLayout(page);
  whole_ = new QLabel(page);
  whole_->setWordWrap(true);
  whole_->setAccessibleName(tr("What is wrong"));
  whole_->hide();
  connect(whole_, &QLabel::linkActivated, this, &ProblemPage::applyFix);
  column->addWidget(whole_);
  // One grid for all groups, so that every label and every editor starts in the same column.
  auto* grid = new QGridLayout;
  grid->setColumnStretch(1, 3);
  grid->setColumnStretch(4, 4);
  grid->setHorizontalSpacing(fontMetrics().averageCharWidth());
  QString group;
  int at = 0;
  for (const FieldSpec& field : problemFields()) {
    if (field.group != group) {
      group = field.group;
      auto* heading = new QLabel(QStringLiteral("<b>%1</b>").arg(group), page);
      if (at) grid->setRowMinimumHeight(at++, fontMetrics().height() / 2);
      grid->addWidget(heading, at++, 0, 1, 6);
    }
    addRow(grid, at, field);
    at += 2;
  }
  sizeEditors();
  column->addLayout(grid);
  column->addStretch(1);
  return page;
}

void ProblemPage::addRow(QGridLayout* grid, int at, const FieldSpec& field) {
  Row row{};
  row.field = &field;
  auto* label = new QLabel(field.label);
  label->setToolTip(field.why);
  grid->addWidget(label, at, 0);
  if (field.kind == FieldSpec::Kind::choice || field.kind == FieldSpec::Kind::file_or_name) {
    auto* box = new QComboBox;
    const bool free = field.kind == FieldSpec::Kind::file_or_name;
    box->setEditable(free);
    box->addItem(QString());
    if (free) {
      box->setInsertPolicy(QComboBox::NoInsert);
      for (const auto& name : config_names(session_->configs(), field.room.toStdString()))
        if (name != "INDEX") box->addItem(qs(name));
      box->lineEdit()->setClearButtonEnabled(true);
      connect(box->lineEdit(), &QLineEdit::editingFinished, this, [this, box, &field] { commit(field, box->currentText()); });
    } else {
      box->addItems(field.choices);
    }
    connect(box, &QComboBox::activated, this, [this, box, &field] { commit(field, box->currentText()); });
    box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    box->setMinimumContentsLength(14);
    box->installEventFilter(new QuietWheel(box));
    row.editor = box;
  } else {
    auto* line = new QLineEdit;
    line->setClearButtonEnabled(true);
    connect(line, &QLineEdit::textEdited, this, [this, &field](const QString& text) { commit(field, text); });
    row.editor = line;
  }
  row.editor->setFocusPolicy(Qt::StrongFocus);
  row.editor->setAccessibleName(field.unit.isEmpty() ? field.label : tr("%1, %2").arg(field.label, field.unit));
  row.editor->setAccessibleDescription(field.why);
  row.editor->setToolTip(field.why);
  label->setBuddy(row.editor);
  // A name takes the room that a number leaves for its unit.
  grid->addWidget(row.editor, at, 1, 1, field.unit.isEmpty() ? 2 : 1);
  if (!field.unit.isEmpty()) {
    auto* unit = new QLabel(field.unit);
    unit->setForegroundRole(QPalette::PlaceholderText);
    grid->addWidget(unit, at, 2);
  }
  row.badge = new QLabel;
  row.badge->setAccessibleName(tr("Origin of %1").arg(field.label));
  grid->addWidget(row.badge, at, 3);
  row.source = new ElidedLabel;
  row.source->setForegroundRole(QPalette::PlaceholderText);
  row.source->setTextFormat(Qt::PlainText);
  row.source->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
  row.source->setAccessibleName(tr("Source of %1").arg(field.label));
  grid->addWidget(row.source, at, 4);
  row.reset = new QToolButton;
  row.reset->setText(QStringLiteral("⟲"));
  row.reset->setAutoRaise(true);
  row.reset->setToolTip(tr("Reset %1 to its default").arg(field.label));
  row.reset->setAccessibleName(row.reset->toolTip());
  QSizePolicy keep = row.reset->sizePolicy();
  keep.setRetainSizeWhenHidden(true);
  row.reset->setSizePolicy(keep);
  connect(row.reset, &QToolButton::clicked, this, [this, &field] { commit(field, QString()); });
  grid->addWidget(row.reset, at, 5);
  row.issue = new QLabel;
  row.issue->setWordWrap(true);
  row.issue->setTextFormat(Qt::RichText);
  row.issue->setFocusPolicy(Qt::StrongFocus);
  row.issue->setTextInteractionFlags(Qt::LinksAccessibleByKeyboard | Qt::LinksAccessibleByMouse);
  row.issue->setAccessibleName(tr("What is wrong with %1").arg(field.label));
  row.issue->hide();
  connect(row.issue, &QLabel::linkActivated, this, &ProblemPage::applyFix);
  grid->addWidget(row.issue, at + 1, 1, 1, 5);
  rows_.push_back(row);
}

QWidget* ProblemPage::whatIf() {
  auto* box = new QGroupBox(tr("What if"));
  auto* grid = new QGridLayout(box);
  grid->setColumnStretch(1, 1);
  const auto add = [&](const QString& name, const QString& why, double low, double high, std::function<double(const Draft&)> get, std::function<void(Draft&, double)> set, std::function<QString(double)> text) {
    auto* slider = new QSlider(Qt::Horizontal);
    slider->setRange(0, 100);
    slider->setAccessibleName(name);
    slider->setToolTip(why);
    slider->installEventFilter(new QuietWheel(slider));
    auto* label = new QLabel(name);
    label->setBuddy(slider);
    auto* value = new QLabel;
    value->setMinimumWidth(fontMetrics().horizontalAdvance(QStringLiteral("1,048,576 tokens")));
    const int at = static_cast<int>(sliders_.size());
    grid->addWidget(label, at, 0);
    grid->addWidget(slider, at, 1);
    grid->addWidget(value, at, 2);
    sliders_.push_back({name, slider, value, std::move(get), std::move(set), std::move(text), low, high});
    connect(slider, &QSlider::valueChanged, this, [this, at](int position) {
      if (refreshing_) return;
      const Slider& s = sliders_[static_cast<std::size_t>(at)];
      Draft next = session_->draft();
      s.set(next, s.low + (s.high - s.low) * position / 100);
      session_->edit(next, s.name, 100 + at);
    });
  };
  add(tr("Imbalance"), tr("Spread of the expert load: 0 is balanced, x 1 the chosen load"), 0, 2, [](const Draft& d) { return d.what_if.imbalance; }, [](Draft& d, double v) { d.what_if.imbalance = std::round(v * 50) / 50; }, [](double v) { return QStringLiteral("x %1").arg(v, 0, 'f', 2); });
  add(tr("Bandwidth"), tr("Every link faster or slower"), -2, 2, [](const Draft& d) { return std::log2(d.what_if.bandwidth); }, [](Draft& d, double v) { d.what_if.bandwidth = std::exp2(std::round(v * 10) / 10); }, [](double v) { return QStringLiteral("x %1").arg(std::exp2(v), 0, 'f', 2); });
  add(tr("Sequence length"), tr("Tokens per sequence, in powers of two"), 9, 20, [this](const Draft& d) { return std::log2(static_cast<double>(d.sequence_length.value_or(session_->estimate() ? session_->estimate()->problem->workload.sequence_length : 4096))); },
      [](Draft& d, double v) { d.sequence_length = std::int64_t{1} << std::lround(v); }, [](double v) { return tr("%L1 tokens").arg(std::lround(std::exp2(v))); });
  add(tr("Price"), tr("Dollars per device-hour"), 0.1, 12.1, [this](const Draft& d) { return d.what_if.price.value_or(session_->estimate() && session_->estimate()->problem->cluster.price ? session_->estimate()->problem->cluster.price->value : 3.5); },
      [](Draft& d, double v) { d.what_if.price = std::max(0.1, std::round(v * 10) / 10); }, [](double v) { return QStringLiteral("$%1 an hour").arg(v, 0, 'f', 2); });
  auto* reset = new QToolButton;
  reset->setText(tr("Reset what-ifs"));
  reset->setAccessibleName(reset->text());
  connect(reset, &QToolButton::clicked, this, [this] {
    Draft next = session_->draft();
    next.what_if = {};
    session_->edit(next, tr("reset what-ifs"));
  });
  grid->addWidget(reset, static_cast<int>(sliders_.size()), 1, Qt::AlignLeft);
  return box;
}

/// Room for "searched" beside a unit, and for a longer name where there is none.
void ProblemPage::sizeEditors() {
  for (const Row& row : rows_) row.editor->setMinimumWidth(fontMetrics().averageCharWidth() * (row.field->unit.isEmpty() ? 22 : 13));
}

void ProblemPage::changeEvent(QEvent* event) {
  Page::changeEvent(event);
  if (event->type() == QEvent::FontChange || event->type() == QEvent::ApplicationFontChange) sizeEditors();
}

void ProblemPage::commit(const FieldSpec& field, const QString& text) {
  if (refreshing_) return;
  Draft next = session_->draft();
  const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.field == &field; });
  if (!field.set(next, text)) {
    row->issue->setText(QStringLiteral("<span style='color:%1'>✘ %2: \"%3\" is not a value of this field%4</span>").arg(badColour(palette()).name(), field.label, shortened(text, 40).toHtmlEscaped(), field.unit.isEmpty() ? QString() : tr(" (%1, a number above 0)").arg(field.unit)));
    row->issue->show();
    return;
  }
  const int key = static_cast<int>(&field - problemFields().data()) + 1;
  session_->edit(next, field.label, field.kind == FieldSpec::Kind::number || field.kind == FieldSpec::Kind::words ? key : 0);
}

void ProblemPage::refreshDraft() {
  refreshing_ = true;
  const Draft& draft = session_->draft();
  for (const Row& row : rows_) {
    const QString text = row.field->get(draft);
    if (auto* box = qobject_cast<QComboBox*>(row.editor)) {
      const int at = box->findText(text);
      if (at >= 0) box->setCurrentIndex(at);
      if (box->isEditable()) box->setEditText(text);
    } else if (auto* line = qobject_cast<QLineEdit*>(row.editor); line->text() != text) {
      const int cursor = line->cursorPosition();
      // "1e9" stays as typed while it means the number shown.
      bool same = false;
      if (line->hasFocus()) { Draft probe = draft; same = row.field->set(probe, line->text()) && probe == draft; }
      if (!same) line->setText(text), line->setCursorPosition(std::min<int>(cursor, static_cast<int>(text.size())));
    }
    const Origin origin = originOf(*row.field, draft);
    row.badge->setText(origin == Origin::by_default ? tr("default") : origin == Origin::from_file ? tr("▣ file") : tr("✎ edited"));
    row.badge->setForegroundRole(origin == Origin::by_default ? QPalette::PlaceholderText : QPalette::Link);
    row.reset->setVisible(origin != Origin::by_default);
  }
  for (const Slider& s : sliders_) {
    const double v = s.get(draft);
    s.slider->setValue(static_cast<int>(std::lround(100 * (v - s.low) / (s.high - s.low))));
    s.value->setText(s.text(v));
  }
  refreshing_ = false;
}

void ProblemPage::refreshEffective() {
  const auto& e = session_->estimate();
  if (!e) return;
  for (const Row& row : rows_) {
    const QString effective = row.field->effective ? row.field->effective(*e->problem) : QString();
    if (auto* line = qobject_cast<QLineEdit*>(row.editor)) line->setPlaceholderText(effective);
    else if (auto* box = qobject_cast<QComboBox*>(row.editor)) {
      if (box->isEditable()) box->lineEdit()->setPlaceholderText(effective);
      else box->setItemText(0, effective.isEmpty() ? QString() : tr("(%1)").arg(shortened(effective, 16)));
    }
    const QString source = row.field->source ? row.field->source(*e->problem) : QString();
    row.source->setText(source);
    row.source->setToolTip(source);
  }
  refreshDraft();
}

void ProblemPage::refreshIssues() {
  const auto& issues = session_->issues();
  for (const Row& row : rows_) row.issue->hide();
  whole_->hide();
  for (std::size_t i = 0; i < issues.size(); ++i) {
    const Issue& issue = issues[i];
    QString text = QStringLiteral("<span style='color:%1'>✘ %2</span>").arg(badColour(palette()).name(), issue.message.toHtmlEscaped());
    for (std::size_t f = 0; f < issue.fixes.size(); ++f) text += QStringLiteral(" &nbsp; <a style='color:%4' href='%1/%2'>fix: %3</a>").arg(i).arg(f).arg(issue.fixes[f].label.toHtmlEscaped(), palette().color(QPalette::Link).name());
    QLabel* label = whole_;
    for (const Row& row : rows_)
      if (row.field->key == issue.field) label = row.issue;
    label->setText(text);
    label->show();
  }
}

void ProblemPage::applyFix(const QString& link) {
  const QStringList parts = link.split(QLatin1Char('/'));
  if (parts.size() != 2) return;
  const auto i = parts[0].toUInt(), f = parts[1].toUInt();
  const auto& issues = session_->issues();
  if (i >= issues.size() || f >= issues[i].fixes.size()) return;
  const Fix fix = issues[i].fixes[f];
  session_->edit(fix.draft, tr("fix: %1").arg(fix.label));
}

QWidget* ProblemPage::start() { return rows_.front().editor; }

QWidget* ProblemPage::editor(const QString& key) const {
  for (const Row& row : rows_)
    if (row.field->key == key) return row.editor;
  return nullptr;
}

void ProblemPage::focusField(const QString& key) {
  if (QWidget* w = editor(key)) w->setFocus(Qt::ShortcutFocusReason);
}

std::vector<Drawing> ProblemPage::drawings() {
  const auto draw = [](const QString& name, BarList* list) {
    return Drawing{name, list, [list](QPainter& painter, const QSize& size) { list->paint(painter, QRect(QPoint(0, 0), size).adjusted(8, 4, -8, -4)); }};
  };
  return {draw(tr("memory by category"), panel_->memory()), draw(tr("time by category"), panel_->time())};
}

}  // namespace moeplan::gui
