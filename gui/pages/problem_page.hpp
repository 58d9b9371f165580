#pragma once
/// The inputs, field by field, with unit, origin and source; what is wrong beside the field it is about, with a fix to click; and the
/// selected plan's forecast, priced again on every change.

#include "gui/pages/page.hpp"

class QGridLayout;
class QLabel;
class QSlider;
class QToolButton;

namespace moeplan::gui {

class ForecastPanel;
struct Draft;
struct FieldSpec;

class ProblemPage : public Page {
  Q_OBJECT

 public:
  explicit ProblemPage(Session* session, QWidget* parent = nullptr);
  QWidget* start() override;
  std::vector<Drawing> drawings() override;
  /// Editor of a field, for tests and the palette.
  [[nodiscard]] QWidget* editor(const QString& key) const;
  void focusField(const QString& key);

 protected:
  void changeEvent(QEvent* event) override;

 private:
  struct Row {
    const FieldSpec* field;
    QWidget* editor;
    QLabel *badge, *source;
    QToolButton* reset;
    QLabel* issue;
  };
  struct Slider {
    QString name;
    QSlider* slider;
    QLabel* value;
    std::function<double(const Draft&)> get;
    std::function<void(Draft&, double)> set;
    std::function<QString(double)> text;
    double low, high;
  };
  QWidget* fields();
  void sizeEditors();
  QWidget* whatIf();
  void addRow(QGridLayout* grid, int at, const FieldSpec& field);
  void commit(const FieldSpec& field, const QString& text);
  void refreshDraft();
  void refreshEffective();
  void refreshIssues();
  void applyFix(const QString& link);

  std::vector<Row> rows_;
  std::vector<Slider> sliders_;
  QLabel* whole_;
  ForecastPanel* panel_;
  bool refreshing_ = false;
};

}  // namespace moeplan::gui
