#pragma once
/// A model directory's safetensors (shards, or only their index) against the tensors that the config implies. Files are opened by plain
/// base name below the directory, links are not followed, only headers are read.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/spec/model.hpp"

namespace moeplan {

struct CheckpointReport {
  std::int64_t shards_listed = 0, shards_present = 0;
  std::int64_t tensors = 0;                ///< in the present shards, or in the index if none is present
  std::int64_t bytes = 0;                  ///< of tensors in the present shards
  bool has_mtp = false, has_mtp_copies = false, has_vision = false, has_tables = false;   ///< what ships
  bool stores_tied_head = false;
  std::vector<std::string> mismatches;     ///< one line each; at most `most_lines` and a line that counts the rest
  std::vector<std::string> notes;          ///< rotary buffers, scopes that do not ship, shards that are missing
  [[nodiscard]] bool complete() const { return shards_present == shards_listed; }
  static constexpr std::size_t most_lines = 100;
};

/// Nothing if the directory has neither shards nor an index. Throws InputError for malformed files: index entries that are not plain
/// names, headers over 100 MB, shapes and offsets that disagree or leave the file, overlapping tensors.
[[nodiscard]] std::optional<CheckpointReport> check_checkpoint(const std::filesystem::path& directory, const ModelSpec& model);

/// One tensor of a safetensors header.
struct StoredTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;         ///< bytes, from the end of the header
};

/// Reads the header of `<directory>/<name>`. The header must start with `{`; spaces may pad its end, nothing else.
[[nodiscard]] std::vector<StoredTensor> read_safetensors_header(const std::filesystem::path& directory, const std::string& name);

}  // namespace moeplan
