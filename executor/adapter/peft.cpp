#include "executor/adapter/peft.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/read.hpp"
#include "executor/adapter/modules.hpp"
#include "executor/checkpoint/durable.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

const std::string kPrefix = "base_model.model.";

std::string with_expert(std::string name, std::int64_t e) {
  if (const auto star = name.find('*'); star != std::string::npos) name.replace(star, 1, std::to_string(e));
  return name;
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

/// Where the 3-D parameter's pair is in the file: down_proj is wrapped last and so outermost.
std::string wrapped(const AdapterPair& pair, const ModelSpec& model) {
  const std::string module = transformers_path(model, pair.parameter.substr(0, pair.parameter.rfind('.')));
  return kPrefix + module + (last_part(pair.parameter) == "down_proj" ? "" : ".base_layer");
}

struct Names {
  std::string a, b;
};
/// Under transformers' module paths, or (`as_stored`) the checkpoint's, which serving stacks expect beside per-expert pairs.
Names names_of(const AdapterPair& pair, const AdapterModule& module, std::int64_t e, const ModelSpec& model, bool as_stored) {
  const std::string name = with_expert(module.name, e), stem = kPrefix + (as_stored ? name : transformers_path(model, name));
  if (pair.embedding) return {stem + ".lora_embedding_A", stem + ".lora_embedding_B"};
  return {stem + ".lora_A.weight", stem + ".lora_B.weight"};
}

/// A pair's numbers with its widths.
struct PairValues {
  std::vector<float> a, b;
  std::int64_t rank = 0, in = 0, out = 0, stored = 1;   ///< `stored`: pairs held (experts, or 1)
  [[nodiscard]] std::size_t at_a(std::int64_t e, std::int64_t k, std::int64_t c) const { return static_cast<std::size_t>(((stored > 1 ? e : 0) * rank + k) * in + c); }
  [[nodiscard]] std::size_t at_b(std::int64_t e, std::int64_t row, std::int64_t k) const { return static_cast<std::size_t>(((stored > 1 ? e : 0) * out + row) * rank + k); }
};

PairValues values_of_pair(const AdapterPair& pair, const Parameters& parameters) {
  const Shape& a = parameters.all()[pair.a].shape;
  const Shape& b = parameters.all()[pair.b].shape;
  PairValues v;
  v.rank = a[a.rank - 2], v.in = a[a.rank - 1], v.out = b[b.rank - 2], v.stored = a.rank == 3 ? a[0] : 1;
  v.a.resize(static_cast<std::size_t>(a.elements()));
  v.b.resize(static_cast<std::size_t>(b.elements()));
  return v;
}

struct Scale {
  std::int64_t rank = 0;
  double alpha = 0;
  auto operator<=>(const Scale&) const = default;
};
Scale scale_of(const AdapterPair& pair, const Parameters& parameters, const Workload& workload) {
  const Tuning& t = workload.tuning(parameters.all()[pair.a].cls);
  return {t.rank, t.alpha > 0 ? t.alpha : static_cast<double>(t.rank)};
}

}  // namespace

AdapterFiles export_adapter(const Parameters& parameters, const Problem& problem, const ParameterValues& values, AdapterDialect dialect) {
  AdapterFiles out;
  std::set<std::string> modules, targets;
  std::map<Scale, std::int64_t> scales;
  const auto pairs = adapter_pairs(parameters, problem.model);
  if (pairs.empty()) throw InputError("workload", "trains no LoRA pair, so there is no adapter to write");
  for (const AdapterPair& pair : pairs) ++scales[scale_of(pair, parameters, problem.workload)];
  const Scale common = std::max_element(scales.begin(), scales.end(), [](const auto& x, const auto& y) { return x.second < y.second; })->first;
  Json rank_pattern = Json::object(), alpha_pattern = Json::object();
  for (const AdapterPair& pair : pairs) {
    PairValues v = values_of_pair(pair, parameters);
    v.a = values(parameters.all()[pair.a]);
    v.b = values(parameters.all()[pair.b]);
    const Scale scale = scale_of(pair, parameters, problem.workload);
    const auto pattern = [&](const std::string& name) {
      if (scale.rank != common.rank) rank_pattern[name] = scale.rank;
      if (scale.alpha != common.alpha) alpha_pattern[name] = scale.alpha;
    };
    if (pair.experts > 0 && dialect == AdapterDialect::param_wrapper) {
      const std::int64_t all = pair.experts * v.rank;
      NamedTensor a{wrapped(pair, problem.model) + ".lora_A.weight", {all, v.in}, std::vector<float>(static_cast<std::size_t>(all * v.in))};
      NamedTensor b{wrapped(pair, problem.model) + ".lora_B.weight", {v.out, all}, std::vector<float>(static_cast<std::size_t>(v.out * all))};
      for (std::int64_t e = 0; e < pair.experts; ++e)
        for (std::int64_t k = 0; k < v.rank; ++k) {
          for (std::int64_t c = 0; c < v.in; ++c) a.values[static_cast<std::size_t>((e * v.rank + k) * v.in + c)] = v.a[v.at_a(e, k, c)];
          for (std::int64_t row = 0; row < v.out; ++row) b.values[static_cast<std::size_t>(row * all + k * pair.experts + e)] = v.b[v.at_b(e, row, k)];
        }
      out.tensors.push_back(std::move(a));
      out.tensors.push_back(std::move(b));
      const std::string module = transformers_path(problem.model, pair.parameter.substr(0, pair.parameter.rfind('.')));
      const bool ungated = pair.modules.size() == 1 && last_part(pair.parameter) == "gate_up_proj";   // stored as what it is there
      const std::string stored = ungated ? "up_proj" : last_part(pair.parameter);
      const std::string target = module.substr(module.rfind('.', module.rfind('.') - 1) + 1) + "." + stored;   // "mlp.experts.gate_up_proj"
      targets.insert(target);
      pattern(target);
      continue;
    }
    for (std::int64_t e = 0; e < std::max<std::int64_t>(pair.experts, 1); ++e)
      for (const AdapterModule& m : pair.modules) {
        const Names names = names_of(pair, m, e, problem.model, dialect == AdapterDialect::per_expert);
        NamedTensor a{names.a, {v.rank, v.in}, {}}, b{names.b, {m.rows, v.rank}, {}};
        for (std::int64_t k = 0; k < v.rank; ++k)
          for (std::int64_t c = 0; c < v.in; ++c) a.values.push_back(v.a[v.at_a(e, k, c)]);
        for (std::int64_t row = 0; row < m.rows; ++row)
          for (std::int64_t k = 0; k < v.rank; ++k) b.values.push_back(v.b[v.at_b(e, m.begin + row * m.step, k)]);
        out.tensors.push_back(std::move(a));
        out.tensors.push_back(std::move(b));
        modules.insert(last_part(m.name));
        pattern(names.a.substr(kPrefix.size(), names.a.rfind(pair.embedding ? ".lora_embedding_A" : ".lora_A") - kPrefix.size()));
      }
  }
  out.config = Json::object();
  Json& c = out.config;
  c["alpha_pattern"] = alpha_pattern;
  c["auto_mapping"] = nullptr;
  c["base_model_name_or_path"] = problem.model_name;
  c["bias"] = "none";
  c["exclude_modules"] = nullptr;
  c["fan_in_fan_out"] = false;
  c["inference_mode"] = true;
  c["init_lora_weights"] = true;
  c["layers_pattern"] = nullptr;
  c["layers_to_transform"] = nullptr;
  c["lora_alpha"] = common.alpha;
  c["lora_dropout"] = 0.0;
  c["moeplan"] = {{"dialect", dialect == AdapterDialect::per_expert ? "D1" : "D3"}, {"layout", 1}};
  c["modules_to_save"] = nullptr;
  c["peft_type"] = "LORA";
  c["peft_version"] = "0.19.1";
  c["r"] = common.rank;
  c["rank_pattern"] = rank_pattern;
  c["revision"] = nullptr;
  c["target_modules"] = modules;
  if (!targets.empty()) c["target_parameters"] = targets;
  c["task_type"] = "CAUSAL_LM";
  c["use_dora"] = false;
  c["use_rslora"] = false;
  return out;
}

void save_adapter(const fs::path& directory, AdapterFiles files, const std::function<void()>& told) {
  const fs::path fresh = fresh_directory(directory);
  std::error_code error;
  try {
    const std::string header = safetensors_header(files.tensors);
    write_durable(fresh / "adapter_model.safetensors", safetensors_parts(header, files.tensors), told);
    write_durable(fresh / "adapter_config.json", {files.config.dump(2), "\n"});
    TensorFiles again(fresh, "adapter_model.safetensors");
    again.on_read(told);
    for (const NamedTensor& t : files.tensors)
      if (again.floats(t.name, 0, static_cast<std::int64_t>(t.values.size())) != t.values) throw InputError((fresh / "adapter_model.safetensors").string(), "reads back otherwise than it was written: " + t.name);
    replace_directory(fresh, directory);
  } catch (...) {
    fs::remove_all(fresh, error);
    throw;
  }
}

namespace {

/// An entry of `rank_pattern` or `alpha_pattern`: a module's path or its end. PEFT takes regular expressions too; what it writes itself are paths.
struct Pattern {
  std::string name;
  bool whole = false;   ///< began with ^: the whole path
  double value = 0;
};

std::vector<Pattern> patterns(const Place& root, const char* key, Range range) {
  std::vector<Pattern> out;
  if (!root.value().contains(key) || root.value().at(key).is_null()) return out;
  const Place list = root.at(key);
  if (!list.value().is_object()) list.wrong_type("an object");
  for (const auto& [name, value] : list.value().items()) {
    const bool whole = name.starts_with('^');
    Pattern each{name.substr(whole ? 1 : 0), whole, read_number(list.at(name.c_str()), range)};
    if (each.name.empty() || each.name.find_first_of("*+?[](){}|\\^$") != std::string::npos)
      list.refuse("has " + shown(name) + ", a regular expression", "the paths of the modules, as PEFT writes them");
    out.push_back(std::move(each));
  }
  return out;
}

/// The value of the first pattern that names the module under one of its paths.
double value_for(const std::vector<Pattern>& patterns, const std::vector<std::string>& module, double otherwise) {
  for (const Pattern& p : patterns)
    for (const std::string& path : module)
      if (path == p.name || (!p.whole && path.ends_with("." + p.name))) return p.value;
  return otherwise;
}

/// The paths under which patterns may name each module of a pair: transformers', the checkpoint's, and of routed experts the 3-D parameter's.
std::vector<std::vector<std::string>> module_paths(const AdapterPair& pair, const ModelSpec& model) {
  std::vector<std::vector<std::string>> out;
  for (std::int64_t e = 0; e < std::max<std::int64_t>(pair.experts, 1); ++e)
    for (const AdapterModule& m : pair.modules) {
      const std::string name = with_expert(m.name, e);
      out.push_back({transformers_path(model, name), name});
      if (pair.experts > 0) out.back().push_back(transformers_path(model, pair.parameter));
    }
  return out;
}

/// What adapter_config.json must say for its numbers to mean what ours do.
void check_config(const fs::path& directory, const Parameters& parameters, const Problem& problem, const std::vector<AdapterPair>& pairs) {
  const fs::path file = directory / "adapter_config.json";
  const Json json = load_json(file);
  const Place root(json, file.string());
  if (!json.is_object()) root.wrong_type("an object");
  const auto text = [&](const char* key, const char* otherwise) { return json.contains(key) && !json.at(key).is_null() ? read_string(root.at(key)) : std::string(otherwise); };
  const auto flag = [&](const char* key) { return json.contains(key) && !json.at(key).is_null() && read_bool(root.at(key)); };
  if (text("peft_type", "") != "LORA") root.refuse("peft_type is " + shown(text("peft_type", "absent")), "LORA");
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias"}) if (flag(key)) root.at(key).refuse("is not run", "false");
  if (text("bias", "none") != "none") root.at("bias").refuse("is " + shown(text("bias", "")), "none");
  if (!json.contains("r") || !json.contains("lora_alpha")) root.refuse("lacks r or lora_alpha");
  const auto rank = read_integer(root.at("r"), {1, 4096});
  const double alpha = read_number(root.at("lora_alpha"), {0, 65536});
  const std::vector<Pattern> ranks = patterns(root, "rank_pattern", {1, 4096}), alphas = patterns(root, "alpha_pattern", {0, 65536});
  for (const AdapterPair& pair : pairs) {
    const Scale ours = scale_of(pair, parameters, problem.workload);
    const double mine = ours.alpha / static_cast<double>(ours.rank);
    for (const std::vector<std::string>& module : module_paths(pair, problem.model)) {
      const double r = value_for(ranks, module, static_cast<double>(rank)), scaled = value_for(alphas, module, alpha), factor = scaled / (flag("use_rslora") ? std::sqrt(r) : r);
      if (r != static_cast<double>(ours.rank)) root.at("r").refuse(fmt::format("is {} for {}, the plan trains rank {}", r, shown(module.front()), ours.rank), "plan with the adapter's rank");
      if (std::abs(factor - mine) > 1e-9 * mine) root.at("lora_alpha").refuse(fmt::format("gives {} a scale of {}, the plan's is {}", shown(module.front()), factor, mine), "plan with the adapter's alpha");
    }
  }
}

}  // namespace

void load_adapter(const fs::path& directory, const Problem& problem, Parameters& parameters, Backend& backend) {
  if (!fs::is_directory(directory)) throw InputError(directory.string(), "is not a directory", "a PEFT adapter: adapter_config.json beside adapter_model.safetensors");
  if (!fs::exists(directory / "adapter_model.safetensors"))
    throw InputError(directory.string(), fs::exists(directory / "adapter_model.bin") ? "holds a pickled adapter_model.bin, which is not read" : "has no adapter_model.safetensors", "save it with safe_serialization=True");
  const auto pairs = adapter_pairs(parameters, problem.model);
  check_config(directory, parameters, problem, pairs);
  const TensorFiles files(directory, "adapter_model.safetensors");
  std::set<std::string> unused;
  for (const std::string& name : files.names()) unused.insert(name);
  const auto read = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    const StoredTensor* t = files.find(name);
    if (!t) throw InputError(files.where(), "has no tensor " + shown(name), "an adapter that covers what the plan trains");
    if (t->shape != std::vector<std::int64_t>{rows, columns})
      throw InputError(files.where(), fmt::format("{} is [{}], the plan's is [{}, {}]", shown(name), fmt::join(t->shape, ", "), rows, columns));
    unused.erase(name);
    return files.floats(name, 0, rows * columns);
  };
  for (const AdapterPair& pair : pairs) {
    PairValues v = values_of_pair(pair, parameters);
    const bool packed = pair.experts > 0 && files.find(wrapped(pair, problem.model) + ".lora_A.weight");
    const bool as_stored = files.find(names_of(pair, pair.modules.front(), 0, problem.model, true).a) != nullptr;
    const bool apart = pair.experts > 0 && (as_stored || files.find(names_of(pair, pair.modules.front(), 0, problem.model, false).a));
    if (packed && apart) throw InputError(files.where(), "has the experts of " + shown(pair.parameter) + " twice, one by one and packed", "keep one");
    std::vector<bool> set(static_cast<std::size_t>(v.stored), false);
    const auto put_a = [&](std::int64_t e, std::int64_t k, std::int64_t c, float x, bool first, const std::string& name) {
      float& to = v.a[v.at_a(e, k, c)];
      if (!first && to != x) throw InputError(files.where(), shown(name) + " is another A than its partner's", "this program has one A for gate and up (and one pair for all experts where it is shared)");
      to = x;
    };
    const auto put_b = [&](std::int64_t e, std::int64_t row, std::int64_t k, float x, bool first, const std::string& name) {
      float& to = v.b[v.at_b(e, row, k)];
      if (!first && to != x) throw InputError(files.where(), shown(name) + " differs between experts, but the plan has one pair for all");
      to = x;
    };
    if (packed) {
      const std::int64_t all = pair.experts * v.rank;
      const std::string stem = wrapped(pair, problem.model);
      const auto a = read(stem + ".lora_A.weight", all, v.in), b = read(stem + ".lora_B.weight", v.out, all);
      for (std::int64_t e = 0; e < pair.experts; ++e)
        for (std::int64_t k = 0; k < v.rank; ++k) {
          for (std::int64_t c = 0; c < v.in; ++c) put_a(e, k, c, a[static_cast<std::size_t>((e * v.rank + k) * v.in + c)], v.stored > 1 || e == 0, stem);
          for (std::int64_t row = 0; row < v.out; ++row) put_b(e, row, k, b[static_cast<std::size_t>(row * all + k * pair.experts + e)], v.stored > 1 || e == 0, stem);
        }
    } else {
      for (std::int64_t e = 0; e < std::max<std::int64_t>(pair.experts, 1); ++e)
        for (std::size_t i = 0; i < pair.modules.size(); ++i) {
          const AdapterModule& m = pair.modules[i];
          const Names names = names_of(pair, m, e, problem.model, as_stored);
          const auto a = read(names.a, v.rank, v.in), b = read(names.b, m.rows, v.rank);
          for (std::int64_t k = 0; k < v.rank; ++k)
            for (std::int64_t c = 0; c < v.in; ++c) put_a(e, k, c, a[static_cast<std::size_t>(k * v.in + c)], i == 0 && (v.stored > 1 || e == 0), names.a);
          for (std::int64_t row = 0; row < m.rows; ++row)
            for (std::int64_t k = 0; k < v.rank; ++k) put_b(e, m.begin + row * m.step, k, b[static_cast<std::size_t>(row * v.rank + k)], v.stored > 1 || e == 0, names.b);
        }
    }
    set_values(parameters.all()[pair.a], v.a, backend);
    set_values(parameters.all()[pair.b], v.b, backend);
  }
  if (!unused.empty()) throw InputError(files.where(), fmt::format("{} tensors belong to nothing that the plan trains, the first is {}", unused.size(), shown(*unused.begin())), "plan with the adapter's targets");
}

}  // namespace moeplan
