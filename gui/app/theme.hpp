#pragma once
/// Colours and sizes. Dark or light is read off the palette's luminance, never stored beside it; series colours are those of Okabe and
/// Ito ("Color universal design", 2008), which people with any colour vision tell apart, and every meaning has a text or mark besides.

#include <QColor>
#include <QPalette>

#include "core/spec/results.hpp"
#include "core/spec/timeline.hpp"

namespace moeplan::gui {

enum class Look : std::uint8_t { system, light, dark, high_contrast };

/// Sets style, palette and font of the application. `scale`: 1 to 3, of the font and everything measured in it.
void applyLook(Look look, double scale);

[[nodiscard]] bool isDark(const QPalette& palette);
[[nodiscard]] QPalette paletteOf(Look look);

/// Eight distinct colours, repeated; readable on the palette's base.
[[nodiscard]] QColor seriesColour(int index, const QPalette& palette);
[[nodiscard]] QColor categoryColour(MemoryCategory category, const QPalette& palette);
/// Categories beyond the eight colours carry a pattern as well.
[[nodiscard]] Qt::BrushStyle categoryPattern(MemoryCategory category);
[[nodiscard]] QColor activityColour(Activity activity, const QPalette& palette);
[[nodiscard]] QColor goodColour(const QPalette& palette);
[[nodiscard]] QColor warnColour(const QPalette& palette);
[[nodiscard]] QColor badColour(const QPalette& palette);
[[nodiscard]] QColor mutedColour(const QPalette& palette);
[[nodiscard]] QColor gridColour(const QPalette& palette);
/// WCAG contrast ratio, 1 to 21.
[[nodiscard]] double contrast(const QColor& a, const QColor& b);
/// Black or white, whichever reads better on `background`.
[[nodiscard]] QColor textOn(const QColor& background);
/// Perceptually even ramp (cividis), readable with any colour vision; `t` from 0 to 1.
[[nodiscard]] QColor heatColour(double t);

}  // namespace moeplan::gui
