#pragma once
/// The command palette (Ctrl+K): type a few letters of any action, Enter runs it. And the cheat sheet (?).

#include <QDialog>
#include <vector>

class QAction;
class QLineEdit;
class QListWidget;

namespace moeplan::gui {

struct Command {
  QAction* action = nullptr;
  QString group;
};

/// How well `typed` fits `text`: all letters in order, words' first letters and runs count more. Negative: not at all.
[[nodiscard]] int fuzzyScore(const QString& typed, const QString& text);

class CommandPalette : public QDialog {
  Q_OBJECT

 public:
  CommandPalette(std::vector<Command> commands, QWidget* parent);
  [[nodiscard]] QLineEdit* input() { return input_; }
  [[nodiscard]] QListWidget* list() { return list_; }

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override;

 private:
  void refresh();
  void run();
  std::vector<Command> commands_;
  QLineEdit* input_;
  QListWidget* list_;
};

/// All shortcuts by group, and the keys of charts and the timeline.
[[nodiscard]] QDialog* cheatSheet(const std::vector<Command>& commands, QWidget* parent);

}  // namespace moeplan::gui
