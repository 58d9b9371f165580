#include "executor/checkpoint/durable.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t x = i;
    for (int b = 0; b < 8; ++b) x = x & 1 ? x >> 1 ^ 0x82F63B78u : x >> 1;
    table[i] = x;
  }
  return table;
}

[[noreturn]] void refuse(const fs::path& file, const char* doing) {
  const int error = errno;
  throw InputError(file.string(), fmt::format("cannot {}: {}", doing, std::strerror(error)), error == ENOSPC || error == EDQUOT ? "make room; what was saved before is untouched" : "");
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes, std::uint32_t before) {
  static constexpr auto table = crc_table();
  std::uint32_t x = ~before;
  for (const char c : bytes) x = table[(x ^ static_cast<unsigned char>(c)) & 0xff] ^ x >> 8;
  return ~x;
}

std::uint32_t write_durable(const fs::path& file, const std::vector<std::string_view>& parts, const std::function<void()>& told, std::size_t piece) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) refuse(file, "create");
  const auto fail = [&](const char* doing) {
    const int error = errno;
    ::close(fd);
    ::unlink(file.c_str());
    errno = error;
    refuse(file, doing);
  };
  std::uint32_t crc = 0;
  std::size_t unflushed = 0;
  for (std::string_view rest : parts)
    while (!rest.empty()) {
      const ssize_t n = ::write(fd, rest.data(), std::min(rest.size(), piece - unflushed));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write");
      crc = crc32c(rest.substr(0, static_cast<std::size_t>(n)), crc);
      rest.remove_prefix(static_cast<std::size_t>(n));
      unflushed += static_cast<std::size_t>(n);
      if (unflushed < piece) continue;
      // Not at the end alone: one flush of all that lies in memory would say nothing for as long as the disk takes.
      if (::fdatasync(fd) != 0) fail("flush");
      unflushed = 0;
      if (told) told();
    }
  if (::fsync(fd) != 0) fail("flush");
  if (::close(fd) != 0) refuse(file, "close");
  if (told) told();
  return crc;
}

Summed summed(const fs::path& file, const std::function<void()>& told, std::size_t piece) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);   // a FIFO must not hang us
  if (fd < 0) refuse(file, "open");
  const struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat info {};
  if (::fstat(fd, &info) != 0) refuse(file, "stat");
  if (!S_ISREG(info.st_mode)) throw InputError(file.string(), "is not a regular file");
  Summed out;
  std::string buffer(std::min(piece, static_cast<std::size_t>(info.st_size) + 1), '\0');
  while (true) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(file, "read");
    if (n == 0) return out;
    out.bytes += n;
    out.crc32c = crc32c({buffer.data(), static_cast<std::size_t>(n)}, out.crc32c);
    if (told) told();
  }
}

void flush_directory(const fs::path& directory) {
  const int fd = ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) refuse(directory, "open");
  const bool good = ::fsync(fd) == 0 || errno == EINVAL;   // some file systems do not flush directories
  ::close(fd);
  if (!good) refuse(directory, "flush");
}

fs::path fresh_directory(const fs::path& target) {
  for (int n = 0; n < 1000; ++n) {
    const fs::path at = fs::path(target).concat(fmt::format(".tmp-{}-{}", ::getpid(), n));
    std::error_code error;
    if (!at.parent_path().empty()) fs::create_directories(at.parent_path(), error);
    if (fs::create_directory(at, error)) return at;
    if (error) throw InputError(at.string(), "cannot be made: " + error.message());
  }
  throw InputError(target.string(), "a thousand unfinished saves lie beside it", "remove *.tmp-*");
}

void commit_directory(const fs::path& from, const fs::path& to) {
  flush_directory(from);
  if (::rename(from.c_str(), to.c_str()) != 0) refuse(to, "put in place");
  flush_directory(to.parent_path());
}

void replace_directory(const fs::path& from, const fs::path& to) {
  if (!fs::exists(to)) return commit_directory(from, to);
  flush_directory(from);
  const fs::path aside = fs::path(to).concat(fmt::format(".old-{}", ::getpid()));
  std::error_code error;
  fs::remove_all(aside, error);
  if (::rename(to.c_str(), aside.c_str()) != 0) refuse(to, "move aside");
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int failed = errno;
    if (::rename(aside.c_str(), to.c_str()) != 0) refuse(aside, "move back");
    errno = failed;
    refuse(to, "put in place");
  }
  flush_directory(to.parent_path());
  fs::remove_all(aside, error);
}

void require_space(const fs::path& directory, std::int64_t bytes) {
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0) return;   // a file system that does not say
  const auto left = static_cast<std::int64_t>(info.f_bavail) * static_cast<std::int64_t>(info.f_frsize);
  if (left < bytes) throw InputError(directory.string(), fmt::format("has {} bytes left, the save needs {}", left, bytes), "make room; what was saved before is untouched");
}

}  // namespace moeplan
