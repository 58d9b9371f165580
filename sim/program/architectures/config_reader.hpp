#pragma once
/// Reads fields of a HF config.json by the several names they go by. `null` counts as absent. Every refusal is an InputError that
/// names file and field; only fields that are asked for are looked at, so nonsense in unused fields does no harm.

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/read.hpp"

namespace moeplan {

/// Largest values that an import accepts; larger ones are mistakes or attacks.
struct ImportLimits {
  static constexpr std::int64_t layers = 10'000, experts = 65'536, dimension = std::int64_t{1} << 24, vocabulary = std::int64_t{1} << 24;
};

class ConfigReader {
 public:
  using Names = std::initializer_list<const char*>;

  /// `json` must outlive the reader. `seen`, if given, collects the names of the fields that are read.
  ConfigReader(const Json& json, std::string file, std::set<std::string>* seen = nullptr);

  [[nodiscard]] bool has(Names names) const { return find(names) != nullptr; }
  [[nodiscard]] bool has(const char* name) const { return has(Names{name}); }

  /// A size between 1 and 2^24. Refused if absent.
  [[nodiscard]] std::int64_t dim(Names names) const;
  /// A size between `low` and 2^24, or `fallback` if absent.
  [[nodiscard]] std::int64_t dim_or(Names names, std::int64_t fallback, std::int64_t low = 0) const;
  [[nodiscard]] std::optional<std::int64_t> maybe_dim(Names names, std::int64_t low = 0) const;
  [[nodiscard]] std::int64_t integer(Names names, std::int64_t low, std::int64_t high) const;
  /// The value for one layer of a scalar or a list; nothing if absent. A list that is too short is refused.
  [[nodiscard]] std::optional<std::int64_t> at_layer(Names names, std::int64_t layer, std::int64_t low, std::int64_t high) const;
  /// `a * b`, at most 2^27: a width that the file implies. `field` is blamed.
  [[nodiscard]] std::int64_t width(std::int64_t a, std::int64_t b, std::string_view field) const;
  [[nodiscard]] std::int64_t integer_or(Names names, std::int64_t fallback, std::int64_t low, std::int64_t high) const;
  [[nodiscard]] bool flag(Names names, bool fallback) const;
  [[nodiscard]] double number_or(Names names, double fallback) const;
  [[nodiscard]] std::string text_or(Names names, const std::string& fallback) const;

  /// Layers: by any of its names, between 1 and 10,000.
  [[nodiscard]] std::int64_t layers() const;

  /// A list of whole numbers; a comma string is one too (Step). Empty if absent.
  [[nodiscard]] std::vector<std::int64_t> integers(Names names, std::int64_t low, std::int64_t high) const;
  /// A list of positive numbers. Empty if absent.
  [[nodiscard]] std::vector<double> positive_numbers(Names names) const;
  [[nodiscard]] std::vector<std::string> texts(Names names) const;
  /// One value per layer from a scalar or a list of at least `layers` entries (longer ones hold MTP layers too); empty if absent.
  [[nodiscard]] std::vector<std::int64_t> per_layer(Names names, std::int64_t layers, std::int64_t low, std::int64_t high) const;
  /// The same for words ("full_attention"); a list is required, and a word that is not in `known` refused.
  [[nodiscard]] std::vector<std::string> words_per_layer(Names names, std::int64_t layers, Names known) const;

  /// A nested object. `section` refuses its absence.
  [[nodiscard]] ConfigReader section(const char* name) const;
  [[nodiscard]] std::optional<ConfigReader> maybe_section(const char* name) const;
  /// `text_config` (or `llm_config`, `language_config`) if there is one, else this.
  [[nodiscard]] ConfigReader text() const;

  [[nodiscard]] bool is_scalar(Names names) const;
  [[nodiscard]] std::vector<std::string> keys() const;
  [[nodiscard]] std::string where(std::string_view field) const { return place_.child(field); }
  [[noreturn]] void refuse(std::string_view field, const std::string& what, const std::string& fix = {}) const;

 private:
  ConfigReader(Place place, std::set<std::string>* seen) : place_(std::move(place)), seen_(seen) {}
  [[nodiscard]] const char* find(Names names) const;
  [[nodiscard]] Place place(const char* name) const { return place_.at(name); }
  Place place_;
  std::set<std::string>* seen_ = nullptr;
};

}  // namespace moeplan
