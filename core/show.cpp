#include "core/show.hpp"

#include <fmt/format.h>

#include <cmath>

namespace moeplan {
namespace {

std::string three_digits(double v) {
  const int digits = std::abs(v) >= 99.95 ? 0 : std::abs(v) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}", v, digits);
}

}  // namespace

std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (n < 0 ? 1 : 0); at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string short_count(double n) {
  for (const auto& [scale, name] : {std::pair{1e12, " T"}, std::pair{1e9, " B"}, std::pair{1e6, " M"}, std::pair{1e3, " k"}})
    if (std::abs(n) >= 0.9995 * scale) return three_digits(n / scale) + name;
  return fmt::format("{:.0f}", n);
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string duration(Seconds s) {
  if (s.value < 120) return human(s);
  if (s.value < 2 * 3600) return three_digits(s.value / 60) + " min";
  if (s.value < 2 * 86400) return three_digits(s.value / 3600) + " h";
  return three_digits(s.value / 86400) + " d";
}

std::string dollars(double usd) {
  if (std::abs(usd) < 100) return fmt::format("${:.2f}", usd);
  return "$" + (std::abs(usd) < 1e15 ? grouped(std::llround(usd)) : fmt::format("{:.3g}", usd));
}

}  // namespace moeplan
