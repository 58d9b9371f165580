#include "executor/weights/safetensors_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.hpp"
#include "core/read.hpp"
#include "executor/backend/convert.hpp"
#include "sim/program/shard_files.hpp"

namespace moeplan {

/// A mapped shard.
struct TensorFiles::Shard {
  std::string where;
  std::byte* at = nullptr;
  std::int64_t size = 0, data = 0;   ///< of the file; where its data begins
  int fd = -1;

  Shard(const std::filesystem::path& path, std::int64_t checked_size) : where(path.string()), size(checked_size) {
    fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) throw InputError(where, std::string("cannot open: ") + std::strerror(errno));
    at = static_cast<std::byte*>(::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0));
    if (at == MAP_FAILED) {
      ::close(fd);
      throw InputError(where, std::string("cannot be mapped: ") + std::strerror(errno));
    }
    unchanged();
  }
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;
  ~Shard() {
    ::munmap(at, static_cast<std::size_t>(size));
    ::close(fd);
  }
  /// A mapping of a file that became shorter faults when it is read.
  void unchanged() const {
    struct stat now {};
    if (::fstat(fd, &now) != 0 || now.st_size != size) throw InputError(where, fmt::format("has changed: {} bytes, it had {}", static_cast<std::int64_t>(now.st_size), size), "do not write a checkpoint while it is read");
  }
};

TensorFiles::TensorFiles(TensorFiles&&) noexcept = default;
TensorFiles::~TensorFiles() = default;

void TensorFiles::add(const std::filesystem::path& directory, const std::string& file) {
  if (!is_plain_name(file)) throw InputError(directory.string(), "shard name " + shown(file) + " is not a plain file name");
  std::int64_t header = 0, size = 0;
  std::vector<StoredTensor> tensors;
  {
    const auto opened = DirectoryHandle(directory).open(file);
    if (!opened) throw InputError((directory / file).string(), "does not exist");
    tensors = read_header(*opened);
    const std::string length = opened->read(0, 8);
    for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<unsigned char>(length[static_cast<std::size_t>(i)]);
    size = opened->size();
  }
  shards_.push_back(std::make_unique<Shard>(directory / file, size));
  shards_.back()->data = 8 + header;
  for (StoredTensor& t : tensors) {
    const std::string name = t.name;
    if (!tensors_.emplace(name, Entry{std::move(t), shards_.size() - 1}).second) throw InputError((directory / file).string(), "tensor " + shown(name) + " is in another shard too");
  }
}

TensorFiles::TensorFiles(const std::filesystem::path& directory, const std::string& file) : where_((directory / file).string()) { add(directory, file); }

TensorFiles::TensorFiles(const std::filesystem::path& directory) : where_(directory.string()) {
  const DirectoryHandle handle(directory);
  if (const auto index = handle.open("model.safetensors.index.json")) {
    const Json json = parse_json(index->read(0, std::min<std::int64_t>(index->size(), std::int64_t{256} << 20)), index->where(), {.max_bytes = std::size_t{256} << 20, .max_depth = 8});
    const Place root(json, index->where());
    if (!json.is_object() || !json.contains("weight_map") || !json.at("weight_map").is_object()) throw InputError(root.child("weight_map"), "is missing", "an object from tensor to file");
    const Place map = root.at("weight_map");
    std::map<std::string, std::string> file_of;
    std::vector<std::string> files;
    for (const auto& [name, value] : map.value().items()) file_of[name] = read_string(map.at(name));
    for (const auto& [name, file] : file_of) files.push_back(file);
    std::sort(files.begin(), files.end());
    files.erase(std::unique(files.begin(), files.end()), files.end());
    for (const std::string& file : files) add(directory, file);
    for (const auto& [name, file] : file_of) {
      const auto it = tensors_.find(name);
      if (it == tensors_.end() || !shards_[it->second.shard]->where.ends_with(file)) throw InputError(map.child(name), "is not in " + shown(file));
    }
    for (const auto& [name, entry] : tensors_)
      if (!file_of.count(name)) throw InputError(shards_[entry.shard]->where, "tensor " + shown(name) + " is not in the index");
    return;
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().filename().string());
  std::sort(files.begin(), files.end());
  if (files.empty()) throw InputError(directory.string(), "holds no safetensors", "a HF model directory (pickled .bin weights are not read)");
  for (const std::string& file : files) add(directory, file);
}

const StoredTensor* TensorFiles::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second.tensor;
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : tensors_) out.push_back(name);
  return out;
}

std::span<const std::byte> TensorFiles::bytes(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw InputError(where_, "has no tensor " + shown(name));
  const StoredTensor& t = it->second.tensor;
  const Shard& shard = *shards_[it->second.shard];
  if (begin < 0 || end < begin || end > t.end - t.begin) throw InputError(shard.where, fmt::format("tensor {} has {} bytes, {} to {} are asked for", shown(name), t.end - t.begin, begin, end));
  shard.unchanged();
  if (told_) told_();
  return {shard.at + shard.data + t.begin + begin, static_cast<std::size_t>(end - begin)};
}

std::span<const std::byte> TensorFiles::bytes(const std::string& name) const {
  const StoredTensor* t = find(name);
  return bytes(name, 0, t ? t->end - t->begin : 0);
}

std::vector<float> TensorFiles::floats(const std::string& name, std::int64_t begin, std::int64_t count) const {
  const StoredTensor* t = find(name);
  if (!t) throw InputError(where_, "has no tensor " + shown(name));
  std::vector<float> out(static_cast<std::size_t>(count));
  const NumberType type = number_type(*t, where_);
  constexpr std::int64_t most = std::int64_t{1} << 24;
  for (std::int64_t at = 0; at < count || at == 0; at += most) {
    const std::int64_t n = std::min(most, count - at);
    type.decode(bytes(name, (begin + at) * type.bytes, (begin + at + n) * type.bytes).data(), std::span(out).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n)));
  }
  return out;
}

namespace {

template <DType type>
void plain(const std::byte* from, std::span<float> to) { to_floats(type, from, to); }
template <float (*value)(std::uint8_t)>
void coded(const std::byte* from, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = value(static_cast<std::uint8_t>(from[i]));
}
void doubles(const std::byte* from, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    double x;
    std::memcpy(&x, from + 8 * i, 8);
    to[i] = static_cast<float>(x);
  }
}

}  // namespace

NumberType number_type(const StoredTensor& t, const std::string& where) {
  static const std::map<std::string, NumberType> known{
      {"F32", {4, plain<DType::f32>}}, {"BF16", {2, plain<DType::bf16>}}, {"F16", {2, plain<DType::f16>}}, {"I32", {4, plain<DType::i32>}}, {"I64", {8, plain<DType::i64>}},
      {"U8", {1, plain<DType::u8>}}, {"F8_E4M3", {1, coded<from_e4m3>}}, {"F8_E5M2", {1, coded<from_e5m2>}}, {"F8_E8M0", {1, coded<from_e8m0>}}, {"F64", {8, doubles}}};
  const auto it = known.find(t.dtype);
  if (it == known.end()) throw InputError(where, fmt::format("tensor {} is {}", shown(t.name), t.dtype), "F32, BF16, F16, F64, F8_E4M3, F8_E5M2, F8_E8M0, I32, I64 or U8");
  return it->second;
}

std::string safetensors_header(std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  Json header = Json::object();
  header["__metadata__"] = {{"format", "pt"}};
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  std::int64_t at = 0;
  for (const NamedTensor& t : tensors) {
    const auto bytes = static_cast<std::int64_t>(4 * t.values.size());
    header[t.name] = {{"dtype", "F32"}, {"shape", t.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text;
}

std::vector<std::string_view> safetensors_parts(const std::string& header, const std::vector<NamedTensor>& tensors) {
  std::vector<std::string_view> out{header};
  for (const NamedTensor& t : tensors) out.emplace_back(reinterpret_cast<const char*>(t.values.data()), 4 * t.values.size());
  return out;
}

std::string safetensors_bytes(std::vector<NamedTensor> tensors, const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header(tensors, metadata);
  std::string out;
  for (const std::string_view part : safetensors_parts(header, tensors)) out += part;
  return out;
}

}  // namespace moeplan
