#include "sim/program/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "core/read.hpp"
#include "sim/program/model_tensors.hpp"
#include "sim/program/shard_files.hpp"

namespace moeplan {
namespace {

constexpr std::size_t most_shards = 10'000;
constexpr std::size_t most_index_bytes = std::size_t{256} << 20;

struct Expected {
  FileTensor tensor;
  Scope scope = Scope::main;
  std::int64_t seen = 0;
};

std::string dims(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

/// "a.experts.17.b" -> "a.experts.*.b" and 17; nothing if no expert index is in the name.
std::optional<std::pair<std::string, std::int64_t>> expert_pattern(const std::string& name) {
  const auto at = name.find("experts.");
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + 8;
  std::size_t end = begin;
  std::int64_t index = 0;
  while (end < name.size() && end - begin < 6 && name[end] >= '0' && name[end] <= '9') index = index * 10 + (name[end++] - '0');
  if (end == begin || end == name.size() || name[end] != '.' || (name[begin] == '0' && end - begin > 1)) return std::nullopt;
  return std::pair{name.substr(0, begin) + "*" + name.substr(end), index};
}

class Comparison {
 public:
  Comparison(const ModelSpec& m, CheckpointReport& report) : model_(m), report_(report) {
    for (const ModelTensor& t : model_tensors(m, compose_model(m)))
      for (FileTensor& f : file_tensors(t, m.stored.layout)) {
        std::string key = f.name;
        expected_.emplace(std::move(key), Expected{std::move(f), t.scope});
      }
  }

  /// `stored` is null where only the index is at hand.
  void see(const std::string& name, const StoredTensor* stored) {
    ++report_.tensors;
    if (stored) report_.bytes += stored->end - stored->begin;
    auto it = expected_.find(name);
    if (it == expected_.end())
      if (const auto pattern = expert_pattern(name)) {
        it = expected_.find(pattern->first);
        if (it != expected_.end() && pattern->second >= it->second.tensor.count) it = expected_.end();
      }
    if (it == expected_.end()) return unknown(name);
    Expected& e = it->second;
    ++e.seen;
    if (e.scope == Scope::mtp) report_.has_mtp = true;
    if (e.scope == Scope::mtp_copies) report_.has_mtp_copies = true;
    if (e.scope == Scope::vision) report_.has_vision = true;
    if (e.scope == Scope::tables) report_.has_tables = true;
    if (!stored) return;
    if (stored->shape != e.tensor.shape) line(fmt::format("{}: shape {} in the file, {} by the config", shown(name, 160), dims(stored->shape), dims(e.tensor.shape)));
    else if (stored->dtype != e.tensor.dtype) types_[{e.tensor.dtype, stored->dtype}].push_back(name);
  }

  /// `all`: every listed shard was looked at (or the index names every tensor).
  void finish(bool all) {
    for (const auto& [types, names] : types_)
      line(fmt::format("{} tensors are {} in the file, {} by the config (first: {})", names.size(), types.second, types.first, shown(names.front(), 160)));
    if (rotary_ > 0) report_.notes.push_back(fmt::format("{} rotary buffers are stored; they are no parameters", rotary_));
    if (all) {
      std::map<Scope, std::int64_t> absent;
      for (const auto& [name, e] : expected_) {
        if (e.seen >= e.tensor.count) continue;
        const bool whole = e.scope == Scope::main || (e.scope == Scope::mtp && report_.has_mtp) || (e.scope == Scope::vision && report_.has_vision) || (e.scope == Scope::tables && report_.has_tables);
        if (!whole) ++absent[e.scope];
        else if (e.tensor.count == 1) line(shown(name, 160) + " is missing");
        else line(fmt::format("{}: {} of {} are there", shown(name, 160), e.seen, e.tensor.count));
      }
      for (const auto& [scope, n] : absent)
        report_.notes.push_back(fmt::format("{} do not ship ({} tensors)", scope == Scope::mtp ? "MTP layers" : scope == Scope::mtp_copies ? "MTP copies of embedding and head" : scope == Scope::vision ? "the vision tower" : "integer tables", n));
    }
    std::sort(lines_.begin(), lines_.end());
    const std::size_t shown_lines = std::min(lines_.size(), CheckpointReport::most_lines);
    report_.mismatches.assign(lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(shown_lines));
    if (lines_.size() > shown_lines) report_.mismatches.push_back(fmt::format("... and {} more", lines_.size() - shown_lines));
  }

 private:
  void unknown(const std::string& name) {
    if (name.ends_with("rotary_emb.inv_freq") || name.ends_with("rotary_emb.cos_cached") || name.ends_with("rotary_emb.sin_cached")) {
      ++rotary_;
    } else if (model_.tied_head && name == model_.head_name) {
      report_.stores_tied_head = true;
      report_.notes.push_back(shown(name, 160) + " is stored although the head is tied to the embedding");
    } else {
      line(shown(name, 160) + " is not a tensor of this model");
    }
  }
  void line(std::string text) { lines_.push_back(std::move(text)); }

  const ModelSpec& model_;
  CheckpointReport& report_;
  std::unordered_map<std::string, Expected> expected_;
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> types_;
  std::vector<std::string> lines_;
  std::int64_t rotary_ = 0;
};

}  // namespace

std::optional<CheckpointReport> check_checkpoint(const std::filesystem::path& directory, const ModelSpec& model) {
  const DirectoryHandle handle(directory);
  constexpr const char* index_name = "model.safetensors.index.json";
  std::map<std::string, std::string> map;   // tensor -> shard
  std::set<std::string> shards;
  const auto index = handle.open(index_name);
  if (index) {
    if (index->size() > static_cast<std::int64_t>(most_index_bytes)) throw InputError(index->where(), fmt::format("{} bytes, more than the {} an index may have", index->size(), most_index_bytes));
    const Json json = parse_json(index->read(0, index->size()), index->where(), {.max_bytes = most_index_bytes, .max_depth = 8});
    const Place root(json, index->where());
    if (!json.is_object() || !json.contains("weight_map")) throw InputError(root.child("weight_map"), "is missing");
    const Place weights = root.at("weight_map");
    if (!weights.value().is_object()) weights.wrong_type("an object");
    for (const auto& [name, shard] : weights.value().items()) {
      if (!shard.is_string()) throw InputError(weights.child(shown(name)), "expected a file name");
      const auto file = shard.get<std::string>();
      if (!is_plain_name(file)) throw InputError(weights.path(), shown(name) + " names " + shown(file) + ", which is not a plain file name");
      shards.insert(file);
      if (shards.size() > most_shards) throw InputError(weights.path(), fmt::format("more than {} shards", most_shards));
      map.emplace(name, file);
    }
  } else {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error))
      if (const auto name = entry.path().filename().string(); name.ends_with(".safetensors") && is_plain_name(name)) shards.insert(name);
    if (shards.size() > most_shards) throw InputError(directory.string(), fmt::format("more than {} shards", most_shards));
  }
  if (shards.empty() && !index) return std::nullopt;

  CheckpointReport report;
  report.shards_listed = static_cast<std::int64_t>(shards.size());
  Comparison comparison(model, report);
  std::vector<std::string> out_of_place;
  std::set<std::string> seen;
  for (const auto& shard : shards) {
    const auto file = handle.open(shard);
    if (!file) continue;
    ++report.shards_present;
    for (const StoredTensor& t : read_header(*file)) {
      if (!seen.insert(t.name).second) throw InputError(file->where(), shown(t.name) + " is in another shard too");
      if (index) {
        const auto it = map.find(t.name);
        if (it == map.end()) out_of_place.push_back(shown(t.name, 160) + " is in " + shard + ", but not in the index");
        else if (it->second != shard) out_of_place.push_back(shown(t.name, 160) + " is in " + shard + ", the index says " + it->second);
      }
      comparison.see(t.name, &t);
    }
  }
  if (report.shards_present == 0)
    for (const auto& [name, shard] : map) comparison.see(name, nullptr);
  comparison.finish(report.complete() || report.shards_present == 0);
  if (!report.complete()) report.notes.push_back(fmt::format("{} of {} shards are here: sizes read from them are incomplete", report.shards_present, report.shards_listed));
  if (report.complete() && index)
    for (const auto& [name, shard] : map)
      if (!seen.contains(name)) out_of_place.push_back(shown(name, 160) + " is in the index, but in no shard");
  for (std::size_t i = 0; i < out_of_place.size() && i < CheckpointReport::most_lines; ++i) report.mismatches.push_back(out_of_place[i]);
  return report;
}

}  // namespace moeplan
