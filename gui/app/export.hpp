#pragma once
/// Writing what is on the screen: a chart as PNG, SVG or PDF, a plan as a one-page PDF report, text. Files appear whole: they
/// are written beside their place and renamed. Throws InputError where that cannot be.

#include <QSize>
#include <QString>

#include "gui/pages/page.hpp"

namespace moeplan::gui {

/// The ending chooses the kind. `size` in logical pixels; `scale` multiplies the pixels of a PNG.
void writeDrawing(const Drawing& drawing, const QString& file, const QSize& size, double scale = 1);
/// One page of A4: problem, verdict, memory and time of the selected plan, the first plans, what the numbers rest on.
void writeReport(const Session& session, const QString& file);
void writeText(const QString& file, const QByteArray& text);

}  // namespace moeplan::gui
