#include "core/read.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/nonfinite.hpp"

namespace moeplan {

void Place::wrong_type(std::string_view expected) const {
  if (value_.is_object() || value_.is_array())
    refuse(fmt::format("expected {}, found {} of {}", expected, value_.is_object() ? "an object" : "a list", value_.size()));
  if (value_.is_string() && value_.get_ref<const std::string&>().starts_with(kNonfinite)) {
    const std::string_view sign = std::string_view(value_.get_ref<const std::string&>()).substr(1);
    refuse(fmt::format("expected {}, found {}", expected, sign.empty() ? "NaN" : sign == "-" ? "-Infinity" : "Infinity"));
  }
  if (value_.is_string()) refuse(fmt::format("expected {}, found the text {}", expected, shown(value_.get_ref<const std::string&>(), 40)));
  refuse(fmt::format("expected {}, found {}", expected, value_.dump()));
}

void check_range(const Place& place, double v, const Range& range) {
  const bool low_ok = range.open_low ? v > range.low : v >= range.low;
  if (low_ok && v <= range.high) return;
  const std::string low = fmt::format("{} {}", range.open_low ? "more than" : "at least", range.low);
  const std::string high = fmt::format("at most {}", range.high);
  const bool has_low = std::isfinite(range.low), has_high = std::isfinite(range.high);
  place.refuse(fmt::format("{} is out of range", v), "it must be " + (has_low && has_high ? low + " and " + high : has_low ? low : high));
}

std::int64_t read_integer(const Place& place, const Range& range) {
  const Json& v = place.value();
  std::int64_t out = 0;
  if (v.is_number_unsigned()) {
    const auto u = v.get<std::uint64_t>();
    if (u > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) place.refuse(fmt::format("{} does not fit 63 bits", u));
    out = static_cast<std::int64_t>(u);
  } else if (v.is_number_integer()) {
    out = v.get<std::int64_t>();
  } else if (v.is_number_float()) {
    const double d = v.get<double>();
    if (!(std::abs(d) < 9.0e15) || d != std::floor(d)) place.refuse(fmt::format("expected a whole number, found {}", d));
    out = static_cast<std::int64_t>(d);
  } else {
    place.wrong_type("a whole number");
  }
  check_range(place, static_cast<double>(out), range);
  return out;
}

double read_number(const Place& place, const Range& range) {
  if (!place.value().is_number()) place.wrong_type("a number");
  const double v = place.value().get<double>();
  if (!std::isfinite(v)) place.refuse("is not finite");
  check_range(place, v, range);
  return v;
}

std::string read_string(const Place& place) {
  if (!place.value().is_string()) place.wrong_type("a text");
  auto text = place.value().get<std::string>();
  if (text.find('\0') != std::string::npos) place.refuse("contains a NUL byte");
  return text;
}

bool read_bool(const Place& place) {
  if (!place.value().is_boolean()) place.wrong_type("true or false");
  return place.value().get<bool>();
}

namespace {
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
}  // namespace

std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& known) {
  std::string_view best;
  std::size_t best_distance = 1 + name.size() / 2;
  for (const auto candidate : known) {
    if (name.size() > 64 || candidate.size() > 64) continue;
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 0; i < name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t up = row[j + 1];
        row[j + 1] = std::min({up + 1, row[j] + 1, diagonal + (lower(name[i]) != lower(candidate[j]))});
        diagonal = up;
      }
    }
    if (row.back() < best_distance) { best_distance = row.back(); best = candidate; }
  }
  return best;
}

void refuse_unknown_keys(const Place& place, const std::vector<std::string_view>& known) {
  for (const auto& [key, value] : place.value().items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string list;
    for (const auto name : known) list += (list.empty() ? "" : ", ") + std::string(name);
    const auto near = nearest_name(key, known);
    place.refuse("unknown field " + shown(key), near.empty() ? "known: " + list : "did you mean \"" + std::string(near) + "\"?");
  }
}

}  // namespace moeplan
