#include "core/checked.hpp"
#include "core/configs.hpp"
#include "core/error.hpp"
#include "core/write.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "planner/rules.hpp"
#include "planner/searched_space.hpp"
#include "sim/program/architectures/architecture.hpp"

namespace moeplan {
namespace {

constexpr std::string_view kFormat = "moeplan.plan.v1";

/// The inputs of a problem as a file holds them; the model is its config.json as given, imported again on reading.
struct ProblemFile {
  std::string model_name;
  ClusterSpec cluster;
  Workload workload;
  LoadModel load;
  Runtime runtime;
  DeviceProfile profile;
  static constexpr auto fields() {
    return std::make_tuple(field("model", &ProblemFile::model_name).required(), field("cluster", &ProblemFile::cluster).required(),
                           field("workload", &ProblemFile::workload).required(), field("load", &ProblemFile::load).required(),
                           field("runtime", &ProblemFile::runtime).required(), field("profile", &ProblemFile::profile).required());
  }
};

/// A file may say anything: the parts are checked as those of a new problem are, and the plan by the planner's own rules.
void check_loaded(const LoadedPlan& loaded, const Place& top, const std::string& where) {
  const auto& [problem, plan] = loaded;
  const std::string inside = where + ": problem";
  check(problem.cluster, inside + ".cluster");
  check(problem.load, inside + ".load");
  check(problem.runtime, inside + ".runtime");
  check(problem.profile, inside + ".profile");
  Workload held = problem.workload;
  held.frozen_storage = plan.frozen_storage;
  check(held, inside + ".workload");
  check(problem);
  const Parallelism& p = plan.parallelism;
  const Place degrees = top.at("plan").at("parallelism");
  std::int64_t world = 1;
  for (const int degree : {p.pp, p.tp, p.cp, p.dp_replicate, p.dp_shard}) world = checked_mul(world, degree, "plan.parallelism");
  if (world != problem.cluster.devices())
    degrees.refuse("pp x tp x cp x dp_replicate x dp_shard is " + std::to_string(world) + ", the cluster has " + std::to_string(problem.cluster.devices()) + " devices");
  const std::int64_t experts = static_cast<std::int64_t>(p.ep) * p.etp * p.expert_shard;
  if (p.stage_ranks() % experts != 0)
    degrees.refuse("ep x etp x expert_shard = " + std::to_string(experts) + " does not divide the " + std::to_string(p.stage_ranks()) + " ranks of a stage");
  check_micro_batch(problem, plan.micro_batch, where + ": plan.micro_batch");
  if (const auto rejection = first_rejection(problem, plan)) top.at("plan").refuse(rejection->rule + ": " + rejection->reason);
}

}  // namespace

Json plan_file(const Problem& problem, const RankedPlan& ranked) {
  Json out = Json::object();
  out["format"] = std::string(kFormat);
  out["plan"] = to_json(ranked.plan);
  out["predicted"] = {{"step_seconds", ranked.forecast.step.value}, {"peak_memory_bytes", ranked.forecast.memory.peak().value}};
  out["problem"] = to_json(ProblemFile{problem.model_name, problem.cluster, problem.workload, problem.load, problem.runtime, problem.profile});
  out["model_config"] = problem.model_config;
  return out;
}

LoadedPlan read_plan_file(const Json& json, const std::string& where) {
  const Place top(json, where);
  if (!json.is_object()) top.wrong_type("an object");
  refuse_unknown_keys(top, {"format", "plan", "predicted", "problem", "model_config", "search"});
  for (const char* key : {"format", "plan", "problem", "model_config"})
    if (!json.contains(key)) throw InputError(top.child(key), "is missing", "write the file with `moeplan plan ... -o plan.json`");
  if (const std::string format = read_string(top.at("format")); format != kFormat)
    throw InputError(top.child("format"), "is " + shown(format) + ", this program reads " + std::string(kFormat));
  const auto file = read<ProblemFile>(top.at("problem"));
  LoadedPlan out;
  out.plan = read<Plan>(top.at("plan"));
  out.problem = {json.at("model_config"), file.model_name, import_model(json.at("model_config"), where + ": model_config", file.model_name), file.cluster, file.workload, file.load, file.runtime, file.profile};
  (void)read_searched_space(json, where);   // refuses what is none
  check_loaded(out, top, where);
  return out;
}

}  // namespace moeplan
