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
  out.push_back(text("Recompute", "What the backward pass computes again instead of keeping.", [](R r, P) { return qs(std::string(name_of(r.plan.recompute)) + (r.plan.offload == Offload::none ? std::string() : ", host: " + std::string(name_of(r.plan.offload)))); }, [](R r, P) { return std::optional<double>(static_cast<double>(r.plan.recompute)); }));
  out.push_back(text("Frozen as", "Type of frozen weights in memory.", [](R r, P) { return qs(std::string(name_of(r.plan.frozen_storage))); }, [](R r, P) { return std::optional<double>(static_cast<double>(r.plan.frozen_storage)); }));
  out.push_back(text("Schedule", "Order of the passes of a pipeline stage, virtual stages, pieces of the expert exchange.",
                     [](R r, P) { return qs(std::string(name_of(r.plan.schedule))) + (r.plan.virtual_stages > 1 ? QStringLiteral(" x %1").arg(r.plan.virtual_stages) : QString()) + (r.plan.experts.chunks > 1 ? tr(", %1 pieces").arg(r.plan.experts.chunks) : QString()); },
                     [](R r, P) { return std::optional<double>(static_cast<double>(r.plan.schedule) * 1e6 + r.plan.virtual_stages * 1e3 + static_cast<double>(r.plan.experts.chunks)); }));
  out.back().shown = false;
  out.push_back(figure("Dropped", "%", "dropped_share", "Share of expert assignments beyond the capacity.", [](R r, P) { return std::optional<double>(r.forecast.dropped); }, [](R r, P) { return qs(percent(r.forecast.dropped)); }));
  out.back().shown = false;
  out.push_back(figure("Step", "s", "step_seconds", "One optimizer step at the median expert load.", [](R r, P) { return std::optional<double>(r.forecast.step.value); }, [](R r, P) { return qs(duration(r.forecast.step)); }));
  out.push_back(figure("In 90 % of cases", "s", "intervals/step_seconds/high", "Central 90 % of the step: what the prices and the load draws leave open. Plans are ranked by its upper end.",
                       [](R r, P) { return std::optional<double>(r.forecast.step_interval.high); }, [](R r, P) { return tr("%1 to %2").arg(qs(duration({r.forecast.step_interval.low})), qs(duration({r.forecast.step_interval.high}))); }));
  out.push_back(figure("Tokens/s/GPU", "tokens/s", "tokens_per_second_per_gpu", "Throughput of one device.", [](R r, P) { return std::optional<double>(r.forecast.tokens_per_second_per_device); }, [](R r, P) { return QString::number(r.forecast.tokens_per_second_per_device, 'f', 0); }, false));
  out.push_back(figure("MFU", "%", "mfu", "Model flops (forward + backward, causal attention half, no recompute) over the dense bf16 peak.", [](R r, P) { return std::optional<double>(r.forecast.mfu); }, [](R r, P) { return qs(percent(r.forecast.mfu)); }, false));
  out.push_back(figure("Peak", "GB", "peak_memory_bytes_p95", "Memory of the fullest device at the 95th percentile of the expert load.", [](R r, P) { return std::optional<double>(p95(r)); }, [](R r, P) { return qs(human(r.forecast.memory_p95.peak())); }));
  out.push_back(figure("Headroom", "GB", "", "What is left of a device's memory at the 95th percentile.", [](R r, P p) { return std::optional<double>(static_cast<double>(p.cluster.device.memory.value) - p95(r)); },
                       [](R r, P p) { return qs(human(p.cluster.device.memory - r.forecast.memory_p95.peak())); }, false));
  out.push_back(figure("GPU-hours", "h", "gpu_hours", "Device-hours for the workload's tokens.", [](R r, P) { return r.forecast.device_hours; }, [](R r, P) { return r.forecast.device_hours ? qs(grouped(static_cast<std::int64_t>(*r.forecast.device_hours + 0.5))) : QString(); }));
  out.push_back(figure("Cost", "$", "cost_usd", "GPU-hours times the cluster's price.", [](R r, P) { return r.forecast.cost_usd; }, [](R r, P) { return r.forecast.cost_usd ? qs(dollars(*r.forecast.cost_usd)) : QString(); }));
  out.push_back(figure("Risk", "%", "out_of_memory_risk", "Share of the load draws whose peak exceeds the device: the risk of running out of memory.", [](R r, P) { return std::optional<double>(r.forecast.out_of_memory_risk); }, [](R r, P) { return qs(percent(r.forecast.out_of_memory_risk)); }));
  out.push_back(figure("Uneven", "%", "", "How much longer a step takes at the 95th percentile of the expert load than at the median.", [](R r, P) { return std::optional<double>(r.forecast.step_p95 / r.forecast.step - 1); }, [](R r, P) { return qs("+" + percent(r.forecast.step_p95 / r.forecast.step - 1)); }));
  out.push_back(figure("Roofline", "%", "basis/roofline", "Share of the step that rests on data sheets rather than measurements: the lower, the surer.", [](R r, P) { return std::optional<double>(r.forecast.basis[2]); }, [](R r, P) { return qs(percent(r.forecast.basis[2])); }));
  out.push_back(figure("Host memory", "GB", "host_memory_bytes", "Per rank.", [](R r, P) { return std::optional<double>(static_cast<double>(r.forecast.memory.host.value)); }, [](R r, P) { return qs(human(r.forecast.memory.host)); }));
  out.back().shown = false;
  out.push_back(figure("Step, low", "s", "intervals/step_seconds/low", "Lower end of the central 90 % of the step.", [](R r, P) { return std::optional<double>(r.forecast.step_interval.low); }, [](R r, P) { return qs(duration({r.forecast.step_interval.low})); }));
  out.back().shown = false;
  out.push_back(figure("Peak, high", "GB", "intervals/peak_memory_bytes/high", "Upper end of the central 90 % of the fullest device's peak.", [](R r, P) { return std::optional<double>(r.forecast.memory_interval.high); }, [](R r, P) { return qs(human(Bytes{static_cast<std::int64_t>(r.forecast.memory_interval.high)})); }));
  out.back().shown = false;
  out.push_back(figure("Cost, high", "$", "intervals/cost_usd/high", "Upper end of the central 90 % of the cost.", [](R r, P) { return r.forecast.cost_interval ? std::optional<double>(r.forecast.cost_interval->high) : std::nullopt; }, [](R r, P) { return r.forecast.cost_interval ? qs(dollars(r.forecast.cost_interval->high)) : QString(); }));
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
