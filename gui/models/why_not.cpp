#include "gui/models/why_not.hpp"

#include <algorithm>
#include <cmath>

#include "core/show.hpp"
#include "gui/models/plans_model.hpp"
#include "planner/describe.hpp"

namespace moeplan::gui {
namespace {

QString qs(const std::string& s) { return QString::fromStdString(s); }
QString spaced(std::string_view name) { return qs(std::string(name)).replace(QLatin1Char('_'), QLatin1Char(' ')); }
QString more(const QString& name, const QString& amount, bool isMore) { return QObject::tr("%1 %2 %3").arg(name, amount, isMore ? QObject::tr("more") : QObject::tr("less")); }

/// The largest differences of two forecasts, at most `most`.
QString differences(const Forecast& a, const Forecast& b, std::size_t most) {
  std::vector<std::pair<double, QString>> parts;
  for (const auto& [category, name] : EnumNames<TimeCategory>::names) {
    const double d = b.time[static_cast<std::size_t>(category)].value - a.time[static_cast<std::size_t>(category)].value;
    if (std::abs(d) > 0.001 * a.step.value) parts.emplace_back(std::abs(d), more(spaced(name), qs(duration({std::abs(d)})), d > 0));
  }
  std::sort(parts.begin(), parts.end(), [](const auto& x, const auto& y) { return x.first > y.first; });
  QStringList out;
  for (std::size_t i = 0; i < std::min(most, parts.size()); ++i) out << parts[i].second;
  return out.join(QStringLiteral(", "));
}

}  // namespace

QString whyNot(const SearchResult& result, int plan, const std::optional<RankedPlan>& pinned) {
  const auto& plans = result.answer.plans;
  if (plan < 0 || plan >= static_cast<int>(plans.size())) return {};
  const RankedPlan& mine = plans[static_cast<std::size_t>(plan)];
  const auto against = [&](const RankedPlan& other, const QString& name) {
    const Forecast &a = other.forecast, &b = mine.forecast;
    const double slower = b.step / a.step - 1;
    const Bytes da = a.memory_p95.peak(), db = b.memory_p95.peak();
    QString out = std::abs(slower) < 5e-4 ? QObject::tr("As fast as %1 (%2)").arg(name, qs(duration(a.step)))
                                          : QObject::tr("%1 %2 than %3 (%4 instead of %5)").arg(qs(percent(std::abs(slower))), slower > 0 ? QObject::tr("slower") : QObject::tr("faster"), name, qs(duration(b.step)), qs(duration(a.step)));
    const QString where = differences(a, b, 3);
    if (!where.isEmpty()) out += QObject::tr(": ") + where;
    if (da != db) out += QObject::tr("; peak memory %1 %2").arg(qs(human(db > da ? db - da : da - db)), db > da ? QObject::tr("more") : QObject::tr("less"));
    return out + QStringLiteral(".");
  };
  QString out = QObject::tr("<b>Plan %1: %2</b><br>").arg(plan + 1).arg(qs(layout_text(mine.plan.parallelism)));
  if (plan == 0) out += QObject::tr("The first: no plan that fits has higher throughput (throughputs within half a per cent count as equal; then less memory, then the simpler layout).");
  else out += against(plans.front(), QObject::tr("plan 1"));
  const bool front = std::find(result.answer.pareto.begin(), result.answer.pareto.end(), static_cast<std::size_t>(plan)) != result.answer.pareto.end();
  if (front) {
    out += QObject::tr("<br>On the Pareto front: nothing is both faster and smaller.");
  } else {
    // Plans are sorted best first, so whoever is before it and smaller dominates it.
    for (const std::size_t f : result.answer.pareto) {
      if (static_cast<int>(f) > plan || plans[f].forecast.memory_p95.peak() > mine.forecast.memory_p95.peak()) continue;
      out += QObject::tr("<br>Dominated by plan %1 (%2): no slower, and %3 less memory.").arg(f + 1).arg(qs(layout_text(plans[f].plan.parallelism)), qs(human(mine.forecast.memory_p95.peak() - plans[f].forecast.memory_p95.peak())));
      break;
    }
  }
  if (pinned && pinned->plan != mine.plan) out += QStringLiteral("<br>") + against(*pinned, QObject::tr("A"));
  out += QObject::tr("<br>Times rest on %1 measured, %2 interpolated, %3 roofline; memory peaks in %4.").arg(qs(percent(mine.forecast.basis[0])), qs(percent(mine.forecast.basis[1])), qs(percent(mine.forecast.basis[2])), qs(mine.forecast.memory.peak_at));
  return out;
}

void RejectedModel::setResult(std::shared_ptr<const SearchResult> result) {
  beginResetModel();
  rows_.clear();
  if (result) {
    for (const auto& [rule, number] : result->answer.rejected) {
      const auto example = result->answer.example.find(rule);
      rows_.push_back({spaced(rule), number, example == result->answer.example.end() ? QString() : qs(example->second)});
    }
    std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.number > b.number; });
  }
  endResetModel();
}

int RejectedModel::rowCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : static_cast<int>(rows_.size()); }
int RejectedModel::columnCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : 3; }

QVariant RejectedModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid()) return {};
  const Row& row = rows_[static_cast<std::size_t>(index.row())];
  if (role == Qt::DisplayRole || role == Qt::ToolTipRole) return index.column() == 0 ? row.rule : index.column() == 1 ? qs(grouped(row.number)) : row.reason;
  if (role == kNumberRole && index.column() == 1) return static_cast<double>(row.number);
  if (role == Qt::TextAlignmentRole) return static_cast<int>((index.column() == 1 ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter);
  return {};
}

QVariant RejectedModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  if (role == Qt::TextAlignmentRole) return static_cast<int>((section == 1 ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter);
  if (role != Qt::DisplayRole) return {};
  return section == 0 ? tr("Rule") : section == 1 ? tr("Plans") : tr("The one closest to fitting, or an example");
}

}  // namespace moeplan::gui
