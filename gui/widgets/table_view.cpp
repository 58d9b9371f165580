#include "gui/widgets/table_view.hpp"

#include <QApplication>
#include <QClipboard>
#include <QHeaderView>
#include <QKeyEvent>
#include <QMenu>
#include <algorithm>

#include "gui/widgets/table_text.hpp"

namespace moeplan::gui {

TableView::TableView(const QString& accessibleName, QWidget* parent) : QTableView(parent) {
  setAccessibleName(accessibleName);
  setSelectionBehavior(SelectRows);
  setSelectionMode(ExtendedSelection);
  setAlternatingRowColors(true);
  setShowGrid(false);
  setWordWrap(false);
  setTabKeyNavigation(false);
  setCornerButtonEnabled(false);
  verticalHeader()->hide();
  verticalHeader()->setSectionResizeMode(QHeaderView::Fixed);
  horizontalHeader()->setHighlightSections(false);
  horizontalHeader()->setStretchLastSection(true);
  horizontalHeader()->setContextMenuPolicy(Qt::CustomContextMenu);
  connect(horizontalHeader(), &QWidget::customContextMenuRequested, this, &TableView::chooseColumns);
}

void TableView::fitColumns() {
  const int em = fontMetrics().height();
  verticalHeader()->setDefaultSectionSize(em * 3 / 2);
  if (!model()) return;
  // The first rows say how wide: asking 100,000 would block.
  const int rows = std::min(model()->rowCount(), 60);
  for (int c = 0; c < model()->columnCount(); ++c) {
    int width = fontMetrics().horizontalAdvance(model()->headerData(c, Qt::Horizontal).toString()) + (isSortingEnabled() ? 2 * em : em);
    for (int r = 0; r < rows; ++r) width = std::max(width, fontMetrics().horizontalAdvance(model()->index(r, c).data().toString()) + em);
    setColumnWidth(c, std::min(width, 40 * em));
    // A header stands over its numbers.
    if (rows > 0 && !model()->headerData(c, Qt::Horizontal, Qt::TextAlignmentRole).isValid())
      model()->setHeaderData(c, Qt::Horizontal, model()->index(0, c).data(Qt::TextAlignmentRole).toInt() & Qt::AlignRight ? static_cast<int>(Qt::AlignRight | Qt::AlignVCenter) : static_cast<int>(Qt::AlignLeft | Qt::AlignVCenter), Qt::TextAlignmentRole);
  }
  // Text may run on to the edge; a number there would stand far from its column.
  const int last = model()->columnCount() - 1;
  horizontalHeader()->setStretchLastSection(last >= 0 && !(model()->headerData(last, Qt::Horizontal, Qt::TextAlignmentRole).toInt() & Qt::AlignRight));
}

void TableView::setColumnShown(int column, bool shown) { setColumnHidden(column, !shown); }

void TableView::keyPressEvent(QKeyEvent* event) {
  if (event->matches(QKeySequence::Copy) && model()) {
    auto* text = new TableTextJob(*this, TableFormat::tsv, this);
    connect(text, &TableTextJob::done, this, [](const QByteArray& rows) { QApplication::clipboard()->setText(QString::fromUtf8(rows)); });
    return;
  }
  if (event->key() == Qt::Key_Menu || (event->key() == Qt::Key_F10 && event->modifiers() == Qt::ShiftModifier)) return chooseColumns({0, horizontalHeader()->height()});
  // Letters are shortcuts here, not a search by prefix.
  if (event->text().size() == 1 && event->text()[0].isLetterOrNumber() && event->modifiers() == Qt::NoModifier) return event->ignore();
  QTableView::keyPressEvent(event);
}

void TableView::changeEvent(QEvent* event) {
  QTableView::changeEvent(event);
  if (event->type() == QEvent::FontChange || event->type() == QEvent::ApplicationFontChange) fitColumns();
}

void TableView::chooseColumns(const QPoint& at) {
  if (!model()) return;
  auto* menu = new QMenu(this);
  menu->setAttribute(Qt::WA_DeleteOnClose);
  for (int c = 0; c < model()->columnCount(); ++c) {
    QAction* action = menu->addAction(model()->headerData(c, Qt::Horizontal).toString());
    action->setCheckable(true);
    action->setChecked(!isColumnHidden(c));
    connect(action, &QAction::toggled, this, [this, c](bool on) { setColumnShown(c, on); });
  }
  menu->popup(horizontalHeader()->mapToGlobal(at));
}

}  // namespace moeplan::gui
