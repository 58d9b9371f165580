#include "executor/adapter/modules.hpp"

#include <stdexcept>

namespace moeplan {
namespace {

bool ends(const std::string& name, std::string_view part) { return name.size() >= part.size() && name.compare(name.size() - part.size(), part.size(), part) == 0; }
std::string without(std::string name, std::string_view part) {
  if (ends(name, part)) name.resize(name.size() - part.size());
  return name;
}

const MoeFfn* experts_of(const ModelSpec& model, std::int32_t layer) {
  for (const Sublayer& s : model.layers[static_cast<std::size_t>(layer)].sublayers)
    if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) return f;
  return nullptr;
}

/// Gate and up, or down, of the routed experts.
void expert_modules(AdapterPair& pair, const Parameter& base, const MoeFfn& f) {
  const std::string path = pair.parameter.substr(0, pair.parameter.rfind('.'));   // "...mlp.experts"
  const bool up = ends(pair.parameter, "gate_up_proj");
  const auto named = [&](std::size_t source, const char* otherwise) {
    return source < base.sources.size() && base.sources[source].name.find('*') != std::string::npos ? without(base.sources[source].name, ".weight") : path + ".*." + otherwise;
  };
  const std::int64_t out = base.shape[1];
  if (!up) pair.modules = {{named(0, "down_proj"), 0, out, 1}};
  else if (!f.gated) pair.modules = {{named(0, "up_proj"), 0, out, 1}};
  else if (f.interleaved) pair.modules = {{named(0, "gate_proj"), 0, out / 2, 2}, {named(1, "up_proj"), 1, out / 2, 2}};
  else pair.modules = {{named(0, "gate_proj"), 0, out / 2, 1}, {named(1, "up_proj"), out / 2, out / 2, 1}};
}

}  // namespace

std::string transformers_path(const ModelSpec& model, std::string name) {
  const auto replace = [&name](std::string_view from, std::string_view to) {
    if (const auto at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  };
  if (model.family == "mixtral" || model.family == "kimi" || model.family == "phi") replace(".block_sparse_moe.", ".mlp.");
  if (model.family == "kimi") replace(".self_attn.f_", ".self_attn.forget_gate.f_");
  if (model.family == "nemotron") replace("backbone.", "model.");
  return name;
}

std::vector<AdapterPair> adapter_pairs(const Parameters& parameters, const ModelSpec& model) {
  std::vector<AdapterPair> out;
  const auto& all = parameters.all();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].adapter || !ends(all[i].name, ".lora_A.weight")) continue;
    const std::string stem = without(all[i].name, ".lora_A.weight");
    AdapterPair pair{.a = i, .parameter = stem, .modules = {}};
    const Parameter* base = nullptr;
    for (std::size_t j = 0; j < all.size(); ++j) {
      if (all[j].name == stem + ".lora_B.weight") pair.b = j;
      if (!all[j].adapter && (all[j].name == stem || all[j].name == stem + ".weight")) base = &all[j];
    }
    if (!base) throw std::logic_error("no weight for the pair " + stem);
    if (all[i].cls == WeightClass::experts) {
      const MoeFfn* f = experts_of(model, all[i].layer);
      pair.experts = f->experts;
      pair.shared = all[i].shape[0] == 1 && f->experts > 1;
      expert_modules(pair, *base, *f);
    } else {
      pair.embedding = all[i].cls == WeightClass::embedding;
      std::int64_t begin = 0;
      for (const TensorSource& s : base->sources) {
        pair.modules.push_back({without(s.name, ".weight"), begin, s.shape[0], 1});
        begin += s.shape[0];
      }
      if (base->sources.empty()) pair.modules = {{without(stem, ".weight"), 0, all[pair.b].shape[0], 1}};
      if (pair.embedding) pair.modules = {{without(without(stem, ".weight"), ".weight"), 0, all[pair.b].shape[0], 1}};
    }
    out.push_back(std::move(pair));
  }
  return out;
}

}  // namespace moeplan
