/// Sizes and speeds: 10 million events, a watchdog on the GUI thread, thousands of random events.

#include <QElapsedTimer>
#include <QImage>
#include <QLineEdit>
#include <QPainter>
#include <ctime>
#include <random>

#include "gui/models/plans_model.hpp"
#include "gui/pages/plans_page.hpp"
#include "gui/widgets/pareto_chart.hpp"
#include "gui/widgets/table_view.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "tests/gui/gui_test.hpp"

namespace moeplan::gui_test {
namespace {

double cpuSeconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double residentGigabytes() {
  std::ifstream in("/proc/self/statm");
  long total = 0, resident = 0;
  in >> total >> resident;
  return static_cast<double>(resident) * 4096 / 1e9;
}

TraceStore tenMillion(int rows) {
  TraceStore store;
  for (const char* name : {"attention forward", "grouped_linear backward", "dispatch", "combine"}) store.names.push_back(QLatin1String(name));
  std::mt19937 random(3);
  for (int r = 0; r < rows; ++r) {
    TraceRow row;
    row.label = QStringLiteral("rank %1 · compute").arg(r);
    row.rank = r;
    row.events.reserve(static_cast<std::size_t>(10'000'000 / rows));
    Picoseconds at = 0;
    for (int i = 0; i < 10'000'000 / rows; ++i) {
      const auto duration = static_cast<Picoseconds>(1000 + random() % 100000);
      row.events.push_back({.start = at, .duration = duration, .name = static_cast<std::int32_t>(random() % 4), .origin = -1, .kind = static_cast<Activity>(random() % 4)});
      at += duration + static_cast<Picoseconds>(random() % 5000);
    }
    row.build();
    store.end = std::max(store.end, at);
    store.rows.push_back(std::move(row));
  }
  return store;
}

TEST(GuiLoad, TenMillionEventsAreDrawnThirtyTimesASecondWithinTwoGigabytes) {
  TimelineView view;
  view.resize(1600, 900);
  view.setStore(tenMillion(100), {});
  ASSERT_EQ(view.store().events(), 10'000'000);
  QImage image(1600, 900, QImage::Format_ARGB32_Premultiplied);
  // A zoom from everything down to single events, and a pan along: sixty frames.
  const double start = cpuSeconds();
  int frames = 0;
  for (int f = 0; f < 60; ++f, ++frames) {
    const double share = std::pow(0.75, f % 40);
    const auto from = static_cast<Picoseconds>(0.3 * static_cast<double>(view.store().end) * (1 - share));
    view.zoomTo(from, from + static_cast<Picoseconds>(share * static_cast<double>(view.store().end)));
    QPainter painter(&image);
    view.paint(painter, image.rect());
  }
  const double each = (cpuSeconds() - start) / frames;
  RecordProperty("cpu_ms_per_frame", std::to_string(1e3 * each));
  RecordProperty("resident_gb", std::to_string(residentGigabytes()));
  std::printf("%.2f ms of CPU a frame, %.2f GB resident\n", 1e3 * each, residentGigabytes());
#if !defined(__SANITIZE_ADDRESS__)
  // CPU time of the drawing thread, which other processes do not change: 30 frames a second are 33 ms.
  EXPECT_LT(each, 0.033);
  EXPECT_LT(residentGigabytes(), 2);
#endif
}

/// Longest stretch of CPU time that the GUI thread spends without coming back to its event loop.
class Watchdog : public QObject {
 public:
  Watchdog() { timer_.start(); startTimer(1); }
  [[nodiscard]] double longest() const { return longest_; }
  void reset() { longest_ = 0; last_ = cpuSeconds(); }

 protected:
  void timerEvent(QTimerEvent*) override {
    const double now = cpuSeconds();
    longest_ = std::max(longest_, now - last_);
    last_ = now;
  }

 private:
  QElapsedTimer timer_;
  double longest_ = 0, last_ = cpuSeconds();
};

TEST_F(Gui, TheGuiThreadIsNeverBlocked) {
  window->showWorkedExample();
  ASSERT_TRUE(eventually([&] { return session().estimate() && session().estimate()->ranked && session().play(); }));
  session().cancelSearch();
  for (int p = 0; p < 6; ++p) window->showPage(p), QTest::qWait(20);   // the first show of a page lays it out once
  Watchdog watchdog;
  watchdog.reset();
  for (const std::int64_t length : {2048, 8192, 16384}) {
    Draft next = session().draft();
    next.sequence_length = length;
    session().edit(next, QStringLiteral("length"));
    ASSERT_TRUE(eventually([&] { return !session().estimateStale(); }));
    for (int p = 0; p < 6; ++p) window->showPage(p), QTest::qWait(20);
  }
  session().cancelSearch();
  std::printf("longest %.1f ms of CPU between two turns of the event loop\n", 1e3 * watchdog.longest());
  RecordProperty("longest_ms", std::to_string(1e3 * watchdog.longest()));
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(watchdog.longest(), 0.15);   // the aim is 100 ms, 82 were measured (docs/gui.md); a slower core is no fault of the window
#endif
}

/// Under 100 ms as built by default (docs/gui.md, "Measured"); the limit leaves room for an unoptimised build.
TEST_F(Gui, AHundredThousandPlansInTheWindowBlockItForAQuarterSecondAtMost) {
  searched();
  // The plans of a search over and over, each a little slower and larger than the one before it.
  auto many = std::make_shared<SearchResult>(*session().result());
  const std::vector<RankedPlan> once = many->answer.plans;
  many->answer.plans.clear();
  std::mt19937 random(5);
  for (int i = 0; i < 100000; ++i) {
    many->answer.plans.push_back(once[static_cast<std::size_t>(i) % once.size()]);
    many->answer.plans.back().forecast.step.value *= 1 + 1e-5 * i;
    many->answer.plans.back().forecast.memory_p95[MemoryCategory::activations] += Bytes{static_cast<std::int64_t>(random() % 40'000'000'000U)};
  }
  many->answer.feasible = 100000;
  window->showPage(1);
  QTest::qWait(50);
  auto* page = static_cast<PlansPage*>(window->pages()[1]);
  Watchdog watchdog;
  const auto step = [&](const char* what, auto&& action) {
    QTest::qWait(30);
    watchdog.reset();
    action();
    QTest::qWait(150);
    std::printf("%-40s %5.1f ms\n", what, 1e3 * watchdog.longest());
#if !defined(__SANITIZE_ADDRESS__)
    EXPECT_LT(watchdog.longest(), 0.25) << what;
#endif
  };
  step("shown", [&] { session().show(many); });
  ASSERT_EQ(page->model()->rowCount(), 100000);
  step("sorted by the peak", [&] { page->table()->sortByColumn(planColumn(QStringLiteral("Peak")), Qt::AscendingOrder); });
  step("a plan selected", [&] { session().select(77777); });
  step("filtered", [&] { page->filter()->setText(QStringLiteral("peak<120")); });
  EXPECT_LT(page->model()->rowCount(), 100000);
  step("filter cleared", [&] { page->filter()->clear(); });
  step("pinned as A", [&] { session().togglePin(); });
  step("zoomed", [&] { QTest::keyClick(page->chart(), Qt::Key_W); });
  step("all brushed", [&] { Q_EMIT page->chart()->brushed(QRectF(-1, -1, 1e6, 1e6)); });
  EXPECT_EQ(page->table()->selectionModel()->selectedRows().size(), 100000);
}

TEST_F(Gui, RandomEventsDoNotBringItDown) {
  searched();
  const int events = qEnvironmentVariableIntValue("MOEPLAN_MONKEY") > 0 ? qEnvironmentVariableIntValue("MOEPLAN_MONKEY") : 600;
  std::mt19937 random(11);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const QList<int> keys{Qt::Key_W, Qt::Key_S, Qt::Key_A, Qt::Key_D, Qt::Key_F, Qt::Key_0, Qt::Key_Period, Qt::Key_Comma, Qt::Key_Tab, Qt::Key_Up, Qt::Key_Down, Qt::Key_Left, Qt::Key_Right, Qt::Key_Space, Qt::Key_Escape, Qt::Key_H, Qt::Key_P, Qt::Key_L, Qt::Key_BracketLeft, Qt::Key_BracketRight, Qt::Key_1, Qt::Key_9, Qt::Key_Backspace, Qt::Key_Home, Qt::Key_PageDown};
  for (int i = 0; i < events; ++i) {
    if (pick(25) == 0) window->showPage(pick(6));
    if (pick(60) == 0) session().undoStack()->undo();
    if (pick(90) == 0) session().togglePin();
    if (session().result() && pick(30) == 0 && !session().result()->answer.plans.empty()) session().select(pick(static_cast<int>(session().result()->answer.plans.size())));
    if (pick(400) == 0) window->setScale(1 + pick(3)), window->setLook(static_cast<Look>(pick(4)));
    if (pick(200) == 0) window->resize(500 + pick(1500), 300 + pick(1000));
    Page* page = window->pages()[static_cast<std::size_t>(window->currentPage())];
    const QList<QWidget*> widgets = page->findChildren<QWidget*>();
    QWidget* w = widgets.isEmpty() ? page : widgets[pick(static_cast<int>(widgets.size()))];
    // Whatever opens a window of the system's own is left alone: nobody would close it.
    if (!w->isVisible() || w->width() < 2 || w->height() < 2) continue;
    const QPoint at(pick(w->width()), pick(w->height()));
    const auto modifiers = pick(4) == 0 ? Qt::ShiftModifier : pick(6) == 0 ? Qt::ControlModifier : Qt::NoModifier;
    switch (pick(5)) {
      case 0: QTest::mouseClick(w, Qt::LeftButton, modifiers, at); break;
      case 1: QTest::keyClick(w, static_cast<Qt::Key>(keys[pick(static_cast<int>(keys.size()))]), modifiers == Qt::ControlModifier ? Qt::NoModifier : modifiers); break;
      case 2: {
        QWheelEvent wheel(at, w->mapToGlobal(at), {}, QPoint(0, pick(2) ? 120 : -120), Qt::NoButton, modifiers, Qt::NoScrollPhase, false);
        QApplication::sendEvent(w, &wheel);
        break;
      }
      case 3:
        QTest::mousePress(w, Qt::LeftButton, modifiers, at);
        QTest::mouseMove(w, QPoint(pick(w->width()), pick(w->height())));
        QTest::mouseRelease(w, Qt::LeftButton, modifiers, QPoint(pick(w->width()), pick(w->height())));
        break;
      default: QTest::mouseDClick(w, Qt::LeftButton, Qt::NoModifier, at); break;
    }
    if (QWidget* popup = QApplication::activePopupWidget()) popup->close();
    if (QWidget* modal = QApplication::activeModalWidget()) modal->close();
    if (i % 20 == 0) QApplication::processEvents();
  }
  SUCCEED();
}

}  // namespace
}  // namespace moeplan::gui_test
