#include "core/quantity.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace moeplan {
namespace {

struct Unit {
  std::string_view name;
  double scale;
  bool shown = true;  ///< used by human(); the others are only read
};

constexpr std::array kBytes{Unit{"B", 1},      Unit{"kB", 1e3},          Unit{"MB", 1e6},       Unit{"GB", 1e9},
                            Unit{"TB", 1e12},  Unit{"PB", 1e15},         Unit{"KiB", 1024, false},
                            Unit{"MiB", 1048576, false}, Unit{"GiB", 1073741824, false},
                            Unit{"TiB", 1099511627776, false}};
constexpr std::array kSeconds{Unit{"ps", 1e-12, false}, Unit{"ns", 1e-9}, Unit{"us", 1e-6}, Unit{"ms", 1e-3},
                              Unit{"s", 1},             Unit{"min", 60, false}, Unit{"h", 3600, false},
                              Unit{"d", 86400, false}};
constexpr std::array kFlops{Unit{"FLOP", 1}, Unit{"GFLOP", 1e9}, Unit{"TFLOP", 1e12}, Unit{"PFLOP", 1e15},
                            Unit{"EFLOP", 1e18}};
constexpr std::array kByteRate{Unit{"B/s", 1}, Unit{"kB/s", 1e3}, Unit{"MB/s", 1e6}, Unit{"GB/s", 1e9},
                               Unit{"TB/s", 1e12}, Unit{"Gb/s", 1.25e8, false}};
constexpr std::array kFlopRate{Unit{"FLOP/s", 1}, Unit{"GFLOP/s", 1e9}, Unit{"TFLOP/s", 1e12}, Unit{"PFLOP/s", 1e15}};
constexpr std::array kPrice{Unit{"USD/h", 1}};

template <class Q> struct Table;
template <> struct Table<Bytes> { static constexpr std::span<const Unit> units = kBytes; static constexpr std::string_view example = "80 GiB"; };
template <> struct Table<Seconds> { static constexpr std::span<const Unit> units = kSeconds; static constexpr std::string_view example = "1.2 us"; };
template <> struct Table<Flops> { static constexpr std::span<const Unit> units = kFlops; static constexpr std::string_view example = "1.5 TFLOP"; };
template <> struct Table<BytesPerSecond> { static constexpr std::span<const Unit> units = kByteRate; static constexpr std::string_view example = "3.35 TB/s"; };
template <> struct Table<FlopsPerSecond> { static constexpr std::span<const Unit> units = kFlopRate; static constexpr std::string_view example = "989 TFLOP/s"; };
template <> struct Table<DollarsPerHour> { static constexpr std::span<const Unit> units = kPrice; static constexpr std::string_view example = "3.5 USD/h"; };

}  // namespace

template <class Q> std::string_view example_of() { return Table<Q>::example; }

template <class Q>
std::optional<Q> parse_quantity(std::string_view text) {
  double number = 0;
  if (text.size() > 64) return std::nullopt;
  if constexpr (std::is_integral_v<typename Q::Rep>) {
    // Whole numbers are read exactly: a double holds only 53 bits.
    std::int64_t whole = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
    std::string_view unit = text.substr(static_cast<std::size_t>(rest - text.data()));
    while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
    for (const Unit& u : Table<Q>::units) {
      std::int64_t scaled = 0;
      if (error != std::errc{} || u.name != unit) continue;
      if (__builtin_mul_overflow(whole, static_cast<std::int64_t>(u.scale), &scaled)) return std::nullopt;
      return Q{scaled};
    }
  }
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec != std::errc{} || !std::isfinite(number)) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& u : Table<Q>::units) {
    if (u.name != unit) continue;
    const double scaled = number * u.scale;
    if constexpr (std::is_integral_v<typename Q::Rep>) {
      if (std::abs(scaled) >= 9.2e18) return std::nullopt;
      return Q{static_cast<typename Q::Rep>(std::llround(scaled))};
    } else {
      if (!std::isfinite(scaled)) return std::nullopt;
      return Q{scaled};
    }
  }
  return std::nullopt;
}

template <class Q>
std::string exact_text(Q q) {
  const auto units = Table<Q>::units;
  std::string best;
  for (const Unit& u : units) {
    std::string text = fmt::format("{} {}", static_cast<double>(q.value) / u.scale, u.name);
    if (parse_quantity<Q>(text) != std::optional<Q>(q)) continue;
    if (best.empty() || text.size() < best.size()) best = std::move(text);
  }
  return best.empty() ? fmt::format("{} {}", q.value, units.front().name) : best;
}

template <class Q>
std::string human(Q q) {
  const double v = static_cast<double>(q.value);
  const Unit* unit = nullptr;
  for (const Unit& u : Table<Q>::units)  // 0.9995: 999.96 GB is shown as 1.00 TB
    if (u.shown && (!unit || std::abs(v) >= 0.9995 * u.scale)) unit = &u;
  if (v == 0)
    for (const Unit& u : Table<Q>::units)
      if (u.scale == 1) return fmt::format("0 {}", u.name);
  const double scaled = v / unit->scale;
  if (std::is_integral_v<typename Q::Rep> && unit->scale == 1) return fmt::format("{} {}", q.value, unit->name);
  const int digits = std::abs(scaled) >= 99.95 ? 0 : std::abs(scaled) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", scaled, digits, unit->name);
}

#define MOEPLAN_QUANTITY(Q)                                        \
  template std::string_view example_of<Q>();                       \
  template std::optional<Q> parse_quantity<Q>(std::string_view);   \
  template std::string exact_text<Q>(Q);                           \
  template std::string human<Q>(Q);
MOEPLAN_QUANTITY(Bytes)
MOEPLAN_QUANTITY(Seconds)
MOEPLAN_QUANTITY(Flops)
MOEPLAN_QUANTITY(BytesPerSecond)
MOEPLAN_QUANTITY(FlopsPerSecond)
MOEPLAN_QUANTITY(DollarsPerHour)
#undef MOEPLAN_QUANTITY

}  // namespace moeplan
