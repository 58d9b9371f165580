/// Thousands of random events: clicks, drags, keys and wheels on every page, every action, dropped files, scales and palettes.
/// `ninja -C build monkey` sends 20,000 of them to a build with AddressSanitizer (docs/gui.md).

#include <QDropEvent>
#include <QMimeData>
#include <QPointer>
#include <QTimer>
#include <random>

#include "gui/pages/run_page.hpp"
#include "tests/gui/gui_test.hpp"

namespace moeplan::gui_test {
namespace {

/// Closes whatever would wait for somebody: dialogs of files and questions run event loops of their own.
class Closer : public QObject {
 public:
  Closer() { startTimer(1); }

 protected:
  void timerEvent(QTimerEvent*) override {
    if (QWidget* popup = QApplication::activePopupWidget()) popup->close();
    if (QWidget* modal = QApplication::activeModalWidget()) modal->close();
  }
};

class Monkey {
 public:
  Monkey(Window& window, const QStringList& files) : window_(window), files_(files) {
    for (const Command& c : window.commands())
      if (!c.action->text().contains(QStringLiteral("Quit"))) actions_ << c.action;
  }

  /// One event; false if what it was meant for cannot be seen.
  bool act() {
    const int dice = pick(100);
    if (dice < 3) return window_.showPage(pick(static_cast<int>(window_.pages().size()))), true;
    if (dice < 7) return actions_[pick(static_cast<int>(actions_.size()))]->trigger(), true;
    if (dice < 8) return drop(), true;
    if (dice < 9) return window_.resize(300 + pick(1700), 200 + pick(1100)), true;
    if (dice == 9 && pick(8) == 0) return window_.setScale(1 + pick(3)), window_.setLook(static_cast<Look>(pick(4))), true;
    if (dice < 12 && window_.session()->result() && !window_.session()->result()->answer.plans.empty())
      return window_.session()->select(pick(static_cast<int>(window_.session()->result()->answer.plans.size()))), true;
    Page* page = window_.pages()[static_cast<std::size_t>(window_.currentPage())];
    // Mostly the page, sometimes the window around it or a dialog that is open.
    const QList<QWidget*> dialogs = window_.findChildren<QWidget*>(QString(), Qt::FindDirectChildrenOnly);
    QWidget* within = dice < 20 && !dialogs.isEmpty() ? dialogs[pick(static_cast<int>(dialogs.size()))] : page;
    const QList<QWidget*> widgets = within->findChildren<QWidget*>();
    QWidget* w = widgets.isEmpty() ? within : widgets[pick(static_cast<int>(widgets.size()))];
    if (!w->isVisible() || w->width() < 2 || w->height() < 2 || w->inherits("QMenu")) return false;
    return send(w), true;
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  QPoint somewhere(const QWidget* w) { return {pick(w->width()), pick(w->height())}; }

  void send(QWidget* w) {
    static const QList<int> keys{Qt::Key_W, Qt::Key_S, Qt::Key_A, Qt::Key_D, Qt::Key_F, Qt::Key_0, Qt::Key_Period, Qt::Key_Comma, Qt::Key_Tab, Qt::Key_Backtab, Qt::Key_Up, Qt::Key_Down, Qt::Key_Left, Qt::Key_Right, Qt::Key_Space, Qt::Key_Escape, Qt::Key_H, Qt::Key_P, Qt::Key_L, Qt::Key_G, Qt::Key_B, Qt::Key_BracketLeft, Qt::Key_BracketRight, Qt::Key_1, Qt::Key_9, Qt::Key_Backspace, Qt::Key_Delete, Qt::Key_Home, Qt::Key_End, Qt::Key_PageUp, Qt::Key_PageDown, Qt::Key_Return, Qt::Key_Plus, Qt::Key_Minus, Qt::Key_C, Qt::Key_Question};
    const Qt::KeyboardModifiers modifiers = pick(4) == 0 ? Qt::ShiftModifier : pick(6) == 0 ? Qt::ControlModifier : pick(12) == 0 ? Qt::AltModifier : Qt::NoModifier;
    const QPoint at = somewhere(w);
    const auto button = pick(12) == 0 ? Qt::RightButton : Qt::LeftButton;
    switch (pick(5)) {
      case 0: return QTest::mouseClick(w, button, modifiers, at);
      case 1: return QTest::keyClick(w, static_cast<Qt::Key>(keys[pick(static_cast<int>(keys.size()))]), modifiers);
      case 2: {
        QWheelEvent wheel(at, w->mapToGlobal(at), {}, QPoint(0, pick(2) ? 120 : -120), Qt::NoButton, modifiers, Qt::NoScrollPhase, false);
        QApplication::sendEvent(w, &wheel);
        return;
      }
      case 3: {
        const QPointer<QWidget> held = w;
        QTest::mousePress(w, button, modifiers, at);
        if (held) QTest::mouseMove(w, somewhere(w));
        if (held) QTest::mouseRelease(w, button, modifiers, somewhere(w));
        return;
      }
      default: return QTest::mouseDClick(w, Qt::LeftButton, Qt::NoModifier, at);
    }
  }

  void drop() {
    QMimeData data;
    data.setUrls({QUrl::fromLocalFile(files_[pick(static_cast<int>(files_.size()))])});
    QDropEvent event(QPointF(10, 10), Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(&window_, &event);
  }

  Window& window_;
  QStringList files_;
  QList<QAction*> actions_;
  std::mt19937 random_{static_cast<unsigned>(11 + qEnvironmentVariableIntValue("MOEPLAN_MONKEY_SEED"))};
};

TEST_F(Gui, RandomEventsDoNotBringItDown) {
  searched();
  static_cast<RunPage*>(window->pages()[5])->setProgram(QStringLiteral(MOEPLAN_SOURCE "/tests/gui/fake_moeplan.sh"));
  // What is dropped: a project, a load, a trace, and files that are none of them.
  const QStringList files{write(QStringLiteral("empty.json"), ""), write(QStringLiteral("broken.json"), "{\"hidden_size\": 12,"), write(QStringLiteral("list.json"), "[1, 2, 3]"), write(QStringLiteral("other.moeplan"), "{\"format\": \"moeplan.project.v9\"}"),
                          write(QStringLiteral("trace.json"), R"({"traceEvents": [{"ph": "X", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.5, "dur": 20, "cat": "kernel"}, {"ph": "X", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 8, "ts": 3, "dur": -1}]})"),
                          QStringLiteral(MOEPLAN_CONFIGS "/loads/uniform.json"), QStringLiteral(MOEPLAN_CONFIGS "/models/qwen3-30b-a3b.json"), folder.path(), folder.filePath(QStringLiteral("absent.json"))};
  const int events = std::max(600, qEnvironmentVariableIntValue("MOEPLAN_MONKEY"));
  Closer closer;
  Monkey monkey(*window, files);
  for (int sent = 0, tried = 0; sent < events; ++tried) {
    ASSERT_LT(tried, 100 * events) << "nothing can be seen any more";
    sent += monkey.act();
    if (tried % 20 == 0) QApplication::processEvents();
    if (!window->isVisible()) window->show();
  }
  // It still works: a problem is priced and searched.
  session().cancelSearch();
  searched();
  EXPECT_FALSE(session().result()->answer.plans.empty());
}

}  // namespace
}  // namespace moeplan::gui_test
