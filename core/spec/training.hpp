#pragma once
/// How a weight class is trained; the word that workloads and operator contracts share.

#include "core/fields.hpp"

namespace moeplan {

/// How a weight class is trained.
enum class Training : std::uint8_t { frozen, full, lora };
template <>
struct EnumNames<Training> {
  static constexpr std::array names{std::pair{Training::frozen, std::string_view("frozen")},
                                    std::pair{Training::full, std::string_view("full")},
                                    std::pair{Training::lora, std::string_view("lora")}};
};

}  // namespace moeplan
