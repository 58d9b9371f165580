#pragma once
/// Files of a model directory, opened once: below the directory, by plain name, no links, regular files only.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/program/checkpoint.hpp"

namespace moeplan {

/// An open regular file. Movable.
class RegularFile {
 public:
  RegularFile(int fd, std::int64_t size, std::string where) : fd_(fd), size_(size), where_(std::move(where)) {}
  RegularFile(RegularFile&& o) noexcept : fd_(o.fd_), size_(o.size_), where_(std::move(o.where_)) { o.fd_ = -1; }
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;
  ~RegularFile();

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  /// `size` bytes from `offset`; throws InputError if the file is shorter by now.
  [[nodiscard]] std::string read(std::int64_t offset, std::int64_t size) const;

 private:
  int fd_;
  std::int64_t size_;
  std::string where_;
};

class DirectoryHandle {
 public:
  explicit DirectoryHandle(const std::filesystem::path& path);
  DirectoryHandle(const DirectoryHandle&) = delete;
  DirectoryHandle& operator=(const DirectoryHandle&) = delete;
  ~DirectoryHandle();

  /// Nothing if there is no such file; throws InputError for links, directories, FIFOs and devices. `name` must be plain.
  [[nodiscard]] std::optional<RegularFile> open(const std::string& name) const;

 private:
  std::filesystem::path path_;
  int fd_;
};

/// No separator, drive letter, NUL or leading dot; at most 255 bytes.
[[nodiscard]] bool is_plain_name(const std::string& name);

[[nodiscard]] std::vector<StoredTensor> read_header(const RegularFile& file);

}  // namespace moeplan
