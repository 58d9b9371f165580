#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.hpp"
#include "executor/rendezvous/environment.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 20;

[[noreturn]] void refuse(std::string_view list, const std::string& what) {
  throw InputError("Slurm node list " + shown(list), what, "write it like node[01-03,7],other");
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_host_char(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_'; }

/// "01-03,7" -> 01 02 03 7.
std::vector<std::string> expand_ranges(std::string_view list, std::string_view inside) {
  std::vector<std::string> out;
  std::size_t at = 0;
  const auto number = [&] {
    const std::size_t begin = at;
    while (at < inside.size() && is_digit(inside[at])) ++at;
    if (begin == at) refuse(list, fmt::format("no number at {} in [{}]", begin, inside.substr(0, 40)));
    if (at - begin > 9) refuse(list, "a number of more than 9 digits");
    return inside.substr(begin, at - begin);
  };
  while (true) {
    const std::string_view low_text = number();
    std::string_view high_text = low_text;
    if (at < inside.size() && inside[at] == '-') {
      ++at;
      high_text = number();
    }
    int low = 0, high = 0;
    std::from_chars(low_text.data(), low_text.data() + low_text.size(), low);
    std::from_chars(high_text.data(), high_text.data() + high_text.size(), high);
    if (high < low) refuse(list, fmt::format("the range {}-{} runs backwards", low_text, high_text));
    if (static_cast<std::size_t>(high - low) >= kMost) refuse(list, "more than 1048576 names");
    // Slurm pads to the width of the first number, and only if that has a leading zero.
    const std::size_t width = low_text.size() > 1 && low_text[0] == '0' ? low_text.size() : 1;
    for (int i = low; i <= high; ++i) out.push_back(fmt::format("{:0{}}", i, width));
    if (out.size() > kMost) refuse(list, "more than 1048576 names");
    if (at == inside.size()) return out;
    if (inside[at++] != ',') refuse(list, fmt::format("unexpected {} in brackets", shown(inside.substr(at - 1, 1))));
  }
}

}  // namespace

std::vector<std::string> expand_nodelist(std::string_view list) {
  std::vector<std::string> all;
  std::vector<std::string> names{""};
  const auto finish = [&] {
    if (names.size() == 1 && names[0].empty()) refuse(list, "an empty name");
    for (const auto& n : names)
      if (n[0] == '-') refuse(list, "a host name cannot start with -");
    if (all.size() + names.size() > kMost) refuse(list, "more than 1048576 names");
    all.insert(all.end(), names.begin(), names.end());
    names = {""};
  };
  for (std::size_t at = 0; at < list.size();) {
    const char c = list[at];
    if (c == ',') {
      finish();
      ++at;
      if (at == list.size()) refuse(list, "an empty name at the end");
    } else if (c == '[') {
      const std::size_t end = list.find(']', at);
      if (end == std::string_view::npos) refuse(list, "[ without ]");
      const auto parts = expand_ranges(list, list.substr(at + 1, end - at - 1));
      if (names.size() * parts.size() > kMost) refuse(list, "more than 1048576 names");
      std::vector<std::string> next;
      next.reserve(names.size() * parts.size());
      for (const auto& n : names)
        for (const auto& p : parts) next.push_back(n + p);
      names = std::move(next);
      at = end + 1;
    } else {
      if (!is_host_char(c)) refuse(list, fmt::format("{} does not belong in a host name", shown(list.substr(at, 1))));
      if (names[0].size() > 255) refuse(list, "a name of more than 255 characters");
      for (auto& n : names) n += c;
      ++at;
    }
  }
  finish();
  return all;
}

}  // namespace moeplan
