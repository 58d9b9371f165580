#pragma once
/// Files that survive what happens next: written whole, flushed to the disk, and put in place by one rename.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace moeplan {

/// CRC-32C (Castagnoli), as iSCSI and ext4 use it.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

/// Of these many bytes `told` hears, so that who waits can tell a slow disk from one that hangs: 1.7 MB/s bring them within 40 s (kStalled).
inline constexpr std::size_t kPiece = std::size_t{64} << 20;
/// Writes a new file, the parts one after another, and flushes it; gives its CRC-32C. `told` hears of each piece that is on the disk.
/// Throws InputError naming the file and what the system said; what was written is then removed.
std::uint32_t write_durable(const std::filesystem::path& file, const std::vector<std::string_view>& parts, const std::function<void()>& told = {}, std::size_t piece = kPiece);
/// Bytes and CRC-32C of a regular file, read in pieces. Throws InputError naming the file.
struct Summed {
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
};
[[nodiscard]] Summed summed(const std::filesystem::path& file, const std::function<void()>& told = {}, std::size_t piece = kPiece);
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
