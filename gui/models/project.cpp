#include "gui/models/project.hpp"

#include "core/configs.hpp"
#include "core/write.hpp"
#include "sim/program/architectures/architecture.hpp"

namespace moeplan::gui {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "moeplan.project.v1";

/// A file name from a model's or cluster's name, which a file may have chosen.
std::string fileName(const std::string& name) {
  std::string out;
  for (const char c : name.substr(0, 60)) out += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' ? c : '_';
  return out.empty() || out.front() == '.' ? "input" : out;
}

/// The name, if configs hold the same under it; else a file written into `unpack`.
template <class T, class Load>
std::string placed(const T& value, const std::string& name, const char* room, const fs::path& configs, const fs::path& unpack, Load&& load) {
  const auto names = config_names(configs, room);
  if (std::binary_search(names.begin(), names.end(), name) && load(configs, name) == value) return name;
  const fs::path folder = unpack / room;
  fs::create_directories(folder);
  const fs::path file = folder / (fileName(name) + ".json");
  write_text_file(file, to_json(value).dump(1) + "\n");
  return file.string();
}

std::string placedModel(const Json& config, const std::string& name, const fs::path& configs, const fs::path& unpack) {
  const auto names = config_names(configs, "models");
  if (std::binary_search(names.begin(), names.end(), name) && load_model_config(configs, name).config == config) return name;
  const fs::path folder = unpack / "models";
  fs::create_directories(folder);
  const fs::path file = folder / (fileName(name) + ".json");
  write_text_file(file, config.dump(1) + "\n");
  return file.string();
}

/// Names or files for every input of a problem. The overrides of the draft stay: applied to what they made, they change nothing.
void place(Draft& draft, const Problem& p, const fs::path& configs, const fs::path& unpack) {
  draft.model = placedModel(p.model_config, p.model_name, configs, unpack);
  draft.workload = placed(p.workload, p.workload.name, "workloads", configs, unpack, load_workload);
  draft.load = placed(p.load, p.load.name, "loads", configs, unpack, load_load);
  draft.runtime = placed(p.runtime, p.runtime.name, "runtimes", configs, unpack, load_runtime);
  if (p.profile.samples.empty() && p.profile.name == "none") draft.profile.reset();
  else draft.profile = placed(p.profile, p.profile.name, "profiles", configs, unpack, load_profile);
  draft.cluster = placed(p.cluster, p.cluster.name, "clusters", configs, unpack, load_cluster);
  draft.device.reset();
  draft.gpus.reset();
}

}  // namespace

Json projectJson(const Draft& draft, const Problem& problem, const std::optional<Plan>& plan, const std::optional<Plan>& pinned) {
  Json out = Json::object();
  out["format"] = std::string(kFormat);
  out["draft"] = to_json(draft);
  // The inputs in the shape of a plan file, which has one reader.
  const Json file = plan_file(problem, {plan.value_or(Plan{}), {}});
  out["problem"] = file.at("problem");
  out["model_config"] = problem.model_config;
  if (plan) out["plan"] = to_json(*plan);
  if (pinned) out["pinned"] = to_json(*pinned);
  return out;
}

Opened openProject(const fs::path& file, const fs::path& configs, const fs::path& unpack) {
  JsonLimits limits;
  limits.tolerate_nonfinite_literals = true;
  const Json json = load_json(file, limits);
  const std::string where = file.string();
  const Place top(json, where);
  if (!json.is_object()) top.wrong_type("an object");
  Opened out;
  const auto format = json.contains("format") ? read_string(top.at("format")) : std::string();
  if (format == "moeplan.plan.v1") {
    const LoadedPlan loaded = read_plan_file(json, where);
    place(out.draft, loaded.problem, configs, unpack);
    out.plan = loaded.plan;
    return out;
  }
  if (format != kFormat) throw InputError(top.child("format"), format.empty() ? "is missing" : "is " + shown(format) + ", this program reads " + std::string(kFormat) + " and plan files", "save it from moeplan-gui or `moeplan plan ... -o`");
  refuse_unknown_keys(top, {"format", "draft", "problem", "model_config", "plan", "pinned"});
  for (const char* key : {"draft", "problem", "model_config"})
    if (!json.contains(key)) throw InputError(top.child(key), "is missing");
  out.draft = read<Draft>(top.at("draft"));
  if (json.contains("plan")) out.plan = read<Plan>(top.at("plan"));
  const Place parts = top.at("problem");
  if (!parts.value().is_object()) parts.wrong_type("an object");
  for (const char* key : {"model", "cluster", "workload", "load", "runtime", "profile"})
    if (!parts.value().contains(key)) throw InputError(parts.child(key), "is missing");
  Problem problem;
  problem.model_name = read_string(parts.at("model"));
  problem.model_config = json.at("model_config");
  problem.model = import_model(problem.model_config, where + ": model_config", problem.model_name);
  problem.cluster = read<ClusterSpec>(parts.at("cluster"));
  problem.workload = read<Workload>(parts.at("workload"));
  problem.load = read<LoadModel>(parts.at("load"));
  problem.runtime = read<Runtime>(parts.at("runtime"));
  problem.profile = read<DeviceProfile>(parts.at("profile"));
  check(problem.cluster, where + ": problem.cluster");
  check(problem.workload, where + ": problem.workload");
  check(problem.load, where + ": problem.load");
  check(problem.runtime, where + ": problem.runtime");
  check(problem.profile, where + ": problem.profile");
  check(problem);
  place(out.draft, problem, configs, unpack);
  // A pinned plan is a decision too: priced on the problem it was saved with.
  if (json.contains("pinned")) {
    const auto pinned = read<Plan>(top.at("pinned"));
    Json as_plan = {{"format", "moeplan.plan.v1"}, {"plan", json.at("pinned")}, {"problem", parts.value()}, {"model_config", problem.model_config}};
    const LoadedPlan loaded = read_plan_file(as_plan, where);
    out.pinned = RankedPlan{loaded.plan, forecast(applied(loaded.problem, out.draft.what_if), loaded.plan)};
  }
  return out;
}

}  // namespace moeplan::gui
