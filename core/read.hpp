#pragma once
/// From JSON to the value types, by their field lists. Every refusal names file and field ("plan.json: workload.rank: ...").
/// Types are not coerced: "8" is not 8, 8.0 is 8, 8.5 is refused where a whole number belongs, unknown keys are refused.

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "core/fields.hpp"
#include "core/json.hpp"
#include "core/quantity.hpp"

namespace moeplan {

/// A place in a document: the value, and how one gets there.
class Place {
 public:
  Place(const Json& value, std::string file) : value_(value), path_(std::move(file)), root_(true) {}

  [[nodiscard]] const Json& value() const { return value_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] Place at(const std::string& key) const { return {value_.at(key), path_ + (root_ ? ": " : ".") + key, false}; }
  [[nodiscard]] Place at(std::size_t i) const { return {value_.at(i), path_ + (root_ ? ": [" : "[") + std::to_string(i) + "]", false}; }
  [[nodiscard]] std::string child(std::string_view key) const { return path_ + (root_ ? ": " : ".") + std::string(key); }
  [[noreturn]] void refuse(const std::string& what, const std::string& fix = {}) const { throw InputError(path_, what, fix); }
  [[noreturn]] void wrong_type(std::string_view expected) const;

 private:
  Place(const Json& value, std::string path, bool root) : value_(value), path_(std::move(path)), root_(root) {}
  const Json& value_;
  std::string path_;
  bool root_;
};

[[nodiscard]] std::int64_t read_integer(const Place& place, const Range& range);
[[nodiscard]] double read_number(const Place& place, const Range& range);
[[nodiscard]] std::string read_string(const Place& place);
[[nodiscard]] bool read_bool(const Place& place);
void check_range(const Place& place, double value, const Range& range);
/// Refuses keys of an object that are not in `known`, proposing the nearest name.
void refuse_unknown_keys(const Place& place, const std::vector<std::string_view>& known);
/// The name in `known` that `name` most likely meant; empty if none is near.
[[nodiscard]] std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& known);

template <class T>
[[nodiscard]] T read(const Place& place, const Range& range = {});

namespace detail {

template <class T> struct IsOptional : std::false_type {};
template <class T> struct IsOptional<std::optional<T>> : std::true_type {};
template <class T> struct IsVector : std::false_type {};
template <class T> struct IsVector<std::vector<T>> : std::true_type {};
template <class T> struct IsVariant : std::false_type {};
template <class... T> struct IsVariant<std::variant<T...>> : std::true_type {};
template <class T> struct IsQuantity : std::false_type {};
template <class Tag, class Rep> struct IsQuantity<Quantity<Tag, Rep>> : std::true_type {};
template <class T> struct IsMap : std::false_type {};
template <class T> struct IsMap<std::map<std::string, T>> : std::true_type {};

/// `check_range` with the limits shown in the quantity's unit.
template <class Q>
void check_quantity(const Place& place, Q q, const Range& range) {
  const auto v = static_cast<double>(q.value);
  if ((range.open_low ? v > range.low : v >= range.low) && v <= range.high) return;
  const auto text = [](double limit) { return exact_text(Q{static_cast<typename Q::Rep>(limit)}); };
  std::string fix;
  if (std::isfinite(range.low)) fix = (range.open_low ? "more than " : "at least ") + text(range.low);
  if (std::isfinite(range.high)) fix += (fix.empty() ? "at most " : " and at most ") + text(range.high);
  place.refuse(exact_text(q) + " is out of range", "it must be " + fix);
}

template <HasFields T>
T read_struct(const Place& place, bool tagged) {
  if (!place.value().is_object()) place.wrong_type("an object");
  std::vector<std::string_view> known;
  if (tagged) known.push_back("kind");
  for_each_field<T>([&](const auto& f) { known.push_back(f.name); });
  refuse_unknown_keys(place, known);
  T out{};
  for_each_field<T>([&](const auto& f) {
    using Member = std::remove_reference_t<decltype(out.*(f.member))>;
    const std::string key(f.name);
    const auto it = place.value().find(key);
    if (it == place.value().end()) {
      if (f.is_required) throw InputError(place.child(key), "is missing" + (f.doc.empty() ? "" : " (" + std::string(f.doc) + ")"));
      return;
    }
    out.*(f.member) = read<Member>(place.at(key), f.range);
  });
  return out;
}

template <class V, std::size_t... I>
V read_variant(const Place& place, std::index_sequence<I...>) {
  std::string kind;
  if (place.value().is_string()) kind = place.value().template get<std::string>();  // a bare tag: all defaults
  else if (place.value().is_object() && place.value().contains("kind")) kind = read_string(place.at("kind"));
  else place.wrong_type("an object with \"kind\"");
  std::optional<V> out;
  std::vector<std::string_view> known;
  const auto one = [&]<class T>(std::type_identity<T>) {
    known.push_back(T::kind);
    if (kind != T::kind) return;
    if (place.value().is_string()) out = V(T{});
    else out = V(read_struct<T>(place, true));
  };
  (one(std::type_identity<std::variant_alternative_t<I, V>>{}), ...);
  if (out) return std::move(*out);
  std::string list;
  for (const auto name : known) list += (list.empty() ? "" : ", ") + std::string(name);
  place.refuse("unknown kind " + shown(kind), "known: " + list);
}

}  // namespace detail

template <class T>
T read(const Place& place, const Range& range) {
  if constexpr (std::is_same_v<T, bool>) {
    return read_bool(place);
  } else if constexpr (std::is_integral_v<T>) {
    const Range limits{std::max(range.low, static_cast<double>(std::numeric_limits<T>::min())),
                       std::min(range.high, static_cast<double>(std::numeric_limits<T>::max())), range.open_low};
    return static_cast<T>(read_integer(place, limits));
  } else if constexpr (std::is_floating_point_v<T>) {
    return read_number(place, range);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return read_string(place);
  } else if constexpr (NamedEnum<T>) {
    const std::string text = read_string(place);
    std::vector<std::string_view> known;
    for (const auto& [value, name] : EnumNames<T>::names) {
      if (name == text) return value;
      known.push_back(name);
    }
    std::string list;
    for (const auto name : known) list += (list.empty() ? "" : ", ") + std::string(name);
    place.refuse("unknown value " + shown(text), "known: " + list);
  } else if constexpr (detail::IsQuantity<T>::value) {
    if (!place.value().is_string()) place.wrong_type("a text with a unit, like \"" + std::string(example_of<T>()) + "\"");
    const std::string text = read_string(place);
    const auto q = parse_quantity<T>(text);
    if (!q) place.refuse(shown(text) + " is not a number with a unit", "write it like \"" + std::string(example_of<T>()) + "\"");
    detail::check_quantity(place, *q, range);
    return *q;
  } else if constexpr (detail::IsOptional<T>::value) {
    if (place.value().is_null()) return std::nullopt;
    return read<typename T::value_type>(place, range);
  } else if constexpr (detail::IsVector<T>::value) {
    if (!place.value().is_array()) place.wrong_type("a list");
    T out;
    out.reserve(place.value().size());
    for (std::size_t i = 0; i < place.value().size(); ++i) out.push_back(read<typename T::value_type>(place.at(i), range));
    return out;
  } else if constexpr (detail::IsMap<T>::value) {
    if (!place.value().is_object()) place.wrong_type("an object");
    T out;
    for (const auto& [key, value] : place.value().items()) out[key] = read<typename T::mapped_type>(place.at(key), range);
    return out;
  } else if constexpr (detail::IsVariant<T>::value) {
    return detail::read_variant<T>(place, std::make_index_sequence<std::variant_size_v<T>>{});
  } else {
    static_assert(HasFields<T>, "a type without a field list");
    return detail::read_struct<T>(place, false);
  }
}

/// Reads a whole document.
template <class T>
[[nodiscard]] T read_document(const Json& json, const std::string& file) { return read<T>(Place(json, file)); }

}  // namespace moeplan
