#include "gui/widgets/chart_numbers.hpp"

#include <cmath>

#include "gui/models/plans_model.hpp"

namespace moeplan::gui {

ChartNumbers::ChartNumbers(const Chart& chart, QObject* parent) : QAbstractTableModel(parent), titles_{tr("Series"), chart.xAxis->label(), chart.yAxis->label()} {
  const auto add = [&](double x, double y, double z = 0) {
    if (!std::isnan(x) && !std::isnan(y)) rows_.push_back({.series = static_cast<int>(series_.size()), .numbers = {x, y, z}});
  };
  for (int p = 0; p < chart.plottableCount(); ++p) {
    auto* plot = const_cast<Chart&>(chart).plottable(p);
    if (!plot->visible()) continue;
    const std::size_t before = rows_.size();
    if (const auto* graph = qobject_cast<QCPGraph*>(plot)) {
      // Of series that are stacked, each its own part.
      const QCPGraph* below = graph->channelFillGraph();
      if (below && below->data()->size() != graph->data()->size()) below = nullptr;
      for (int i = 0; i < graph->data()->size(); ++i) add(graph->data()->at(i)->key, graph->data()->at(i)->value - (below ? below->data()->at(i)->value : 0));
    } else if (const auto* bars = qobject_cast<QCPBars*>(plot)) {
      for (const QCPBarsData& d : *bars->data()) add(d.key, d.value);
    } else if (auto* map = qobject_cast<QCPColorMap*>(plot)) {
      if (titles_.size() == 3) titles_ << map->colorScale()->axis()->label();
      QCPColorMapData* cells = map->data();
      for (int y = 0; y < cells->valueSize(); ++y)
        for (int x = 0; x < cells->keySize(); ++x) {
          double across = 0, up = 0;
          cells->cellToCoord(x, y, &across, &up);
          add(across, up, cells->cell(x, y));
        }
    }
    if (rows_.size() > before) series_ << plot->name();
  }
}

int ChartNumbers::rowCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : static_cast<int>(rows_.size()); }
int ChartNumbers::columnCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : static_cast<int>(titles_.size()); }

QVariant ChartNumbers::data(const QModelIndex& index, int role) const {
  if (!index.isValid()) return {};
  const Row& row = rows_[static_cast<std::size_t>(index.row())];
  const auto c = static_cast<std::size_t>(index.column());
  if (role == Qt::TextAlignmentRole) return static_cast<int>((c == 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
  if (role == kNumberRole && c > 0) return row.numbers[c - 1];
  if (role != Qt::DisplayRole) return {};
  return c == 0 ? series_[row.series] : QString::number(row.numbers[c - 1], 'g', 7);
}

QVariant ChartNumbers::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  if (role == Qt::TextAlignmentRole) return static_cast<int>((section == 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
  return role == Qt::DisplayRole ? QVariant(titles_[section]) : QVariant();
}

}  // namespace moeplan::gui
