/// moeplan-gui: see the options, touch the assumptions. Options are few; everything else is in the window.

#include <QApplication>
#include <QCommandLineParser>
#include <QDir>
#include <QElapsedTimer>
#include <QFontMetrics>
#include <QStandardPaths>
#include <QTimer>
#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "gui/app/window.hpp"
#include "gui/models/session.hpp"

namespace {

using namespace moeplan::gui;

/// Developer option: shows a page, waits until nothing is under way, writes a picture of the window or of a dialog over it, ends.
void screenshotWhenQuiet(Window& window, const QString& file, const QString& dialog, bool wait) {
  auto* timer = new QTimer(&window);
  timer->setInterval(50);
  QObject::connect(timer, &QTimer::timeout, &window, [&window, file, dialog, wait, quiet = 0]() mutable {
    const Session& s = *window.session();
    const bool busy = (wait && s.searching()) || !s.estimate() || s.estimateStale() || (wait && s.estimate()->ranked && !s.play()) || window.pages()[static_cast<std::size_t>(window.currentPage())]->busy();
    quiet = busy ? 0 : quiet + 1;
    if (quiet < 4) return;
    if (quiet == 4 && !dialog.isEmpty()) {
      if (dialog == QLatin1String("keys")) cheatSheet(window.commands(), &window)->open();
      else (new CommandPalette(window.commands(), &window))->open();
      return;
    }
    if (quiet < 8 && !dialog.isEmpty()) return;
    QWidget* shown = dialog.isEmpty() ? &window : QApplication::activeModalWidget();
    if (!shown || !shown->grab().save(file)) std::fprintf(stderr, "moeplan-gui: %s: cannot be written\n", qPrintable(file));
    QApplication::quit();
  });
  timer->start();
}

}  // namespace

int main(int argc, char** argv) {
  QElapsedTimer started;
  started.start();
  // Help needs no display.
  std::vector<char*> arguments(argv, argv + argc);
  char option[] = "-platform", platform[] = "offscreen";
  if (std::any_of(arguments.begin(), arguments.end(), [](const char* a) { const std::string_view s(a); return s == "-h" || s == "--help" || s == "--version" || s == "-v"; }))
    arguments.insert(arguments.end(), {option, platform});
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  QApplication app(count, arguments.data());
  QCoreApplication::setApplicationName(QStringLiteral("moeplan-gui"));
  QCoreApplication::setOrganizationName(QStringLiteral("moeplan"));
  QCoreApplication::setApplicationVersion(QStringLiteral(MOEPLAN_VERSION));
  QCommandLineParser parser;
  parser.setApplicationDescription(QStringLiteral("Plans the fine-tuning of very large mixture-of-experts models, to look at and to touch."));
  parser.addHelpOption();
  parser.addVersionOption();
  parser.addPositionalArgument(QStringLiteral("FILE"), QStringLiteral("project, plan, model config, timeline, measured run or expert load"), QStringLiteral("[FILE ...]"));
  const QCommandLineOption theme(QStringLiteral("theme"), QStringLiteral("system, light, dark or contrast"), QStringLiteral("NAME"), QStringLiteral("system"));
  const QCommandLineOption scale(QStringLiteral("scale"), QStringLiteral("size of everything in per cent, 100 to 300"), QStringLiteral("PERCENT"), QStringLiteral("100"));
  const QCommandLineOption page(QStringLiteral("page"), QStringLiteral("page to show, from 1"), QStringLiteral("N"), QStringLiteral("1"));
  const QCommandLineOption size(QStringLiteral("size"), QStringLiteral("of the window, WIDTHxHEIGHT"), QStringLiteral("SIZE"));
  const QCommandLineOption shot(QStringLiteral("screenshot"), QStringLiteral("write a picture of the window when all is computed, then end"), QStringLiteral("FILE"));
  const QCommandLineOption dialog(QStringLiteral("dialog"), QStringLiteral("with --screenshot: picture of a dialog, keys or commands"), QStringLiteral("NAME"));
  const QCommandLineOption now(QStringLiteral("no-wait"), QStringLiteral("take the picture when the first estimate is there"));
  const QCommandLineOption timing(QStringLiteral("startup-time"), QStringLiteral("print the milliseconds to the first estimate, then end"));
  parser.addOptions({theme, scale, page, size, shot, dialog, now, timing});
  parser.process(app);
  const bool scripted = parser.isSet(shot) || parser.isSet(timing);

  const QString beside = QCoreApplication::applicationDirPath() + QStringLiteral("/moeplan");
  Window window({.configs = MOEPLAN_CONFIGS,
                 .program = QFileInfo(beside).isExecutable() ? beside : QStringLiteral(MOEPLAN_PROGRAM),
                 .autosave = scripted ? QString() : QStandardPaths::writableLocation(QStandardPaths::AppDataLocation) + QStringLiteral("/autosave.moeplan")});
  const QString look = parser.value(theme);
  window.setLook(look == QLatin1String("dark") ? Look::dark : look == QLatin1String("light") ? Look::light : look == QLatin1String("contrast") ? Look::high_contrast : Look::system);
  window.setScale(parser.value(scale).toDouble() / 100);
  const QFontMetrics metrics(QApplication::font());
  QSize pixels(metrics.averageCharWidth() * 190, metrics.height() * 54);
  if (const QStringList wh = parser.value(size).split(QLatin1Char('x')); wh.size() == 2) pixels = QSize(wh[0].toInt(), wh[1].toInt());
  window.resize(pixels.expandedTo(QSize(640, 400)));
  window.show();
  if (!window.restoreAutosave()) window.showWorkedExample();
  for (const QString& file : parser.positionalArguments()) window.openFile(file);
  window.showPage(parser.value(page).toInt() - 1);
  if (parser.isSet(shot)) screenshotWhenQuiet(window, parser.value(shot), parser.value(dialog), !parser.isSet(now));
  if (parser.isSet(timing))
    QObject::connect(window.session(), &Session::estimateChanged, &window, [&] {
      QTimer::singleShot(0, &window, [&] {
        std::printf("%lld ms\n", static_cast<long long>(started.elapsed()));
        QApplication::quit();
      });
    });
  return QApplication::exec();
}
