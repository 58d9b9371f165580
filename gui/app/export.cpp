#include "gui/app/export.hpp"

#include "gui/widgets/qcp.hpp"

#include <QBuffer>
#include <QPdfWriter>
#include <QSvgGenerator>
#include <QTextDocument>

#include "core/json.hpp"
#include "core/show.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/session.hpp"
#include "gui/pages/forecast_panel.hpp"
#include "planner/describe.hpp"

namespace moeplan::gui {
namespace {

QString qs(const std::string& s) { return QString::fromStdString(s).toHtmlEscaped(); }

QByteArray png(const Drawing& drawing, const QSize& size, double scale) {
  QImage image(size * scale, QImage::Format_ARGB32_Premultiplied);
  image.setDevicePixelRatio(scale);
  image.fill(drawing.widget->palette().color(QPalette::Base));
  {
    QCPPainter painter(&image);
    painter.setRenderHint(QPainter::Antialiasing);
    painter.setFont(drawing.widget->font());
    drawing.paint(painter, size);
  }
  QByteArray out;
  QBuffer buffer(&out);
  buffer.open(QIODevice::WriteOnly);
  image.save(&buffer, "PNG");
  return out;
}

void vector(QPaintDevice& device, const Drawing& drawing, const QSize& size, double toDevice) {
  QCPPainter painter(&device);
  painter.setMode(QCPPainter::pmVectorized);
  painter.setMode(QCPPainter::pmNoCaching);
  painter.scale(toDevice, toDevice);
  painter.setFont(drawing.widget->font());
  painter.fillRect(QRect(QPoint(0, 0), size), drawing.widget->palette().color(QPalette::Base));
  drawing.paint(painter, size);
}

QByteArray svg(const Drawing& drawing, const QSize& size) {
  QByteArray out;
  QBuffer buffer(&out);
  buffer.open(QIODevice::WriteOnly);
  QSvgGenerator generator;
  generator.setOutputDevice(&buffer);
  generator.setSize(size);
  generator.setViewBox(QRect(QPoint(0, 0), size));
  generator.setTitle(drawing.name);
  vector(generator, drawing, size, 1);
  return out;
}

QByteArray pdf(const Drawing& drawing, const QSize& size) {
  QByteArray out;
  QBuffer buffer(&out);
  buffer.open(QIODevice::WriteOnly);
  {
    QPdfWriter writer(&buffer);
    writer.setTitle(drawing.name);
    writer.setPageMargins(QMarginsF(0, 0, 0, 0));
    writer.setPageSize(QPageSize(QSizeF(size.width() * 0.75, size.height() * 0.75), QPageSize::Point));
    vector(writer, drawing, size, static_cast<double>(writer.width()) / size.width());
  }
  return out;
}

QString row(std::initializer_list<QString> cells, bool header = false) {
  QString out = QStringLiteral("<tr>");
  bool first = true;
  for (const QString& cell : cells) {
    out += QStringLiteral("<%1 align='%2' style='padding: 1px 10px 1px 0'>%3</%1>").arg(header ? QStringLiteral("th") : QStringLiteral("td"), first ? QStringLiteral("left") : QStringLiteral("right"), cell);
    first = false;
  }
  return out + QStringLiteral("</tr>");
}

QString reportHtml(const Session& session) {
  const Estimate& e = *session.estimate();
  const Plan& plan = e.ranked->plan;
  const Forecast& f = e.ranked->forecast;
  const Problem& problem = *e.problem;
  const Bytes have = problem.cluster.device.memory;
  QString out = QStringLiteral("<h2>moeplan: %1 on %2</h2>").arg(qs(problem.model_name), qs(problem.cluster.name));
  out += QObject::tr("<p>%1; %2; sequence %3 tokens; %4 devices (%5 x %6 %7, %8 each); experts loaded as %9").arg(qs(tuning_text(problem.workload)), qs(std::string(name_of(problem.workload.optimizer))), qs(grouped(problem.workload.sequence_length)), qs(grouped(problem.cluster.devices())))
             .arg(problem.cluster.nodes).arg(problem.cluster.devices_per_node).arg(qs(problem.cluster.device.name), qs(human(have)), qs(problem.load.name));
  out += QObject::tr("; runtime %1; times from profile %2.</p>").arg(qs(problem.runtime.name), qs(problem.profile.name));
  out += QObject::tr("<p><b>Plan %1</b>; micro-batch %2 x %3; recompute %4; frozen weights as %5.<br><b>%6</b></p>").arg(qs(layout_text(plan.parallelism))).arg(plan.micro_batch).arg(plan.micro_batches)
             .arg(qs(std::string(name_of(plan.recompute))), qs(std::string(name_of(plan.frozen_storage))), verdictOf(session).text.toHtmlEscaped());
  out += QObject::tr("<p>%1 a step (%2 at the 95th percentile of the expert load), %3 tokens/s a device, MFU %4").arg(qs(duration(f.step)), qs(duration(f.step_p95))).arg(f.tokens_per_second_per_device, 0, 'f', 0).arg(qs(percent(f.mfu)));
  if (f.device_hours) out += QObject::tr("; %1 tokens take %2 GPU-hours%3").arg(qs(short_count(*problem.workload.tokens)), qs(grouped(static_cast<std::int64_t>(*f.device_hours + 0.5))), f.cost_usd ? QObject::tr(" and cost %1").arg(qs(dollars(*f.cost_usd))) : QString());
  if (const auto& a = session.pinned()) {
    const auto off = [](double b, double before) { return qs(percent(b / before - 1)); };
    out += QObject::tr(".<br>Against A, %1: step %2 of %3, peak %4 of %5").arg(qs(layout_text(a->plan.parallelism)), off(f.step.value, a->forecast.step.value), qs(duration(a->forecast.step)),
                                                                          off(f.memory_p95.peak() / have, a->forecast.memory_p95.peak() / have), qs(human(a->forecast.memory_p95.peak())));
  }
  out += QStringLiteral(".</p><table><tr><td valign='top'><table>") + row({QObject::tr("memory at its peak"), QObject::tr("bytes"), QObject::tr("of device")}, true);
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names)
    if (f.memory[category].value > 0) out += row({qs(std::string(name)).replace(QLatin1Char('_'), QLatin1Char(' ')), qs(human(f.memory[category])), qs(percent(f.memory[category] / have))});
  out += row({QObject::tr("peak"), qs(human(f.memory.peak())), qs(percent(f.memory.peak() / have))}, true) + row({QObject::tr("peak, P95"), qs(human(f.memory_p95.peak())), qs(percent(f.memory_p95.peak() / have))}, true);
  out += QStringLiteral("</table></td><td width='40'></td><td valign='top'><table>") + row({QObject::tr("time of a step"), QObject::tr("time"), QObject::tr("of step")}, true);
  for (const auto& [category, name] : EnumNames<TimeCategory>::names)
    if (const Seconds t = f.time[static_cast<std::size_t>(category)]; t.value > 1e-9) out += row({qs(std::string(name)).replace(QLatin1Char('_'), QLatin1Char(' ')), qs(duration(t)), qs(percent(t / f.step))});
  out += QStringLiteral("</table></td></tr></table>");
  if (const auto& result = session.result(); result && !session.resultStale()) {
    out += QObject::tr("<p><b>The first plans</b> of %1 that fit (%2 searched)</p><table>").arg(qs(grouped(result->answer.feasible)), qs(grouped(result->answer.searched)));
    out += row({QObject::tr("layout"), QObject::tr("batch"), QObject::tr("recompute"), QObject::tr("step"), QObject::tr("MFU"), QObject::tr("peak")}, true);
    for (std::size_t i = 0; i < std::min<std::size_t>(8, result->answer.plans.size()); ++i) {
      const RankedPlan& r = result->answer.plans[i];
      out += row({qs(layout_text(r.plan.parallelism)), QStringLiteral("%1 x %2").arg(r.plan.micro_batch).arg(r.plan.micro_batches), qs(std::string(name_of(r.plan.recompute))), qs(duration(r.forecast.step)), qs(percent(r.forecast.mfu)), qs(human(r.forecast.memory_p95.peak()))});
    }
    out += QStringLiteral("</table>");
  }
  out += QObject::tr("<p>Times rest on %1 measured, %2 interpolated, %3 roofline. Memory peaks in: %4.</p><p><code>%5</code></p>")
             .arg(qs(percent(f.basis[0])), qs(percent(f.basis[1])), qs(percent(f.basis[2])), qs(f.memory.peak_at), qs(session.command()).replace(QLatin1Char('\n'), QStringLiteral("<br>")));
  return out;
}

}  // namespace

void writeText(const QString& file, const QByteArray& text) { write_text_file(file.toStdString(), std::string_view(text.constData(), static_cast<std::size_t>(text.size()))); }

void writeDrawing(const Drawing& drawing, const QString& file, const QSize& size, double scale) {
  const QString ending = file.section(QLatin1Char('.'), -1).toLower();
  if (ending == QLatin1String("png")) writeText(file, png(drawing, size, scale));
  else if (ending == QLatin1String("svg")) writeText(file, svg(drawing, size));
  else if (ending == QLatin1String("pdf")) writeText(file, pdf(drawing, size));
  else throw InputError(file.toStdString(), "the ending " + shown(ending.toStdString()) + " is not a kind of picture", "end it in .png, .svg or .pdf");
}

void writeReport(const Session& session, const QString& file) {
  if (!session.estimate() || !session.estimate()->ranked) throw InputError("report", "there is no plan to report", "choose a problem that a plan fits");
  QByteArray out;
  QBuffer buffer(&out);
  buffer.open(QIODevice::WriteOnly);
  {
    QPdfWriter writer(&buffer);
    writer.setTitle(QStringLiteral("moeplan"));
    writer.setPageSize(QPageSize(QPageSize::A4));
    writer.setPageMargins(QMarginsF(15, 15, 15, 15), QPageLayout::Millimeter);
    writer.setResolution(300);
    QPainter painter(&writer);
    // Laid out at the page's width; a long report shrinks until it is one page.
    for (double points = 9; points > 4; points -= 0.5) {
      QTextDocument document;
      document.documentLayout()->setPaintDevice(&writer);
      QFont font(QStringLiteral("DejaVu Sans"));
      font.setPointSizeF(points);
      document.setDefaultFont(font);
      document.setDefaultStyleSheet(QStringLiteral("body, td, th, p, h2 { color: black; }"));
      document.setHtml(QStringLiteral("<body>") + reportHtml(session) + QStringLiteral("</body>"));
      document.setTextWidth(writer.width());
      if (document.size().height() > writer.height() && points > 4.5) continue;
      document.drawContents(&painter);
      break;
    }
  }
  writeText(file, out);
}

}  // namespace moeplan::gui
