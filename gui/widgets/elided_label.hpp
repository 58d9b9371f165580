#pragma once
/// A label of one line that ends in "…" where there is no room; the whole text is its tool tip's business.

#include <QLabel>
#include <QPainter>

namespace moeplan::gui {

class ElidedLabel : public QLabel {
 public:
  using QLabel::QLabel;

 protected:
  void paintEvent(QPaintEvent*) override {
    QPainter painter(this);
    painter.setPen(palette().color(foregroundRole()));
    painter.drawText(contentsRect(), static_cast<int>(Qt::AlignVCenter | Qt::AlignLeft), fontMetrics().elidedText(text(), Qt::ElideRight, contentsRect().width()));
  }
};

}  // namespace moeplan::gui
