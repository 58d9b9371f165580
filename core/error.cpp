#include "core/error.hpp"

#include <fmt/format.h>

namespace moeplan {
namespace {

std::string one_line(const std::string& where, const std::string& what, const std::string& fix) {
  std::string line = where.empty() ? what : where + ": " + what;
  if (!fix.empty()) line += "; " + fix;
  return line;
}

}  // namespace

InputError::InputError(std::string where, std::string what, std::string fix)
    : std::runtime_error(one_line(where, what, fix)),
      where_(std::move(where)),
      reason_(std::move(what)),
      fix_(std::move(fix)) {}

std::string shown(std::string_view text, std::size_t limit) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (out.size() > limit) return out + "...\"";
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f || c >= 0x80) out += fmt::format("\\x{:02x}", c);
    else if (c == '"' || c == '\\') (out += '\\') += static_cast<char>(c);
    else out += static_cast<char>(c);
  }
  return out + '"';
}

}  // namespace moeplan
