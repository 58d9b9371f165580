#include "executor/checkpoint/checkpoint.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "core/error.hpp"
#include "core/write.hpp"
#include "executor/checkpoint/durable.hpp"
#include "executor/weights/safetensors_file.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "moeplan.checkpoint.v2";

struct Part {
  const char* prefix;
  const Backend::Memory& memory;
  DType held;
};

/// What of a parameter a step reads and changes.
std::vector<Part> parts_of(const Parameter& p) {
  if (p.trained) return {{"value/", p.value, p.held}, {"first_moment/", p.first_moment, DType::f32}, {"second_moment/", p.second_moment, DType::f32}};
  if (p.is_state()) return {{"value/", p.value, p.held}};   // router biases
  return {};
}

std::vector<std::int64_t> dims(const Shape& s) { return {s.dim.begin(), s.dim.begin() + s.rank}; }

std::int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("step-") || name.size() > 20 || name.find_first_not_of("0123456789", 5) != std::string::npos || name.size() == 5) return -1;
  return std::stoll(name.substr(5));
}

std::vector<std::pair<std::int64_t, fs::path>> saves(const fs::path& directory) {
  std::vector<std::pair<std::int64_t, fs::path>> out;
  std::error_code error;
  for (auto it = fs::directory_iterator(directory, error); !error && it != fs::directory_iterator(); it.increment(error))
    if (const std::int64_t n = step_of(it->path()); n >= 0) out.emplace_back(n, it->path());
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return out;
}

std::string described(const StoredTensor& t) { return fmt::format("{} [{}]", t.dtype, fmt::join(t.shape, ", ")); }

/// The tensors that a manifest names, with their types and shapes.
std::map<std::string, StoredTensor> tensors_of(const Place& root) {
  const Place all = root.at("tensors");
  if (!all.value().is_object()) all.wrong_type("an object");
  std::map<std::string, StoredTensor> out;
  for (const auto& [name, entry] : all.value().items()) {
    const Place tensor = all.at(name);
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape")) tensor.refuse("lacks dtype or shape");
    const Place shape = tensor.at("shape");
    if (!shape.value().is_array()) shape.wrong_type("an array");
    StoredTensor t;
    t.name = name, t.dtype = read_string(tensor.at("dtype"));
    for (std::size_t i = 0; i < shape.value().size(); ++i) t.shape.push_back(read_integer(shape.at(i), {0, 1e15}));
    out.emplace(name, std::move(t));
  }
  return out;
}

/// The manifest of a save whose files are what it says. Throws InputError otherwise.
Json verified(const fs::path& at, const std::function<void()>& told) {
  const std::string where = (at / "manifest.json").string();
  const Json json = load_json(at / "manifest.json");
  const Place root(json, where);
  if (!json.is_object()) root.wrong_type("an object");
  if (json.contains("format") && read_string(root.at("format")) != kFormat) root.at("format").refuse("is " + shown(read_string(root.at("format"))), std::string(kFormat));
  for (const char* key : {"format", "step", "fingerprint", "data", "seed", "files", "tensors"})
    if (!json.contains(key)) throw InputError(root.child(key), "is missing");
  const Place files = root.at("files");
  if (!files.value().is_object()) files.wrong_type("an object");
  for (const auto& [name, entry] : files.value().items()) {
    if (name != "state.safetensors") files.refuse("names " + shown(name));
    const Place file = files.at(name);
    if (!file.value().is_object() || !file.value().contains("bytes") || !file.value().contains("crc32c")) file.refuse("lacks bytes or crc32c");
    const Summed is = summed(at / name, told);
    if (is.bytes != read_integer(file.at("bytes"), {0, 1e15})) throw InputError((at / name).string(), fmt::format("has {} bytes, its manifest says otherwise", is.bytes));
    if (fmt::format("{:08x}", is.crc32c) != read_string(file.at("crc32c"))) throw InputError((at / name).string(), "does not have its checksum");
  }
  if (!files.value().contains("state.safetensors")) files.refuse("lacks state.safetensors");
  const TensorFiles stored(at, "state.safetensors");
  const auto listed = tensors_of(root);
  for (const auto& [name, tensor] : listed) {
    const StoredTensor* t = stored.find(name);
    if (t == nullptr || t->dtype != tensor.dtype || t->shape != tensor.shape)
      throw InputError((at / "state.safetensors").string(), fmt::format("{} is {}, its manifest says {}", shown(name), t == nullptr ? "missing" : described(*t), described(tensor)));
  }
  if (stored.names().size() != listed.size()) throw InputError((at / "state.safetensors").string(), fmt::format("has {} tensors, its manifest names {}", stored.names().size(), listed.size()));
  return json;
}

}  // namespace

namespace {

/// Directories of saves that were killed: named by a process that is no more. What another one writes just now is left alone.
void clear_unfinished(const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const auto mark = name.find(".tmp-");
    if (!name.starts_with("step-") || mark == std::string::npos) continue;
    const long owner = std::strtol(name.c_str() + mark + 5, nullptr, 10);
    if (owner > 0 && ::kill(static_cast<pid_t>(owner), 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), error);
  }
}

}  // namespace

std::string run_fingerprint(const Problem& problem, const Plan& plan) {
  Json all = Json::object();
  all["model"] = problem.model_config;
  all["workload"] = to_json(problem.workload);
  all["plan"] = to_json(plan);
  return fmt::format("{:08x}", crc32c(all.dump()));
}

Saved save_checkpoint(const fs::path& directory, const std::string& fingerprint, const TrainingProgress& progress, const Parameters& parameters, Backend& backend, std::size_t keep, const std::function<void()>& told) {
  const fs::path target = directory / fmt::format("step-{}", progress.step);
  if (fs::exists(target)) return {target, 0};   // this step is committed already; a committed save is never edited
  std::vector<NamedTensor> tensors;
  Json listed = Json::object();
  std::int64_t bytes = 1 << 16;
  backend.wait();
  for (const Parameter& p : parameters.all())
    for (const Part& part : parts_of(p)) {
      NamedTensor t{part.prefix + p.name, dims(p.shape), std::vector<float>(static_cast<std::size_t>(p.shape.elements()))};
      backend.read({part.memory.get(), part.held, p.shape}, t.values);
      bytes += 4 * p.shape.elements() + 512;
      listed[t.name] = {{"dtype", "F32"}, {"shape", t.shape}};
      tensors.push_back(std::move(t));
    }
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw InputError(directory.string(), "cannot be made: " + error.message());
  require_space(directory, bytes);
  const fs::path fresh = fresh_directory(target);
  try {
    const std::string header = safetensors_header(tensors);
    const std::uint32_t sum = write_durable(fresh / "state.safetensors", safetensors_parts(header, tensors), told);
    bytes = static_cast<std::int64_t>(fs::file_size(fresh / "state.safetensors"));
    Json manifest = Json::object();
    manifest["format"] = std::string(kFormat);
    manifest["step"] = progress.step;
    manifest["fingerprint"] = fingerprint;
    manifest["seed"] = progress.seed;
    manifest["data"] = {{"epoch", progress.data.epoch}, {"document", progress.data.document}, {"token", progress.data.token}};
    manifest["world"] = 1;
    if (!progress.placement.empty()) manifest["placement"] = progress.placement;
    manifest["tensors"] = std::move(listed);
    manifest["files"]["state.safetensors"] = {{"bytes", bytes}, {"crc32c", fmt::format("{:08x}", sum)}};
    write_durable(fresh / "manifest.json", {manifest.dump(1), "\n"});
    commit_directory(fresh, target);
  } catch (...) {
    fs::remove_all(fresh, error);
    throw;
  }
  const auto all = saves(directory);
  for (std::size_t i = std::max<std::size_t>(keep, 2); i < all.size(); ++i) {
    fs::remove_all(all[i].second, error);
    if (told) told();
  }
  clear_unfinished(directory);
  return {target, bytes};
}

std::optional<Resumed> load_checkpoint(const fs::path& directory, const std::string& fingerprint, Parameters& parameters, Backend& backend, const std::function<void()>& told) {
  Resumed out;
  for (const auto& [step, at] : saves(directory)) {
    Json manifest;
    try {
      manifest = verified(at, told);
    } catch (const InputError& e) {
      std::error_code error;
      const fs::path aside = fs::path(at).concat(".broken");
      fs::rename(at, aside, error);
      out.notes.push_back(fmt::format("{}; set aside as {}", e.what(), aside.filename().string()));
      continue;
    }
    const Place root(manifest, (at / "manifest.json").string());
    TensorFiles files(at, "state.safetensors");
    files.on_read(told);
    const auto saved = tensors_of(root);
    std::vector<std::string> faults;
    std::size_t expected = 0;
    for (const Parameter& p : parameters.all())
      for (const Part& part : parts_of(p)) {
        ++expected;
        const auto t = saved.find(part.prefix + p.name);
        if (t == saved.end()) faults.push_back(shown(part.prefix + p.name) + " is missing");
        else if (t->second.shape != dims(p.shape) || t->second.dtype != "F32") faults.push_back(fmt::format("{} is {}, the run has F32 [{}]", shown(t->first), described(t->second), fmt::join(dims(p.shape), ", ")));
      }
    if (saved.size() > expected && faults.empty()) faults.push_back(fmt::format("{} tensors that the run does not have", saved.size() - expected));
    if (!faults.empty())
      throw InputError(at.string(), fmt::format("{} tensors differ from this run's: {}", faults.size(), fmt::join(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(10, faults.size())), "; ")),
                       "resume with the plan that made it, or train into another directory");
    if (read_string(root.at("fingerprint")) != fingerprint)
      throw InputError(root.child("fingerprint"), fmt::format("is {}, this run's is {}: model, workload or plan differ", shown(read_string(root.at("fingerprint"))), fingerprint), "resume with the plan that made it");
    const Place data = root.at("data");
    if (!data.value().is_object()) data.wrong_type("an object");
    for (const char* key : {"epoch", "document", "token"}) if (!data.value().contains(key)) throw InputError(data.child(key), "is missing");
    out.progress = {read_integer(root.at("step"), {0, 1e15}), {read_integer(data.at("epoch"), {0, 1e15}), read_integer(data.at("document"), {0, 1e15}), read_integer(data.at("token"), {0, 1e15})},
                    static_cast<std::uint64_t>(read_integer(root.at("seed"), {0, 9e15})), {}};
    if (manifest.contains("placement")) {
      const Place words = root.at("placement");
      if (!words.value().is_array()) words.wrong_type("an array");
      for (std::size_t i = 0; i < words.value().size(); ++i) out.progress.placement.push_back(read_integer(words.at(i), {0, 9e15}));
    }
    for (Parameter& p : parameters.all())
      for (const Part& part : parts_of(p)) backend.write({part.memory.get(), part.held, p.shape}, files.floats(part.prefix + p.name, 0, p.shape.elements()));
    out.directory = at;
    return out;
  }
  if (!out.notes.empty()) throw InputError(directory.string(), "holds no save that verifies: " + out.notes.front());
  return std::nullopt;
}

}  // namespace moeplan
