#include "core/error.hpp"
#include "core/write.hpp"
#include "planner/planner.hpp"
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
  refuse_unknown_keys(top, {"format", "plan", "predicted", "problem", "model_config"});
  for (const char* key : {"format", "plan", "problem", "model_config"})
    if (!json.contains(key)) throw InputError(top.child(key), "is missing", "write the file with `moeplan plan ... -o plan.json`");
  if (const std::string format = read_string(top.at("format")); format != kFormat)
    throw InputError(top.child("format"), "is " + shown(format) + ", this program reads " + std::string(kFormat));
  const auto file = read<ProblemFile>(top.at("problem"));
  LoadedPlan out;
  out.plan = read<Plan>(top.at("plan"));
  out.problem = {json.at("model_config"), file.model_name, import_model(json.at("model_config"), where + ": model_config", file.model_name), file.cluster, file.workload, file.load, file.runtime, file.profile};
  const Parallelism& p = out.plan.parallelism;
  const Place degrees = top.at("plan").at("parallelism");
  if (static_cast<std::int64_t>(p.pp) * p.tp * p.cp * p.dp_replicate * p.dp_shard != out.problem.cluster.devices())
    degrees.refuse("pp x tp x cp x dp_replicate x dp_shard is " + std::to_string(p.world()) + ", the cluster has " + std::to_string(out.problem.cluster.devices()) + " devices");
  if (p.stage_ranks() % (p.ep * p.etp) != 0 || p.expert_data() % p.expert_shard != 0)
    degrees.refuse("ep x etp x expert_shard = " + std::to_string(static_cast<std::int64_t>(p.ep) * p.etp * p.expert_shard) + " does not divide the " + std::to_string(p.stage_ranks()) + " ranks of a stage");
  return out;
}

}  // namespace moeplan
