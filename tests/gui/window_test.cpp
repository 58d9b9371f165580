/// The window: what a user does, without a display.

#include <QAbstractItemModelTester>
#include <QClipboard>
#include <QComboBox>
#include <QDialog>
#include <QFile>
#include <QLabel>
#include <QLineEdit>
#include <QListWidget>
#include <QMimeData>
#include <QProcess>
#include <QTextBrowser>

#include "gui/app/export.hpp"
#include "gui/models/plans_model.hpp"
#include "gui/models/project.hpp"
#include "gui/pages/experts_page.hpp"
#include "gui/pages/memory_page.hpp"
#include "gui/pages/plans_page.hpp"
#include "gui/pages/problem_page.hpp"
#include "gui/pages/timeline_page.hpp"
#include "gui/widgets/pareto_chart.hpp"
#include "gui/widgets/chart_numbers.hpp"
#include "gui/widgets/table_text.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "planner/describe.hpp"
#include "tests/gui/gui_test.hpp"

namespace moeplan::gui_test {
namespace {

struct CliRun {
  int code = -1;
  QByteArray out, err;
};

CliRun cli(const QStringList& arguments) {
  QProcess process;
  process.start(QStringLiteral(MOEPLAN_PROGRAM), arguments);
  EXPECT_TRUE(process.waitForFinished(240000));
  return {process.exitCode(), process.readAllStandardOutput(), process.readAllStandardError()};
}

TEST_F(Gui, FirstStartShowsTheWorkedExamplePriced) {
  window->showWorkedExample();
  ASSERT_TRUE(eventually([&] { return session().estimate() && session().estimate()->ranked; }));
  session().cancelSearch();
  EXPECT_EQ(session().estimate()->problem->model_name, "kimi-k3");
  EXPECT_EQ(session().estimate()->problem->cluster.devices(), 128);
  EXPECT_EQ(session().estimate()->ranked->plan, workedExample());
  EXPECT_GT(session().estimate()->ranked->forecast.step.value, 0);
}

TEST_F(Gui, TheWorkedExamplesSearchIsTheCommandLinesToTheDigit) {
  // The decision shown before any search passes every rule; which plan the search then prefers is the planner's affair.
  window->showWorkedExample();
  ASSERT_TRUE(eventually([&] { return session().estimate() && session().estimate()->ranked; }));
  EXPECT_TRUE(session().issues().empty());
  EXPECT_LE(session().estimate()->ranked->forecast.memory_p95.peak(), session().estimate()->problem->cluster.device.memory);
  session().searchNow();
  ASSERT_TRUE(eventually([&] { return session().result() && !session().searching(); }));
  EXPECT_EQ(session().selected(), 0) << "what nobody chose gives way to the best";
  const CliRun run = cli({QStringLiteral("plan"), QStringLiteral("kimi-k3"), QStringLiteral("--cluster"), QStringLiteral("128xh200"), QStringLiteral("--json"), QStringLiteral("-q")});
  ASSERT_EQ(run.code, 0) << run.err.toStdString();
  const Json json = parse_json(run.out.toStdString(), "stdout", {.max_bytes = std::size_t{1} << 28, .max_values = 10'000'000});
  EXPECT_EQ(plan_json(session().result()->answer.plans.front()).dump(), json.at("plans")[0].dump());
  EXPECT_EQ(json.at("searched").get<std::int64_t>(), session().result()->answer.searched);
  EXPECT_EQ(json.at("feasible").get<std::int64_t>(), session().result()->answer.feasible);
  // The copied command asks the very same question.
  EXPECT_EQ(session().command(), "moeplan plan kimi-k3 --cluster 128xh200");
  // Live, without a search: the same decision alone, priced. A plan alone and a search add up the intervals in another order: equal to the
  // last digits but two.
  const Plan best = session().result()->answer.plans.front().plan;
  session().restore(Draft{}, best, std::nullopt);
  ASSERT_TRUE(eventually([&] { return session().estimate() && !session().estimateStale() && session().estimate()->ranked && session().estimate()->ranked->plan == best; }));
  session().cancelSearch();
  Json live = plan_json(*session().estimate()->ranked), there = json.at("plans")[0];
  for (const auto& [figure, ends] : there.at("intervals").items())
    for (const char* end : {"low", "high"}) EXPECT_NEAR(live.at("intervals").at(figure).at(end).get<double>() / ends.at(end).get<double>(), 1, 1e-12) << figure;
  live.erase("intervals");
  there.erase("intervals");
  EXPECT_EQ(live.dump(), there.dump());
}

TEST_F(Gui, NumbersEqualTheCommandLineToTheDigit) {
  searched();
  const CliRun run = cli({QStringLiteral("plan"), QStringLiteral("qwen3-30b-a3b"), QStringLiteral("--cluster"), QStringLiteral("8xh200"), QStringLiteral("--targets"), QStringLiteral("attention,experts"), QStringLiteral("--top"), QStringLiteral("10000"), QStringLiteral("--json"), QStringLiteral("-q")});
  ASSERT_EQ(run.code, 0) << run.err.toStdString();
  const Json json = parse_json(run.out.toStdString(), "stdout", {.max_bytes = std::size_t{1} << 28, .max_values = 10'000'000});
  const auto& result = *session().result();
  ASSERT_GE(result.answer.plans.size(), 100u);
  EXPECT_EQ(json.at("searched").get<std::int64_t>(), result.answer.searched);
  auto* page = static_cast<PlansPage*>(window->pages()[1]);
  for (std::size_t i = 0; i < std::min<std::size_t>(result.answer.plans.size(), 1000); ++i) {
    const Json& there = json.at("plans")[i];
    ASSERT_EQ(plan_json(result.answer.plans[i]).dump(), there.dump()) << i;
    for (std::size_t c = 0; c < planColumns().size(); ++c) {
      const QString path = planColumns()[c].json;
      if (path.isEmpty()) continue;
      const Json& value = there.at(Json::json_pointer(("/" + path).toStdString()));
      const QVariant shown = page->model()->index(page->model()->rowOf(static_cast<int>(i)), static_cast<int>(c)).data(kNumberRole);
      ASSERT_EQ(value.is_null(), !shown.isValid());
      if (!value.is_null()) {
        ASSERT_EQ(value.get<double>(), shown.toDouble()) << path.toStdString() << " of plan " << i;
      }
    }
  }
  // What is exported are those digits.
  const QString csv = QString::fromUtf8(TableText(*page->table(), TableFormat::csv).whole());
  const QString step = QString::fromStdString(json.at("plans")[0].at("step_seconds").dump());
  EXPECT_TRUE(csv.section(QLatin1Char('\n'), 1, 1).contains(step)) << csv.section(QLatin1Char('\n'), 0, 1).toStdString();
}

TEST_F(Gui, TheCopiedCommandGivesTheSamePlansWhateverIsPinned) {
  std::vector<Draft> drafts(4, smallDraft());
  drafts[0].tp = 2, drafts[0].etp = 2, drafts[0].micro_batch = 1;
  drafts[1].pp = 2, drafts[1].schedule = Schedule::interleaved, drafts[1].virtual_stages = 2;
  drafts[2].offload = "optimizer+weights", drafts[2].cp = 2;
  drafts[3].ep = 4, drafts[3].capacity_factor = 1.25, drafts[3].placement = ExpertPlacement::balanced, drafts[3].dispatch = DType::fp8, drafts[3].recompute = Recompute::full;
  for (const Draft& draft : drafts) {
    searched(draft);
    const CliRun run = cli(QProcess::splitCommand(QString::fromStdString(session().command())).mid(1) + QStringList{QStringLiteral("--json"), QStringLiteral("-q")});
    ASSERT_EQ(run.code, 0) << session().command() << "\n" << run.err.toStdString();
    const Json json = parse_json(run.out.toStdString(), "stdout", {.max_bytes = std::size_t{1} << 28, .max_values = 10'000'000});
    ASSERT_FALSE(session().result()->answer.plans.empty()) << session().command();
    EXPECT_EQ(json.at("plans")[0].dump(), plan_json(session().result()->answer.plans.front()).dump()) << session().command();
    EXPECT_EQ(json.at("searched").get<std::int64_t>(), session().result()->answer.searched) << session().command();
    // The live estimate of plan 1 does not refuse what the search found under the same pins.
    ASSERT_TRUE(session().estimate() && session().estimate()->ranked);
    EXPECT_TRUE(session().issues().empty()) << session().issues().front().message.toStdString();
  }
}

TEST_F(Gui, TypingRepricesTheSelectedPlanAndMarksTheRestStale) {
  searched();
  const double before = session().estimate()->ranked->forecast.step.value;
  auto* line = qobject_cast<QLineEdit*>(static_cast<ProblemPage*>(window->pages()[0])->editor(QStringLiteral("sequence_length")));
  ASSERT_NE(line, nullptr);
  line->setFocus();
  QTest::keyClicks(line, QStringLiteral("8192"));
  EXPECT_TRUE(session().resultStale());
  ASSERT_TRUE(eventually([&] { return !session().estimateStale() && session().estimate()->ranked && session().estimate()->ranked->forecast.step.value > 1.5 * before; }));
  EXPECT_EQ(session().draft().sequence_length, 8192);
  // Four key strokes are one step of undo.
  session().undoStack()->undo();
  EXPECT_FALSE(session().draft().sequence_length.has_value());
  session().undoStack()->redo();
  EXPECT_EQ(session().draft().sequence_length, 8192);
  ASSERT_TRUE(eventually([&] { return !session().resultStale() && !session().searching(); }));
}

TEST_F(Gui, AnInvalidPinIsExplainedInPlaceAndMendedByOneClick) {
  session().restore(smallDraft(), std::nullopt, std::nullopt);
  ASSERT_TRUE(eventually([&] { return session().estimate().has_value(); }));
  auto* page = static_cast<ProblemPage*>(window->pages()[0]);
  QTest::keyClicks(page->editor(QStringLiteral("ep")), QStringLiteral("3"));
  ASSERT_TRUE(eventually([&] { return !session().issues().empty(); }));
  QLabel* shown = nullptr;
  for (QLabel* label : page->findChildren<QLabel*>())
    if (label->isVisible() && label->text().contains(QStringLiteral("must divide 128 experts"))) shown = label;
  ASSERT_NE(shown, nullptr);
  EXPECT_TRUE(shown->text().contains(QStringLiteral("fix: set 4")));
  Q_EMIT shown->linkActivated(QStringLiteral("0/0"));
  EXPECT_EQ(session().draft().ep, 4);
  EXPECT_TRUE(eventually([&] { return session().issues().empty(); }));
}

TEST_F(Gui, BadFilesGiveTheLineOfTheCommandLine) {
  for (const auto& [name, text] : {std::pair{"broken.json", "{\"hidden_size\": 12,"}, std::pair{"other.json", "{\"architectures\": [\"NoSuchModel\"]}"}, std::pair{"plan.json", "{\"format\": \"moeplan.plan.v1\"}"}, std::pair{"empty.json", ""}}) {
    const QString path = write(QLatin1String(name), text);
    EXPECT_FALSE(window->openFile(path));
    const bool plan = QLatin1String(name) == QLatin1String("plan.json");
    const CliRun run = plan ? cli({QStringLiteral("simulate"), path}) : cli({QStringLiteral("plan"), path, QStringLiteral("--cluster"), QStringLiteral("128xh200")});
    EXPECT_EQ(run.code, 2);
    EXPECT_EQ(QStringLiteral("moeplan: ") + window->message() + QLatin1Char('\n'), QString::fromUtf8(run.err)) << name;
  }
  EXPECT_FALSE(window->openFile(folder.filePath(QStringLiteral("absent.json"))));
  EXPECT_TRUE(window->message().contains(QStringLiteral("absent.json")));
}

TEST_F(Gui, BrushAndTableSelectEachOther) {
  searched();
  window->showPage(1);
  auto* page = static_cast<PlansPage*>(window->pages()[1]);
  page->table()->setCurrentIndex(page->model()->index(3, 0));
  EXPECT_EQ(session().selected(), 3);
  EXPECT_TRUE(page->why().contains(QStringLiteral("Plan 4")));
  const QCPRange x = page->chart()->xAxis->range(), y = page->chart()->yAxis->range();
  EXPECT_EQ(page->chart()->plansIn(QRectF(x.lower, y.lower, x.size(), y.size())).size(), session().result()->answer.plans.size());   // all in view
  const QRectF everything(-1, -1, 1e6, 1e6);
  EXPECT_EQ(page->chart()->plansIn(everything).size(), session().result()->answer.plans.size());
  Q_EMIT page->chart()->brushed(everything);
  EXPECT_EQ(page->table()->selectionModel()->selectedRows().size(), page->model()->rowCount());
  page->filter()->setText(QStringLiteral("front"));
  EXPECT_EQ(page->model()->rowCount(), static_cast<int>(session().result()->answer.pareto.size()));
}

TEST_F(Gui, PinningShowsDeltasEverywhere) {
  searched();
  session().togglePin();
  ASSERT_TRUE(session().pinned().has_value());
  session().select(static_cast<int>(session().result()->answer.plans.size()) - 1);
  auto* page = static_cast<PlansPage*>(window->pages()[1]);
  EXPECT_TRUE(page->model()->index(page->model()->rowOf(session().selected()), planColumn(QStringLiteral("Step"))).data().toString().contains(QStringLiteral("%)")));
  EXPECT_TRUE(page->why().contains(QStringLiteral("than A")));
  auto* timeline = static_cast<TimelinePage*>(window->pages()[3]);
  ASSERT_TRUE(eventually([&] { return session().play() && timeline->scene().play == session().play() && !timeline->busy(); }));
  const auto labels = timeline->findChildren<QLabel*>();
  EXPECT_TRUE(std::any_of(labels.begin(), labels.end(), [](const QLabel* l) { return l->text().startsWith(QStringLiteral("The step of A takes")); }));
  session().togglePin();
  EXPECT_FALSE(session().pinned().has_value());
}

TEST_F(Gui, ThePeakOfTheMemoryPageIsTheSumOfItsLiveBuffers) {
  searched();
  ASSERT_TRUE(eventually([&] { return session().play() && session().play()->plan == session().estimate()->ranked->plan; }));
  auto* page = static_cast<MemoryPage*>(window->pages()[2]);
  page->showPeak();
  ASSERT_FALSE(page->live().empty());
  double sum = 0;
  for (const LiveBuffer& b : page->live()) sum += static_cast<double>(b.bytes.value);
  EXPECT_EQ(sum, page->area().total[page->area().peak]);
  page->showMoment(0);
  EXPECT_FALSE(page->live().empty());
}

TEST_F(Gui, TheTimelineAnswersToItsKeys) {
  searched();
  window->showPage(3);
  auto* page = static_cast<TimelinePage*>(window->pages()[3]);
  ASSERT_TRUE(eventually([&] { return session().play() && page->scene().play == session().play() && !page->busy(); }));
  TimelineView* view = page->view();
  ASSERT_GT(view->store().events(), 0);
  EXPECT_EQ(page->findChild<QComboBox*>()->currentIndex(), 1) << "grouped by node at first";
  EXPECT_EQ(view->groups().size(), 1);
  // Compute of a rank waits for the weights that were gathered for it; its tokens stand on the same axis as its memory.
  EXPECT_TRUE(std::any_of(view->store().flows.begin(), view->store().flows.end(), [&](const TraceFlow& f) { return view->store().names[static_cast<std::size_t>(f.name)] == QStringLiteral("weights"); }));
  ASSERT_EQ(view->counters().size(), 2u);
  EXPECT_TRUE(view->counters()[1].name.startsWith(QStringLiteral("tokens of the busiest expert")));
  QTest::keyClick(view, Qt::Key_Period);
  QTest::keyClick(view, Qt::Key_Period);
  ASSERT_GE(view->selected().event, 0);
  const auto whole = view->to() - view->from();
  QTest::keyClick(view, Qt::Key_W);
  EXPECT_LT(view->to() - view->from(), whole);
  QTest::keyClick(view, Qt::Key_F);
  QTest::keyClick(view, Qt::Key_F);
  const TraceEvent& e = view->store().rows[static_cast<std::size_t>(view->selected().row)].events[static_cast<std::size_t>(view->selected().event)];
  EXPECT_LE(view->from(), e.start);
  EXPECT_GE(view->to(), e.end());
  const std::size_t rows = view->visibleRows().size();
  QTest::keyClick(view, Qt::Key_H);
  EXPECT_EQ(view->visibleRows().size(), rows - 1);
  QTest::keyClick(view, Qt::Key_H, Qt::ShiftModifier);
  EXPECT_EQ(view->visibleRows().size(), rows);
  QTest::keyClick(view, Qt::Key_Escape);
  EXPECT_EQ(view->selected().event, -1);
  view->setFilter(QStringLiteral("compute"));
  EXPECT_LT(view->visibleRows().size(), rows);
}

TEST_F(Gui, AMeasuredStepLiesUnderThePredictedOne) {
  searched();
  auto* page = static_cast<TimelinePage*>(window->pages()[3]);
  ASSERT_TRUE(eventually([&] { return session().play() && page->scene().play == session().play() && !page->busy(); }));
  auto measured = std::make_shared<StepTimeline>(session().play()->timeline);
  measured->source = "measured";
  for (TimelineEvent& e : measured->events) e.start *= 2, e.duration *= 2;
  measured->step *= 2;
  const std::size_t rows = page->view()->store().rows.size();
  page->setMeasured(measured);
  ASSERT_TRUE(eventually([&] { return page->view()->store().rows.size() == 2 * rows; }));
  EXPECT_FALSE(page->view()->store().rows[0].measured);
  EXPECT_TRUE(page->view()->store().rows[1].measured);
  EXPECT_EQ(page->view()->store().rows[0].label, page->view()->store().rows[1].label);
  page->view()->select(0, 0);
  bool told = false;
  for (QLabel* label : page->findChildren<QLabel*>()) told = told || label->text().contains(QStringLiteral("-50.0 %"));
  EXPECT_TRUE(told);
  page->setMeasured(nullptr);
  ASSERT_TRUE(eventually([&] { return page->view()->store().rows.size() == rows; }));
}

TEST_F(Gui, TheExpertsPageFollowsTheLoad) {
  Draft draft = smallDraft();
  draft.load = "uniform";
  searched(draft);
  auto* page = static_cast<ExpertsPage*>(window->pages()[4]);
  ASSERT_TRUE(eventually([&] { return page->view().experts == 128 && page->view().worstBefore < 1 + 1e-9; }));
  draft.load = "log-normal-v3";
  session().edit(draft, QStringLiteral("load"));
  ASSERT_TRUE(eventually([&] { return page->view().worstBefore > 1.001; }));
  EXPECT_LE(page->view().worstAfter, page->view().worstBefore);
}

TEST_F(Gui, AProjectIsSelfContained) {
  Draft draft = smallDraft();
  draft.sequence_length = 2048;
  draft.what_if.bandwidth = 2;
  searched(draft);
  session().select(2);
  session().togglePin();
  const Problem problem = make_problem(MOEPLAN_CONFIGS, request_of(draft));
  Json json = projectJson(draft, problem, session().selectedPlan(), session().pinned()->plan);
  json["problem"]["cluster"]["price"] = "9.5 USD/h";   // a colleague's own cluster, not in configs
  const QString path = write(QStringLiteral("mine.moeplan"), json.dump());
  const auto plan = session().selectedPlan();
  ASSERT_TRUE(window->openFile(path)) << window->message().toStdString();
  EXPECT_EQ(session().draft().sequence_length, 2048);
  EXPECT_EQ(session().draft().what_if.bandwidth, 2);
  EXPECT_EQ(session().selectedPlan(), plan);
  EXPECT_TRUE(session().pinned().has_value());
  ASSERT_TRUE(eventually([&] { return session().estimate() && !session().estimateStale() && session().estimate()->ranked; }));
  EXPECT_EQ(session().estimate()->problem->cluster.price->value, 9.5);
}

TEST_F(Gui, ChartsTablesAndTheReportAreWritten) {
  searched();
  ASSERT_TRUE(eventually([&] { return session().play() != nullptr; }));
  int written = 0;
  for (Page* page : window->pages()) {
    for (const Drawing& d : page->drawings()) {
      for (const char* ending : {"png", "svg", "pdf"}) {
        const QString path = folder.filePath(QStringLiteral("%1.%2").arg(++written).arg(QLatin1String(ending)));
        writeDrawing(d, path, QSize(640, 400), 2);
        std::ifstream in(path.toStdString(), std::ios::binary);
        const std::string head{std::istreambuf_iterator<char>(in), {}};
        EXPECT_GT(head.size(), 800u) << d.name.toStdString();
        EXPECT_TRUE(head.starts_with(ending[0] == 's' ? "<?xml" : ending[1] == 'd' ? "%PDF" : "\x89PNG")) << path.toStdString();
      }
    }
    for (const NamedTable& t : page->tables()) {
      const QString path = folder.filePath(QStringLiteral("t%1.csv").arg(++written));
      window->writeTable(*t.table, path);
      EXPECT_TRUE(eventually([&] { return window->message() == QStringLiteral("wrote %1").arg(path); }));
    }
    // Every chart has its numbers as a table beside it.
    for (const Drawing& d : page->drawings())
      if (const auto* chart = qobject_cast<const Chart*>(d.widget)) {
        ChartNumbers numbers(*chart);
        EXPECT_TRUE(numbers.rowCount() > 0 || page->title() == QStringLiteral("Run")) << d.name.toStdString();
        const QAbstractItemModelTester tester(&numbers, QAbstractItemModelTester::FailureReportingMode::Fatal);
      }
  }
  EXPECT_GT(written, 30);
  const QString asJson = folder.filePath(QStringLiteral("plans.json"));
  window->writeTable(*static_cast<PlansPage*>(window->pages()[1])->table(), asJson);
  ASSERT_TRUE(eventually([&] { return QFile::exists(asJson); }));
  const Json plans = load_json(asJson.toStdString(), {.max_values = 10'000'000});
  ASSERT_EQ(plans.size(), session().result()->answer.plans.size());
  EXPECT_EQ(plans[0].at("Step").get<double>(), session().result()->answer.plans[0].forecast.step.value);
  writeReport(session(), folder.filePath(QStringLiteral("report.pdf")));
  std::ifstream in(folder.filePath(QStringLiteral("report.pdf")).toStdString(), std::ios::binary);
  const std::string pdf{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(pdf.find("/Count 1"), std::string::npos) << "one page";
  EXPECT_THROW(writeText(QStringLiteral("/no/such/folder/x.png"), "x"), InputError);
}

TEST_F(Gui, ThePaletteFindsAndRunsAnyAction) {
  searched();
  const auto commands = window->commands();
  EXPECT_GT(commands.size(), 35u);
  auto* palette = new CommandPalette(commands, window.get());
  palette->show();
  QTest::keyClicks(palette->input(), QStringLiteral("copy as cli"));
  ASSERT_GT(palette->list()->count(), 0);
  EXPECT_TRUE(palette->list()->item(0)->text().contains(QStringLiteral("Copy as CLI command")));
  EXPECT_TRUE(palette->list()->item(0)->text().contains(QStringLiteral("Ctrl+Shift+C")));
  QTest::keyClick(palette->input(), Qt::Key_Return);
  EXPECT_TRUE(eventually([&] { return QApplication::clipboard()->text() == QString::fromStdString(session().command()); }));
}

TEST_F(Gui, EveryControlHasANameAndNoShortcutIsTakenTwice) {
  window->showPage(0);
  for (QWidget* w : window->findChildren<QWidget*>()) {
    if (w->focusPolicy() == Qt::NoFocus || !w->isVisibleTo(window.get()) || w->objectName().startsWith(QStringLiteral("qt_"))) continue;
    const QString type = QLatin1String(w->metaObject()->className());
    if (type == QLatin1String("QMenuBar") || type == QLatin1String("QMenu") || w->parentWidget()->inherits("QComboBox") || type == QLatin1String("QTabBar") || type == QLatin1String("QStackedWidget") || w->inherits("QScrollBar") || w->inherits("QComboBoxPrivateContainer")) continue;
    QString name = w->accessibleName();
    if (auto* button = qobject_cast<QAbstractButton*>(w); button && name.isEmpty()) name = button->text();
    if (auto* box = qobject_cast<QLabel*>(w); box && name.isEmpty()) name = box->text();
    EXPECT_FALSE(name.isEmpty()) << type.toStdString() << " " << w->objectName().toStdString() << " in " << w->parentWidget()->metaObject()->className();
  }
  std::map<QString, QString> taken;
  for (const Command& c : window->commands()) {
    for (const QKeySequence& keys : c.action->shortcuts()) {
      const bool local = c.action->shortcutContext() == Qt::WidgetWithChildrenShortcut;
      const auto [it, fresh] = taken.try_emplace((local ? c.group : QString()) + keys.toString(), c.action->text());
      EXPECT_TRUE(fresh) << keys.toString().toStdString() << ": " << it->second.toStdString() << " and " << c.action->text().toStdString();
    }
  }
}

}  // namespace
}  // namespace moeplan::gui_test
