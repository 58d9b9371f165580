#pragma once
/// Strict JSON from untrusted files. Size, depth and number length are capped, duplicate keys and invalid UTF-8 refused,
/// every error names file and byte. Values are nlohmann::ordered_json, so what is written keeps its order.

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace moeplan {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  std::size_t max_bytes = std::size_t{64} << 20;
  std::size_t max_depth = 64;
  std::size_t max_values = 1'500'000;  ///< bounds the memory that a file can cost, about 100 bytes a value
  /// HF files carry `Infinity` and `NaN` in fields nobody uses: read as strings, so that using one is a type error.
  bool tolerate_nonfinite_literals = false;
};

/// Parses `text`; `where` is the file name that errors show. Throws InputError.
[[nodiscard]] Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

/// Reads a regular file of at most `max_bytes`. Throws InputError for a directory, FIFO, device or missing file.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

/// `read_text_file` then `parse_json`.
[[nodiscard]] Json load_json(const std::filesystem::path& path, const JsonLimits& limits = {});

/// Writes to a temporary name beside `path`, then renames; a link is followed, a device or directory refused.
/// Throws InputError and leaves nothing if it cannot.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace moeplan
