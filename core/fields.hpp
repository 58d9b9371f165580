#pragma once
/// One field list per struct, from which reading, writing, refusals, documentation and calibration keys are derived.
///
///   struct Link {
///     BytesPerSecond bandwidth; Seconds latency;
///     template <class = void> static constexpr auto fields() {  // a template: only files that use the list pay for its types
///       return std::make_tuple(field("bandwidth", &Link::bandwidth, "one direction, per device").required().above(0),
///                              field("latency", &Link::latency, "one hop").at_least(0));
///     }
///   };

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

namespace moeplan {

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false;  ///< `low` itself is refused
};

template <class Struct, class Member>
struct Field {
  std::string_view name;
  Member Struct::*member;
  std::string_view doc;
  Range range{};
  bool is_required = false;

  constexpr Field required() const { Field f = *this; f.is_required = true; return f; }
  constexpr Field at_least(double v) const { Field f = *this; f.range.low = v; return f; }
  constexpr Field above(double v) const { Field f = *this; f.range.low = v; f.range.open_low = true; return f; }
  constexpr Field at_most(double v) const { Field f = *this; f.range.high = v; return f; }
  constexpr Field between(double a, double b) const { return at_least(a).at_most(b); }
};

template <class Struct, class Member>
[[nodiscard]] constexpr Field<Struct, Member> field(std::string_view name, Member Struct::*member, std::string_view doc = {}) {
  return {name, member, doc};
}

template <class T>
concept HasFields = requires { T::fields(); };

/// Calls `f(field)` for each field of `T`, in order.
template <HasFields T, class F>
constexpr void for_each_field(F&& f) {
  std::apply([&](const auto&... each) { (f(each), ...); }, T::fields());
}

/// The names of an enum's values; specialise with `static constexpr std::array<std::pair<E, std::string_view>, N> names`.
template <class E>
struct EnumNames;

template <class E>
concept NamedEnum = requires { EnumNames<E>::names; };

template <NamedEnum E>
[[nodiscard]] constexpr std::string_view name_of(E value) {
  for (const auto& [v, name] : EnumNames<E>::names)
    if (v == value) return name;
  return "?";
}

/// The tag that stands for alternative `T` of a variant in a file: `{"kind": "mla", ...}`.
template <class T>
concept HasKind = requires { { T::kind } -> std::convertible_to<std::string_view>; };

}  // namespace moeplan
