#pragma once
/// Numbers for people, three significant digits. The command line and the window show the same text.

#include <cstdint>
#include <string>

#include "core/quantity.hpp"

namespace moeplan {

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

}  // namespace moeplan
