#pragma once
/// Text for people: tables of at most 100 columns, numbers with three digits, lines that fit a terminal.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/quantity.hpp"

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

/// 2,779,931,834,976
[[nodiscard]] std::string grouped(std::int64_t n);
/// 2.78 T, 105 B, 37.6 M, 512
[[nodiscard]] std::string short_count(double n);
/// 23.1 %
[[nodiscard]] std::string percent(double share);
/// 350 ms, 12.3 s, 4.6 min, 3.2 h, 11 d
[[nodiscard]] std::string duration(Seconds s);
/// $12,345
[[nodiscard]] std::string dollars(double usd);

/// Text from a file without control characters, which could steer a terminal; other UTF-8 stays.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace moeplan::cli
