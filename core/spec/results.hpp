#pragma once
/// What comes out: estimates with their basis, memory by category, rejections in numbers.

#include <array>
#include <string>
#include <vector>

#include "core/fields.hpp"
#include "core/quantity.hpp"

namespace moeplan {

/// What an estimate rests on, best first.
enum class Basis : std::uint8_t { measured, interpolated, roofline };
template <>
struct EnumNames<Basis> {
  static constexpr std::array names{std::pair{Basis::measured, std::string_view("measured")}, std::pair{Basis::interpolated, std::string_view("interpolated")},
                                    std::pair{Basis::roofline, std::string_view("roofline")}};
};

struct Estimate {
  Seconds median{};
  Seconds low{}, high{};   ///< central 90 %
  Basis basis = Basis::roofline;
};

enum class MemoryCategory : std::uint8_t { weights, adapters, gradients, optimizer, activations, dispatch_buffers, gathered_weights, communication, workspace, runtime_context, allocator_reserve };
template <>
struct EnumNames<MemoryCategory> {
  static constexpr std::array names{
      std::pair{MemoryCategory::weights, std::string_view("weights")}, std::pair{MemoryCategory::adapters, std::string_view("adapters")},
      std::pair{MemoryCategory::gradients, std::string_view("gradients")}, std::pair{MemoryCategory::optimizer, std::string_view("optimizer")},
      std::pair{MemoryCategory::activations, std::string_view("activations")}, std::pair{MemoryCategory::dispatch_buffers, std::string_view("dispatch_buffers")},
      std::pair{MemoryCategory::gathered_weights, std::string_view("gathered_weights")}, std::pair{MemoryCategory::communication, std::string_view("communication")},
      std::pair{MemoryCategory::workspace, std::string_view("workspace")}, std::pair{MemoryCategory::runtime_context, std::string_view("runtime_context")},
      std::pair{MemoryCategory::allocator_reserve, std::string_view("allocator_reserve")}};
};
inline constexpr std::size_t kMemoryCategories = EnumNames<MemoryCategory>::names.size();

/// Bytes live at the moment of the peak, by category: the categories sum to the peak.
struct MemoryBreakdown {
  std::array<Bytes, kMemoryCategories> at_peak{};
  Bytes host{};
  std::string peak_at;     ///< "backward of layer 57 (kda + moe), micro-batch 3"
  [[nodiscard]] Bytes& operator[](MemoryCategory c) { return at_peak[static_cast<std::size_t>(c)]; }
  [[nodiscard]] Bytes operator[](MemoryCategory c) const { return at_peak[static_cast<std::size_t>(c)]; }
  [[nodiscard]] Bytes peak() const {
    Bytes sum{};
    for (const Bytes b : at_peak) sum += b;
    return sum;
  }
  bool operator==(const MemoryBreakdown&) const = default;
};

/// An expected "no": which rule, and why in the user's numbers.
struct Rejection {
  std::string rule;
  std::string reason;
};

}  // namespace moeplan
