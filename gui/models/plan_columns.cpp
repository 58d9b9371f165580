#include <QCoreApplication>

#include "core/show.hpp"
#include "gui/models/plans_model.hpp"
#include "planner/describe.hpp"

namespace moeplan::gui {
namespace {

QString tr(const char* text) { return QCoreApplication::translate("plans", text); }
QString qs(const std::string& s) { return QString::fromStdString(s); }
using R = const RankedPlan&;
using P = const Problem&;

PlanColumn text(const char* title, const char* why, std::function<QString(R, P)> show, std::function<std::optional<double>(R, P)> key) {
  return {.title = tr(title), .unit = {}, .json = {}, .why = tr(why), .number = std::move(key), .text = std::move(show)};
}
PlanColumn figure(const char* title, const char* unit, const char* json, const char* why, std::function<std::optional<double>(R, P)> number, std::function<QString(R, P)> show, bool lower = true) {
  return {.title = tr(title), .unit = tr(unit), .json = QLatin1String(json), .why = tr(why), .number = std::move(number), .text = std::move(show), .lowerIsBetter = lower, .axis = true};
}
double p95(R r) { return static_cast<double>(r.forecast.memory_p95.peak().value); }

std::vector<PlanColumn> make() {
  std::vector<PlanColumn> out;
  out.push_back(text("#", "Rank in the search: higher throughput first, then less memory, then the simpler layout. A star marks the Pareto front of speed and memory.", nullptr, nullptr));
  out.push_back(text("Layout", "Degrees above 1: pp stages, tp tensor, ep expert, dp replicas x shards, es shards of the experts.", [](R r, P) { return qs(layout_text(r.plan.parallelism)); },
                     [](R r, P) { const Parallelism& p = r.plan.parallelism; return std::optional<double>(p.pp * 1e12 + p.tp * 1e9 + p.ep * 1e5 + p.dp_replicate); }));
  out.push_back(text("Batch", "Sequences a micro-batch x micro-batches a step, of one data rank.", [](R r, P) { return QStringLiteral("%1 x %2").arg(r.plan.micro_batch).arg(r.plan.micro_batches); },
                     [](R r, P) { return std::optional<double>(static_cast<double>(r.plan.micro_batch)); }));
  out.push_back(text("Recompute", "What the backward pass computes again instead of keeping.", [](R r, P) { return qs(std::string(name_of(r.plan.recompute))); }, [](R r, P) { return std::optional<double>(static_cast<double>(r.plan.recompute)); }));
  out.push_back(text("Frozen as", "Type of frozen weights in memory.", [](R r, P) { return qs(std::string(name_of(r.plan.frozen_storage))); }, [](R r, P) { return std::optional<double>(static_cast<double>(r.plan.frozen_storage)); }));
  out.push_back(figure("Step", "s", "step_seconds", "One optimizer step at the median expert load.", [](R r, P) { return std::optional<double>(r.forecast.step.value); }, [](R r, P) { return qs(duration(r.forecast.step)); }));
  out.push_back(figure("Tokens/s/GPU", "tokens/s", "tokens_per_second_per_gpu", "Throughput of one device.", [](R r, P) { return std::optional<double>(r.forecast.tokens_per_second_per_device); }, [](R r, P) { return QString::number(r.forecast.tokens_per_second_per_device, 'f', 0); }, false));
  out.push_back(figure("MFU", "%", "mfu", "Model flops (forward + backward, causal attention half, no recompute) over the dense bf16 peak.", [](R r, P) { return std::optional<double>(r.forecast.mfu); }, [](R r, P) { return qs(percent(r.forecast.mfu)); }, false));
  out.push_back(figure("Peak", "GB", "peak_memory_bytes_p95", "Memory of the fullest device at the 95th percentile of the expert load.", [](R r, P) { return std::optional<double>(p95(r)); }, [](R r, P) { return qs(human(r.forecast.memory_p95.peak())); }));
  out.push_back(figure("Headroom", "GB", "", "What is left of a device's memory at the 95th percentile.", [](R r, P p) { return std::optional<double>(static_cast<double>(p.cluster.device.memory.value) - p95(r)); },
                       [](R r, P p) { return qs(human(p.cluster.device.memory - r.forecast.memory_p95.peak())); }, false));
  out.push_back(figure("GPU-hours", "h", "gpu_hours", "Device-hours for the workload's tokens.", [](R r, P) { return r.forecast.device_hours; }, [](R r, P) { return r.forecast.device_hours ? qs(grouped(static_cast<std::int64_t>(*r.forecast.device_hours + 0.5))) : QString(); }));
  out.push_back(figure("Cost", "$", "cost_usd", "GPU-hours times the cluster's price.", [](R r, P) { return r.forecast.cost_usd; }, [](R r, P) { return r.forecast.cost_usd ? qs(dollars(*r.forecast.cost_usd)) : QString(); }));
  out.push_back(figure("Risk", "%", "", "How much longer a step takes at the 95th percentile of the expert load than at the median.", [](R r, P) { return std::optional<double>(r.forecast.step_p95 / r.forecast.step - 1); }, [](R r, P) { return qs("+" + percent(r.forecast.step_p95 / r.forecast.step - 1)); }));
  out.push_back(figure("Roofline", "%", "basis/roofline", "Share of the step that rests on data sheets rather than measurements: the lower, the surer.", [](R r, P) { return std::optional<double>(r.forecast.basis[2]); }, [](R r, P) { return qs(percent(r.forecast.basis[2])); }));
  out.push_back(figure("Host memory", "GB", "host_memory_bytes", "Per rank.", [](R r, P) { return std::optional<double>(static_cast<double>(r.forecast.memory.host.value)); }, [](R r, P) { return qs(human(r.forecast.memory.host)); }));
  out.back().shown = false;
  out.push_back(figure("Step, P95", "s", "step_seconds_p95", "At the 95th percentile of the load draws.", [](R r, P) { return std::optional<double>(r.forecast.step_p95.value); }, [](R r, P) { return qs(duration(r.forecast.step_p95)); }));
  out.back().shown = false;
  return out;
}

}  // namespace

const std::vector<PlanColumn>& planColumns() {
  static const std::vector<PlanColumn> columns = make();
  return columns;
}

int planColumn(const QString& title) {
  const auto& all = planColumns();
  for (std::size_t c = 0; c < all.size(); ++c)
    if (all[c].title == title) return static_cast<int>(c);
  return -1;
}

QString axisNumber(const PlanColumn& column, double v) {
  if (column.unit == QLatin1String("GB")) return QString::number(v / 1e9, 'g', 4);
  if (column.unit == QLatin1String("%")) return QString::number(100 * v, 'g', 4);
  return std::abs(v) >= 1e5 ? qs(short_count(v)) : QString::number(v, 'g', 5);
}

}  // namespace moeplan::gui
