#include "planner/describe.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/write.hpp"

namespace moeplan {
namespace {

constexpr std::array kClasses{std::pair{"attention", &Workload::attention}, std::pair{"dense", &Workload::dense},   std::pair{"shared", &Workload::shared},
                              std::pair{"experts", &Workload::experts},     std::pair{"router", &Workload::router}, std::pair{"embedding", &Workload::embedding},
                              std::pair{"head", &Workload::head},           std::pair{"norm", &Workload::norm},     std::pair{"other", &Workload::other}};

/// {"low": .., "high": ..}: the central 90 %.
Json interval_json(const Interval& i) { return {{"low", i.low}, {"high", i.high}}; }
Json interval_json(const std::optional<Interval>& i) { return i ? interval_json(*i) : Json(nullptr); }

}  // namespace

Json plan_json(const RankedPlan& ranked) {
  const Plan& plan = ranked.plan;
  const Forecast& f = ranked.forecast;
  Json memory = Json::object(), time = Json::object();
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names) memory[std::string(name)] = f.memory[category].value;
  for (const auto& [category, name] : EnumNames<TimeCategory>::names) time[std::string(name)] = f.time[static_cast<std::size_t>(category)].value;
  return Json{{"parallelism", to_json(plan.parallelism)},
              {"micro_batch", plan.micro_batch},
              {"micro_batches", plan.micro_batches},
              {"global_batch", plan.micro_batch * plan.micro_batches * plan.parallelism.dp()},
              {"stage_layers", plan.stage_layers},
              {"schedule", std::string(name_of(plan.schedule))},
              {"virtual_stages", plan.virtual_stages},
              {"expert_chunks", plan.experts.chunks},
              {"recompute", std::string(name_of(plan.recompute))},
              {"reshard_after_forward", plan.reshard_after_forward},
              {"offload", std::string(name_of(plan.offload))},
              {"context_exchange", std::string(name_of(plan.context_exchange))},
              {"state_passing", std::string(name_of(plan.state_passing))},
              {"experts", to_json(plan.experts)},
              {"frozen_storage", std::string(name_of(plan.frozen_storage))},
              {"loss_chunks", plan.loss_chunks},
              {"prefetch", plan.prefetch},
              {"step_seconds", f.step.value},
              {"step_seconds_p95", f.step_p95.value},
              {"dropped_share", f.dropped},
              {"tokens_per_second", f.tokens_per_second},
              {"tokens_per_second_per_gpu", f.tokens_per_second_per_device},
              {"tflops_per_gpu", f.flops_per_device.value / 1e12},
              {"mfu", f.mfu},
              {"peak_memory_bytes", f.memory.peak().value},
              {"peak_memory_bytes_p95", f.memory_p95.peak().value},
              {"host_memory_bytes", f.memory.host.value},
              {"memory", std::move(memory)},
              {"peak_at", f.memory.peak_at},
              {"time", std::move(time)},
              {"gpu_hours", f.device_hours ? Json(*f.device_hours) : Json(nullptr)},
              {"cost_usd", f.cost_usd ? Json(*f.cost_usd) : Json(nullptr)},
              {"intervals",
               {{"step_seconds", interval_json(f.step_interval)},
                {"tokens_per_second", interval_json(f.tokens_per_second_interval)},
                {"peak_memory_bytes", interval_json(f.memory_interval)},
                {"gpu_hours", interval_json(f.device_hours_interval)},
                {"cost_usd", interval_json(f.cost_interval)}}},
              {"out_of_memory_risk", f.out_of_memory_risk},
              {"basis", {{"measured", f.basis[0]}, {"interpolated", f.basis[1]}, {"roofline", f.basis[2]}}}};
}

Json problem_json(const Problem& problem, std::span<const Plan> plans) {
  Json out{{"model", problem.model_name},
              {"architecture", problem.model.architecture},
              {"gpus", problem.cluster.devices()},
              {"cluster", to_json(problem.cluster)},
              {"workload", to_json(problem.workload)},
              {"load", {{"name", problem.load.name}, {"seed", problem.load.seed}}},
              {"runtime", to_json(problem.runtime)},
              {"profile", {{"name", problem.profile.name}, {"source", problem.profile.source}}}};
  for (const LinkSamples::Share& s : measured_shares(problem, plans)) out["profile"]["measured_beside"].push_back({{"collective", s.collective}, {"ranks", s.ranks}, {"of_computing", s.share}});
  return out;
}

std::string layout_text(const Parallelism& p) {
  std::string out;
  const auto add = [&](const char* name, int degree) {
    if (degree > 1) out += fmt::format("{}{}{}", out.empty() ? "" : " ", name, degree);
  };
  add("pp", p.pp);
  add("tp", p.tp);
  add("cp", p.cp);
  add("ep", p.ep);
  add("etp", p.etp);
  if (p.dp() > 1) out += fmt::format("{}dp{}", out.empty() ? "" : " ", p.dp_replicate > 1 ? fmt::format("{}x{}", p.dp_replicate, p.dp_shard) : std::to_string(p.dp_shard));
  add("es", p.expert_shard);
  return out.empty() ? "one device" : out;
}

std::string order_text(const Plan& plan) {
  std::string out;
  if (plan.schedule != Schedule::one_forward_one_backward) {
    std::string name(name_of(plan.schedule));
    std::replace(name.begin(), name.end(), '_', ' ');
    out += ", " + name;
    if (plan.virtual_stages > 1) out += fmt::format(" x{}", plan.virtual_stages);
  }
  const auto [least, most] = std::minmax_element(plan.stage_layers.begin(), plan.stage_layers.end());
  if (plan.stage_layers.size() > 1 && *most - *least > 1) out += fmt::format(", {} to {} layers", *least, *most);
  const ExpertExchange& x = plan.experts;
  if (x.chunks > 1) out += fmt::format(", {} pieces", x.chunks);
  if (x.dispatch != ExpertExchange{}.dispatch) out += fmt::format(", {} dispatch", name_of(x.dispatch));
  if (x.route == DispatchRoute::direct) out += ", direct";
  if (x.placement != ExpertPlacement::contiguous) out += fmt::format(", {} placement", name_of(x.placement));
  if (x.replicas > 0) out += fmt::format(", {} replicas", x.replicas);
  if (x.capacity_factor) out += fmt::format(", capacity {:g}{}{}", *x.capacity_factor, x.overflow == Overflow::reroute ? " rerouted" : "", x.pad ? " padded" : "");
  return out;
}

std::string tuning_text(const Workload& workload) {
  std::vector<std::string> full, lora;
  std::int64_t rank = 0;
  bool ranks_differ = false;
  for (const auto& [name, member] : kClasses) {
    const Tuning& t = workload.*member;
    if (t.training == Training::full) full.emplace_back(name);
    if (t.training != Training::lora) continue;
    ranks_differ = ranks_differ || (rank && t.rank != rank);
    rank = t.rank;
    lora.emplace_back(name);
  }
  if (full.size() == kClasses.size()) return "every weight trained";
  const auto joined = [](const std::vector<std::string>& names) {
    std::string out;
    for (const auto& n : names) out += (out.empty() ? "" : ", ") + n;
    return out;
  };
  std::string out;
  if (!lora.empty()) out = fmt::format("LoRA {} on {}", ranks_differ ? "of several ranks" : fmt::format("r{}", rank), joined(lora));
  if (!full.empty()) out += (out.empty() ? "" : "; ") + std::string("full on ") + joined(full);
  return out;
}

}  // namespace moeplan
