#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "core/checked.hpp"
#include "core/read.hpp"
#include "sim/program/checkpoint.hpp"
#include "sim/program/shard_files.hpp"

namespace moeplan {
namespace {

constexpr std::int64_t most_header_bytes = 100'000'000;
constexpr std::size_t most_tensors = 5'000'000, most_name_bytes = 4096, most_dimensions = 32;

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= most_name_bytes && std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 32 || c == 127; });
}

/// Bits of an element; 0 for an unknown word.
std::int64_t bits(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64" || dtype == "C64") return 64;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 32;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 16;
  if (dtype == "F8_E4M3" || dtype == "F8_E5M2" || dtype == "F8_E4M3FNUZ" || dtype == "F8_E5M2FNUZ" || dtype == "F8_E8M0" || dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 8;
  if (dtype == "F6_E2M3" || dtype == "F6_E3M2") return 6;
  if (dtype == "F4") return 4;
  return 0;
}

void read_all(int fd, char* to, std::size_t size, std::int64_t offset, const std::string& where) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t n = ::pread(fd, to + done, size - done, offset + static_cast<std::int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw InputError(where, n < 0 ? std::string("cannot read: ") + std::strerror(errno) : "ends before its header does");
    done += static_cast<std::size_t>(n);
  }
}

StoredTensor tensor(const Place& entry, const std::string& name, std::int64_t data_bytes) {
  if (!entry.value().is_object()) entry.wrong_type("an object");
  for (const char* field : {"dtype", "shape", "data_offsets"})
    if (!entry.value().contains(field)) throw InputError(entry.child(field), "is missing");
  StoredTensor t{.name = name, .dtype = read_string(entry.at("dtype")), .shape = {}};
  const std::int64_t size = bits(t.dtype);
  if (size == 0) entry.at("dtype").refuse("unknown type " + shown(t.dtype));
  const Place shape = entry.at("shape"), offsets = entry.at("data_offsets");
  if (!shape.value().is_array()) shape.wrong_type("a list");
  if (shape.value().size() > most_dimensions) shape.refuse(fmt::format("{} dimensions, more than {}", shape.value().size(), most_dimensions));
  if (!offsets.value().is_array() || offsets.value().size() != 2) offsets.wrong_type("two byte offsets");
  constexpr double most = 9.0e18;
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < shape.value().size(); ++i) {
    t.shape.push_back(read_integer(shape.at(i), {0, most}));
    elements = checked_mul(elements, t.shape.back(), shape.path().c_str());
  }
  t.begin = read_integer(offsets.at(std::size_t{0}), {0, most});
  t.end = read_integer(offsets.at(std::size_t{1}), {0, most});
  if (t.end < t.begin) offsets.refuse(fmt::format("end {} is before begin {}", t.end, t.begin));
  if (t.end > data_bytes) offsets.refuse(fmt::format("ends at byte {}, but the file has {} bytes of data", t.end, data_bytes));
  const std::int64_t all_bits = checked_mul(elements, size, shape.path().c_str()), expected = all_bits / 8;
  if (all_bits % 8 != 0) shape.refuse(fmt::format("{} elements of {} bits do not end on a byte", elements, size));
  if (t.end - t.begin != expected) offsets.refuse(fmt::format("hold {} bytes, but the shape and type need {}", t.end - t.begin, expected));
  return t;
}

}  // namespace

DirectoryHandle::DirectoryHandle(const std::filesystem::path& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) throw InputError(path.string(), std::string("cannot open the directory: ") + std::strerror(errno));
}

DirectoryHandle::~DirectoryHandle() { ::close(fd_); }

std::optional<RegularFile> DirectoryHandle::open(const std::string& name) const {
  const std::string where = (path_ / name).string();
  const int fd = ::openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return std::nullopt;
    throw InputError(where, errno == ELOOP ? "is a symbolic link, which is not followed" : std::string("cannot open: ") + std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw InputError(where, "is not a regular file");
  }
  return RegularFile(fd, static_cast<std::int64_t>(info.st_size), where);
}

RegularFile::~RegularFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::string RegularFile::read(std::int64_t offset, std::int64_t size) const {
  std::string out(static_cast<std::size_t>(size), '\0');
  read_all(fd_, out.data(), out.size(), offset, where_);
  return out;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' && name.find_first_of(std::string("/\\:\0", 4)) == std::string::npos;
}

std::vector<StoredTensor> read_header(const RegularFile& file) {
  const std::string& where = file.where();
  if (file.size() < 8) throw InputError(where, fmt::format("{} bytes are too few for a safetensors file", file.size()));
  const std::string length = file.read(0, 8);
  std::uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<unsigned char>(length[static_cast<std::size_t>(i)]);
  if (header > static_cast<std::uint64_t>(most_header_bytes)) throw InputError(where, fmt::format("a header of {} bytes, more than {}", header, most_header_bytes));
  const auto size = static_cast<std::int64_t>(header);
  if (size > file.size() - 8) throw InputError(where, fmt::format("a header of {} bytes in a file of {}", size, file.size()));
  const std::string text = file.read(8, size);
  if (const auto first = text.find_first_not_of(" \t\r\n"); first == std::string::npos || text[first] != '{') throw InputError(where, "the header does not start with {");
  const Json json = parse_json(text, where, {.max_bytes = static_cast<std::size_t>(most_header_bytes), .max_depth = 8});
  const Place root(json, where);
  std::vector<StoredTensor> out;
  const std::int64_t data = file.size() - 8 - size;
  std::int64_t total = 0;
  if (json.size() > most_tensors) throw InputError(where, fmt::format("{} tensors, more than {}", json.size(), most_tensors));
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      const Place metadata = root.at(name);
      if (!value.is_object()) metadata.wrong_type("an object of texts");
      for (const auto& [key, each] : value.items()) (void)read_string(metadata.at(key));
      continue;
    }
    if (!is_name(name)) throw InputError(where, "a tensor's name is " + (name.empty() ? std::string("empty") : shown(name)), "1 to 4096 bytes, no control characters");
    out.push_back(tensor(root.at(name), name, data));
  }
  std::vector<const StoredTensor*> in_order;
  for (const StoredTensor& t : out) in_order.push_back(&t);
  std::sort(in_order.begin(), in_order.end(), [](const auto* x, const auto* y) { return std::tie(x->begin, x->end, x->name) < std::tie(y->begin, y->end, y->name); });
  for (const StoredTensor* t : in_order) {
    if (t->begin != total)
      throw InputError(where, fmt::format("tensor {} begins at byte {} of the data, the one before ends at {}: {}", shown(t->name), t->begin, total, t->begin < total ? "they overlap" : "a hole"));
    total = t->end;
  }
  if (total != data) throw InputError(where, fmt::format("tensors end at byte {}, the data at {}", total, data));
  return out;
}

std::vector<StoredTensor> read_safetensors_header(const std::filesystem::path& directory, const std::string& name) {
  if (!is_plain_name(name)) throw InputError(directory.string(), "shard name " + shown(name) + " is not a plain file name");
  const auto file = DirectoryHandle(directory).open(name);
  if (!file) throw InputError((directory / name).string(), "does not exist");
  return read_header(*file);
}

}  // namespace moeplan
