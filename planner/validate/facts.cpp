#include "planner/validate/facts.hpp"

#include <algorithm>
#include <cctype>
#include <regex>
#include <sstream>
#include <utility>

#include "core/configs.hpp"

namespace moeplan::validation {
namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Small letters, without what separates a letter from a number behind it, nor a number from its "GB".
std::string joined(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!is_letter(c) && !is_digit(c) && i + 1 < text.size() && is_digit(text[i + 1]) && !out.empty() &&
        is_letter(out.back()))
      continue;
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  static const std::regex size(R"((\d)[^a-z0-9]*gb?\b)");
  return std::regex_replace(out, size, "$1gb");
}

/// A model's name without maker, stage of training and punctuation but between digits.
std::string bare(std::string name) {
  if (const std::size_t slash = name.rfind('/'); slash != std::string::npos) name.erase(0, slash + 1);
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (is_letter(c) || is_digit(c)) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (i > 0 && i + 1 < name.size() && is_digit(name[i - 1]) && is_digit(name[i + 1])) out += c == '.' ? '.' : '-';
  }
  if (out.starts_with("meta")) out.erase(0, 4);
  for (bool shorter = true; std::exchange(shorter, false);)
    for (const std::string_view end : {"instruct", "base", "chat", "hf"})
      if (out.size() > end.size() && out.ends_with(end)) out.resize(out.size() - end.size()), shorter = true;
  return out;
}

void fill(Json& extra, const char* key, const Json& value) {
  if (!extra.is_object()) extra = Json::object();
  if (!extra.contains(key) || extra.at(key).is_null()) extra[key] = value;
}

}  // namespace

std::string described(const Row& row) {
  return row.framework + " | " + row.source_title.value_or("") + " | " + row.id + " | " + row.notes.value_or("") +
         " | " + row.moe_notes.value_or("");
}

bool names_device(const std::string& hardware, const std::string& words) {
  const std::string text = joined(hardware);
  std::istringstream each(words);
  for (std::string word; each >> word;) {
    bool found = false;
    for (std::size_t at = text.find(word); at != std::string::npos && !found; at = text.find(word, at + 1)) {
      const bool counted = at >= 2 && text[at - 1] == 'x' && is_digit(text[at - 2]);   // 8xH100
      const bool machine = at >= 3 && (text.compare(at - 3, 3, "dgx") == 0 || text.compare(at - 3, 3, "hgx") == 0);
      const char before = at > 0 && !counted && !machine ? text[at - 1] : ' ', first = word.front();
      const char after = at + word.size() < text.size() ? text[at + word.size()] : ' ', last = word.back();
      found = !(is_letter(first) && is_letter(before)) && !(is_digit(first) && is_digit(before)) &&
              !(is_digit(last) && is_digit(after)) && !(is_letter(last) && is_letter(after));
    }
    if (!found) return false;
  }
  return true;
}

const HardwareWords* hardware_of(const Row& row, const Words& words) {
  if (!row.hardware) return nullptr;
  for (const HardwareWords& h : words.hardware)
    if (names_device(*row.hardware, h.contains)) return &h;
  return nullptr;
}

const FrameworkWords* framework_of(const Row& row, const Words& words) {
  for (const FrameworkWords& f : words.frameworks)
    if (contains(described(row), f.contains)) return &f;
  return nullptr;
}

Row with_facts(Row row, const Words& words) {
  const std::string text = described(row);
  static const std::regex depth(R"(MTP layers=(\d{1,2})\b)");
  if (std::smatch found; std::regex_search(text, found, depth) && !row.mtp_depth) row.mtp_depth = std::stoll(found[1]);
  const std::string source = row.framework + " | " + row.source_title.value_or("") + " | " + row.id;   // notes name others too
  for (const SourceWords& s : words.sources) {
    if (!contains(source, s.contains)) continue;
    if (s.hardware && !names_device(row.hardware.value_or(""), *s.hardware)) continue;
    if (s.model && !contains(row.model, *s.model)) continue;
    if (s.fine_tuning && contains(row.method.value_or("pretrain"), "pretrain")) continue;
    if (s.framework_version && !row.framework_version) row.framework_version = s.framework_version;
    if (s.device) row.hardware = s.device;
    if (s.remark) row.notes = row.notes.value_or("") + "; " + *s.remark;
    if (s.mtp_depth && !row.mtp_depth && contains(row.method.value_or("pretrain"), "pretrain")) row.mtp_depth = s.mtp_depth;
    if (s.document && !row.document) row.document = s.document;
    row.memory_unit *= s.memory_unit;
  }
  return row;
}

ModelDims dims_of(const Row& row, const Library& library) {
  auto it = library.models.find(row.model);
  if (it == library.models.end())
    it = std::find_if(library.models.begin(), library.models.end(),
                      [&](const auto& model) { return bare(model.first) == bare(row.model); });
  ModelDims out = it == library.models.end() ? ModelDims{} : it->second;
  for (const ModelWords& m : library.words.models) {
    if (!contains(row.model, m.contains)) continue;
    if (!out.vocab) out.vocab = m.vocab;
    if (m.positions) fill(out.extra, "positions", *m.positions);
    if (m.activation) fill(out.extra, "activation", *m.activation);
    if (m.no_bias) fill(out.extra, "no_bias", *m.no_bias);
    if (m.tied_embeddings) fill(out.extra, "tied_embeddings", *m.tied_embeddings);
  }
  return out;
}

std::optional<std::string> model_in_library(const Row& row, const ModelDims& dims, const Library& library) {
  const std::vector<std::string> names = config_names(library.configs, "models");
  const std::string known = dims.library_model.value_or(row.model);
  if (std::find(names.begin(), names.end(), known) != names.end()) return known;
  if (dims.hidden) return std::nullopt;
  for (const std::string& name : names)
    if (bare(name) == bare(row.model)) return name;
  return std::nullopt;
}

}  // namespace moeplan::validation
