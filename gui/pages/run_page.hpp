#pragma once
/// Starts `moeplan run` or `moeplan calibrate` as a child process and watches it: loss, tokens/s, memory and expert load live, beside
/// what the forecast says.

#include <QTemporaryDir>

#include "gui/jobs/child.hpp"
#include "gui/pages/page.hpp"

class QComboBox;
class QLabel;
class QLineEdit;
class QPlainTextEdit;
class QToolButton;

namespace moeplan::gui {

class Chart;
class RunModel;

class RunPage : public Page {
  Q_OBJECT

 public:
  RunPage(Session* session, QString program, QWidget* parent = nullptr);
  ~RunPage() override;
  std::vector<Drawing> drawings() override;
  std::vector<NamedTable> tables() override;
  QWidget* start() override;
  [[nodiscard]] RunModel* model() { return model_; }
  [[nodiscard]] Child* child() { return &child_; }
  void setProgram(const QString& program) { program_ = program; }
  void begin();
  [[nodiscard]] QString told() const;
  /// A problem that `moeplan run` executes on this machine in seconds.
  void planTiny();

 protected:
  void showEvent(QShowEvent* event) override;

 private:
  void draw();
  void refreshCommand();
  void refreshHint();

  QString program_;
  Child child_;
  QProcess probe_;                   ///< whether the program knows `calibrate`
  bool asked_ = false;
  QTemporaryDir folder_;
  RunModel* model_;
  QComboBox* what_;
  QLineEdit* arguments_;
  QToolButton *start_, *cancel_;
  QLabel* told_;
  QPlainTextEdit* log_;
  TableView* table_;
  Chart *loss_, *speed_, *memory_, *experts_;
  QTimer redraw_;
};

}  // namespace moeplan::gui
