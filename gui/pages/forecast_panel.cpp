#include "gui/pages/forecast_panel.hpp"

#include <QLabel>
#include <QVBoxLayout>
#include <algorithm>

#include "core/show.hpp"
#include "gui/app/theme.hpp"
#include "gui/models/session.hpp"
#include "gui/widgets/bar_list.hpp"
#include "planner/describe.hpp"

namespace moeplan::gui {
namespace {

QString qs(const std::string& s) { return QString::fromStdString(s); }
QString spaced(std::string_view name) { return qs(std::string(name)).replace(QLatin1Char('_'), QLatin1Char(' ')); }
QString change(double b, double a) {
  if (a == b) return QStringLiteral("=");
  if (a == 0) return QStringLiteral("new");
  return QStringLiteral("%1%2 %").arg(b > a ? QStringLiteral("+") : QString()).arg(100 * (b / a - 1), 0, 'f', 1);
}

}  // namespace

Verdict verdictOf(const Session& session) {
  const auto& e = session.estimate();
  if (!e) return {QObject::tr("pricing …"), Verdict::Grade::unknown};
  if (!e->ranked) {
    const auto& result = session.result();
    if (result && !session.resultStale() && result->answer.infeasible) {
      const Infeasible& no = *result->answer.infeasible;
      return {QObject::tr("does not fit: %1 needs %2, there are %3; %4").arg(qs(no.binding), qs(human(no.need)), qs(human(no.have)), qs(no.nearest_fix)), Verdict::Grade::bad};
    }
    return {session.searching() ? QObject::tr("no plan yet: searching …") : QObject::tr("no plan"), session.searching() ? Verdict::Grade::unknown : Verdict::Grade::bad};
  }
  const Bytes have = e->problem->cluster.device.memory, peak = e->ranked->forecast.memory_p95.peak();
  if (peak > have) return {QObject::tr("does not fit: %1 needed, %2 there, %3 missing").arg(qs(human(peak)), qs(human(have)), qs(human(peak - have))), Verdict::Grade::bad};
  const double free = 1 - peak / have;
  const auto grade = free < 0.05 ? Verdict::Grade::tight : Verdict::Grade::good;
  return {QObject::tr("%1: %2 (%3) of %4 free on the fullest device, 95th percentile of the expert load").arg(grade == Verdict::Grade::tight ? QObject::tr("tight") : QObject::tr("fits"), qs(human(have - peak)), qs(percent(free)), qs(human(have))), grade};
}

ForecastPanel::ForecastPanel(Session* session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(0, 0, 0, 0);
  const auto label = [&](const QString& name) {
    auto* l = new QLabel(this);
    l->setWordWrap(true);
    l->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
    l->setAccessibleName(name);
    column->addWidget(l);
    return l;
  };
  layout_ = label(tr("Selected plan"));
  verdict_ = label(tr("Verdict"));
  stale_ = label(tr("Freshness"));
  figures_ = label(tr("Figures"));
  figures_->setToolTip(tr("Step: one optimizer step at the median expert load, from the operators' prices (measured, interpolated or roofline, see below) and the schedule.\n"
                          "MFU: model flops, forward and backward, causal attention half, no recompute, over the devices' dense bf16 peak.\n"
                          "GPU-hours: devices x time for all tokens of the workload; money: times the cluster's price.\n"
                          "90 %: what the spread of the prices and the draws of the expert load leave open (docs/cost.md, docs/load.md)."));
  memory_ = new BarList(tr("Memory of the fullest device at its peak"), this);
  time_ = new BarList(tr("Time of a step, exposed"), this);
  column->addSpacing(fontMetrics().height() / 2);
  column->addWidget(memory_);
  column->addSpacing(fontMetrics().height() / 2);
  column->addWidget(time_);
  basis_ = label(tr("What the numbers rest on"));
  column->addStretch(1);
  for (const auto signal : {&Session::estimateChanged, &Session::pinnedChanged, &Session::resultChanged}) connect(session, signal, this, &ForecastPanel::refresh);
  connect(session, &Session::draftChanged, this, &ForecastPanel::refreshStale);
  connect(session, &Session::searchChanged, this, &ForecastPanel::refresh);
  refresh();
}

void ForecastPanel::refreshStale() {
  const bool stale = session_->estimateStale();
  memory_->setStale(stale);
  time_->setStale(stale);
  stale_->setVisible(stale || (session_->estimate() && session_->estimate()->ranked));
  const auto& e = session_->estimate();
  if (stale) stale_->setText(tr("<i>stale: numbers of the inputs before the last change</i>"));
  else if (e) stale_->setText(tr("<span style='color:%1'>live estimate in %2 ms</span>").arg(mutedColour(palette()).name()).arg(e->milliseconds, 0, 'f', 0));
}

void ForecastPanel::refresh() {
  const Verdict verdict = verdictOf(*session_);
  const QColor colour = verdict.grade == Verdict::Grade::good ? goodColour(palette()) : verdict.grade == Verdict::Grade::tight ? warnColour(palette()) : verdict.grade == Verdict::Grade::bad ? badColour(palette()) : palette().color(QPalette::Text);
  const QString mark = verdict.grade == Verdict::Grade::good ? QStringLiteral("✔ ") : verdict.grade == Verdict::Grade::bad ? QStringLiteral("✘ ") : verdict.grade == Verdict::Grade::tight ? QStringLiteral("▲ ") : QString();
  verdict_->setText(QStringLiteral("<b style='color:%1'>%2%3</b>").arg(colour.name(), mark, verdict.text.toHtmlEscaped()));
  refreshStale();
  const auto& e = session_->estimate();
  const bool on = e && e->ranked;
  for (QWidget* w : std::initializer_list<QWidget*>{layout_, figures_, memory_, time_, basis_}) w->setVisible(on);
  if (!on) return;
  const Plan& plan = e->ranked->plan;
  const Forecast& f = e->ranked->forecast;
  const Problem& problem = *e->problem;
  const Forecast* a = session_->pinned() ? &session_->pinned()->forecast : nullptr;
  const auto delta = [&](double b, double before) { return a ? QStringLiteral(" <span style='color:%1'>(%2)</span>").arg(mutedColour(palette()).name(), change(b, before)) : QString(); };
  layout_->setText(tr("<b>%1</b>; micro-batch %2 x %3, recompute %4, frozen weights as %5%6")
                       .arg(qs(layout_text(plan.parallelism))).arg(plan.micro_batch).arg(plan.micro_batches).arg(qs(std::string(name_of(plan.recompute))), qs(std::string(name_of(plan.frozen_storage))),
                            a ? tr("<br>against A: %1, micro-batch %2, recompute %3").arg(qs(layout_text(session_->pinned()->plan.parallelism))).arg(session_->pinned()->plan.micro_batch).arg(qs(std::string(name_of(session_->pinned()->plan.recompute)))) : QString()));
  QString figures = tr("<b>%1</b> a step%2, %3 tokens/s a device%4, MFU %5%6")
                        .arg(qs(duration(f.step)), delta(f.step.value, a ? a->step.value : 0)).arg(f.tokens_per_second_per_device, 0, 'f', 0)
                        .arg(delta(f.tokens_per_second_per_device, a ? a->tokens_per_second_per_device : 0), qs(percent(f.mfu)), delta(f.mfu, a ? a->mfu : 0));
  if (f.device_hours)
    figures += tr("<br>%1 tokens: %2 GPU-hours (%3)%4%5").arg(qs(short_count(*problem.workload.tokens)), qs(grouped(static_cast<std::int64_t>(*f.device_hours + 0.5))), qs(duration({*f.device_hours * 3600 / static_cast<double>(problem.cluster.devices())})),
                                                            f.cost_usd ? tr(", <b>%1</b> at $%2 a device-hour").arg(qs(dollars(*f.cost_usd))).arg(problem.cluster.price ? problem.cluster.price->value : 0, 0, 'f', 2) : QString(),
                                                            a && a->device_hours ? delta(*f.device_hours, *a->device_hours) : QString());
  figures += tr("<br>in 90 % of cases: a step of %1 to %2%3; %4 of the load draws run out of memory")
                 .arg(qs(duration({f.step_interval.low})), qs(duration({f.step_interval.high})), f.cost_interval ? tr(", %1 to %2").arg(qs(dollars(f.cost_interval->low)), qs(dollars(f.cost_interval->high))) : QString(), qs(percent(f.out_of_memory_risk)));
  figures_->setText(figures);

  const Bytes have = problem.cluster.device.memory;
  std::vector<Bar> bars;
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names) {
    if (f.memory[category].value <= 0) continue;
    bars.push_back({.name = spaced(name), .value = qs(human(f.memory[category])), .share = f.memory[category] / have, .colour = categoryColour(category, palette()), .pattern = categoryPattern(category),
                    .delta = a ? change(static_cast<double>(f.memory[category].value), static_cast<double>(a->memory[category].value)) : QString(), .why = tr("share of a device's %1").arg(qs(human(have)))});
  }
  std::stable_sort(bars.begin(), bars.end(), [](const Bar& x, const Bar& y) { return x.share > y.share; });
  const auto total = [&](const QString& name, const MemoryBreakdown& m, const MemoryBreakdown* before) {
    bars.push_back({.name = name, .value = qs(human(m.peak())), .share = m.peak() / have, .colour = mutedColour(palette()), .delta = before ? change(static_cast<double>(m.peak().value), static_cast<double>(before->peak().value)) : QString(), .total = true, .why = tr("peaks in: %1").arg(qs(m.peak_at))});
  };
  total(tr("peak"), f.memory, a ? &a->memory : nullptr);
  total(tr("peak, 95th percentile"), f.memory_p95, a ? &a->memory_p95 : nullptr);
  memory_->setBars(std::move(bars));

  bars.clear();
  for (const auto& [category, name] : EnumNames<TimeCategory>::names) {
    const auto i = static_cast<std::size_t>(category);
    if (f.time[i].value <= 1e-9) continue;
    bars.push_back({.name = spaced(name), .value = qs(duration(f.time[i])), .share = f.time[i] / f.step, .colour = seriesColour(static_cast<int>(i), palette()), .delta = a ? change(f.time[i].value, a->time[i].value) : QString(), .why = tr("share of the step, on the rank that sets its pace")});
  }
  std::stable_sort(bars.begin(), bars.end(), [](const Bar& x, const Bar& y) { return x.share > y.share; });
  bars.push_back({.name = tr("step"), .value = qs(duration(f.step)), .share = 1, .colour = mutedColour(palette()), .delta = a ? change(f.step.value, a->step.value) : QString(), .total = true, .why = tr("at the median expert load")});
  bars.push_back({.name = tr("step, 95th percentile"), .value = qs(duration(f.step_p95)), .share = std::min(1.0, f.step_p95 / f.step), .colour = mutedColour(palette()), .delta = a ? change(f.step_p95.value, a->step_p95.value) : QString(), .total = true, .why = tr("at the 95th percentile of the expert load")});
  time_->setBars(std::move(bars));
  basis_->setText(tr("Memory peaks in: %1 (stage %2). Times rest on %3 measured, %4 interpolated, %5 roofline; profile %6.")
                      .arg(qs(f.memory.peak_at)).arg(f.worst_stage).arg(qs(percent(f.basis[0])), qs(percent(f.basis[1])), qs(percent(f.basis[2])), qs(problem.profile.name)));
}

}  // namespace moeplan::gui
