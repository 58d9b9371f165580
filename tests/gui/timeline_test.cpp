/// Traces read from files, what lies beside what, groups and counters of the timeline.

#include "core/write.hpp"
#include "gui/models/chrome_trace.hpp"
#include "gui/models/expert_view.hpp"
#include "gui/models/timeline_scene.hpp"
#include "gui/pages/timeline_page.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "sim/engine/trace.hpp"
#include "tests/gui/gui_test.hpp"

namespace moeplan::gui_test {
namespace {

/// Two stages: a forward pass cut by a dispatch, a backward pass, arrows; two dispatches overlap on their lane.
StepTimeline small() {
  StepTimeline t;
  t.world = 16;
  t.step = 9'000'123;
  t.ranks = {{.rank = 0, .stage = 0, .stands_for = 8}, {.rank = 8, .stage = 1, .stands_for = 8}};
  t.lanes = {"compute", "expert communication"};
  t.names = {"forward of moe", "dispatch", "backward of moe", "rms_norm forward", "grouped_linear forward", "tokens"};
  t.calls = {{.collective = "dispatch", .group = "expert", .group_size = 8, .in_bytes = 4096, .out_bytes = 4096}};
  t.details = {{.duration = 3'000'000, .parts = {{0, 1'000'001, 3, Activity::forward}, {1'000'001, 1'999'999, 4, Activity::forward}}}};
  t.events = {{.start = 5, .duration = 3'000'000, .rank = 0, .lane = 0, .name = 0, .detail = 0, .layer = 2, .micro_batch = 1, .kind = Activity::forward},
              {.start = 3'000'005, .duration = 1'000'000, .rank = 0, .lane = 1, .name = 1, .call = 0, .layer = 2, .micro_batch = 1, .kind = Activity::expert_communication},
              {.start = 3'500'000, .duration = 1'000'000, .rank = 0, .lane = 1, .name = 1, .call = 0, .layer = 2, .micro_batch = 2, .kind = Activity::expert_communication},
              {.start = 4'000'005, .duration = 3'000'000, .rank = 0, .lane = 0, .name = 0, .detail = 0, .layer = 2, .micro_batch = 1, .kind = Activity::forward},
              {.start = 8'000'000, .duration = 1'000'123, .rank = 1, .lane = 0, .name = 2, .layer = 5, .micro_batch = 0, .kind = Activity::backward}};
  t.flows = {{0, 1, 5}, {1, 3, 5}};
  return t;
}

std::string fileWith(const QTemporaryDir& folder, const std::string& text) {
  const std::string path = folder.filePath(QStringLiteral("trace.json")).toStdString();
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string refusal(const std::string& path) {
  try {
    (void)chromeTrace(path);
  } catch (const InputError& e) {
    return std::string(e.what());
  }
  return "accepted";
}

TEST(GuiTimeline, AChromeTraceOfOursComesBackAsTheStepItWas) {
  const QTemporaryDir folder;
  const StepTimeline t = small();
  const std::string path = fileWith(folder, chrome_trace(t));
  ASSERT_TRUE(looksLikeChromeTrace(path));
  const StepTimeline back = chromeTrace(path);
  EXPECT_EQ(back.source, "simulated");
  EXPECT_EQ(back.world, 16);
  EXPECT_EQ(back.step, t.step);
  EXPECT_EQ(back.ranks, t.ranks);
  ASSERT_EQ(back.events.size(), t.events.size());
  const auto text = [](const StepTimeline& of, std::int32_t name) { return of.names[static_cast<std::size_t>(name)]; };
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    const TimelineEvent &a = t.events[i], &b = back.events[i];
    EXPECT_EQ(std::tie(a.start, a.duration, a.rank, a.layer, a.micro_batch, a.kind), std::tie(b.start, b.duration, b.rank, b.layer, b.micro_batch, b.kind)) << i;
    EXPECT_EQ(text(t, a.name), text(back, b.name)) << i;
    EXPECT_EQ(t.lanes[static_cast<std::size_t>(a.lane)], back.lanes[static_cast<std::size_t>(b.lane)]) << i;
    ASSERT_EQ(a.detail >= 0, b.detail >= 0) << i;
    if (a.detail < 0) continue;
    const auto &p = t.details[static_cast<std::size_t>(a.detail)].parts, &q = back.details[static_cast<std::size_t>(b.detail)].parts;
    ASSERT_EQ(p.size(), q.size());
    for (std::size_t k = 0; k < p.size(); ++k) {
      EXPECT_EQ(text(t, p[k].name), text(back, q[k].name));
      EXPECT_EQ(std::tie(p[k].start, p[k].duration), std::tie(q[k].start, q[k].duration));
    }
  }
  EXPECT_EQ(back.details.size(), 1u) << "equal passes share their table of parts";
  ASSERT_EQ(back.flows.size(), 2u);
  EXPECT_EQ(std::pair(back.flows[0].from, back.flows[0].to), std::pair(0, 1));
  EXPECT_EQ(std::pair(back.flows[1].from, back.flows[1].to), std::pair(1, 3));
  EXPECT_EQ(back.calls.at(0).collective, "dispatch");
  EXPECT_EQ(back.calls.at(0).in_bytes, 4096);
}

TEST(GuiTimeline, KernelsOfAPytorchTraceGoToTheLanesOfAPrediction) {
  const QTemporaryDir folder;
  // Times since 1970 in microseconds with nanoseconds behind the point: more digits than a double holds.
  const std::string path = fileWith(folder, R"json({"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": [
    {"ph": "M", "name": "thread_name", "pid": 4711, "tid": 4711, "args": {"name": "thread 4711 (python)"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4711, "tid": 4711, "ts": 1764476912345678.125, "dur": 12.5},
    {"ph": "X", "cat": "kernel", "name": "sm90_gemm", "pid": 0, "tid": 7, "ts": 1764476912345690.251, "dur": 100.001, "args": {"stream": 7}},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(ncclDevComm*)", "pid": 0, "tid": 20, "ts": 1764476912345700, "dur": 50},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "pid": 0, "tid": 21, "ts": 1764476912345800, "dur": "50"},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": 1764476912345900, "dur": 1},
    {"ph": "B", "cat": "x", "name": "step wait", "pid": "Spans", "tid": "a", "ts": 1764476912345700},
    {"ph": "E", "pid": "Spans", "tid": "a", "ts": 1764476912345702},
    {"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 1}]})json");
  const StepTimeline t = chromeTrace(path);
  ASSERT_EQ(t.ranks.size(), 1u);
  EXPECT_EQ(t.ranks[0].rank, 3);
  std::map<std::string, std::tuple<std::string, Picoseconds, Picoseconds>> of;
  for (const TimelineEvent& e : t.events) of[t.names[static_cast<std::size_t>(e.name)]] = {t.lanes[static_cast<std::size_t>(e.lane)], e.start, e.duration};
  ASSERT_EQ(of.size(), 6u);
  EXPECT_EQ(of["aten::mm"], std::tuple("host: thread 4711 (python)", Picoseconds{0}, Picoseconds{12'500'000}));
  EXPECT_EQ(of["sm90_gemm"], std::tuple("compute", Picoseconds{12'126'000}, Picoseconds{100'001'000}));
  EXPECT_EQ(std::get<0>(of["ncclDevKernel_SendRecv(ncclDevComm*)"]), "expert communication");
  EXPECT_EQ(of["ncclDevKernel_AllGather_RING_LL"], std::tuple("data communication", Picoseconds{121'875'000}, Picoseconds{50'000'000}));
  EXPECT_EQ(std::get<0>(of["Memcpy HtoD"]), "copy");
  EXPECT_EQ(std::get<2>(of["step wait"]), 2'000'000);
}

TEST(GuiTimeline, WhatIsWrongWithATraceIsNamed) {
  const QTemporaryDir folder;
  EXPECT_NE(refusal(fileWith(folder, R"({"traceEvents": [{"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 1, "dur": 1}, {"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 1}]})")).find("traceEvents[1].dur: is missing"), std::string::npos);
  EXPECT_NE(refusal(fileWith(folder, R"({"traceEvents": [{"ph": "X", "ts": "soon", "dur": 1}]})")).find("traceEvents[0].ts: \"soon\" is no time"), std::string::npos);
  EXPECT_NE(refusal(fileWith(folder, R"({"traceEvents": [{"ph": "X", "ts": 1, "dur": 1},)")).find("no JSON"), std::string::npos);
  EXPECT_NE(refusal(fileWith(folder, R"({"traceEvents": []})")).find("no event with a length"), std::string::npos);
  EXPECT_NE(refusal(fileWith(folder, "[" + std::string(100, '[') + std::string(101, ']'))).find("nested deeper"), std::string::npos);
  EXPECT_NE(refusal(fileWith(folder, R"({"traceEvents": [{"ph": "X", "ts": 0, "dur": 1}, {"ph": "X", "ts": 1e13, "dur": 1}]})")).find("more than 92 days"), std::string::npos);
  EXPECT_NE(refusal(folder.filePath(QStringLiteral("absent.json")).toStdString()).find("no file"), std::string::npos);
}

TEST(GuiTimeline, APassMeasuredInOneStretchCountsAgainstAllThatWerePredicted) {
  StepTimeline measured;
  measured.source = "measured";
  measured.ranks = {{.rank = 0}, {.rank = 9, .stage = 1}};
  measured.lanes = {"compute"};
  measured.names = {"moe"};
  measured.events = {{.start = 0, .duration = 3'500'000, .rank = 0, .lane = 0, .name = 0, .layer = 2, .micro_batch = 1, .kind = Activity::forward},
                     {.start = 4'000'000, .duration = 2'000'246, .rank = 1, .lane = 0, .name = 0, .layer = 5, .micro_batch = 0, .kind = Activity::backward},
                     {.start = 7'000'000, .duration = 1, .rank = 1, .lane = 0, .name = 0, .layer = 6, .micro_batch = 0, .kind = Activity::backward}};
  const Counterparts c = counterparts(small(), measured);
  EXPECT_EQ(c.toPredicted, (std::vector<std::int32_t>{0, 4, -1}));
  EXPECT_EQ(c.toMeasured, (std::vector<std::int32_t>{0, -1, -1, 0, 1}));
  EXPECT_EQ(c.predicted[0], 7'000'000) << "from 5 ps to 7,000,005 ps";
  EXPECT_EQ(c.stretches[0], 2);
  EXPECT_EQ(c.predicted[1], 1'000'123) << "rank 9 is one of those that rank 8 stands for";
  EXPECT_EQ(c.matched, 2);
  EXPECT_EQ(c.measuredTime, 5'500'246);
}

TEST(GuiTimeline, RowsSayTheirNodeAndExpertGroupAndFoldByThem) {
  TraceStore store = storeOf(small(), false);
  nameGroups(store, 4, 8, 2);
  ASSERT_EQ(store.rows.size(), 4u) << "compute, two overlapping rows of the exchange, compute of rank 8";
  EXPECT_EQ(store.rows[0].node, QStringLiteral("node 0 · ranks 0–3"));
  EXPECT_EQ(store.rows[3].node, QStringLiteral("node 2 · ranks 8–11"));
  EXPECT_EQ(store.rows[0].expertGroup, QStringLiteral("stage 0, expert group 0 · ranks 0–1"));
  EXPECT_EQ(store.rows[3].expertGroup, QStringLiteral("stage 1, expert group 0 · ranks 8–9"));
  TimelineView view;
  view.resize(900, 500);
  view.setStore(std::move(store), {});
  EXPECT_TRUE(view.groups().isEmpty());
  view.setGrouping(Grouping::node);
  EXPECT_EQ(view.groups().size(), 2);
  EXPECT_EQ(view.visibleRows().size(), 4u);
  view.toggleGroup(0);
  EXPECT_EQ(view.visibleRows(), std::vector<int>{3});
  view.select(3, 0);
  QTest::keyClick(&view, Qt::Key_Space);
  EXPECT_TRUE(view.visibleRows().empty());
  EXPECT_EQ(view.groups().size(), 2);
  view.setGrouping(Grouping::expert_group);
  EXPECT_EQ(view.visibleRows().size(), 4u) << "what is folded by node is not by expert group";
}

TEST(GuiTimeline, BalancedRoutersGiveEveryExpertItsShareOfTheTokens) {
  Draft draft = smallDraft();
  draft.load = "uniform";
  const Problem problem = problem_of(MOEPLAN_CONFIGS, draft);
  Plan plan;
  plan.parallelism = {.pp = 1, .ep = 4, .dp_shard = 8};
  plan.micro_batch = 2;
  // Four ranks of two sequences of 4096 tokens, each to 8 of 128 experts.
  for (const double tokens : busiestExpertTokens(problem, plan)) EXPECT_NEAR(tokens, 4.0 * 2 * 4096 * 8 / 128, 1e-6);
  plan.experts.capacity_factor = 0.5;
  for (const double tokens : busiestExpertTokens(problem, plan)) EXPECT_NEAR(tokens, 1024, 1e-6);
}

TEST(GuiTimeline, ALayersCounterHoldsWhileItsComputeRuns) {
  const Counter c = layerCounter(small(), 0, {0, 0, 7});
  EXPECT_EQ(c.values, (std::vector<double>{7, 0, 7, 0}));
  EXPECT_NEAR(c.seconds[1], 3'000'005e-12, 1e-18);
  EXPECT_NEAR(c.seconds[2], 4'000'005e-12, 1e-18);
  EXPECT_TRUE(layerCounter(small(), 1, {0, 0, 7}).values.empty());
}

TEST(GuiTimeline, SlotsAsPlacedAddUpToTheirRanks) {
  const Problem problem = problem_of(MOEPLAN_CONFIGS, smallDraft());
  const ExpertView view = expertView(problem, nullptr, {.layer = 0, .ranks = 8, .replicas = 16, .capacity = 0});
  const auto slots = heatCells(view, HeatMap::slots_after), after = heatCells(view, HeatMap::ranks_after), before = heatCells(view, HeatMap::ranks_before);
  ASSERT_EQ(slots.size(), view.layers.size());
  for (std::size_t l = 0; l < slots.size(); ++l) {
    ASSERT_EQ(slots[l].size(), 144u);
    for (std::size_t r = 0; r < 8; ++r) {
      double sum = 0;
      for (std::size_t s = 0; s < 18; ++s) sum += slots[l][18 * r + s];
      EXPECT_NEAR(sum / 16, after[l][r], 1e-9) << "a mean rank holds the load of 16 mean experts";
    }
    EXPECT_LE(*std::max_element(after[l].begin(), after[l].end()), *std::max_element(before[l].begin(), before[l].end()) + 1e-9);
  }
  EXPECT_EQ(expertAt(view, HeatMap::slots_after, 3, 20), view.placements[3].expert[20]);
  EXPECT_FALSE(expertAt(view, HeatMap::ranks_after, 3, 2).has_value());
}

TEST_F(Gui, AChromeTraceDroppedOnTheWindowLiesUnderThePrediction) {
  searched();
  ASSERT_TRUE(eventually([&] { return session().play() != nullptr; }));
  auto* page = static_cast<TimelinePage*>(window->pages()[3]);
  StepTimeline measured = session().play()->timeline;
  measured.source = "measured";
  for (TimelineEvent& e : measured.events) e.start *= 2, e.duration *= 2;
  measured.step *= 2;
  ASSERT_TRUE(window->openFile(write(QStringLiteral("kineto.json"), chrome_trace(measured))));
  EXPECT_EQ(window->currentPage(), 3);
  ASSERT_TRUE(eventually([&] { return page->scene().measured && page->scene().play && !page->busy(); }));
  EXPECT_EQ(page->scene().pairs.matched, static_cast<std::int64_t>(page->scene().play->timeline.events.size()));
  EXPECT_EQ(page->scene().pairs.measuredTime, 2 * page->scene().pairs.predictedTime);
  // A bad one is named in the window and leaves what was there.
  ASSERT_TRUE(window->openFile(write(QStringLiteral("cut.json"), R"({"traceEvents": [{"ph": "X", "ts": 1, "dur": 1},)")));
  ASSERT_TRUE(eventually([&] { return window->message().contains(QStringLiteral("no JSON")); }));
  EXPECT_TRUE(window->message().contains(QStringLiteral("cut.json")));
  EXPECT_NE(page->scene().measured, nullptr);
}

}  // namespace
}  // namespace moeplan::gui_test
