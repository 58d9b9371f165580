#pragma once
/// What a device profile may hold besides operator calls, by key: "NAME bytes=N" with the time it took.

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace moeplan {

inline constexpr std::string_view kLaunchKey = "launch";                  ///< what a call adds to its own time where calls follow each other on the device
inline constexpr std::string_view kCopyColumnsKey = "copy_columns";       ///< columns of a tensor made dense, or put back: so many bytes of them
inline constexpr std::string_view kToDeviceKey = "to_device", kToHostKey = "to_host";   ///< from and to pinned host memory
inline constexpr std::string_view kAllocateKey = "allocate";              ///< so many bytes from the driver
inline constexpr std::string_view kBusyKey = "busy";                      ///< for so long the device multiplied matrices before each sample; without it none did
inline constexpr std::string_view kDelayKey = "delay";                    ///< "delay all_gather payload=N ranks=M": how much longer products take beside one such call

[[nodiscard]] inline std::string bytes_key(std::string_view name, std::int64_t bytes) { return std::string(name) + " bytes=" + std::to_string(bytes); }
/// The bytes of a key with that name; nothing of another.
[[nodiscard]] inline std::optional<double> bytes_of_key(std::string_view key, std::string_view name) {
  constexpr std::string_view word = " bytes=";
  if (!key.starts_with(name) || !key.substr(name.size()).starts_with(word)) return std::nullopt;
  const std::string_view digits = key.substr(name.size() + word.size());
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value <= 0) return std::nullopt;
  return static_cast<double>(value);
}

}  // namespace moeplan
