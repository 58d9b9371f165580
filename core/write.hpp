#pragma once
/// From the value types to JSON, by the same field lists that `core/read.hpp` reads by.

#include "core/read.hpp"

namespace moeplan {

/// Optional fields without a value are left out. Reading the result gives an equal value (a test holds every type to it).
template <class T>
[[nodiscard]] Json to_json(const T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (NamedEnum<T>) {
    return std::string(name_of(value));
  } else if constexpr (detail::IsQuantity<T>::value) {
    return exact_text(value);
  } else if constexpr (detail::IsOptional<T>::value) {
    return value ? to_json(*value) : Json(nullptr);
  } else if constexpr (detail::IsVector<T>::value) {
    Json out = Json::array();
    for (const auto& each : value) out.push_back(to_json(typename T::value_type(each)));
    return out;
  } else if constexpr (detail::IsMap<T>::value) {
    Json out = Json::object();
    for (const auto& [key, each] : value) out[key] = to_json(each);
    return out;
  } else if constexpr (detail::IsVariant<T>::value) {
    return std::visit([](const auto& each) {
      Json out = Json::object();
      out["kind"] = std::string(std::decay_t<decltype(each)>::kind);
      const Json body = to_json(each);
      for (const auto& [key, v] : body.items()) out[key] = v;
      return out;
    }, value);
  } else {
    static_assert(HasFields<T>, "a type without a field list");
    Json out = Json::object();
    for_each_field<T>([&](const auto& f) {
      using Member = std::remove_cvref_t<decltype(value.*(f.member))>;
      if constexpr (detail::IsOptional<Member>::value) if (!(value.*(f.member))) return;
      out[std::string(f.name)] = to_json(value.*(f.member));
    });
    return out;
  }
}

}  // namespace moeplan
