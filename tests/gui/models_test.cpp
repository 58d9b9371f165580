/// Models without a window.

#include <QAbstractItemModelTester>
#include <cmath>
#include <random>

#include "core/write.hpp"
#include "gui/app/palette.hpp"
#include "gui/models/issues.hpp"
#include "gui/models/memory_area.hpp"
#include "gui/models/plans_model.hpp"
#include "gui/models/run_model.hpp"
#include "gui/models/trace_store.hpp"
#include "gui/models/why_not.hpp"
#include "gui/widgets/table_text.hpp"
#include "gui/widgets/treemap.hpp"
#include "sim/load/expert_load.hpp"
#include "tests/gui/gui_test.hpp"

namespace moeplan::gui_test {
namespace {

/// `n` made-up plans, best first, on the small problem.
std::shared_ptr<const SearchResult> madeUp(int n) {
  auto out = std::make_shared<SearchResult>();
  out->problem = std::make_shared<const Problem>(problem_of(MOEPLAN_CONFIGS, smallDraft()));
  for (int i = 0; i < n; ++i) {
    RankedPlan r;
    r.plan.parallelism = {.pp = 1, .ep = 1 << (i % 4), .dp_shard = 8};
    r.plan.micro_batch = 1 + i % 3;
    r.plan.stage_layers = {48};
    r.forecast.step = {1 + 1e-3 * i};
    r.forecast.step_p95 = r.forecast.step;
    r.forecast.memory[MemoryCategory::weights] = Bytes{(100 + (i * 7919) % 50) * 1'000'000'000LL};
    r.forecast.memory_p95 = r.forecast.memory;
    r.forecast.tokens_per_second_per_device = 1e4 / r.forecast.step.value;
    out->answer.plans.push_back(r);
  }
  out->answer.pareto = {0};
  out->answer.searched = out->answer.feasible = n;
  out->answer.rejected = {{"memory_states", 12}, {"batch_divides", 30}};
  out->answer.example = {{"memory_states", "the closest one needs 348 GB"}};
  return out;
}

TEST(GuiModels, PlansModelKeepsTheRulesOfItemModels) {
  PlansModel model;
  const QAbstractItemModelTester tester(&model, QAbstractItemModelTester::FailureReportingMode::Fatal);
  model.setResult(madeUp(50));
  model.sort(5, Qt::DescendingOrder);
  EXPECT_EQ(model.setFilter(QStringLiteral("ep2")), QString());
  EXPECT_EQ(model.rowCount(), 13);
  model.setPinned(model.result()->answer.plans[3]);
  model.setResult(nullptr);
  EXPECT_EQ(model.rowCount(), 0);
}

TEST(GuiModels, AFilteredAndSortedPlanKeepsItsRank) {
  PlansModel model;
  model.setResult(madeUp(40));
  EXPECT_EQ(model.setFilter(QStringLiteral("ep8 peak<130")), QString());
  model.sort(planColumn(QStringLiteral("Step")), Qt::DescendingOrder);
  ASSERT_GT(model.rowCount(), 1);
  for (int r = 0; r < model.rowCount(); ++r) {
    const int plan = model.planAt(r);
    EXPECT_EQ(plan % 4, 3);
    EXPECT_TRUE(model.index(r, 0).data().toString().startsWith(QString::number(plan + 1)));
    EXPECT_LT(model.result()->answer.plans[static_cast<std::size_t>(plan)].forecast.memory_p95.peak().value, 130'000'000'000);
    if (r) {
      EXPECT_LT(plan, model.planAt(r - 1));
    }
  }
}

TEST(GuiModels, AFilterWithoutMeaningIsNamedAndChangesNothing) {
  PlansModel model;
  model.setResult(madeUp(10));
  EXPECT_EQ(model.setFilter(QStringLiteral("peak<<3")), QStringLiteral("peak<<3"));
  EXPECT_EQ(model.setFilter(QStringLiteral("nonsense<3")), QStringLiteral("nonsense<3"));
  EXPECT_EQ(model.rowCount(), 10);
}

TEST(GuiModels, ADegreeInTheFilterIsAWholeNumber) {
  PlansModel model;
  model.setResult(madeUp(8));
  EXPECT_EQ(model.setFilter(QStringLiteral("dp8")), QString());
  EXPECT_EQ(model.rowCount(), 8);
  EXPECT_EQ(model.setFilter(QStringLiteral("dp")), QString());
  EXPECT_EQ(model.rowCount(), 8);
  EXPECT_EQ(model.setFilter(QStringLiteral("ep1")), QString());
  EXPECT_EQ(model.rowCount(), 0) << "degrees of 1 are not part of a layout";
}

TEST(GuiModels, DeltasAreAgainstThePinnedPlan) {
  PlansModel model;
  model.setResult(madeUp(200));
  model.setPinned(model.result()->answer.plans[0]);
  const QString step = model.index(100, planColumn(QStringLiteral("Step"))).data().toString();
  EXPECT_EQ(step, QStringLiteral("1.10 s (+10.0 %)"));
}

TEST(GuiModels, AHundredThousandPlansAreSortedWithoutBlocking) {
  PlansModel model;
  model.setResult(madeUp(100000));
  const auto start = std::chrono::steady_clock::now();
  timespec a{}, b{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
  model.sort(planColumn(QStringLiteral("Peak")), Qt::AscendingOrder);
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
  RecordProperty("cpu_ms", static_cast<int>(1e3 * static_cast<double>(b.tv_sec - a.tv_sec) + 1e-6 * static_cast<double>(b.tv_nsec - a.tv_nsec)));
  RecordProperty("wall_ms", static_cast<int>(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count()));
  ASSERT_EQ(model.rowCount(), 100000);
  const int c = planColumn(QStringLiteral("Peak"));
  for (int r = 1; r < 1000; ++r) EXPECT_LE(model.index(r - 1, c).data(kNumberRole).toDouble(), model.index(r, c).data(kNumberRole).toDouble());
}

TEST(GuiModels, RejectedAndRunModelsKeepTheRulesOfItemModels) {
  RejectedModel rejected;
  const QAbstractItemModelTester one(&rejected, QAbstractItemModelTester::FailureReportingMode::Fatal);
  rejected.setResult(madeUp(3));
  EXPECT_EQ(rejected.index(0, 0).data().toString(), QStringLiteral("batch divides"));
  EXPECT_EQ(rejected.index(1, 2).data().toString(), QStringLiteral("the closest one needs 348 GB"));
  RunModel run;
  const QAbstractItemModelTester two(&run, QAbstractItemModelTester::FailureReportingMode::Fatal);
  EXPECT_TRUE(run.add(parse_json(R"({"step":1,"loss":2.5,"tokens":100,"step_s":0.5,"expert_tokens":{"3":[1,2]}})", "t")));
  EXPECT_FALSE(run.add(parse_json(R"({"step":"one"})", "t")));
  EXPECT_EQ(run.steps().front().tokensPerSecond, 200);
  EXPECT_EQ(run.experts().front().first, 3);
  EXPECT_TRUE(std::isnan(run.steps().front().memory));
  run.clear();
}

TEST(GuiModels, DraftsSurviveTheirFile) {
  Draft draft = smallDraft();
  draft.ep = 4;
  draft.tokens = 5e9;
  draft.method = Training::lora;
  draft.what_if.bandwidth = 0.5;
  EXPECT_EQ(read_document<Draft>(to_json(draft), "draft"), draft);
}

TEST(GuiModels, TheCommandLineNamesOnlyWhatIsNotDefault) {
  EXPECT_EQ(command_of(Draft{}), "moeplan plan kimi-k3 --cluster 128xh200");
  Draft draft = smallDraft();
  draft.ep = 4;
  draft.sequence_length = 8192;
  draft.load = "/tmp/it's mine.json";
  EXPECT_EQ(command_of(draft), "moeplan plan qwen3-30b-a3b --cluster 8xh200 --load '/tmp/it'\\''s mine.json' --seq 8192 --targets attention,experts --ep 4");
  draft.what_if.imbalance = 2;
  EXPECT_NE(command_of(draft).find("# what-if, not a flag: imbalance x 2"), std::string::npos);
}

TEST(GuiModels, AnExpertDegreeThatDoesNotDivideIsExplainedAndMended) {
  Draft draft = smallDraft();
  draft.ep = 3;
  const Problem problem = problem_of(MOEPLAN_CONFIGS, draft);
  const auto issues = pinIssues(draft, problem);
  ASSERT_EQ(issues.size(), 1u);
  EXPECT_EQ(issues[0].message, QStringLiteral("ep 3: must divide 128 experts and the 8 ranks of a stage; possible: 1 2 4 8"));
  ASSERT_EQ(issues[0].fixes.size(), 2u);
  EXPECT_EQ(issues[0].fixes[0].draft.ep, 4);
  EXPECT_TRUE(pinIssues(issues[0].fixes[0].draft, problem).empty());
  EXPECT_FALSE(issues[0].fixes[1].draft.ep.has_value());
}

TEST(GuiModels, BalancedWhatIfIsUniformAndWiderIsWider) {
  const Problem problem = problem_of(MOEPLAN_CONFIGS, smallDraft());
  const auto worst = [&](double imbalance) { return rank_factor(expert_shares(applied(problem, {.imbalance = imbalance, .bandwidth = 1, .price = {}}).load, 48, 128).front(), 8); };
  EXPECT_NEAR(worst(0), 1, 1e-9);
  EXPECT_GT(worst(2), worst(1));
  EXPECT_GT(worst(1), 1.01);
}

TEST(GuiModels, EveryEventIsInExactlyOneMarkAtAnyZoom) {
  TraceRow row;
  std::mt19937 random(7);
  Picoseconds at = 0;
  for (int i = 0; i < 20000; ++i) {
    at += static_cast<Picoseconds>(random() % 50);
    const auto duration = static_cast<Picoseconds>(random() % 100 == 0 ? 20000 : random() % 60);
    row.events.push_back({.start = at, .duration = duration, .name = 0, .origin = i, .kind = Activity::forward});
    at += duration;
  }
  row.build();
  for (const Picoseconds pixel : {Picoseconds{1}, Picoseconds{100}, Picoseconds{5000}, at / 1000, at}) {
    std::int64_t events = 0, next = 0;
    std::size_t marks = 0;
    row.marks(0, at, pixel, [&](const TraceMark& m) {
      EXPECT_EQ(m.index, next);
      next += m.events;
      events += m.events;
      ++marks;
      EXPECT_LE(m.density, 1 + 1e-9);
    });
    EXPECT_EQ(events, 20000) << pixel;
    // What is drawn depends on the pixels, not on the events: longer events, and up to a few marks a pixel.
    EXPECT_LT(marks, static_cast<std::size_t>(2 * (at / pixel) + 700)) << pixel;
  }
}

TEST(GuiModels, MemoryAreaKeepsThePeakAndLiveBuffersAddUpToIt) {
  MemoryTimeline t;
  t.names = {"weights", "kept", "passing"};
  std::int32_t order = 0;
  t.blocks.push_back({MemoryCategory::weights, Bytes{1000}, 0, 100000, order++, 0, 0});
  for (int i = 0; i < 20000; ++i) t.blocks.push_back({MemoryCategory::activations, Bytes{10 + (i == 7777 ? 990 : 0)}, 5 * i, 5 * i + 4, order + 2 * i, order + 2 * i + 1, i % 2 + 1});
  const MemoryArea area = areaOf(t, 300);
  EXPECT_LT(area.seconds.size(), 700u);
  EXPECT_EQ(area.total[area.peak], 2000);
  std::int64_t sum = 0;
  for (const LiveBuffer& b : liveAt(t, area.change[area.peak])) sum += b.bytes.value;
  EXPECT_EQ(sum, 2000);
}

TEST(GuiModels, TreemapAreasAreInProportion) {
  const std::vector<double> sizes{60, 20, 10, 6, 4};
  const auto rects = squarified(sizes, QRectF(0, 0, 200, 100));
  ASSERT_EQ(rects.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_NEAR(rects[i].width() * rects[i].height(), 200 * sizes[i], 1e-6);
}

TEST(GuiModels, CsvCellsAreQuotedAndStartNoFormula) {
  EXPECT_EQ(csvCell(QStringLiteral("a,b")), QStringLiteral("\"a,b\""));
  EXPECT_EQ(csvCell(QStringLiteral("say \"x\"")), QStringLiteral("\"say \"\"x\"\"\""));
  EXPECT_EQ(csvCell(QStringLiteral("=cmd()")), QStringLiteral("'=cmd()"));
  EXPECT_EQ(csvCell(QStringLiteral("-1.5")), QStringLiteral("-1.5"));
}

TEST(GuiModels, ThePalettePrefersWordsFirstLetters) {
  EXPECT_LT(fuzzyScore(QStringLiteral("xyz"), QStringLiteral("Copy as CLI command")), 0);
  EXPECT_GT(fuzzyScore(QStringLiteral("cli"), QStringLiteral("Copy as CLI command")), fuzzyScore(QStringLiteral("cli"), QStringLiteral("Select the plan in its table")));
}

TEST(GuiModels, WhyNotSaysHowMuchSlowerAndWhoDominates) {
  const auto result = madeUp(201);
  const QString text = whyNot(*result, 200, std::nullopt);
  EXPECT_TRUE(text.contains(QStringLiteral("20.0 % slower than plan 1"))) << text.toStdString();
  EXPECT_TRUE(whyNot(*result, 0, std::nullopt).contains(QStringLiteral("The first")));
}

TEST(GuiModels, TextIsReadableOnEverySeriesColourAndTheme) {
  for (const Look look : {Look::light, Look::dark, Look::high_contrast}) {
    const QPalette p = paletteOf(look);
    EXPECT_GE(contrast(p.color(QPalette::Text), p.color(QPalette::Base)), 7);
    EXPECT_GE(contrast(p.color(QPalette::PlaceholderText), p.color(QPalette::Window)), 4.5);
    for (const QColor& c : {goodColour(p), warnColour(p), badColour(p), p.color(QPalette::Link)}) EXPECT_GE(contrast(c, p.color(QPalette::Window)), 4.5) << c.name().toStdString();
    for (int i = 0; i < 8; ++i) EXPECT_GE(contrast(textOn(seriesColour(i, p)), seriesColour(i, p)), 4.5) << i;
  }
}

}  // namespace
}  // namespace moeplan::gui_test
