#include "gui/app/theme.hpp"

#include <QApplication>
#include <QFont>
#include <QProxyStyle>
#include <QStyleFactory>
#include <QToolTip>
#include <algorithm>
#include <array>
#include <cmath>

namespace moeplan::gui {
namespace {

/// Fusion with bars, boxes and margins that grow with the font: at 300 % a scroll bar is still one to grab, and columns of a table part.
class Grown : public QProxyStyle {
 public:
  explicit Grown(double scale) : QProxyStyle(QStyleFactory::create(QStringLiteral("Fusion"))), scale_(scale) {}
  int pixelMetric(PixelMetric metric, const QStyleOption* option, const QWidget* widget) const override {
    const int normal = QProxyStyle::pixelMetric(metric, option, widget);
    switch (metric) {
      case PM_FocusFrameHMargin: return static_cast<int>(std::lround(scale_ * (normal + 1)));   // beside the text of a cell
      case PM_ScrollBarExtent: case PM_ScrollBarSliderMin: case PM_SliderThickness: case PM_SliderControlThickness: case PM_SliderLength: case PM_IndicatorWidth: case PM_IndicatorHeight:
      case PM_ExclusiveIndicatorWidth: case PM_ExclusiveIndicatorHeight: case PM_ButtonMargin: case PM_SmallIconSize: case PM_SplitterWidth: case PM_HeaderMargin: case PM_HeaderMarkSize:
        return static_cast<int>(std::lround(scale_ * normal));
      default: return normal;
    }
  }

 private:
  double scale_;
};

double luminance(const QColor& c) {
  const auto linear = [](double v) { return v <= 0.03928 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4); };
  return 0.2126 * linear(c.redF()) + 0.7152 * linear(c.greenF()) + 0.0722 * linear(c.blueF());
}

QPalette made(const QColor& window, const QColor& base, const QColor& alternate, const QColor& text, const QColor& button, const QColor& accent, const QColor& disabled) {
  QPalette p;
  p.setColor(QPalette::Window, window);
  p.setColor(QPalette::WindowText, text);
  p.setColor(QPalette::Base, base);
  p.setColor(QPalette::AlternateBase, alternate);
  p.setColor(QPalette::Text, text);
  p.setColor(QPalette::Button, button);
  p.setColor(QPalette::ButtonText, text);
  p.setColor(QPalette::BrightText, Qt::white);
  p.setColor(QPalette::Highlight, accent);
  p.setColor(QPalette::HighlightedText, textOn(accent));
  p.setColor(QPalette::ToolTipBase, base);
  p.setColor(QPalette::ToolTipText, text);
  p.setColor(QPalette::PlaceholderText, disabled);
  p.setColor(QPalette::Link, accent);
  p.setColor(QPalette::Light, button.lighter(130));
  p.setColor(QPalette::Midlight, button.lighter(110));
  p.setColor(QPalette::Mid, button.darker(130));
  p.setColor(QPalette::Dark, button.darker(160));
  p.setColor(QPalette::Shadow, button.darker(220));
  for (const auto role : {QPalette::WindowText, QPalette::Text, QPalette::ButtonText}) p.setColor(QPalette::Disabled, role, disabled);
  return p;
}

}  // namespace

QPalette paletteOf(Look look) {
  switch (look) {
    case Look::dark: return made(QColor(0x20, 0x22, 0x26), QColor(0x18, 0x1a, 0x1d), QColor(0x1f, 0x21, 0x25), QColor(0xe8, 0xe8, 0xe6), QColor(0x33, 0x36, 0x3c), QColor(0x3d, 0x8f, 0xd1), QColor(0x9a, 0x9d, 0xa3));
    case Look::high_contrast: return made(Qt::black, Qt::black, QColor(0x14, 0x14, 0x14), Qt::white, QColor(0x26, 0x26, 0x26), QColor(0xff, 0xd7, 0x00), QColor(0xc8, 0xc8, 0xc8));
    default: return made(QColor(0xf4, 0xf4, 0xf2), Qt::white, QColor(0xf7, 0xf8, 0xfa), QColor(0x1c, 0x1e, 0x21), QColor(0xe9, 0xe9, 0xe6), QColor(0x00, 0x62, 0xa3), QColor(0x6a, 0x6d, 0x72));
  }
}

void applyLook(Look look, double scale) {
  auto* app = qApp;
  if (!app->property("moeplan_base_point_size").isValid()) {
    app->setProperty("moeplan_base_point_size", std::max(9.0, QApplication::font().pointSizeF()));
    app->setProperty("moeplan_system_palette", QVariant::fromValue(QApplication::palette()));
  }
  scale = std::clamp(scale, 1.0, 3.0);
  if (app->property("moeplan_scale").toDouble() != scale) QApplication::setStyle(new Grown(scale));
  app->setProperty("moeplan_scale", scale);
  const auto system = app->property("moeplan_system_palette").value<QPalette>();
  const Look shown = look == Look::system ? (isDark(system) ? Look::dark : Look::light) : look;
  const QPalette palette = paletteOf(shown);
  QApplication::setPalette(palette);
  QToolTip::setPalette(palette);
  QFont font = QApplication::font();
  font.setPointSizeF(app->property("moeplan_base_point_size").toDouble() * scale);
  QApplication::setFont(font);
  QToolTip::setFont(font);
  // Widgets of a style sheet keep the old palette until it is set again.
  app->setStyleSheet(QStringLiteral("QToolTip { padding: 4px; border: 1px solid %1; }").arg(palette.color(QPalette::Mid).name()));
}

bool isDark(const QPalette& palette) { return luminance(palette.color(QPalette::Base)) < luminance(palette.color(QPalette::Text)); }

double contrast(const QColor& a, const QColor& b) {
  const double x = luminance(a), y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

QColor textOn(const QColor& background) { return contrast(background, Qt::black) >= contrast(background, Qt::white) ? QColor(Qt::black) : QColor(Qt::white); }

QColor seriesColour(int index, const QPalette& palette) {
  static constexpr std::array<QRgb, 8> colours{0xff0072b2, 0xffe69f00, 0xff009e73, 0xffd55e00, 0xffcc79a7, 0xff56b4e9, 0xffb8a800, 0xff8c8c8c};
  const QColor c = QColor::fromRgba(colours[static_cast<std::size_t>(((index % 8) + 8) % 8)]);
  return isDark(palette) && contrast(c, palette.color(QPalette::Base)) < 4.5 ? c.lighter(135) : c;
}

QColor categoryColour(MemoryCategory category, const QPalette& palette) {
  static constexpr std::array<int, kMemoryCategories> index{0, 5, 3, 1, 2, 4, 6, 7, 7, 7, 7};
  return seriesColour(index[static_cast<std::size_t>(category)], palette);
}

Qt::BrushStyle categoryPattern(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::workspace: return Qt::Dense3Pattern;
    case MemoryCategory::runtime_context: return Qt::BDiagPattern;
    case MemoryCategory::allocator_reserve: return Qt::CrossPattern;
    default: return Qt::SolidPattern;
  }
}

QColor activityColour(Activity activity, const QPalette& palette) {
  static constexpr std::array<int, kActivities> index{0, 2, 6, 7, 1, 5, 4, 3, 7, 7};
  return seriesColour(index[static_cast<std::size_t>(activity)], palette);
}

QColor goodColour(const QPalette& p) { return isDark(p) ? QColor(0x4f, 0xc3, 0x9a) : QColor(0x00, 0x70, 0x52); }
QColor warnColour(const QPalette& p) { return isDark(p) ? QColor(0xf0, 0xb4, 0x3c) : QColor(0x8a, 0x5a, 0x00); }
QColor badColour(const QPalette& p) { return isDark(p) ? QColor(0xff, 0x8a, 0x5c) : QColor(0xb2, 0x45, 0x00); }
QColor mutedColour(const QPalette& p) { return p.color(QPalette::PlaceholderText); }
QColor gridColour(const QPalette& p) {
  const QColor a = p.color(QPalette::Base), b = p.color(QPalette::Text);
  return QColor::fromRgbF(static_cast<float>(0.86 * a.redF() + 0.14 * b.redF()), static_cast<float>(0.86 * a.greenF() + 0.14 * b.greenF()), static_cast<float>(0.86 * a.blueF() + 0.14 * b.blueF()));
}

QColor heatColour(double t) {
  static constexpr std::array<QRgb, 9> stops{0xff00204d, 0xff00336f, 0xff39486b, 0xff575c6d, 0xff707173, 0xff8a8779, 0xffa69d75, 0xffc4b56c, 0xffffea46};
  const double x = std::clamp(t, 0.0, 1.0) * (stops.size() - 1);
  const auto i = std::min<std::size_t>(static_cast<std::size_t>(x), stops.size() - 2);
  const double f = x - static_cast<double>(i);
  const QColor a = QColor::fromRgba(stops[i]), b = QColor::fromRgba(stops[i + 1]);
  const auto mix = [f](int u, int v) { return static_cast<int>(std::lround((1 - f) * u + f * v)); };
  return {mix(a.red(), b.red()), mix(a.green(), b.green()), mix(a.blue(), b.blue())};
}

}  // namespace moeplan::gui
