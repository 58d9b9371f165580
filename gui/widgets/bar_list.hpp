#pragma once
/// Parts of a whole as labelled bars: name, bar, value, share, and the difference to the pinned plan.

#include <QWidget>
#include <optional>
#include <vector>

class QPainter;

namespace moeplan::gui {

struct Bar {
  QString name = {}, value = {};
  double share = 0;                    ///< of the whole, 0 to 1
  QColor colour = {};
  Qt::BrushStyle pattern = Qt::SolidPattern;
  QString delta = {};                       ///< against A; empty without
  bool total = false;                  ///< a sum: drawn bold, with a line above
  QString why = {};
};

class BarList : public QWidget {
  Q_OBJECT

 public:
  explicit BarList(const QString& title, QWidget* parent = nullptr);
  void setBars(std::vector<Bar> bars);
  void setStale(bool stale);
  void paint(QPainter& painter, const QRect& area) const;
  [[nodiscard]] QSize sizeHint() const override;
  [[nodiscard]] QSize minimumSizeHint() const override;
  [[nodiscard]] const std::vector<Bar>& bars() const { return bars_; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  bool event(QEvent* event) override;
  void changeEvent(QEvent* event) override;

 private:
  [[nodiscard]] int rowHeight() const;
  QString title_;
  std::vector<Bar> bars_;
  bool stale_ = false;
};

}  // namespace moeplan::gui
