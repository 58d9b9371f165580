#include "cli/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moeplan::cli {
namespace {

/// Columns on a terminal: code points, as no double-width text is printed; colour sequences take none.
std::size_t width_of(std::string_view text) {
  std::size_t width = 0;
  bool escape = false;
  for (const char c : text) {
    if (c == '\x1b') escape = true;
    else if (escape) escape = c != 'm';
    else width += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }
  return width;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto end = text.find('\n');
    out.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace

std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows, std::size_t indent) {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::size_t w = width_of(columns[c].title);
    for (const auto& row : rows) w = std::max(w, width_of(row[c]));
    widths.push_back(w);
  }
  std::size_t before_last = indent;
  for (std::size_t c = 0; c + 1 < columns.size(); ++c) before_last += widths[c] + 2;
  const std::size_t left = kWidth > before_last + 20 ? kWidth - before_last : 20;
  widths.back() = std::min(widths.back(), left);
  std::string out;
  const auto line = [&](const auto& cell) {
    std::string text(indent, ' ');
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::string value = cell(c);
      if (c + 1 == columns.size() && width_of(value) > widths[c]) value = wrapped(value, widths[c], 0);
      const auto parts = lines_of(value);
      const std::string first = parts.empty() ? "" : parts.front();
      const std::string pad(widths[c] - std::min(widths[c], width_of(first)), ' ');
      text += columns[c].right ? pad + first : first + pad;
      if (c + 1 < columns.size()) text += "  ";
      for (std::size_t i = 1; i < parts.size(); ++i) text += "\n" + std::string(before_last, ' ') + parts[i];
    }
    for (const std::string& each : lines_of(text)) {
      const auto end = each.find_last_not_of(' ');
      out += (end == std::string::npos ? "" : each.substr(0, end + 1)) + "\n";
    }
  };
  line([&](std::size_t c) { return columns[c].title; });
  line([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows) line([&](std::size_t c) { return row[c]; });
  return out;
}

std::string beside(std::string_view left, std::string_view right, std::size_t gap) {
  const auto a = lines_of(left), b = lines_of(right);
  std::size_t width = 0;
  for (const auto& each : a) width = std::max(width, width_of(each));
  std::string out;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    std::string text = i < a.size() ? a[i] : "";
    if (i < b.size()) text += std::string(width + gap - width_of(text), ' ') + b[i];
    out += text + "\n";
  }
  return out;
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t column = 0;
  while (!text.empty()) {
    const auto space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (column > 0 && column + 1 + width_of(word) > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!out.empty()) {
      out += ' ';
      ++column;
    }
    out += word;
    column += width_of(word);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // C1 control characters are U+0080..U+009F: 0xc2 0x80..0x9f.
    const bool c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c < 0x20 || c == 0x7f) out += fmt::format("\\x{:02x}", c);
    else if (c1) out += fmt::format("\\u00{:02x}", static_cast<unsigned char>(text[++i]));
    else out += static_cast<char>(c);
  }
  return out;
}

}  // namespace moeplan::cli
