#include "gui/widgets/table_text.hpp"

#include <algorithm>
#include <numeric>

#include "core/json.hpp"
#include "gui/models/plans_model.hpp"

namespace moeplan::gui {

QString csvCell(const QString& text) {
  QString out = text;
  if (!out.isEmpty() && QStringLiteral("=+-@\t\r").contains(out[0])) {
    bool number = false;
    out.toDouble(&number);
    if (!number) out.prepend(QLatin1Char('\''));
  }
  if (!out.contains(QLatin1Char(',')) && !out.contains(QLatin1Char('"')) && !out.contains(QLatin1Char('\n')) && !out.contains(QLatin1Char('\r'))) return out;
  return QLatin1Char('"') + out.replace(QLatin1Char('"'), QStringLiteral("\"\"")) + QLatin1Char('"');
}

TableText::TableText(const TableView& table, TableFormat format) : model_(table.model()), format_(format) {
  if (!model_) return;
  for (int c = 0; c < model_->columnCount(); ++c)
    if (format != TableFormat::tsv || !table.isColumnHidden(c)) columns_.push_back(c);
  if (format != TableFormat::tsv) {
    rows_.resize(static_cast<std::size_t>(model_->rowCount()));
    std::iota(rows_.begin(), rows_.end(), 0);
    return;
  }
  for (const QItemSelectionRange& range : table.selectionModel()->selection())
    for (int r = range.top(); r <= range.bottom(); ++r) rows_.push_back(r);
  std::sort(rows_.begin(), rows_.end());
  rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
}

QByteArray TableText::head() const {
  if (format_ == TableFormat::json) return "[\n";
  QStringList cells;
  for (const int c : columns_) {
    const QString title = model_->headerData(c, Qt::Horizontal).toString();
    cells << (format_ == TableFormat::csv ? csvCell(title) : title);
  }
  return cells.join(format_ == TableFormat::csv ? QLatin1Char(',') : QLatin1Char('\t')).toUtf8() + '\n';
}

QByteArray TableText::row(std::size_t i) const {
  QStringList cells;
  Json object = Json::object();
  for (const int c : columns_) {
    const QModelIndex cell = model_->index(rows_[i], c);
    const QString shown = cell.data().toString();
    // Text that sorts by a number stays text; a number is written with all its digits.
    const QVariant number = cell.data(Qt::TextAlignmentRole).toInt() & Qt::AlignLeft ? QVariant() : cell.data(kNumberRole);
    if (format_ == TableFormat::json) object[model_->headerData(c, Qt::Horizontal).toString().toStdString()] = number.isValid() ? Json(number.toDouble()) : Json(shown.toStdString());
    else if (format_ == TableFormat::csv) cells << (number.isValid() ? QString::fromStdString(Json(number.toDouble()).dump()) : csvCell(shown));
    else cells << QString(shown).replace(QLatin1Char('\t'), QLatin1Char(' '));
  }
  if (format_ == TableFormat::json) return QByteArray::fromStdString(object.dump()) + (i + 1 < rows_.size() ? ",\n" : "\n");
  return cells.join(format_ == TableFormat::csv ? QLatin1Char(',') : QLatin1Char('\t')).toUtf8() + '\n';
}

QByteArray TableText::whole() const {
  if (!model_) return {};
  QByteArray out = head();
  for (std::size_t i = 0; i < rows(); ++i) out += row(i);
  return out + tail();
}

TableTextJob::TableTextJob(const TableView& table, TableFormat format, QObject* parent) : QObject(parent), text_(table, format), out_(text_.head()) {
  const auto changed = [this] {
    timer_.stop();
    Q_EMIT failed(tr("the table changed while it was written; try again"));
    deleteLater();
  };
  const QAbstractItemModel* model = table.model();
  connect(model, &QAbstractItemModel::modelAboutToBeReset, this, changed);
  connect(model, &QAbstractItemModel::layoutAboutToBeChanged, this, changed);
  connect(model, &QAbstractItemModel::rowsAboutToBeRemoved, this, changed);
  connect(model, &QObject::destroyed, this, changed);
  connect(&timer_, &QTimer::timeout, this, &TableTextJob::some);
  timer_.start(0);
}

void TableTextJob::some() {
  QElapsedTimer spent;
  for (spent.start(); next_ < text_.rows() && spent.elapsed() < 15;) out_ += text_.row(next_++);
  if (next_ < text_.rows()) return Q_EMIT progress(static_cast<int>(100 * next_ / text_.rows()));
  timer_.stop();
  Q_EMIT done(out_ + text_.tail());
  deleteLater();
}

}  // namespace moeplan::gui
