#include "executor/monitor/monitor.hpp"

#include <fmt/format.h>

#include <cmath>

namespace moeplan {
namespace {

constexpr std::size_t kWindow = 32, kFewest = 8;

struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread(const std::deque<double>& values) {
  Spread s;
  for (const double v : values) s.mean += v / static_cast<double>(values.size());
  for (const double v : values) s.deviation += (v - s.mean) * (v - s.mean) / static_cast<double>(values.size());
  s.deviation = std::sqrt(s.deviation);
  return s;
}

void remember(std::deque<double>& values, double x) {
  values.push_back(x);
  if (values.size() > kWindow) values.pop_front();
}

/// JSON has no word for what is not finite.
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

}  // namespace

Json step_json(const StepReport& r, const MemoryBreakdown& memory, double mfu) {
  Json out = Json::object();
  out["step"] = r.step;
  out["loss"] = number(r.loss);
  out["grad_norm"] = number(r.gradient_norm);
  out["lr"] = r.learning_rate;
  out["tokens"] = r.tokens;
  out["labelled"] = r.labelled;
  out["step_s"] = r.seconds;
  out["tokens_per_second"] = r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0;
  if (mfu > 0) out["mfu"] = mfu;
  out["mem_peak_bytes"] = memory.peak().value;
  out["imbalance_max"] = r.max_over_mean;
  if (r.rank_max_over_mean > 0) out["rank_imbalance_max"] = r.rank_max_over_mean;
  if (r.moved_bytes > 0) out["moved_bytes"] = r.moved_bytes;
  out["drop_rate"] = r.drop_rate;
  out["balance"] = r.balance;
  out["applied"] = r.applied;
  if (!r.fault.empty()) out["fault"] = r.fault;
  out["expert_tokens"] = Json::object();
  for (const RoutingReport& layer : r.routing) out["expert_tokens"][std::to_string(layer.layer)] = layer.counts;
  return out;
}

std::string prometheus_text(const StepReport& r, const MemoryBreakdown& measured, const MemoryBreakdown& predicted, std::int64_t total_tokens, double mfu) {
  std::string out;
  const auto metric = [&](const char* name, const char* type, const char* help) { out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type); };
  const auto value = [](double x) { return std::isnan(x) ? std::string("NaN") : std::isinf(x) ? std::string(x > 0 ? "+Inf" : "-Inf") : fmt::format("{}", x); };
  metric("moeplan_step", "gauge", "steps done");
  out += fmt::format("moeplan_step {}\n", r.step);
  metric("moeplan_loss", "gauge", "mean loss of the step, nats a token");
  out += fmt::format("moeplan_loss {}\n", value(r.loss));
  metric("moeplan_grad_norm", "gauge", "gradient norm before clipping");
  out += fmt::format("moeplan_grad_norm {}\n", value(r.gradient_norm));
  metric("moeplan_step_seconds", "gauge", "wall time of the step");
  out += fmt::format("moeplan_step_seconds {}\n", value(r.seconds));
  if (mfu > 0) {
    metric("moeplan_mfu_ratio", "gauge", "model flops over the devices' dense bf16 peak, without recompute");
    out += fmt::format("moeplan_mfu_ratio {}\n", value(mfu));
  }
  metric("moeplan_tokens_total", "counter", "tokens trained on since this process began");
  out += fmt::format("moeplan_tokens_total {}\n", total_tokens);
  metric("moeplan_drop_ratio", "gauge", "routed copies that were dropped");
  out += fmt::format("moeplan_drop_ratio {}\n", value(r.drop_rate));
  metric("moeplan_memory_bytes", "gauge", "memory of the rank by kind");
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names)
    for (const auto& [memory, state] : {std::pair{&predicted, "predicted"}, std::pair{&measured, "measured"}})
      if ((*memory)[category].value > 0) out += fmt::format("moeplan_memory_bytes{{rank=\"0\",kind=\"{}\",state=\"{}\"}} {}\n", name, state, (*memory)[category].value);
  metric("moeplan_expert_tokens", "gauge", "choices of each expert in the step");
  for (const RoutingReport& layer : r.routing)
    for (std::size_t e = 0; e < layer.counts.size(); ++e) out += fmt::format("moeplan_expert_tokens{{layer=\"{}\",expert=\"{}\"}} {}\n", layer.layer, e, layer.counts[e]);
  metric("moeplan_expert_imbalance_ratio", "gauge", "most loaded expert over the mean");
  for (const RoutingReport& layer : r.routing) {
    std::int64_t sum = 0, most = 0;
    for (const auto c : layer.counts) sum += c, most = std::max(most, c);
    if (sum > 0) out += fmt::format("moeplan_expert_imbalance_ratio{{layer=\"{}\"}} {}\n", layer.layer, static_cast<double>(most) * static_cast<double>(layer.counts.size()) / static_cast<double>(sum));
  }
  return out;
}

std::vector<std::string> Watch::warnings(const StepReport& r) {
  std::vector<std::string> out;
  const std::string where = r.fault.empty() ? "" : " (" + r.fault + ")";
  if (!std::isfinite(r.loss)) out.push_back(fmt::format("step {}: the loss is {}{}; the step is skipped", r.step, r.loss, where));
  else if (!std::isfinite(r.gradient_norm)) out.push_back(fmt::format("step {}: the gradient norm is {}{}; the step is skipped", r.step, r.gradient_norm, where));
  if (losses_.size() >= kFewest && std::isfinite(r.loss))
    if (const Spread s = spread(losses_); r.loss > s.mean + 6 * s.deviation && r.loss > 1.2 * s.mean)
      out.push_back(fmt::format("step {}: the loss jumps to {:.4g}; the last {} steps were at {:.4g}", r.step, r.loss, losses_.size(), s.mean));
  if (norms_.size() >= kFewest && std::isfinite(r.gradient_norm))
    if (const Spread s = spread(norms_); r.gradient_norm > s.mean + 6 * s.deviation && r.gradient_norm > 4 * s.mean)
      out.push_back(fmt::format("step {}: the gradient norm jumps to {:.4g}; the last {} steps were at {:.4g}", r.step, r.gradient_norm, norms_.size(), s.mean));
  if (r.max_over_mean > 10) out.push_back(fmt::format("step {}: one expert takes {:.1f} times the mean load", r.step, r.max_over_mean));
  if (std::isfinite(r.loss)) remember(losses_, r.loss);
  if (std::isfinite(r.gradient_norm)) remember(norms_, r.gradient_norm);
  return out;
}

}  // namespace moeplan
