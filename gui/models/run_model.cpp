#include "gui/models/run_model.hpp"

#include <cmath>

#include "core/show.hpp"
#include "gui/models/plans_model.hpp"

namespace moeplan::gui {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
double number(const Json& line, const char* key) { return line.contains(key) && line.at(key).is_number() ? line.at(key).get<double>() : kNone; }

}  // namespace

void RunModel::clear() {
  beginResetModel();
  steps_.clear();
  experts_.clear();
  endResetModel();
}

bool RunModel::add(const Json& line) {
  if (!line.contains("step") || !line.at("step").is_number_integer()) return false;
  RunStep s{.step = line.at("step").get<std::int64_t>(), .loss = number(line, "loss"), .gradNorm = number(line, "grad_norm"), .seconds = number(line, "step_s"),
            .tokensPerSecond = number(line, "tokens_per_second"), .memory = number(line, "mem_peak_bytes"), .imbalance = number(line, "imbalance_max")};
  if (std::isnan(s.tokensPerSecond) && s.seconds > 0) s.tokensPerSecond = number(line, "tokens") / s.seconds;
  if (line.contains("expert_tokens") && line.at("expert_tokens").is_object()) {
    experts_.clear();
    for (const auto& [layer, counts] : line.at("expert_tokens").items()) {
      if (!counts.is_array()) continue;
      std::vector<double> row;
      for (const Json& c : counts) row.push_back(c.is_number() ? c.get<double>() : 0);
      experts_.emplace_back(std::atoi(layer.c_str()), std::move(row));
    }
  }
  beginInsertRows({}, rowCount(), rowCount());
  steps_.push_back(s);
  endInsertRows();
  return true;
}

int RunModel::rowCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : static_cast<int>(steps_.size()); }
int RunModel::columnCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : 7; }

double RunModel::value(const RunStep& s, int column) {
  const std::array<double, 7> all{static_cast<double>(s.step), s.loss, s.gradNorm, s.seconds, s.tokensPerSecond, s.memory, s.imbalance};
  return all[static_cast<std::size_t>(column)];
}

QVariant RunModel::data(const QModelIndex& index, int role) const {
  if (!index.isValid()) return {};
  const double v = value(steps_[static_cast<std::size_t>(index.row())], index.column());
  if (role == kNumberRole) return std::isnan(v) ? QVariant() : QVariant(v);
  if (role == Qt::TextAlignmentRole) return static_cast<int>(Qt::AlignRight | Qt::AlignVCenter);
  if (role != Qt::DisplayRole || std::isnan(v)) return {};
  switch (index.column()) {
    case 0: return QString::number(static_cast<qint64>(v));
    case 3: return QString::fromStdString(human(Seconds{v}));
    case 4: return QString::fromStdString(short_count(v));
    case 5: return QString::fromStdString(human(Bytes{static_cast<std::int64_t>(v)}));
    default: return QString::number(v, 'g', 5);
  }
}

QVariant RunModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  if (role == Qt::TextAlignmentRole) return static_cast<int>(Qt::AlignRight | Qt::AlignVCenter);
  static const std::array<const char*, 7> titles{QT_TR_NOOP("Step"), QT_TR_NOOP("Loss"), QT_TR_NOOP("Gradient norm"), QT_TR_NOOP("Time"), QT_TR_NOOP("Tokens/s"), QT_TR_NOOP("Peak memory"), QT_TR_NOOP("Imbalance")};
  return role == Qt::DisplayRole && section >= 0 && section < 7 ? QVariant(tr(titles[static_cast<std::size_t>(section)])) : QVariant();
}

}  // namespace moeplan::gui
