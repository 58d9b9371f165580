/// The Run page against a stand-in child and against the real `moeplan run`; what a crash leaves.

#include <QComboBox>
#include <QFile>
#include <QLineEdit>
#include <algorithm>
#include <cmath>

#include "gui/models/plans_model.hpp"
#include "gui/models/run_model.hpp"
#include "gui/pages/run_page.hpp"
#include "gui/pages/timeline_page.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "tests/gui/gui_test.hpp"

namespace moeplan::gui_test {
namespace {

TEST_F(Gui, TheTinyExampleIsPlannedRunAndLaidUnderItsForecast) {
  auto* page = static_cast<RunPage*>(window->pages()[5]);
  session().restore(smallDraft(), std::nullopt, std::nullopt);
  page->planTiny();
  ASSERT_TRUE(eventually([&] { return session().estimate() && session().estimate()->ranked && session().estimate()->problem->model_name == "kimi-k3-tiny" && session().play() && !session().searching(); }));
  EXPECT_TRUE(page->told().startsWith(QStringLiteral("Start runs plan 1 of kimi-k3-tiny"))) << page->told().toStdString();
  page->findChild<QLineEdit*>()->setText(QStringLiteral("--steps 3"));
  page->begin();
  ASSERT_TRUE(eventually([&] { return !page->child()->running(); }));
  ASSERT_TRUE(page->told().startsWith(QStringLiteral("done"))) << page->told().toStdString();
  ASSERT_EQ(page->model()->rowCount(), 3);
  // Random weights know nothing: the loss starts near the logarithm of the vocabulary.
  EXPECT_NEAR(page->model()->index(0, 1).data(kNumberRole).toDouble(), std::log(static_cast<double>(session().estimate()->problem->model.vocabulary)), 1);
  EXPECT_FALSE(page->model()->experts().empty());
  // The last step was timed call by call and lies under the predicted one.
  auto* timeline = static_cast<TimelinePage*>(window->pages()[3]);
  ASSERT_TRUE(eventually([&] { return timeline->scene().measured && timeline->scene().play && !timeline->busy(); }));
  const TraceStore& store = timeline->view()->store();
  EXPECT_TRUE(std::any_of(store.rows.begin(), store.rows.end(), [](const TraceRow& r) { return r.measured && !r.events.empty(); }));
  EXPECT_TRUE(std::any_of(store.rows.begin(), store.rows.end(), [](const TraceRow& r) { return !r.measured && !r.events.empty(); }));
  // Nearly every stretch that ran was predicted: the error stands at each event.
  EXPECT_GT(timeline->scene().pairs.matched, static_cast<std::int64_t>(timeline->scene().measured->events.size()) * 9 / 10);
  // Calibrated on this machine, the plan rests on what was measured here.
  auto* what = page->findChild<QComboBox*>();
  what->setCurrentIndex(1);
  page->findChild<QLineEdit*>()->setText(QStringLiteral("--samples 5 --noise 0.9"));
  page->begin();
  ASSERT_TRUE(eventually([&] { return !page->child()->running(); }));
  if (page->told().startsWith(QStringLiteral("done"))) {   // a noisy machine is refused by the command, with its reason
    ASSERT_TRUE(eventually([&] { return !session().estimateStale() && session().estimate()->ranked; }));
    EXPECT_GT(session().estimate()->ranked->forecast.basis[0], 0.5);
    session().undoStack()->undo();
  } else {
    EXPECT_TRUE(page->told().contains(QStringLiteral("noisy"))) << page->told().toStdString();
  }
  ASSERT_TRUE(eventually([&] { return !session().estimateStale() && session().estimate()->ranked && !session().searching(); }));
  what->setCurrentIndex(0);
  // Cancelling really ends the child.
  page->findChild<QLineEdit*>()->setText(QStringLiteral("--steps 1000000"));
  page->begin();
  ASSERT_TRUE(eventually([&] { return page->model()->rowCount() >= 2; }));
  page->child()->cancel();
  ASSERT_TRUE(eventually([&] { return !page->child()->running(); }));
  EXPECT_EQ(page->told(), QStringLiteral("cancelled"));
  EXPECT_GE(page->model()->rowCount(), 2) << "what it had reported is kept";
}

TEST_F(Gui, TheRunPageReadsItsChild) {
  searched();
  auto* page = static_cast<RunPage*>(window->pages()[5]);
  page->setProgram(QStringLiteral(MOEPLAN_SOURCE "/tests/gui/fake_moeplan.sh"));
  page->begin();
  ASSERT_TRUE(eventually([&] { return !page->child()->running(); }));
  EXPECT_EQ(page->model()->rowCount(), 5);
  EXPECT_EQ(page->model()->index(4, 1).data(kNumberRole).toDouble(), 7.5);
  EXPECT_TRUE(page->told().startsWith(QStringLiteral("done"))) << page->told().toStdString();
  EXPECT_EQ(page->model()->experts().size(), 2u);
}

TEST_F(Gui, ACrashedChildIsReportedAndNothingIsLost) {
  searched();
  auto* page = static_cast<RunPage*>(window->pages()[5]);
  page->setProgram(QStringLiteral(MOEPLAN_SOURCE "/tests/gui/fake_moeplan.sh"));
  auto* options = page->findChild<QLineEdit*>();
  options->setText(QStringLiteral("--crash"));
  page->begin();
  ASSERT_TRUE(eventually([&] { return !page->child()->running() && !window->message().isEmpty(); }));
  EXPECT_EQ(page->model()->rowCount(), 3);
  EXPECT_TRUE(window->message().contains(QStringLiteral("crashed"))) << window->message().toStdString();
  EXPECT_TRUE(window->message().contains(QStringLiteral("about to fall")));
  options->setText(QStringLiteral("--refuse"));
  page->begin();
  ASSERT_TRUE(eventually([&] { return !page->child()->running(); }));
  EXPECT_EQ(window->message(), QStringLiteral("moeplan: --steps: 0 is out of range; at least 1"));
  options->setText(QStringLiteral("--forever"));
  page->begin();
  ASSERT_TRUE(eventually([&] { return page->model()->rowCount() == 5; }));
  page->child()->cancel();
  ASSERT_TRUE(eventually([&] { return !page->child()->running(); }));
  EXPECT_EQ(page->told(), QStringLiteral("cancelled"));
  page->setProgram(folder.filePath(QStringLiteral("no-such-program")));
  page->begin();
  ASSERT_TRUE(eventually([&] { return page->told().contains(QStringLiteral("cannot be started")); }));
}

TEST_F(Gui, AutosaveBringsBackWhatACrashLost) {
  Draft draft = smallDraft();
  draft.ep = 4;
  searched(draft);
  const QString autosave = folder.filePath(QStringLiteral("autosave.moeplan"));
  ASSERT_TRUE(eventually([&] { return QFile::exists(autosave); }));
  Window second({.configs = MOEPLAN_CONFIGS, .program = {}, .autosave = autosave});
  EXPECT_TRUE(second.restoreAutosave());
  EXPECT_EQ(second.session()->draft().ep, 4);
  EXPECT_TRUE(second.message().contains(QStringLiteral("restored")));
  second.close();
  EXPECT_FALSE(QFile::exists(autosave)) << "a window that is closed leaves none";
}

}  // namespace
}  // namespace moeplan::gui_test
