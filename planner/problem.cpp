#include "planner/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/configs.hpp"
#include "core/write.hpp"
#include "kernels/catalogue.hpp"
#include "planner/exchange_options.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/runtime_names.hpp"

namespace moeplan {
namespace fs = std::filesystem;
namespace {

constexpr std::array kTargets{std::pair{"attention", &Workload::attention}, std::pair{"dense", &Workload::dense},
                              std::pair{"shared", &Workload::shared},       std::pair{"experts", &Workload::experts},
                              std::pair{"router", &Workload::router},       std::pair{"embedding", &Workload::embedding},
                              std::pair{"head", &Workload::head}};

/// Weight classes that the layers of a model hold, by the names of `kTargets`.
std::set<std::string> classes_of(const ModelSpec& model) {
  std::set<std::string> out{"embedding", "head"};
  for (const LayerSpec& layer : model.layers) {
    for (const Sublayer& s : layer.sublayers) {
      if (std::holds_alternative<DenseFfn>(s.mixer)) {
        out.insert("dense");
      } else if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) {
        out.insert({"experts", "router"});
        if (moe->shared_intermediate > 0) out.insert("shared");
      } else {
        out.insert("attention");
      }
    }
  }
  return out;
}

ClusterSpec make_cluster(const fs::path& configs, const ProblemRequest& request) {
  if (request.cluster && request.device) throw InputError("--device", "a cluster is given too, and names its own device", "give --cluster, or --device with --gpus");
  if (request.cluster) {
    ClusterSpec cluster = load_cluster(configs, *request.cluster);
    return request.gpus ? resized(cluster, *request.gpus) : cluster;
  }
  if (!request.device) throw InputError("--cluster", "is missing", "give --cluster NAME, or --device NAME with --gpus N");
  if (!request.gpus) throw InputError("--gpus", "is missing", "say how many devices, e.g. --gpus 8");
  return cluster_of(load_device(configs, *request.device), *request.gpus);
}

/// Of public kernels: the profile measured on this device; otherwise the H200's, which the cost model scales by the devices' ceilings.
DeviceProfile public_profile(const fs::path& configs, const std::vector<std::string>& names, const DeviceSpec& device) {
  if (std::binary_search(names.begin(), names.end(), device.name)) return load_profile(configs, device.name);
  if (std::binary_search(names.begin(), names.end(), std::string("h200"))) return load_profile(configs, "h200");
  DeviceProfile none;
  none.name = "none";
  none.source = "no measurement: every price is a roofline";
  none.device = device;
  return none;
}

/// What the executor's own kernels took comes before it where the executor runs the plan: on the same device or generation. Operators
/// that were not measured there keep the public kernels' samples.
DeviceProfile make_profile(const fs::path& configs, const ProblemRequest& request, const DeviceSpec& device, const Runtime& runtime) {
  if (request.profile) return load_profile(configs, *request.profile);
  const std::vector<std::string> names = config_names(configs, "profiles");
  DeviceProfile common = public_profile(configs, names, device);
  const std::string suffix = "-" + runtime.name;
  for (const std::string& name : {device.name + suffix, common.device.name + suffix}) {
    if (!std::binary_search(names.begin(), names.end(), name)) continue;
    DeviceProfile own = load_profile(configs, name);
    if (own.device.generation != device.generation || !(own.device == common.device)) continue;
    std::set<std::pair<std::size_t, Pass>> measured;
    for (const ProfileSample& s : own.samples)
      if (const auto call = parse_key(s.key)) measured.emplace(call->op.index(), call->pass);
    for (ProfileSample& s : common.samples)
      if (const auto call = parse_key(s.key); !call || !measured.contains({call->op.index(), call->pass})) own.samples.push_back(std::move(s));
    own.source += "; operators without a sample there: " + common.name + ", " + common.source;
    return own;
  }
  return common;
}

/// The class trained by `method`: LoRA keeps a rank that the workload's file chose, unless --rank says otherwise.
Tuning trained(Training method, const Tuning& before, std::optional<std::int64_t> rank) {
  if (method != Training::lora) return {.training = method};
  if (!rank && before.training == Training::lora) return before;
  const std::int64_t r = rank.value_or(64);
  return {.training = Training::lora, .rank = r, .alpha = 2.0 * static_cast<double>(r), .shared_adapter = before.shared_adapter};
}

void override_tuning(Workload& w, const ProblemRequest& request, const std::set<std::string>& classes) {
  for (const std::string& target : request.targets) {
    const bool known = std::any_of(kTargets.begin(), kTargets.end(), [&](const auto& t) { return target == t.first; });
    if (!known) throw InputError("--targets", shown(target) + " is not a weight class", "known: attention, dense, shared, experts, router, embedding, head");
    if (!classes.contains(target)) throw InputError("--targets", "the model has no " + target + " weights", "leave it out");
  }
  if (request.method || !request.targets.empty()) {
    const Training method = request.method.value_or(Training::lora);
    if (method == Training::frozen) throw InputError("--method", "frozen trains nothing", "give lora or full");
    const bool all = request.targets.empty();
    for (const auto& [name, member] : kTargets) {
      // Without targets, full trains every weight and LoRA what the workload adapts, by default attention and dense.
      const bool adapted = (w.*member).training == Training::lora;
      const bool chosen = all ? method == Training::full || adapted : std::count(request.targets.begin(), request.targets.end(), name) > 0;
      w.*member = chosen ? trained(method, w.*member, request.rank) : Tuning{};
    }
    if (all && method == Training::lora && w.attention.training == Training::frozen && w.dense.training == Training::frozen && w.experts.training == Training::frozen &&
        w.shared.training == Training::frozen)
      w.attention = w.dense = trained(Training::lora, {}, request.rank);
    w.norm = w.other = Tuning{.training = all && method == Training::full ? Training::full : Training::frozen};
  } else if (request.rank) {
    bool any = false;
    for (const auto& [name, member] : kTargets) {
      if ((w.*member).training != Training::lora) continue;
      any = true;
      w.*member = trained(Training::lora, w.*member, request.rank);
    }
    if (!any) throw InputError("--rank", "the workload trains nothing by LoRA", "add --method lora");
  }
  if (request.rank && request.method == Training::full) throw InputError("--rank", "full fine-tuning has no rank", "leave it out, or use --method lora");
}

Workload make_workload(const fs::path& configs, const ProblemRequest& request, const ModelSpec& model) {
  Workload w = load_workload(configs, request.workload);
  override_tuning(w, request, classes_of(model));
  if (request.sequence_length) w.sequence_length = *request.sequence_length;
  if (request.global_batch) w.global_batch = request.global_batch;
  if (request.tokens) {
    if (!std::isfinite(*request.tokens)) throw InputError("--tokens", "is not a finite number");
    w.tokens = request.tokens;
  }
  if (request.optimizer) w.optimizer = *request.optimizer;
  if (request.frozen_storage) w.frozen_storage = request.frozen_storage;
  w = read_document<Workload>(to_json(w), "workload");  // flags obey the same ranges as files
  check(w, "workload");
  if (request.tokens && w.global_batch && static_cast<double>(*w.global_batch) * static_cast<double>(w.sequence_length) > *w.tokens)
    throw InputError("--tokens", fmt::format("{} tokens are less than one step of {} sequences x {} tokens", *w.tokens, *w.global_batch, w.sequence_length),
                     "train on more tokens or shrink the batch");
  return w;
}

}  // namespace

ModelFile load_model_config(const fs::path& configs, const std::string& name_or_path) {
  if (name_or_path.empty()) throw InputError("MODEL", "an empty name", "give a config.json, a directory holding one, or a name from configs/models");
  std::error_code ec;
  fs::path path = name_or_path;
  std::string name;
  const std::vector<std::string> names = config_names(configs, "models");
  if (!std::binary_search(names.begin(), names.end(), name_or_path) && fs::is_directory(path, ec)) {
    path = path.lexically_normal();
    name = (path.has_filename() ? path : path.parent_path()).filename().string();
    path /= "config.json";
  } else {
    path = find_config(configs, "models", name_or_path);
    name = path.stem() == "config" && path.has_parent_path() ? path.parent_path().filename().string() : path.stem().string();
  }
  JsonLimits limits;
  limits.max_bytes = std::size_t{8} << 20;
  limits.tolerate_nonfinite_literals = true;
  return {load_json(path, limits), path, name};
}

void check(const Problem& problem) {
  check_names(problem.runtime);
  const std::set<std::string> classes = classes_of(problem.model);
  const Workload& w = problem.workload;
  bool any = w.norm.training != Training::frozen || w.other.training != Training::frozen;
  for (const auto& [name, member] : kTargets) any = any || ((w.*member).training != Training::frozen && classes.contains(name));
  if (!any) throw InputError("workload", "trains only weights that " + problem.model_name + " does not have", "choose classes with --targets");
  const std::int64_t experts = routed_experts(problem.model);
  if (experts == 0 && w.experts.training == Training::lora)
    throw InputError("workload: experts", "adapters on routed experts, of which " + problem.model_name + " has none", "choose another workload or --targets");
  if (const auto* trace = std::get_if<TraceLoad>(&problem.load.distribution)) {
    const auto width = static_cast<std::int64_t>(trace->counts.front().size());
    if (width != experts)
      throw InputError("load: distribution.counts", fmt::format("{} experts a row, {} has {}", width, problem.model_name, experts), "use a trace of this model, or a distribution");
  }
  if (w.frozen_storage && *w.frozen_storage != DType::bf16 && !problem.runtime.runs_quantised)
    throw InputError("workload: frozen_storage", fmt::format("runtime {} does not run weights stored as {}", problem.runtime.name, name_of(*w.frozen_storage)), "use bf16 or another runtime");
  if (problem.model.learned_positions > 0 && w.sequence_length > problem.model.learned_positions)
    throw InputError("workload: sequence_length", fmt::format("{} tokens, {} has {} learned positions", w.sequence_length, problem.model_name, problem.model.learned_positions),
                     "shorten the sequence");
}

void check_micro_batch(const Problem& problem, std::int64_t micro_batch, const std::string& where) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 32;
  if (micro_batch > kMostTokens / problem.workload.sequence_length)
    throw InputError(where, fmt::format("{} sequences x {} tokens are more than {} tokens", micro_batch, problem.workload.sequence_length, kMostTokens), "take a smaller micro-batch");
}

Problem make_problem(const fs::path& configs, const ProblemRequest& request, const Problem* like) {
  ModelFile file = load_model_config(configs, request.model);
  Problem problem;
  problem.model = import_model(file.config, file.path.string(), file.name);
  problem.model_config = std::move(file.config);
  problem.model_name = file.name;
  problem.cluster = make_cluster(configs, request);
  problem.workload = make_workload(configs, request, problem.model);
  problem.load = load_load(configs, request.load);
  problem.runtime = load_runtime(configs, request.runtime);
  const bool same = like != nullptr && !request.profile && like->cluster.device == problem.cluster.device && like->runtime == problem.runtime;
  problem.profile = same ? like->profile : make_profile(configs, request, problem.cluster.device, problem.runtime);
  check(problem);
  return problem;
}

}  // namespace moeplan
