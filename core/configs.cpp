#include "core/configs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <system_error>

#include "core/read.hpp"

namespace moeplan {
namespace fs = std::filesystem;
namespace {

bool looks_like_path(const std::string& text) {
  return text.find('/') != std::string::npos || (text.size() > 5 && text.ends_with(".json"));
}

/// Files say in one line what they are; 16 MiB is a trace of 1,000 layers x 1,000 experts.
constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

struct Document {
  Json json;
  std::string where;
};

Document open(const fs::path& configs, std::string_view room, const std::string& name_or_path) {
  const fs::path path = find_config(configs, room, name_or_path);
  JsonLimits limits;
  limits.max_bytes = kMaxBytes;
  return {load_json(path, limits), path.string()};
}

template <class T>
T load(const fs::path& configs, std::string_view room, const std::string& name_or_path) {
  const Document d = open(configs, room, name_or_path);
  T out = read_document<T>(d.json, d.where);
  check(out, d.where);
  return out;
}

/// The innermost tiers of a machine that `devices` of its devices still use; the last tier spans them all.
std::vector<LinkTier> tiers_for(const std::vector<LinkTier>& tiers, std::int64_t devices) {
  std::vector<LinkTier> out;
  for (const LinkTier& tier : tiers) {
    out.push_back(tier);
    if (tier.span == 0 || tier.span >= devices) {
      out.back().span = devices;
      break;
    }
  }
  return out;
}

/// Name -> file of a room, its folders included (models come in one folder a family). An INDEX.json says what the files are.
std::map<std::string, fs::path> files_of(const fs::path& room) {
  std::map<std::string, fs::path> files;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(room, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".json" && it->path().stem() != "INDEX") files.emplace(it->path().stem().string(), it->path());
  return files;
}

bool is_real(DType type) { return type != DType::i32 && type != DType::i64 && type != DType::u8; }

}  // namespace

std::vector<std::string> config_names(const fs::path& configs, std::string_view room) {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_of(configs / room)) names.push_back(name);
  return names;
}

fs::path find_config(const fs::path& configs, std::string_view room, const std::string& name_or_path) {
  if (name_or_path.empty()) throw InputError(std::string(room), "an empty name", "give a name or a file");
  if (looks_like_path(name_or_path)) return name_or_path;
  const std::map<std::string, fs::path> files = files_of(configs / room);
  if (const auto it = files.find(name_or_path); it != files.end()) return it->second;
  std::error_code ec;
  if (fs::exists(name_or_path, ec)) return name_or_path;  // whoever reads it says if it is no file
  std::string list;
  std::vector<std::string_view> names;
  for (const auto& [n, file] : files) names.push_back(n), list += (list.empty() ? "" : ", ") + n;
  const std::string_view near = nearest_name(name_or_path, names);
  throw InputError(std::string(room), shown(name_or_path) + " is not a known name",
                   (near.empty() ? "" : "did you mean \"" + std::string(near) + "\"? ") + (list.empty() ? "none are known" : "known: " + list) + "; or give a file");
}

DeviceEntry load_device(const fs::path& configs, const std::string& name_or_path) {
  const Document d = open(configs, "devices", name_or_path);
  DeviceEntry out = read_document<DeviceEntry>(d.json, d.where);
  check(out.device, d.where + ": device");
  check(cluster_of(out, out.node.devices), d.where + ": node");
  return out;
}

ClusterSpec load_cluster(const fs::path& configs, const std::string& name_or_path) {
  Document d = open(configs, "clusters", name_or_path);
  if (d.json.is_object() && d.json.contains("device") && d.json["device"].is_string()) {
    const DeviceEntry entry = load_device(configs, read_string(Place(d.json, d.where).at("device")));
    // A stand-in for the device, so that the rest is read by the one field list; what is left out comes from its machine.
    Json filled = d.json;
    filled.erase("device");
    filled["device"] = Json::object({{"name", "x"}, {"generation", "x"}, {"memory", "1 B"}, {"memory_bandwidth", "1 B/s"}, {"peak", Json::object({{"bf16", "1 FLOP/s"}})}});
    if (!filled.contains("devices_per_node")) filled["devices_per_node"] = entry.node.devices;
    const bool own_tiers = filled.contains("tiers");
    if (!own_tiers) filled["tiers"] = Json::array();
    ClusterSpec out = read_document<ClusterSpec>(filled, d.where);
    out.device = entry.device;
    if (!filled.contains("host_memory")) out.host_memory = entry.node.host_memory;
    if (!out.price) out.price = entry.node.price, out.price_source = entry.node.price_source;
    out.tiers = tiers_for(own_tiers ? out.tiers : entry.node.tiers, out.devices());
    check(out, d.where);
    return out;
  }
  ClusterSpec out = read_document<ClusterSpec>(d.json, d.where);
  out.tiers = tiers_for(out.tiers, out.devices());
  check(out, d.where);
  return out;
}

Workload load_workload(const fs::path& configs, const std::string& name) { return load<Workload>(configs, "workloads", name); }
LoadModel load_load(const fs::path& configs, const std::string& name) { return load<LoadModel>(configs, "loads", name); }

/// A variant names what it is `like` and holds only what differs: the two cannot drift apart.
Runtime load_runtime(const fs::path& configs, const std::string& name) {
  Document d = open(configs, "runtimes", name);
  if (d.json.is_object() && d.json.contains("like")) {
    const std::string like = read_string(Place(d.json, d.where).at("like"));
    Document base = open(configs, "runtimes", like);
    if (base.json.is_object() && base.json.contains("like")) throw InputError(d.where + ": like", shown(like) + " is itself like another", "name that one");
    d.json.erase("like");
    if (base.json.is_object()) base.json.merge_patch(d.json);
    d.json = std::move(base.json);
  }
  Runtime out = read_document<Runtime>(d.json, d.where);
  check(out, d.where);
  return out;
}

DeviceProfile load_profile(const fs::path& configs, const std::string& name_or_path) {
  Document d = open(configs, "profiles", name_or_path);
  std::optional<DeviceSpec> device;
  if (d.json.is_object() && d.json.contains("device") && d.json["device"].is_string()) {
    device = load_device(configs, read_string(Place(d.json, d.where).at("device"))).device;
    d.json["device"] = Json::object({{"name", "x"}, {"generation", "x"}, {"memory", "1 B"}, {"memory_bandwidth", "1 B/s"}, {"peak", Json::object({{"bf16", "1 FLOP/s"}})}});
  }
  DeviceProfile out = read_document<DeviceProfile>(d.json, d.where);
  if (device) out.device = *device;
  check(out, d.where);
  return out;
}

ClusterSpec cluster_of(const DeviceEntry& entry, std::int64_t gpus) {
  const NodeSpec& node = entry.node;
  if (gpus < 1 || gpus > (1 << 20)) throw InputError("gpus", fmt::format("{} devices", gpus), "give 1 to 1048576");
  if (node.devices < 1) throw InputError(entry.device.name, "a machine without devices");
  ClusterSpec out;
  out.name = fmt::format("{}x{}", gpus, entry.device.name);
  out.source = node.source;
  out.device = entry.device;
  out.price = node.price;
  out.price_source = node.price_source;
  if (gpus < node.devices) {  // a part of one machine, with its share of the host memory
    out.nodes = 1;
    out.devices_per_node = gpus;
    out.host_memory = {node.host_memory.value / node.devices * gpus};
  } else {
    if (gpus % node.devices != 0) {
      const std::int64_t below = gpus / node.devices * node.devices;
      throw InputError("gpus", fmt::format("{} {} are not whole machines of {}", gpus, entry.device.name, node.devices),
                       fmt::format("give {} or {}", below, below + node.devices));
    }
    out.nodes = gpus / node.devices;
    out.devices_per_node = node.devices;
    out.host_memory = node.host_memory;
  }
  out.tiers = tiers_for(node.tiers, gpus);
  return out;
}

ClusterSpec resized(const ClusterSpec& cluster, std::int64_t gpus) {
  NodeSpec node{cluster.devices_per_node, cluster.host_memory, cluster.tiers, cluster.price, cluster.price_source, cluster.source};
  if (gpus > cluster.devices() && !node.tiers.empty() && node.tiers.back().kind != LinkKind::network)
    throw InputError("gpus", fmt::format("{} has {} devices and no network beyond them", cluster.name, cluster.devices()), "give at most that, or name the device instead of the cluster");
  if (!node.tiers.empty()) node.tiers.back().span = 0;
  ClusterSpec out = cluster_of({cluster.device, node}, gpus);
  if (gpus == cluster.devices()) out.name = cluster.name;
  return out;
}

void check(const DeviceSpec& device, const std::string& where) {
  if (!device.peak.contains("bf16")) throw InputError(where + ".peak", "has no bf16", "give the dense bf16 rate");
  for (const auto& [type, rate] : device.peak)
    if (type != "bf16" && type != "fp8" && type != "fp4" && type != "f32")
      throw InputError(where + ".peak", "unknown compute type " + shown(type), "known: bf16, fp8, fp4, f32");
}

void check(const ClusterSpec& cluster, const std::string& where) {
  check(cluster.device, where + ": device");
  if (cluster.nodes < 1 || cluster.devices_per_node < 1)
    throw InputError(where, fmt::format("{} nodes of {} devices", cluster.nodes, cluster.devices_per_node), "give at least one of each");
  if (cluster.devices() > (1 << 20)) throw InputError(where + ": nodes", fmt::format("{} devices", cluster.devices()), "at most 1048576 are planned for");
  if (cluster.tiers.empty()) throw InputError(where + ": tiers", "no links", "list them inside out");
  std::int64_t inner = 0;
  for (const LinkTier& tier : cluster.tiers) {
    if (tier.span <= inner)
      throw InputError(where + ": tiers", fmt::format("{} spans {} devices inside a tier of {}", shown(tier.name), tier.span, inner), "list the tiers inside out, each wider than the last");
    inner = tier.span;
  }
  if (inner < cluster.devices())
    throw InputError(where + ": tiers", fmt::format("the outermost spans {} of {} devices", inner, cluster.devices()), "its span is the whole cluster: write 0");
  if (cluster.price && cluster.price_source.empty()) throw InputError(where + ": price_source", "is missing for a price", "say where and when it was read");
}

void check(const Workload& w, const std::string& where) {
  const std::array classes{std::pair{"attention", &w.attention}, std::pair{"dense", &w.dense},   std::pair{"shared", &w.shared},
                           std::pair{"experts", &w.experts},     std::pair{"router", &w.router}, std::pair{"embedding", &w.embedding},
                           std::pair{"head", &w.head},           std::pair{"norm", &w.norm},     std::pair{"other", &w.other}};
  bool trained = false;
  for (const auto& [name, t] : classes) {
    const std::string place = where + ": " + name;
    trained = trained || t->training != Training::frozen;
    if (t->training == Training::lora && t->rank < 1) throw InputError(place + ".rank", "LoRA of rank 0", "give a rank of at least 1");
    if (t->training == Training::lora && t->alpha <= 0) throw InputError(place + ".alpha", "LoRA of alpha 0 adds nothing", "give an alpha above 0, often twice the rank");
    if (t->training != Training::lora && t->rank != 0)
      throw InputError(place + ".rank", fmt::format("rank {} on a class that is {}", t->rank, name_of(t->training)), "leave it out, or train it by lora");
    if (t->shared_adapter && (t != &w.experts || t->training != Training::lora))
      throw InputError(place + ".shared_adapter", "only routed experts under LoRA can share an adapter", "leave it out");
    if (t->training == Training::lora && t == &w.norm)
      throw InputError(place, "LoRA needs a matrix product", "use full or frozen");
  }
  if (!trained) throw InputError(where, "every weight is frozen", "train at least one class");
  if (w.frozen_storage && (!is_real(*w.frozen_storage) || *w.frozen_storage == DType::f32 || *w.frozen_storage == DType::f16))
    throw InputError(where + ": frozen_storage", shown(name_of(*w.frozen_storage)) + " is not a storage for frozen weights", "use bf16, fp8, int8, int4, nf4, mxfp4 or nvfp4");
}

void check(const LoadModel& load, const std::string& where) {
  const TraceLoad* trace = std::get_if<TraceLoad>(&load.distribution);
  if (!trace) return;
  const std::string place = where + ": distribution.counts";
  if (trace->counts.empty()) throw InputError(place, "no layers", "one row per MoE layer");
  const std::size_t experts = trace->counts.front().size();
  for (std::size_t i = 0; i < trace->counts.size(); ++i) {
    const auto& row = trace->counts[i];
    const std::string at = fmt::format("{}[{}]", place, i);
    if (row.empty()) throw InputError(at, "no experts");
    if (row.size() != experts) throw InputError(at, fmt::format("{} experts, the first row has {}", row.size(), experts), "every layer has the same number");
    double sum = 0;
    for (const double c : row) {
      if (!(c >= 0) || !std::isfinite(c)) throw InputError(at, fmt::format("a count of {}", c), "counts are 0 or more");
      sum += c;
    }
    if (!(sum > 0) || !std::isfinite(sum)) throw InputError(at, fmt::format("the counts sum to {}", sum), "a layer without a token has no shares");
  }
}

void check(const Runtime& runtime, const std::string& where) {
  for (const auto& [name, type] : {std::pair{"gradient", runtime.gradient}, std::pair{"reduce", runtime.reduce}, std::pair{"adapter", runtime.adapter}})
    if (type != DType::f32 && type != DType::bf16) throw InputError(where + ": " + name, shown(name_of(type)), "f32 or bf16");
  if (!runtime.expert_overlap && runtime.expert_overlap_hidden > 0)
    throw InputError(where + ": expert_overlap_hidden", fmt::format("{} is hidden by an overlap that is off", runtime.expert_overlap_hidden), "set expert_overlap, or leave it out");
}

void check(const DeviceProfile& profile, const std::string& where) {
  check(profile.device, where + ": device");
  if (profile.source.empty()) throw InputError(where + ": source", "is empty", "say how it was measured");
  std::vector<std::string_view> keys;
  for (const ProfileSample& s : profile.samples) keys.push_back(s.key);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) throw InputError(where + ": samples", shown(*twice) + " is there twice", "keep one");
}

}  // namespace moeplan
