#include "gui/models/plans_model.hpp"

#include <QRegularExpression>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/show.hpp"
#include "planner/describe.hpp"

namespace moeplan::gui {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// One word of a filter, ready to be asked per plan.
struct Word {
  int column = -1;
  QString sign = {};
  double limit = 0;
  QString part = {};          ///< instead of a column
  bool front = false;
};

std::optional<Word> parsed(const QString& text) {
  static const QRegularExpression comparison(QStringLiteral("^([a-z/-]+)(<=|>=|<|>|=)([-+0-9.e]+)$"));
  const QString word = text.toLower();
  if (word == QLatin1String("front") || word == QLatin1String("*")) return Word{.front = true};
  const auto match = comparison.match(word);
  if (!match.hasMatch()) return word.contains(QLatin1Char('<')) || word.contains(QLatin1Char('>')) ? std::nullopt : std::optional(Word{.part = word});
  bool ok = false;
  double limit = match.captured(3).toDouble(&ok);
  if (!ok) return std::nullopt;
  const auto& columns = planColumns();
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].unit.isEmpty() || !columns[c].title.toLower().remove(QLatin1Char(' ')).startsWith(match.captured(1))) continue;
    if (columns[c].unit == QLatin1String("GB")) limit *= 1e9;
    if (columns[c].unit == QLatin1String("%")) limit /= 100;
    return Word{.column = static_cast<int>(c), .sign = match.captured(2), .limit = limit};
  }
  return std::nullopt;
}

bool holds(double v, const QString& sign, double limit) {
  if (std::isnan(v)) return false;
  if (sign == QLatin1String("<")) return v < limit;
  if (sign == QLatin1String("<=")) return v <= limit;
  if (sign == QLatin1String(">")) return v > limit;
  if (sign == QLatin1String(">=")) return v >= limit;
  return std::abs(v - limit) <= 0.005 * std::abs(limit);
}

}  // namespace

void PlansModel::setResult(std::shared_ptr<const SearchResult> result) {
  beginResetModel();
  result_ = std::move(result);
  numbers_.assign(planColumns().size(), {});
  first_.clear();
  front_.assign(result_ ? result_->answer.plans.size() : 0, false);
  if (result_)
    for (const std::size_t f : result_->answer.pareto) front_[f] = true;
  arrange();
  endResetModel();
}

const std::vector<double>& PlansModel::column(int c) const {
  std::vector<double>& out = numbers_[static_cast<std::size_t>(c)];
  const auto& plans = result_->answer.plans;
  if (!out.empty() || plans.empty()) return out;
  const PlanColumn& column = planColumns()[static_cast<std::size_t>(c)];
  out.reserve(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) out.push_back(c == 0 ? static_cast<double>(i + 1) : column.number(plans[i], *result_->problem).value_or(kNone));
  return out;
}

void PlansModel::setPinned(const std::optional<RankedPlan>& pinned) {
  pinned_ = pinned;
  if (rowCount() > 0) Q_EMIT dataChanged(index(0, 0), index(rowCount() - 1, columnCount() - 1), {Qt::DisplayRole});
}

QString PlansModel::setFilter(const QString& filter) {
  QString bad;
  for (const QString& word : filter.split(QLatin1Char(' '), Qt::SkipEmptyParts))
    if (!parsed(word) && bad.isEmpty()) bad = word;
  if (!bad.isEmpty()) return bad;
  beginResetModel();
  first_.clear();
  filter_ = filter;
  arrange();
  endResetModel();
  return {};
}

void PlansModel::arrange() {
  order_.clear();
  const std::size_t n = result_ ? result_->answer.plans.size() : 0;
  std::vector<Word> words;
  for (const QString& word : filter_.split(QLatin1Char(' '), Qt::SkipEmptyParts)) words.push_back(*parsed(word));
  for (std::size_t i = 0; i < n; ++i) {
    const bool passes = std::all_of(words.begin(), words.end(), [&](const Word& w) {
      if (w.front) return static_cast<bool>(front_[i]);
      if (w.column >= 0) return holds(column(w.column)[i], w.sign, w.limit);
      const RankedPlan& r = result_->answer.plans[i];
      const std::string part = w.part.toStdString();
      const std::string layout = " " + layout_text(r.plan.parallelism) + " ";
      // "ep6" is not a part of "ep64": digits end with the degree.
      const bool degree = !part.empty() && std::isdigit(static_cast<unsigned char>(part.back()));
      return layout.find(degree ? " " + part + " " : part) != std::string::npos || name_of(r.plan.recompute) == part || name_of(r.plan.frozen_storage) == part;
    });
    if (passes) order_.push_back(static_cast<int>(i));
  }
  const std::vector<double> none;
  const std::vector<double>& keys = result_ ? column(sortColumn_) : none;
  const bool down = sortOrder_ == Qt::DescendingOrder;
  if (sortColumn_ != 0 || down)
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
      const double x = keys[static_cast<std::size_t>(a)], y = keys[static_cast<std::size_t>(b)];
      if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
      return down ? x > y : x < y;
    });
  row_of_.assign(n, -1);
  for (std::size_t r = 0; r < order_.size(); ++r) row_of_[static_cast<std::size_t>(order_[r])] = static_cast<int>(r);
}

void PlansModel::sort(int column, Qt::SortOrder order) {
  if (column < 0 || column >= columnCount()) return;
  rearrange([&] {
    first_.clear();
    sortColumn_ = column;
    sortOrder_ = order;
    arrange();
  });
}

void PlansModel::setFirst(const std::vector<int>& plans) {
  if (plans.empty() && first_.empty()) return;
  rearrange([&] {
    if (!first_.empty()) first_.clear(), arrange();
    if (plans.empty()) return;
    first_.assign(row_of_.size(), false);
    for (const int plan : plans) first_[static_cast<std::size_t>(plan)] = true;
    std::stable_partition(order_.begin(), order_.end(), [&](int plan) { return first_[static_cast<std::size_t>(plan)]; });
    for (std::size_t r = 0; r < order_.size(); ++r) row_of_[static_cast<std::size_t>(order_[r])] = static_cast<int>(r);
  });
}

void PlansModel::rearrange(const std::function<void()>& change) {
  Q_EMIT layoutAboutToBeChanged({}, QAbstractItemModel::VerticalSortHint);
  const QModelIndexList before = persistentIndexList();
  std::vector<int> plans;
  for (const QModelIndex& i : before) plans.push_back(planAt(i.row()));
  change();
  QModelIndexList after;
  for (qsizetype i = 0; i < before.size(); ++i) after << index(rowOf(plans[static_cast<std::size_t>(i)]), before[i].column());
  changePersistentIndexList(before, after);
  Q_EMIT layoutChanged({}, QAbstractItemModel::VerticalSortHint);
}

int PlansModel::rowOf(int plan) const { return plan < 0 || plan >= static_cast<int>(row_of_.size()) ? -1 : row_of_[static_cast<std::size_t>(plan)]; }
int PlansModel::rowCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : static_cast<int>(order_.size()); }
int PlansModel::columnCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : static_cast<int>(planColumns().size()); }

QVariant PlansModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid() || !result_) return {};
  const auto c = static_cast<std::size_t>(index.column());
  const int plan = planAt(index.row());
  const PlanColumn& column = planColumns()[c];
  const RankedPlan& ranked = result_->answer.plans[static_cast<std::size_t>(plan)];
  switch (role) {
    case Qt::DisplayRole: {
      if (c == 0) return QStringLiteral("%1%2").arg(plan + 1).arg(onFront(plan) ? QStringLiteral(" *") : QString());
      QString text = column.text(ranked, *result_->problem);
      if (pinned_ && !column.unit.isEmpty()) {
        const auto a = column.number(*pinned_, *result_->problem), b = column.number(ranked, *result_->problem);
        if (a && b && *a != 0 && *a != *b) text += QStringLiteral(" (%1%2 %)").arg(*b > *a ? QStringLiteral("+") : QString()).arg(100 * (*b / *a - 1), 0, 'f', 1);
      }
      return text;
    }
    case kNumberRole: {
      const double v = numbers_[c].empty() ? (c == 0 ? plan + 1.0 : column.number(ranked, *result_->problem).value_or(kNone)) : numbers_[c][static_cast<std::size_t>(plan)];
      return std::isnan(v) ? QVariant() : QVariant(v);
    }
    case Qt::TextAlignmentRole: return static_cast<int>((column.unit.isEmpty() && c != 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
    case Qt::ToolTipRole: return QStringLiteral("%1%2: %3").arg(column.title, column.unit.isEmpty() ? QString() : QStringLiteral(" [%1]").arg(column.unit), column.why);
    case Qt::AccessibleTextRole: return QStringLiteral("%1 %2").arg(column.title, data(index, Qt::DisplayRole).toString());
    default: return {};
  }
}

QVariant PlansModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal || section < 0 || section >= columnCount()) return {};
  const PlanColumn& column = planColumns()[static_cast<std::size_t>(section)];
  if (role == Qt::DisplayRole) return column.title;
  if (role == Qt::ToolTipRole) return column.why;
  if (role == Qt::TextAlignmentRole) return static_cast<int>((column.unit.isEmpty() && section != 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
  return {};
}

}  // namespace moeplan::gui
