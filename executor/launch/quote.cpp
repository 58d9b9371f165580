#include "executor/launch/quote.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/json.hpp"

namespace moeplan {

std::string shell_word(std::string_view text, std::string_view what) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\0' || c == '\n' || c == '\r')
      throw InputError(std::string(what), shown(text) + " holds a line break or a NUL", "rename it: it cannot stand in a launch file");
    if (c == '\'') out += "'\\''";
    else out += c;
  }
  return out + "'";
}

std::string shell_path(std::string_view path, std::string_view what) {
  if (path.empty()) throw InputError(std::string(what), "is empty", {});
  return shell_word(path[0] == '-' ? "./" + std::string(path) : std::string(path), what);
}

std::string yaml_text(std::string_view text, std::string_view what) {
  if (text.find('\0') != std::string_view::npos) throw InputError(std::string(what), shown(text) + " holds a NUL", {});
  std::string json;
  try {
    json = Json(std::string(text)).dump(-1, ' ', true);  // ASCII only: no reader can take it for a line break or a comment
  } catch (const std::exception&) {
    throw InputError(std::string(what), shown(text) + " is not UTF-8", {});
  }
  // JSON writes what lies beyond 16 bits as two surrogates, which YAML does not join; it has eight digits instead.
  std::string out;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (json[i] != '\\') {
      out += json[i];
      continue;
    }
    if (json[i + 1] == 'u' && (json[i + 2] == 'd' || json[i + 2] == 'D') && json[i + 3] >= '8' && i + 12 <= json.size()) {
      const auto high = std::stoul(json.substr(i + 2, 4), nullptr, 16), low = std::stoul(json.substr(i + 8, 4), nullptr, 16);
      out += fmt::format("\\U{:08x}", 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
      i += 11;
    } else {
      out += json[i];
      out += json[++i];
    }
  }
  return out;
}

std::string checked_name(std::string_view name, std::string_view what, std::string_view extra, std::size_t most) {
  const auto plain = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  bool good = !name.empty() && name.size() <= most && plain(name[0]);
  for (const char c : name) good = good && (plain(c) || extra.find(c) != std::string_view::npos);
  if (!good) throw InputError(std::string(what), shown(name) + " is not allowed here", fmt::format("letters, digits and {} only, at most {}", extra, most));
  return std::string(name);
}

}  // namespace moeplan
