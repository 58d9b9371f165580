#include "planner/validate/versions.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace moeplan::validation {
namespace {

/// The number at the front of a text, which is cut off; nothing where there is none, or one of more digits than fit.
std::optional<int> number(std::string_view& text) {
  int out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || out < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return out;
}

bool cut(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// torchtitan 0.0.2 is of February 2025 (pypi.org/project/torchtitan).
constexpr Month kTorchtitan002{2025, 2};

}  // namespace

std::optional<Release> release_of(const Row& row, std::string_view name) {
  const std::string version = lower(row.framework_version.value_or("")), sought = lower(name) + " ";
  for (std::size_t at = version.find(sought); at != std::string::npos; at = version.find(sought, at + 1)) {
    if (at > 0 && std::isalnum(static_cast<unsigned char>(version[at - 1]))) continue;  // "pytorch 2" is no "torch 2"
    std::string_view rest = std::string_view(version).substr(at + sought.size());
    Release out;
    const auto major = number(rest);
    if (!major || !cut(rest, '.')) continue;
    const auto minor = number(rest);
    if (!minor) continue;
    out.major = *major, out.minor = *minor;
    if (cut(rest, '.')) out.patch = number(rest).value_or(0);
    return out;
  }
  return std::nullopt;
}

std::optional<Month> sources_of(const Row& row) {
  const std::string version = row.framework_version.value_or("");
  for (std::size_t at = version.find('('); at != std::string::npos; at = version.find('(', at + 1)) {
    std::string_view rest = std::string_view(version).substr(at + 1);
    const auto year = number(rest);
    if (!year || *year < 2000 || !cut(rest, '-')) continue;
    if (const auto month = number(rest); month && *month >= 1 && *month <= 12) return Month{*year, *month};
  }
  if (const auto release = release_of(row, "torchtitan"); release && *release <= Release{0, 0, 2})
    return kTorchtitan002;
  if (row.year) return Month{static_cast<int>(*row.year), 6};
  return std::nullopt;
}

}  // namespace moeplan::validation
