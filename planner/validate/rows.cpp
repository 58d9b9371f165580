#include "planner/validate/rows.hpp"

#include <algorithm>

#include "core/read.hpp"

namespace moeplan::validation {
namespace fs = std::filesystem;
namespace {

/// Reads the fields of `T` that are there; null counts as absent, and keys that `T` does not know are left to `beside`.
template <class T>
T read_known(const Place& place, Json* beside = nullptr) {
  if (!place.value().is_object()) place.wrong_type("an object");
  T out{};
  std::vector<std::string_view> known;
  for_each_field<T>([&](const auto& f) {
    using Member = std::remove_reference_t<decltype(out.*(f.member))>;
    known.push_back(f.name);
    const std::string key(f.name);
    const auto it = place.value().find(key);
    if (it == place.value().end() || it->is_null()) {
      if (f.is_required) throw InputError(place.child(key), "is missing");
      return;
    }
    out.*(f.member) = read<Member>(place.at(key), f.range);
  });
  if (beside)
    for (const auto& [key, value] : place.value().items())
      if (std::find(known.begin(), known.end(), key) == known.end()) (*beside)[key] = value;
  return out;
}

std::optional<double> number_of(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object.at(key).is_number()) return std::nullopt;
  const double v = object.at(key).get<double>();
  return v > 0 ? std::optional(v) : std::nullopt;
}

Row read_row(const Json& json, const std::string& where) {
  const Place place(json, where);
  Row row = read_known<Row>(place);
  if (!json.contains("measured") || !json.at("measured").is_object())
    throw InputError(place.child("measured"), "is missing");
  Json beside = Json::object();
  row.measured = read_known<Measurements>(place.at("measured"), &beside);
  if (const auto it = beside.find("other"); it != beside.end() && it->is_object()) {
    row.peak_reserved_gib = number_of(*it, "peak_reserved_gib");
    for (const char* key : {"run_failed", "oom"})
      if (it->contains(key) && it->at(key).is_boolean()) row.failed = row.failed || it->at(key).get<bool>();
  }
  return row;
}

bool names_models(const fs::path& file) { return file.stem().string().find("models") != std::string::npos; }

JsonLimits limits() {
  JsonLimits out;
  out.max_bytes = std::size_t{64} << 20;
  return out;
}

}  // namespace

void fill_in(ModelDims& into, const ModelDims& other) {
  const auto differ = [](const auto& a, const auto& b) { return a && b && *a != *b; };
  if (differ(into.hidden, other.hidden) || differ(into.layers, other.layers)) return;
  const bool own = into.hidden.has_value() && !into.library_model;
  for_each_field<ModelDims>([&](const auto& f) {
    if (!(into.*(f.member))) into.*(f.member) = other.*(f.member);
  });
  if (own) into.library_model.reset();
  if (!other.extra.is_object()) return;
  if (!into.extra.is_object()) into.extra = Json::object();
  for (const auto& [key, value] : other.extra.items())
    if (!into.extra.contains(key) || into.extra.at(key).is_null()) into.extra[key] = value;
}

std::map<std::string, ModelDims> read_models(const Json& document, const std::string& where) {
  const Place top(document, where);
  if (!document.is_object()) top.wrong_type("an object from model names to dimensions");
  std::map<std::string, ModelDims> out;
  for (const auto& [name, value] : document.items()) {
    if (!value.is_object()) continue;  // a note beside the models
    try {
      Json beside = Json::object();
      ModelDims dims = read_known<ModelDims>(top.at(name), &beside);
      dims.extra = beside.contains("extra") ? beside.at("extra") : Json();
      out.emplace(name, std::move(dims));
    } catch (const InputError&) {
      continue;  // rows of this model are skipped, saying that its dimensions are not known
    }
  }
  return out;
}

void read_rows(const Json& document, const std::string& where, Rows& into) {
  const Json* list = &document;
  Json common = Json::object();
  if (document.is_object()) {
    if (!document.contains("rows"))
      Place(document, where).refuse("is neither a list of rows nor an object with \"rows\"");
    list = &document.at("rows");
    if (document.contains("common")) common = document.at("common");
  }
  if (!list->is_array()) Place(*list, where).wrong_type("a list of rows");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string at = where + ": row " + std::to_string(i + 1);
    Json row = common;
    if (list->at(i).is_object())
      for (const auto& [key, value] : list->at(i).items()) row[key] = value;
    const std::string id = row.contains("id") && row.at("id").is_string() ? row.at("id").get<std::string>() : at;
    try {
      if (!list->at(i).is_object()) Place(list->at(i), at).wrong_type("an object");
      into.rows.push_back(read_row(row, at));
    } catch (const InputError& e) {
      into.skipped.push_back({id, e.what()});
    }
  }
}

Rows read_rows(const fs::path& path) {
  Rows out;
  std::error_code ec;
  std::vector<fs::path> files;
  fs::path beside = path.parent_path();
  if (fs::is_directory(path, ec)) {
    beside = path;
    for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec))
      if (it->path().extension() == ".json" && !names_models(it->path())) files.push_back(it->path());
    std::sort(files.begin(), files.end());
    if (files.empty())
      throw InputError(path.string(), "holds no .json file", "give a file of measured rows, or a directory of them");
  } else {
    files.push_back(path);
  }
  for (const fs::path& file : files) {
    const Json document = load_json(file, limits());
    // A directory may hold other documents beside the rows (tables, kept accuracy); a file that is named must be one of
    // rows.
    if (files.size() > 1 && document.is_object() && !document.contains("rows")) continue;
    read_rows(document, file.filename().string(), out);
  }
  std::vector<fs::path> models;
  for (fs::directory_iterator it(beside.empty() ? "." : beside, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".json" && names_models(it->path())) models.push_back(it->path());
  std::sort(models.begin(), models.end());
  for (const fs::path& file : models) {
    const Json document = load_json(file, limits());
    if (!document.is_object() || document.contains("rows")) continue;  // named like one, but no file of dimensions
    for (auto& [name, dims] : read_models(document, file.filename().string()))
      out.models.emplace(name, std::move(dims));
  }
  return out;
}

}  // namespace moeplan::validation
