#pragma once
/// Text for people: tables of at most 100 columns, lines that fit a terminal.

#include <string>
#include <string_view>
#include <vector>

#include "core/show.hpp"

namespace moeplan::cli {

inline constexpr std::size_t kWidth = 100;

struct Column {
  std::string title;
  bool right = false;   ///< numbers
};

/// Header, rule and rows, two spaces between columns. The last column takes what is left and wraps.
[[nodiscard]] std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows, std::size_t indent = 2);

/// Two blocks of lines beside each other.
[[nodiscard]] std::string beside(std::string_view left, std::string_view right, std::size_t gap = 4);

/// Breaks at spaces; lines after the first start with `indent` spaces.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t width, std::size_t indent);

/// Text from a file without control characters, which could steer a terminal; other UTF-8 stays.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace moeplan::cli
