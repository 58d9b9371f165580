#include "gui/app/palette.hpp"

#include <QAction>
#include <QKeyEvent>
#include <QLineEdit>
#include <QListWidget>
#include <QTextBrowser>
#include <QVBoxLayout>
#include <algorithm>
#include <map>

namespace moeplan::gui {

int fuzzyScore(const QString& typed, const QString& text) {
  int score = 0;
  qsizetype at = 0, last = -2;
  for (const QChar c : typed) {
    if (c.isSpace()) continue;
    const qsizetype found = text.indexOf(c, at, Qt::CaseInsensitive);
    if (found < 0) return -1;
    score += 1;
    if (found == last + 1) score += 4;
    if (found == 0 || !text[found - 1].isLetterOrNumber()) score += 6;
    last = found;
    at = found + 1;
  }
  return 8 * score - static_cast<int>(text.size() / 4);
}

CommandPalette::CommandPalette(std::vector<Command> commands, QWidget* parent) : QDialog(parent, Qt::Dialog | Qt::FramelessWindowHint), commands_(std::move(commands)) {
  setWindowTitle(tr("Commands"));
  setAttribute(Qt::WA_DeleteOnClose);
  auto* column = new QVBoxLayout(this);
  input_ = new QLineEdit;
  input_->setPlaceholderText(tr("Type a command …"));
  input_->setAccessibleName(tr("Command"));
  list_ = new QListWidget;
  list_->setAccessibleName(tr("Matching commands"));
  list_->setUniformItemSizes(true);
  column->addWidget(input_);
  column->addWidget(list_);
  input_->installEventFilter(this);
  connect(input_, &QLineEdit::textChanged, this, &CommandPalette::refresh);
  connect(input_, &QLineEdit::returnPressed, this, &CommandPalette::run);
  connect(list_, &QListWidget::itemActivated, this, &CommandPalette::run);
  resize(fontMetrics().averageCharWidth() * 80, fontMetrics().height() * 24);
  if (parent) move(parent->mapToGlobal(QPoint((parent->width() - width()) / 2, parent->height() / 10)));
  refresh();
  input_->setFocus();
}

void CommandPalette::refresh() {
  std::vector<std::pair<int, std::size_t>> found;
  for (std::size_t i = 0; i < commands_.size(); ++i) {
    const QAction* a = commands_[i].action;
    if (!a->isEnabled()) continue;
    const QString text = commands_[i].group + QStringLiteral(": ") + a->text().remove(QLatin1Char('&'));
    const int score = fuzzyScore(input_->text(), text);
    if (score >= 0 || input_->text().isEmpty()) found.emplace_back(score, i);
  }
  if (!input_->text().isEmpty()) std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  list_->clear();
  for (const auto& [score, i] : found) {
    const QAction* a = commands_[i].action;
    const QString keys = a->shortcut().toString(QKeySequence::NativeText);
    auto* item = new QListWidgetItem(QStringLiteral("%1: %2%3").arg(commands_[i].group, a->text().remove(QLatin1Char('&')), keys.isEmpty() ? QString() : QStringLiteral("    [%1]").arg(keys)), list_);
    item->setData(Qt::UserRole, static_cast<qulonglong>(i));
  }
  list_->setCurrentRow(0);
}

void CommandPalette::run() {
  const QListWidgetItem* item = list_->currentItem();
  if (!item) return;
  QAction* action = commands_[item->data(Qt::UserRole).toULongLong()].action;
  accept();
  QMetaObject::invokeMethod(action, &QAction::trigger, Qt::QueuedConnection);
}

bool CommandPalette::eventFilter(QObject* watched, QEvent* event) {
  if (watched == input_ && event->type() == QEvent::KeyPress) {
    const int key = static_cast<QKeyEvent*>(event)->key();
    const int step = key == Qt::Key_Down ? 1 : key == Qt::Key_Up ? -1 : key == Qt::Key_PageDown ? 10 : key == Qt::Key_PageUp ? -10 : 0;
    if (step && list_->count()) {
      list_->setCurrentRow(std::clamp(list_->currentRow() + step, 0, list_->count() - 1));
      return true;
    }
  }
  return QDialog::eventFilter(watched, event);
}

QDialog* cheatSheet(const std::vector<Command>& commands, QWidget* parent) {
  auto* dialog = new QDialog(parent);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setWindowTitle(QObject::tr("Keys"));
  auto* column = new QVBoxLayout(dialog);
  auto* text = new QTextBrowser;
  text->setAccessibleName(dialog->windowTitle());
  std::vector<QString> groups;
  std::map<QString, QString> rows;
  for (const Command& c : commands) {
    const QString keys = c.action->shortcut().toString(QKeySequence::NativeText);
    if (keys.isEmpty()) continue;
    if (!rows.contains(c.group)) groups.push_back(c.group);
    rows[c.group] += QStringLiteral("<tr><td style='padding-right: 24px'><b>%1</b></td><td>%2</td></tr>").arg(keys.toHtmlEscaped(), c.action->text().remove(QLatin1Char('&')).toHtmlEscaped());
  }
  QString html;
  for (const QString& group : groups) html += QStringLiteral("<h3>%1</h3><table>%2</table>").arg(group, rows[group]);
  const auto fixed = [&](const QString& title, std::initializer_list<std::pair<QString, QString>> keys) {
    html += QStringLiteral("<h3>%1</h3><table>").arg(title);
    for (const auto& [key, what] : keys) html += QStringLiteral("<tr><td style='padding-right: 24px'><b>%1</b></td><td>%2</td></tr>").arg(key, what);
    html += QStringLiteral("</table>");
  };
  fixed(QObject::tr("Charts"), {{QObject::tr("wheel, W S + -"), QObject::tr("zoom (at the cursor)")}, {QObject::tr("drag, A D, arrows"), QObject::tr("move")}, {QObject::tr("Shift+drag"), QObject::tr("zoom to a box")}, {QObject::tr("Ctrl+drag"), QObject::tr("brush: select what is inside")},
                                {QObject::tr("double-click, 0"), QObject::tr("fit")}, {QObject::tr("Alt+Left, Alt+Right"), QObject::tr("zoom history")}, {QObject::tr("click on the legend"), QObject::tr("hide or show a series")}});
  fixed(QObject::tr("Timeline"), {{QObject::tr("wheel, W S"), QObject::tr("zoom (at the cursor)")}, {QObject::tr("drag, A D"), QObject::tr("move in time")}, {QObject::tr("Shift+wheel, Page Up, Page Down"), QObject::tr("scroll over rows")}, {QObject::tr("Up, Down"), QObject::tr("select in the row above, below")}, {QObject::tr(". ,"), QObject::tr("next, previous event on the row")},
                                   {QObject::tr("F"), QObject::tr("centre the event, then fit it")}, {QObject::tr("Shift+drag"), QObject::tr("select a span: sums below")}, {QObject::tr("P, H, Shift+H"), QObject::tr("pin the row to the top, hide it, show all hidden rows")}, {QObject::tr("G, Space"), QObject::tr("next grouping of rows; fold or open the selected row's group (or click its heading)")}, {QObject::tr("Esc"), QObject::tr("clear")}, {QObject::tr("0"), QObject::tr("fit everything")}});
  fixed(QObject::tr("Tables"), {{QObject::tr("Ctrl+C"), QObject::tr("copy rows with headers")}, {QObject::tr("Shift+F10"), QObject::tr("choose columns")}});
  text->setHtml(html);
  column->addWidget(text);
  dialog->resize(text->fontMetrics().averageCharWidth() * 84, text->fontMetrics().height() * 36);
  return dialog;
}

}  // namespace moeplan::gui
