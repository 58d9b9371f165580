#pragma once
/// The main window: pages on the left, the page, a status line with the verdict. Owns the actions; knows no page's inside.

#include <QElapsedTimer>
#include <QMainWindow>
#include <QTemporaryDir>

#include "gui/app/palette.hpp"
#include "gui/app/theme.hpp"
#include "gui/pages/page.hpp"

class QLabel;
class QListWidget;
class QProgressBar;
class QStackedWidget;
class QToolButton;

namespace moeplan::gui {

struct WindowOptions {
  std::filesystem::path configs;
  QString program;                 ///< `moeplan`, for the Run page
  QString autosave;                ///< file; empty: none
};

class Window : public QMainWindow {
  Q_OBJECT

 public:
  explicit Window(WindowOptions options);
  ~Window() override;
  [[nodiscard]] Session* session() { return session_; }
  [[nodiscard]] const std::vector<Page*>& pages() const { return pages_; }
  void showPage(int index);
  [[nodiscard]] int currentPage() const;
  /// Opens what a file turns out to be: project, plan, model config, measured run, timeline, expert load. Bad files give the one line
  /// that the command line would print. Returns whether it was taken.
  bool openFile(const QString& file);
  void showWorkedExample();
  /// What an autosave left by a crash says; nothing if there is none.
  bool restoreAutosave();
  void setLook(Look look);
  void setScale(double scale);
  [[nodiscard]] std::vector<Command> commands() const;
  [[nodiscard]] QString message() const;
  void showMessage(const QString& line, bool bad = true);
  /// CSV, or JSON by its ending; written between turns of the event loop, the message line says how far it is.
  void writeTable(const TableView& table, const QString& file);

 protected:
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;
  void closeEvent(QCloseEvent* event) override;

 private:
  void addPage(Page* page);
  void makeActions();
  QAction* add(class QMenu* menu, const QString& text, const QKeySequence& keys, std::function<void()> run);
  void refreshStatus();
  void guarded(const std::function<void()>& action);
  void exportDrawing();
  void exportTable();
  void exportTable(const TableView& table, const QString& title);
  void showNumbers();
  void exportReport();
  void save(const QString& file);
  void autosave();
  void rememberRecent(const QString& file);

  WindowOptions options_;
  Session* session_;
  QTemporaryDir unpack_;
  std::vector<Page*> pages_;
  std::vector<std::pair<QString, QMenu*>> menus_;
  QListWidget* list_;
  QStackedWidget* stack_;
  QLabel *banner_, *status_, *freshness_;
  QToolButton *cancel_, *closeBanner_;
  QProgressBar* progress_;
  QMenu* recent_ = nullptr;
  QString file_, exportKind_;
  Look look_ = Look::system;
  double scale_ = 1;
  QElapsedTimer searched_;          ///< since the search began
};

}  // namespace moeplan::gui
