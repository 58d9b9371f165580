#include "sim/program/architectures/config_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace moeplan {
namespace {

Range between(std::int64_t low, std::int64_t high) { return {static_cast<double>(low), static_cast<double>(high)}; }

/// Fields are found by a linear search, once for each question and layer.
void few_keys(const Place& object) {
  constexpr std::size_t most = 2000;
  if (object.value().size() > most) object.refuse(fmt::format("has {} fields, more than the {} that a config may have", object.value().size(), most));
}

std::string listed(ConfigReader::Names names) {
  std::string out;
  for (const char* name : names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace

ConfigReader::ConfigReader(const Json& json, std::string file, std::set<std::string>* seen) : place_(json, std::move(file)), seen_(seen) {
  if (!json.is_object()) place_.wrong_type("an object");
  few_keys(place_);
}

const char* ConfigReader::find(Names names) const {
  for (const char* name : names) {
    const auto it = place_.value().find(name);
    if (seen_) seen_->insert(name);
    if (it != place_.value().end() && !it->is_null()) return name;
  }
  return nullptr;
}

void ConfigReader::refuse(std::string_view field, const std::string& what, const std::string& fix) const {
  throw InputError(where(field), what, fix);
}

std::int64_t ConfigReader::integer(Names names, std::int64_t low, std::int64_t high) const {
  const char* name = find(names);
  if (!name) refuse(*names.begin(), "is missing", names.size() > 1 ? "any of these names would do: " + listed(names) : "");
  return read_integer(place(name), between(low, high));
}

std::int64_t ConfigReader::dim(Names names) const { return integer(names, 1, ImportLimits::dimension); }

std::int64_t ConfigReader::dim_or(Names names, std::int64_t fallback, std::int64_t low) const {
  return maybe_dim(names, low).value_or(fallback);
}

std::optional<std::int64_t> ConfigReader::maybe_dim(Names names, std::int64_t low) const {
  if (const char* name = find(names)) return read_integer(place(name), between(low, ImportLimits::dimension));
  return std::nullopt;
}

std::optional<std::int64_t> ConfigReader::at_layer(Names names, std::int64_t layer, std::int64_t low, std::int64_t high) const {
  const char* name = find(names);
  if (!name) return std::nullopt;
  const Place p = place(name);
  if (!p.value().is_array()) return read_integer(p, between(low, high));
  if (static_cast<std::int64_t>(p.value().size()) <= layer) refuse(name, fmt::format("has {} entries, layer {} needs one", p.value().size(), layer));
  return read_integer(p.at(static_cast<std::size_t>(layer)), between(low, high));
}

std::int64_t ConfigReader::width(std::int64_t a, std::int64_t b, std::string_view field) const {
  constexpr std::int64_t limit = std::int64_t{1} << 27;
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > limit) refuse(field, fmt::format("implies a width of {} x {}, more than 2^27", a, b));
  return product;
}

std::int64_t ConfigReader::integer_or(Names names, std::int64_t fallback, std::int64_t low, std::int64_t high) const {
  return find(names) ? integer(names, low, high) : fallback;
}

bool ConfigReader::flag(Names names, bool fallback) const {
  const char* name = find(names);
  return name ? read_bool(place(name)) : fallback;
}

double ConfigReader::number_or(Names names, double fallback) const {
  const char* name = find(names);
  return name ? read_number(place(name), {-1e30, 1e30}) : fallback;
}

std::string ConfigReader::text_or(Names names, const std::string& fallback) const {
  const char* name = find(names);
  return name ? read_string(place(name)) : fallback;
}

std::int64_t ConfigReader::layers() const { return integer({"num_hidden_layers", "num_layers", "n_layers", "n_layer"}, 1, ImportLimits::layers); }

std::vector<std::int64_t> ConfigReader::integers(Names names, std::int64_t low, std::int64_t high) const {
  std::vector<std::int64_t> out;
  const char* name = find(names);
  if (!name) return out;
  const Place list = place(name);
  if (list.value().is_string()) {
    const std::string text = read_string(list);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t comma = std::min(text.find(',', begin), text.size());
      std::int64_t v = 0;
      const auto [end, error] = std::from_chars(text.data() + begin, text.data() + comma, v);
      if (error != std::errc{} || end != text.data() + comma) list.refuse("must hold whole numbers separated by commas, has " + shown(text.substr(begin, comma - begin)));
      if (v < low || v > high) list.refuse(fmt::format("{} is outside {} to {}", v, low, high));
      out.push_back(v);
      begin = comma + 1;
    }
    return out;
  }
  if (!list.value().is_array()) list.wrong_type("a list of whole numbers");
  for (std::size_t i = 0; i < list.value().size(); ++i) out.push_back(read_integer(list.at(i), between(low, high)));
  return out;
}

std::vector<double> ConfigReader::positive_numbers(Names names) const {
  std::vector<double> out;
  const char* name = find(names);
  if (!name) return out;
  const Place list = place(name);
  if (!list.value().is_array()) list.wrong_type("a list of numbers");
  for (std::size_t i = 0; i < list.value().size(); ++i) out.push_back(read_number(list.at(i), {0, 1e30, true}));
  return out;
}

std::vector<std::string> ConfigReader::texts(Names names) const {
  std::vector<std::string> out;
  const char* name = find(names);
  if (!name) return out;
  const Place list = place(name);
  if (!list.value().is_array()) list.wrong_type("a list of words");
  for (std::size_t i = 0; i < list.value().size(); ++i) out.push_back(read_string(list.at(i)));
  return out;
}

std::vector<std::int64_t> ConfigReader::per_layer(Names names, std::int64_t layers, std::int64_t low, std::int64_t high) const {
  const char* name = find(names);
  if (!name) return {};
  if (!place(name).value().is_array()) return std::vector<std::int64_t>(static_cast<std::size_t>(layers), read_integer(place(name), between(low, high)));
  auto out = integers({name}, low, high);
  if (static_cast<std::int64_t>(out.size()) < layers) refuse(name, fmt::format("has {} entries for {} layers", out.size(), layers));
  return out;
}

std::vector<std::string> ConfigReader::words_per_layer(Names names, std::int64_t layers, Names known) const {
  const char* name = find(names);
  if (!name) return {};
  auto out = texts({name});
  if (static_cast<std::int64_t>(out.size()) < layers) refuse(name, fmt::format("has {} entries for {} layers", out.size(), layers));
  for (const std::string& word : out)
    if (std::find(known.begin(), known.end(), word) == known.end()) refuse(name, "unknown word " + shown(word), "known: " + listed(known));
  return out;
}

ConfigReader ConfigReader::section(const char* name) const {
  if (!find({name})) refuse(name, "is missing");
  if (!place(name).value().is_object()) place(name).wrong_type("an object");
  few_keys(place(name));
  return ConfigReader(place(name), seen_);
}

std::optional<ConfigReader> ConfigReader::maybe_section(const char* name) const {
  if (!find({name})) return std::nullopt;
  return section(name);
}

ConfigReader ConfigReader::text() const {
  for (const char* name : {"text_config", "llm_config", "language_config"})
    if (find({name})) return section(name);
  return *this;
}

bool ConfigReader::is_scalar(Names names) const {
  const char* name = find(names);
  return name && place(name).value().is_number();
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : place_.value().items()) out.push_back(key);
  return out;
}

}  // namespace moeplan
