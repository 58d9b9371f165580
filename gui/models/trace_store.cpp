#include "gui/models/trace_store.hpp"

#include <QObject>
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>

namespace moeplan::gui {

void TraceRow::build() {
  levels_.clear();
  if (events.size() <= kFan) return;
  // Per node the time of each activity decides the colour; kept only while building.
  using Times = std::array<Picoseconds, kActivities>;
  std::vector<Times> times((events.size() + kFan - 1) / kFan);
  std::vector<Node> level(times.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    const TraceEvent& e = events[i];
    Node& n = level[i / kFan];
    if (i % kFan == 0) n.start = e.start;
    n.end = std::max(n.end, e.end());
    n.busy += e.duration;
    n.longest = std::max(n.longest, e.duration);
    times[i / kFan][static_cast<std::size_t>(e.kind)] += std::max<Picoseconds>(1, e.duration);
  }
  const auto colour = [](std::vector<Node>& nodes, const std::vector<Times>& t) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto most = std::max_element(t[i].begin(), t[i].end());
      nodes[i].kind = static_cast<Activity>(most - t[i].begin());
      nodes[i].kindTime = *most;
    }
  };
  colour(level, times);
  levels_.push_back(std::move(level));
  while (levels_.back().size() > kFan) {
    const std::vector<Node>& below = levels_.back();
    std::vector<Node> next((below.size() + kFan - 1) / kFan);
    std::vector<Times> sum(next.size());
    for (std::size_t i = 0; i < below.size(); ++i) {
      Node& n = next[i / kFan];
      if (i % kFan == 0) n.start = below[i].start;
      n.end = std::max(n.end, below[i].end);
      n.busy += below[i].busy;
      n.longest = std::max(n.longest, below[i].longest);
      for (std::size_t a = 0; a < kActivities; ++a) sum[i / kFan][a] += times[i][a];
    }
    colour(next, sum);
    times = std::move(sum);
    levels_.push_back(std::move(next));
  }
}

void TraceRow::visit(std::size_t level, std::size_t place, Picoseconds from, Picoseconds to, Picoseconds pixel, const std::function<void(const TraceMark&)>& draw) const {
  const Node& n = levels_[level][place];
  if (n.end < from || n.start > to) return;
  std::size_t width = kFan;
  for (std::size_t l = 0; l < level; ++l) width *= kFan;
  const std::size_t first = place * width, last = std::min(first + width, events.size());
  if (n.end - n.start <= pixel) {
    draw({.start = n.start, .end = n.end, .density = n.end > n.start ? static_cast<double>(n.busy) / static_cast<double>(n.end - n.start) : 1, .events = static_cast<std::int64_t>(last - first), .index = static_cast<std::int64_t>(first), .kind = n.kind});
    return;
  }
  if (level > 0) {
    const std::size_t end = std::min((place + 1) * kFan, levels_[level - 1].size());
    for (std::size_t i = place * kFan; i < end; ++i) visit(level - 1, i, from, to, pixel, draw);
    return;
  }
  // Sixteen events: neighbours that are too short join one mark.
  for (std::size_t i = first; i < last;) {
    const TraceEvent& e = events[i];
    if (e.end() < from || e.start > to) { ++i; continue; }
    if (e.duration > pixel) {
      draw({.start = e.start, .end = e.end(), .density = 1, .events = 1, .index = static_cast<std::int64_t>(i), .kind = e.kind});
      ++i;
      continue;
    }
    std::size_t j = i;
    Picoseconds busy = 0;
    while (j < last && events[j].duration <= pixel && events[j].end() - e.start <= pixel && events[j].start <= to) busy += events[j++].duration;
    if (j == i) ++j, busy = e.duration;
    const Picoseconds end = events[j - 1].end();
    draw({.start = e.start, .end = end, .density = end > e.start ? static_cast<double>(busy) / static_cast<double>(end - e.start) : 1, .events = static_cast<std::int64_t>(j - i), .index = static_cast<std::int64_t>(i), .kind = e.kind});
    i = j;
  }
}

void TraceRow::marks(Picoseconds from, Picoseconds to, Picoseconds pixel, const std::function<void(const TraceMark&)>& draw) const {
  if (levels_.empty()) {
    for (std::size_t i = 0; i < events.size(); ++i)
      if (events[i].end() >= from && events[i].start <= to) draw({.start = events[i].start, .end = events[i].end(), .density = 1, .events = 1, .index = static_cast<std::int64_t>(i), .kind = events[i].kind});
    return;
  }
  for (std::size_t i = 0; i < levels_.back().size(); ++i) visit(levels_.size() - 1, i, from, to, pixel, draw);
}

std::int64_t TraceRow::eventAt(Picoseconds at, Picoseconds slack) const {
  auto after = std::upper_bound(events.begin(), events.end(), at + slack, [](Picoseconds t, const TraceEvent& e) { return t < e.start; });
  if (after == events.begin()) return -1;
  --after;
  return after->end() + slack >= at ? after - events.begin() : -1;
}

std::int64_t TraceStore::events() const {
  std::int64_t sum = 0;
  for (const TraceRow& row : rows) sum += static_cast<std::int64_t>(row.events.size());
  return sum;
}

TraceStore storeOf(const StepTimeline& t, bool measured) {
  TraceStore out;
  out.end = t.step;
  for (const auto& name : t.names) out.names.push_back(QString::fromStdString(name));
  // (rank, lane, overlap) -> row; events come by start.
  std::map<std::array<std::int32_t, 3>, std::size_t> row_of;
  std::vector<std::pair<std::int32_t, std::int64_t>> place(t.events.size());
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    const TimelineEvent& e = t.events[i];
    const bool known = e.rank >= 0 && static_cast<std::size_t>(e.rank) < t.ranks.size() && e.lane >= 0 && static_cast<std::size_t>(e.lane) < t.lanes.size() && e.name >= 0 && static_cast<std::size_t>(e.name) < t.names.size();
    if (!known) continue;
    for (std::int32_t overlap = 0;; ++overlap) {
      const auto [it, fresh] = row_of.try_emplace({e.rank, e.lane, overlap}, out.rows.size());
      if (fresh) {
        const TimelineRank& rank = t.ranks[static_cast<std::size_t>(e.rank)];
        TraceRow row;
        row.label = QStringLiteral("rank %1 · %2%3").arg(rank.rank).arg(QString::fromStdString(t.lanes[static_cast<std::size_t>(e.lane)]), overlap ? QStringLiteral(" %1").arg(overlap + 1) : QString());
        if (rank.stands_for > 1) row.note = QStringLiteral("×%1").arg(rank.stands_for);
        row.laneName = QString::fromStdString(t.lanes[static_cast<std::size_t>(e.lane)]);
        row.rank = e.rank, row.lane = e.lane, row.stage = rank.stage, row.number = rank.rank, row.overlap = overlap;
        row.measured = measured;
        if (measured) row.origin = t.source == "simulated" ? QObject::tr(" (from the file)") : QObject::tr(" (measured)");
        out.rows.push_back(std::move(row));
      }
      TraceRow& row = out.rows[it->second];
      if (!row.events.empty() && row.events.back().end() > e.start) continue;
      place[i] = {static_cast<std::int32_t>(it->second), static_cast<std::int64_t>(row.events.size())};
      row.events.push_back({.start = e.start, .duration = e.duration, .name = e.name, .origin = static_cast<std::int32_t>(i), .kind = e.kind});
      break;
    }
    out.end = std::max(out.end, e.end());
  }
  // Rows by rank, then lane.
  std::vector<std::size_t> order(out.rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return std::tuple(out.rows[a].rank, out.rows[a].lane, out.rows[a].overlap) < std::tuple(out.rows[b].rank, out.rows[b].lane, out.rows[b].overlap); });
  std::vector<std::int32_t> now(order.size());
  std::vector<TraceRow> rows;
  for (std::size_t i = 0; i < order.size(); ++i) {
    now[order[i]] = static_cast<std::int32_t>(i);
    rows.push_back(std::move(out.rows[order[i]]));
  }
  out.rows = std::move(rows);
  for (TraceRow& row : out.rows) row.build();
  for (const TimelineFlow& f : t.flows) {
    if (f.from < 0 || f.to < 0 || static_cast<std::size_t>(f.from) >= place.size() || static_cast<std::size_t>(f.to) >= place.size()) continue;
    const auto &a = place[static_cast<std::size_t>(f.from)], &b = place[static_cast<std::size_t>(f.to)];
    const TimelineEvent &leaves = t.events[static_cast<std::size_t>(f.from)], &lands = t.events[static_cast<std::size_t>(f.to)];
    out.flows.push_back({now[static_cast<std::size_t>(a.first)], now[static_cast<std::size_t>(b.first)], a.second, b.second, f.name, leaves.end(), lands.start, leaves.duration + lands.duration});
  }
  return out;
}

TraceStore beside(TraceStore predicted, TraceStore measured) {
  TraceStore out;
  out.end = std::max(predicted.end, measured.end);
  out.names = std::move(predicted.names);
  std::unordered_map<std::string, std::int32_t> index;
  for (std::size_t i = 0; i < out.names.size(); ++i) index.emplace(out.names[i].toStdString(), static_cast<std::int32_t>(i));
  std::vector<std::int32_t> renamed;
  for (const QString& name : measured.names) {
    const auto [it, fresh] = index.try_emplace(name.toStdString(), static_cast<std::int32_t>(out.names.size()));
    if (fresh) out.names.push_back(name);
    renamed.push_back(it->second);
  }
  for (TraceRow& row : measured.rows)
    for (TraceEvent& e : row.events) e.name = renamed[static_cast<std::size_t>(e.name)];
  // Lanes by the predicted order, others after them; of one rank and lane the predicted row first.
  std::vector<QString> lanes;
  const auto place = [&](const TraceRow& row) {
    const auto known = std::find(lanes.begin(), lanes.end(), row.laneName);
    if (known == lanes.end()) lanes.push_back(row.laneName);
    return std::find(lanes.begin(), lanes.end(), row.laneName) - lanes.begin();
  };
  std::vector<const TraceRow*> lane_order;
  for (const TraceStore* s : {&predicted, &measured})
    for (const TraceRow& row : s->rows) lane_order.push_back(&row);
  std::stable_sort(lane_order.begin(), lane_order.end(), [](const TraceRow* a, const TraceRow* b) { return a->lane < b->lane; });
  for (const TraceRow* row : lane_order) (void)place(*row);
  struct Source { std::int64_t number; std::ptrdiff_t lane; std::int32_t overlap; bool measured; std::int32_t row; };
  std::vector<Source> order;
  for (const TraceStore* s : {&predicted, &measured})
    for (std::size_t r = 0; r < s->rows.size(); ++r) order.push_back({s->rows[r].number, place(s->rows[r]), s->rows[r].overlap, s == &measured, static_cast<std::int32_t>(r)});
  std::stable_sort(order.begin(), order.end(), [](const Source& a, const Source& b) { return std::tie(a.number, a.lane, a.overlap, a.measured) < std::tie(b.number, b.lane, b.overlap, b.measured); });
  std::array<std::vector<std::int32_t>, 2> now{std::vector<std::int32_t>(predicted.rows.size()), std::vector<std::int32_t>(measured.rows.size())};
  for (const Source& s : order) {
    now[s.measured ? 1 : 0][static_cast<std::size_t>(s.row)] = static_cast<std::int32_t>(out.rows.size());
    out.rows.push_back(std::move((s.measured ? measured : predicted).rows[static_cast<std::size_t>(s.row)]));
  }
  for (const bool of_measured : {false, true})
    for (TraceFlow f : (of_measured ? measured : predicted).flows) {
      const auto& at = now[of_measured ? 1 : 0];
      f.fromRow = at[static_cast<std::size_t>(f.fromRow)], f.toRow = at[static_cast<std::size_t>(f.toRow)];
      if (of_measured) f.name = renamed[static_cast<std::size_t>(f.name)];
      out.flows.push_back(f);
    }
  return out;
}

void nameGroups(TraceStore& store, std::int64_t devicesPerNode, std::int64_t stageRanks, std::int64_t groupRanks) {
  const auto ranks = [](std::int64_t first, std::int64_t count) { return count > 1 ? QStringLiteral("ranks %1–%2").arg(first).arg(first + count - 1) : QStringLiteral("rank %1").arg(first); };
  for (TraceRow& row : store.rows) {
    if (devicesPerNode > 0) row.node = QStringLiteral("node %1 · %2").arg(row.number / devicesPerNode).arg(ranks(row.number / devicesPerNode * devicesPerNode, devicesPerNode));
    if (groupRanks <= 0 || stageRanks <= 0) continue;
    const std::int64_t stage = row.number / stageRanks, inside = row.number % stageRanks / groupRanks;
    row.expertGroup = QStringLiteral("stage %1, expert group %2 · %3").arg(stage).arg(inside).arg(ranks(stage * stageRanks + inside * groupRanks, groupRanks));
  }
}

std::vector<SpanSum> sums(const TraceStore& store, std::span<const int> rows, Picoseconds from, Picoseconds to) {
  std::map<std::int32_t, SpanSum> by_name;
  // Compute rows of each rank, for the overlap of the others.
  std::map<std::pair<std::int64_t, bool>, const TraceRow*> compute;
  for (const TraceRow& row : store.rows)
    if (row.lane == 0) compute.try_emplace({row.number, row.measured}, &row);
  for (const int r : rows) {
    const TraceRow& row = store.rows[static_cast<std::size_t>(r)];
    const auto found = compute.find({row.number, row.measured});
    const TraceRow* beside = found == compute.end() || found->second == &row ? nullptr : found->second;
    auto e = std::partition_point(row.events.begin(), row.events.end(), [&](const TraceEvent& x) { return x.end() <= from; });
    auto c = beside ? std::partition_point(beside->events.begin(), beside->events.end(), [&](const TraceEvent& x) { return x.end() <= from; }) : std::vector<TraceEvent>::const_iterator{};
    for (; e != row.events.end() && e->start < to; ++e) {
      SpanSum& sum = by_name[e->name];
      const Picoseconds a = std::max(e->start, from), b = std::min(e->end(), to);
      ++sum.count;
      sum.total += b - a;
      if (!beside) continue;
      while (c != beside->events.end() && c->end() <= a) ++c;
      for (auto k = c; k != beside->events.end() && k->start < b; ++k) sum.overlapped += std::min(b, k->end()) - std::max(a, k->start);
    }
  }
  std::vector<SpanSum> out;
  for (auto& [name, sum] : by_name) {
    sum.name = store.names[static_cast<std::size_t>(name)];
    out.push_back(std::move(sum));
  }
  std::stable_sort(out.begin(), out.end(), [](const SpanSum& a, const SpanSum& b) { return a.total > b.total; });
  return out;
}

}  // namespace moeplan::gui
