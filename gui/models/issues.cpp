#include "gui/models/issues.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "planner/exchange_options.hpp"

namespace moeplan::gui {
namespace {

QString qs(const std::string& s) { return QString::fromStdString(s); }

/// Field that an error's place speaks of.
QString fieldOf(const std::string& where) {
  static const std::vector<std::pair<std::string, const char*>> places{
      {"--cluster", "cluster"}, {"--device", "device"}, {"--gpus", "gpus"}, {"--targets", "targets"}, {"--method", "method"}, {"--rank", "rank"}, {"--tokens", "tokens"}, {"--seq", "sequence_length"},
      {"--micro-batch", "micro_batch"}, {"--tp", "tp"}, {"--cp", "cp"}, {"--etp", "etp"}, {"--schedule", "schedule"}, {"--virtual-stages", "virtual_stages"}, {"--expert-chunks", "expert_chunks"}, {"--offload", "offload"}, {"--context-exchange", "context_exchange"}, {"--state-passing", "state_passing"}, {"--dispatch-route", "route"}, {"--dispatch", "dispatch"}, {"--capacity-factor", "capacity_factor"}, {"--overflow", "overflow"}, {"--expert-replicas", "expert_replicas"}, {"--expert-placement", "placement"}, {"MODEL", "model"}, {"sequence_length", "sequence_length"}, {"global_batch", "global_batch"}, {"frozen_storage", "frozen_storage"},
      {"experts", "targets"}, {"configs/models", "model"}, {"load", "load"}, {"workload", "workload"}, {"runtime", "runtime"}, {"profile", "profile"}, {"cluster", "cluster"}, {"models", "model"}, {"parallelism", "pp"}};
  for (const auto& [part, key] : places)
    if (where.find(part) != std::string::npos) return QLatin1String(key);
  return {};
}

template <class F>
Fix fix(const Draft& draft, const QString& label, F&& change) {
  Fix out{label, draft};
  change(out.draft);
  return out;
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d) continue;
    out.push_back(d);
    if (d * d != n) out.push_back(n / d);
  }
  std::sort(out.begin(), out.end());
  return out;
}

QString listed(const std::vector<std::int64_t>& values) {
  QString out;
  for (std::size_t i = 0; i < std::min<std::size_t>(values.size(), 10); ++i) out += (i ? QStringLiteral(" ") : QString()) + QString::number(values[i]);
  return values.size() > 10 ? out + QStringLiteral(" …") : out;
}

/// The value of `allowed` nearest to `value` by ratio.
std::int64_t nearest(const std::vector<std::int64_t>& allowed, std::int64_t value) {
  return *std::min_element(allowed.begin(), allowed.end(), [&](std::int64_t a, std::int64_t b) {
    const auto off = [&](std::int64_t v) { return std::abs(std::log(static_cast<double>(v) / static_cast<double>(value))); };
    return off(a) < off(b);
  });
}

}  // namespace

Issue issueOf(const InputError& error, const Draft& draft) {
  Issue out{.field = fieldOf(error.where()), .message = qs(error.what()), .fixes = {}};
  const auto add = [&](const QString& label, auto&& change) { out.fixes.push_back(fix(draft, label, change)); };
  if (draft.targets.size() && out.field == QLatin1String("targets")) add(QStringLiteral("clear targets"), [](Draft& d) { d.targets.clear(); });
  else if (out.field == QLatin1String("targets") || out.field == QLatin1String("workload")) add(QStringLiteral("workload lora-sft"), [](Draft& d) { d.workload = Draft{}.workload; });
  if (out.field == QLatin1String("frozen_storage")) {
    add(QStringLiteral("bf16"), [](Draft& d) { d.frozen_storage = DType::bf16; });
    if (draft.runtime != "moeplan") add(QStringLiteral("runtime moeplan"), [](Draft& d) { d.runtime = "moeplan"; });
  }
  if (out.field == QLatin1String("load")) add(QStringLiteral("load log-normal-v3"), [](Draft& d) { d.load = Draft{}.load; });
  if (out.field == QLatin1String("rank")) add(QStringLiteral("no rank"), [](Draft& d) { d.rank.reset(); });
  if (out.field == QLatin1String("tokens")) add(QStringLiteral("1e9 tokens"), [](Draft& d) { d.tokens = 1e9; });
  if (out.field == QLatin1String("gpus") && draft.gpus) add(QStringLiteral("%1 devices").arg((*draft.gpus + 7) / 8 * 8), [](Draft& d) { d.gpus = (*d.gpus + 7) / 8 * 8; });
  if (out.field == QLatin1String("gpus") && !draft.gpus) add(QStringLiteral("8 devices"), [](Draft& d) { d.gpus = 8; });
  if (out.field == QLatin1String("model")) add(QStringLiteral("kimi-k3"), [](Draft& d) { d.model = Draft{}.model; });
  if (out.field == QLatin1String("cluster")) add(QStringLiteral("128xh200"), [](Draft& d) { d.cluster = Draft{}.cluster; d.device.reset(); d.gpus.reset(); });
  if (out.field == QLatin1String("runtime")) add(QStringLiteral("runtime moeplan"), [](Draft& d) { d.runtime = "moeplan"; });
  if (out.field == QLatin1String("profile")) add(QStringLiteral("default profile"), [](Draft& d) { d.profile.reset(); });
  if (out.field == QLatin1String("micro_batch")) add(QStringLiteral("micro-batch 1"), [](Draft& d) { d.micro_batch = 1; });
  const auto let_go = [&](const char* key, auto member) {
    if (out.field == QLatin1String(key) && draft.*member) add(QStringLiteral("search it"), [member](Draft& d) { (d.*member).reset(); });
  };
  for (const auto& [key, member] : {std::pair{"pp", &Draft::pp}, std::pair{"tp", &Draft::tp}, std::pair{"cp", &Draft::cp}, std::pair{"etp", &Draft::etp}, std::pair{"virtual_stages", &Draft::virtual_stages}}) let_go(key, member);
  let_go("expert_chunks", &Draft::expert_chunks);
  let_go("schedule", &Draft::schedule);
  let_go("context_exchange", &Draft::context_exchange);
  let_go("state_passing", &Draft::state_passing);
  let_go("dispatch", &Draft::dispatch);
  let_go("route", &Draft::route);
  let_go("capacity_factor", &Draft::capacity_factor);
  let_go("overflow", &Draft::overflow);
  let_go("expert_replicas", &Draft::expert_replicas);
  let_go("placement", &Draft::placement);
  if (out.field == QLatin1String("offload")) add(QStringLiteral("nothing on the host"), [](Draft& d) { d.offload.clear(); });
  if (out.field == QLatin1String("sequence_length")) add(QStringLiteral("the workload's length"), [](Draft& d) { d.sequence_length.reset(); });
  return out;
}

std::vector<Issue> pinIssues(const Draft& draft, const Problem& problem) {
  std::vector<Issue> out;
  const std::int64_t devices = problem.cluster.devices();
  const auto refuse = [&](const char* key, std::optional<int> Draft::*member, const QString& rule, const std::vector<std::int64_t>& allowed) {
    const std::int64_t value = *(draft.*member);
    Issue issue{.field = QLatin1String(key), .message = QStringLiteral("%1 %2: %3: %4").arg(QString(QLatin1String(key)).replace(QLatin1Char('_'), QLatin1Char('-'))).arg(value).arg(rule, listed(allowed)), .fixes = {}};
    const std::int64_t best = nearest(allowed, value);
    issue.fixes.push_back(fix(draft, QStringLiteral("set %1").arg(best), [&](Draft& d) { d.*member = static_cast<int>(best); }));
    issue.fixes.push_back(fix(draft, QStringLiteral("search it"), [&](Draft& d) { (d.*member).reset(); }));
    out.push_back(std::move(issue));
  };
  const auto layers = static_cast<std::int64_t>(problem.model.layers.size());
  // World degrees: their product must be able to reach the number of devices.
  std::int64_t left = devices;
  for (const auto& [key, member] : {std::pair{"pp", &Draft::pp}, std::pair{"tp", &Draft::tp}, std::pair{"cp", &Draft::cp}, std::pair{"dp_replicate", &Draft::dp_replicate}, std::pair{"dp_shard", &Draft::dp_shard}}) {
    if (!(draft.*member)) continue;
    std::vector<std::int64_t> allowed = divisors(left);
    if (member == &Draft::pp) std::erase_if(allowed, [&](std::int64_t v) { return v > layers; });
    const std::int64_t value = *(draft.*member);
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      const QString rule = member == &Draft::pp && value > layers ? QStringLiteral("%1 layers cannot fill more stages; possible").arg(layers) : QStringLiteral("must divide the %1 devices left; possible").arg(left);
      refuse(key, member, rule, allowed);
      return out;
    }
    left /= value;
  }
  const bool full = draft.pp && draft.tp && draft.cp && draft.dp_replicate && draft.dp_shard;
  if (full && left != 1)
    refuse("dp_shard", &Draft::dp_shard, QStringLiteral("pp x tp x cp x dp must be %1 devices; it needs").arg(devices), {*draft.dp_shard * left});
  const std::int64_t stage = devices / draft.pp.value_or(1);
  if (draft.ep) {
    const std::int64_t experts = routed_experts(problem.model);
    std::vector<std::int64_t> allowed = divisors(stage);
    const std::int64_t cut = draft.etp.value_or(1);
    std::erase_if(allowed, [&](std::int64_t v) { return stage % (v * cut) != 0 && v != 1; });
    std::erase_if(allowed, [&](std::int64_t v) { return experts == 0 ? v != 1 : experts % v != 0; });
    if (std::find(allowed.begin(), allowed.end(), *draft.ep) == allowed.end())
      refuse("ep", &Draft::ep, experts == 0 ? QStringLiteral("the model has no experts; possible") : QStringLiteral("must divide %1 experts and the %2 ranks of a stage; possible").arg(experts).arg(stage), allowed);
  }
  if (draft.expert_shard) {
    const std::int64_t data = stage / std::max<std::int64_t>(1, draft.ep && stage % *draft.ep == 0 ? *draft.ep : 1);
    const std::vector<std::int64_t> allowed = divisors(data);
    if (std::find(allowed.begin(), allowed.end(), *draft.expert_shard) == allowed.end())
      refuse("expert_shard", &Draft::expert_shard, QStringLiteral("must divide the %1 expert-data ranks; possible").arg(data), allowed);
  }
  return out;
}

}  // namespace moeplan::gui
