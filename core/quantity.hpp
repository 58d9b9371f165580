#pragma once
/// Numbers with units as types. Files write them with their unit ("80 GiB", "3.35 TB/s", "1.2 us"); a bare number where a
/// unit belongs is an error. Arithmetic keeps units: Bytes / BytesPerSecond = Seconds.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moeplan {

/// A number of one unit. `Tag` names the unit, `Rep` is how it is held.
template <class Tag, class Rep_>
struct Quantity {
  using Rep = Rep_;
  Rep value{};

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity o) { value += o.value; return *this; }
  constexpr Quantity& operator-=(Quantity o) { value -= o.value; return *this; }
  constexpr Quantity& operator*=(Rep s) { value *= s; return *this; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return a += b; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return a -= b; }
  friend constexpr Quantity operator*(Quantity a, Rep s) { return {a.value * s}; }
  friend constexpr Quantity operator*(Rep s, Quantity a) { return {a.value * s}; }
  friend constexpr Quantity operator/(Quantity a, Rep s) { return {a.value / s}; }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value) / static_cast<double>(b.value);
  }
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Seconds = Quantity<struct SecondsTag, double>;
using Flops = Quantity<struct FlopsTag, double>;  ///< floating-point operations; a multiply-add is two
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;
using DollarsPerHour = Quantity<struct DollarsPerHourTag, double>;

[[nodiscard]] constexpr Seconds operator/(Bytes b, BytesPerSecond r) { return {static_cast<double>(b.value) / r.value}; }
[[nodiscard]] constexpr Seconds operator/(Flops f, FlopsPerSecond r) { return {f.value / r.value}; }

namespace literals {
constexpr Bytes operator""_B(unsigned long long v) { return {static_cast<std::int64_t>(v)}; }
constexpr Bytes operator""_KiB(unsigned long long v) { return {static_cast<std::int64_t>(v) << 10}; }
constexpr Bytes operator""_MiB(unsigned long long v) { return {static_cast<std::int64_t>(v) << 20}; }
constexpr Bytes operator""_GiB(unsigned long long v) { return {static_cast<std::int64_t>(v) << 30}; }
}  // namespace literals

/// What a unit's text looks like, for messages: "80 GiB".
template <class Q>
[[nodiscard]] std::string_view example_of();

/// Reads "80 GiB"; nothing if the text is not a finite number followed by a unit of this quantity.
template <class Q>
[[nodiscard]] std::optional<Q> parse_quantity(std::string_view text);

/// Writes a text that `parse_quantity` reads back to the same value.
template <class Q>
[[nodiscard]] std::string exact_text(Q q);

/// Writes for people, three significant digits: "85.1 GB", "1.92 s", "44.5 TB".
template <class Q>
[[nodiscard]] std::string human(Q q);

}  // namespace moeplan
