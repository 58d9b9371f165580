#pragma once
/// Files that survive what happens next: written whole, flushed to the disk, and put in place by one rename.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace moeplan {

/// CRC-32C (Castagnoli), as iSCSI and ext4 use it.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

/// Writes a new file and flushes it. Throws InputError naming the file and what the system said; what was written is then removed.
void write_durable(const std::filesystem::path& file, std::string_view bytes);
/// Flushes a directory's entries.
void flush_directory(const std::filesystem::path& directory);
/// A fresh directory beside `target` ("target.tmp-<process>-<n>").
[[nodiscard]] std::filesystem::path fresh_directory(const std::filesystem::path& target);
/// Puts `from` in the place of `to`, which must not be there, and flushes the parent.
void commit_directory(const std::filesystem::path& from, const std::filesystem::path& to);
/// Puts `from` in the place of `to`, moving an older `to` aside first and removing it afterwards.
void replace_directory(const std::filesystem::path& from, const std::filesystem::path& to);
/// Refuses where the file system has less than `bytes` left.
void require_space(const std::filesystem::path& directory, std::int64_t bytes);

}  // namespace moeplan
