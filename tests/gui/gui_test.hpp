#pragma once
/// A window without a display, on a small problem that a search answers at once.

#include <gtest/gtest.h>

#include <QApplication>
#include <QTemporaryDir>
#include <QTest>
#include <fstream>

#include "gui/app/window.hpp"
#include "gui/models/session.hpp"

namespace moeplan::gui_test {

using namespace moeplan::gui;

inline Draft smallDraft() {
  Draft draft;
  draft.model = "qwen3-30b-a3b";
  draft.cluster = "8xh200";
  draft.targets = {"attention", "experts"};
  return draft;
}

/// Waits by the event loop, not by sleeping; generous, for loaded machines.
template <class F>
[[nodiscard]] bool eventually(F&& condition) { return QTest::qWaitFor(condition, 120000); }

class Gui : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(folder.isValid());
    window = std::make_unique<Window>(WindowOptions{.configs = MOEPLAN_CONFIGS, .program = QStringLiteral(MOEPLAN_PROGRAM), .autosave = folder.filePath(QStringLiteral("autosave.moeplan"))});
    window->resize(1280, 800);
    window->show();
  }
  void searched(const Draft& draft = smallDraft()) {
    session().restore(draft, std::nullopt, std::nullopt);
    session().searchNow();
    ASSERT_TRUE(eventually([&] { return session().result() && !session().searching() && !session().resultStale(); }));
  }
  Session& session() { return *window->session(); }
  QString write(const QString& name, const std::string& text) const {
    const QString path = folder.filePath(name);
    std::ofstream(path.toStdString(), std::ios::binary) << text;
    return path;
  }
  QTemporaryDir folder;
  std::unique_ptr<Window> window;
};

}  // namespace moeplan::gui_test
