#include "executor/data/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>

#include "core/error.hpp"
#include "core/read.hpp"
#include "executor/backend/convert.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostLine = std::size_t{64} << 20;

/// A regular file read by stretches.
class FileBytes {
 public:
  explicit FileBytes(const fs::path& path) : where_(path.string()) {
    if (!fs::is_regular_file(path)) throw InputError(where_, fs::exists(path) ? "is not a regular file" : "does not exist");
    in_.open(path, std::ios::binary);
    if (!in_) throw InputError(where_, "cannot be opened");
    size_ = static_cast<std::int64_t>(fs::file_size(path));
  }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  std::string read(std::int64_t begin, std::int64_t count) {
    if (begin < 0 || count < 0 || begin > size_ || count > size_ - begin) throw InputError(where_, fmt::format("bytes {} to {} of a file of {}", begin, begin + count, size_));
    std::string out(static_cast<std::size_t>(count), '\0');
    in_.clear();
    in_.seekg(begin);
    if (!in_.read(out.data(), count)) throw InputError(where_, fmt::format("cannot read {} bytes at {}", count, begin));
    return out;
  }

 private:
  std::string where_;
  std::ifstream in_;
  std::int64_t size_ = 0;
};

template <class T>
T number_at(const std::string& text, std::size_t at) {
  T x;
  std::memcpy(&x, text.data() + at, sizeof(T));
  return x;
}

std::vector<std::int32_t> ids(const Place& list, std::int64_t vocabulary, bool labels) {
  if (!list.value().is_array()) list.wrong_type("a list of token ids");
  std::vector<std::int32_t> out;
  out.reserve(list.value().size());
  for (std::size_t i = 0; i < list.value().size(); ++i) {
    const std::int64_t id = read_integer(list.at(i), {-1e9, 1e9});
    if ((id < 0 && !(labels && id == -100)) || id >= vocabulary) list.at(i).refuse(fmt::format("id {} is outside the vocabulary of {}", id, vocabulary));
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

}  // namespace

Dataset jsonl_dataset(const fs::path& path, std::int64_t vocabulary) {
  const auto file = std::make_shared<FileBytes>(path);
  if (file->size() >= 4 && file->read(0, 4) == "PAR1") throw InputError(file->where(), "is a Parquet file", "convert it: python3 -c \"import pandas; pandas.read_parquet('in').to_json('out.jsonl', orient='records', lines=True)\"");
  const auto lines = std::make_shared<std::vector<std::pair<std::int64_t, std::int64_t>>>();   // begin, bytes
  std::int64_t begin = 0;
  for (std::int64_t at = 0; at < file->size();) {
    const std::string piece = file->read(at, std::min<std::int64_t>(file->size() - at, 1 << 20));
    for (std::size_t c = 0; c < piece.size(); ++c) {
      if (piece[c] != '\n') continue;
      const std::int64_t end = at + static_cast<std::int64_t>(c);
      if (end > begin) lines->emplace_back(begin, end - begin);
      begin = end + 1;
    }
    at += static_cast<std::int64_t>(piece.size());
  }
  if (begin < file->size()) lines->emplace_back(begin, file->size() - begin);
  if (lines->empty()) throw InputError(file->where(), "has no line");
  const auto read = [file, lines, vocabulary](std::int64_t n) {
    const auto [from, bytes] = (*lines)[static_cast<std::size_t>(n)];
    const std::string where = fmt::format("{}: byte {}", file->where(), from);
    if (static_cast<std::size_t>(bytes) > kMostLine) throw InputError(where, fmt::format("a line of {} bytes, more than {}", bytes, kMostLine));
    const Json json = parse_json(file->read(from, bytes), where, {.max_bytes = kMostLine, .max_depth = 8, .max_values = std::size_t{1} << 24});
    const Place line(json, where);
    if (!json.is_object()) line.wrong_type("an object");
    if (!json.contains("input_ids")) throw InputError(line.child("input_ids"), "is missing", "tokenise the text first: this executor takes ids");
    Document d{ids(line.at("input_ids"), vocabulary, false), {}};
    d.labels = json.contains("labels") ? ids(line.at("labels"), vocabulary, true) : d.tokens;
    if (d.labels.size() != d.tokens.size()) line.at("labels").refuse(fmt::format("{} labels for {} tokens", d.labels.size(), d.tokens.size()));
    if (json.contains("attention_mask")) {
      const Place mask = line.at("attention_mask");
      if (!mask.value().is_array() || mask.value().size() != d.tokens.size()) mask.refuse(fmt::format("is not a list of {} numbers", d.tokens.size()));
      for (std::size_t i = 0; i < d.tokens.size(); ++i)
        if (read_integer(mask.at(i), {0, 1}) == 0) d.labels[i] = -100;
    }
    return d;
  };
  return {file->where(), static_cast<std::int64_t>(lines->size()), read};
}

Dataset megatron_dataset(const fs::path& prefix, std::int64_t vocabulary) {
  fs::path idx = prefix, bin = prefix;
  idx += ".idx";
  bin += ".bin";
  FileBytes index(idx);
  const auto data = std::make_shared<FileBytes>(bin);
  const std::string& where = index.where();
  if (index.size() < 34) throw InputError(where, fmt::format("{} bytes are too few for a Megatron index (34 of header)", index.size()));
  const std::string head = index.read(0, 34);
  if (head.compare(0, 9, std::string("MMIDIDX\0\0", 9)) != 0) throw InputError(where, "byte 0: does not start with MMIDIDX");
  if (const auto version = number_at<std::uint64_t>(head, 9); version != 1) throw InputError(where, fmt::format("byte 9: version {}", version), "version 1");
  const auto code = number_at<std::uint8_t>(head, 17);
  struct Type { std::uint8_t code; std::int64_t bytes; };
  std::int64_t width = 0;
  for (const Type t : {Type{1, 1}, Type{2, 1}, Type{3, 2}, Type{4, 4}, Type{5, 8}, Type{8, 2}}) if (t.code == code) width = t.bytes;
  if (width == 0) throw InputError(where, fmt::format("byte 17: type code {}", code), "a whole-number type: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16");
  const auto sequences = number_at<std::uint64_t>(head, 18), marks = number_at<std::uint64_t>(head, 26);
  const auto most = static_cast<std::uint64_t>(index.size());
  if (sequences == 0 || sequences > most / 12 || marks > most / 8) throw InputError(where, fmt::format("byte 18: {} sequences and {} document marks in a file of {} bytes", sequences, marks, most));
  const std::uint64_t need = 34 + 12 * sequences + 8 * marks;
  if (need != most && need + sequences != most) throw InputError(where, fmt::format("{} bytes, its counts need {} (or {} with modes)", most, need, need + sequences));
  const auto lengths = std::make_shared<std::string>(index.read(34, static_cast<std::int64_t>(4 * sequences)));
  const auto pointers = std::make_shared<std::string>(index.read(static_cast<std::int64_t>(34 + 4 * sequences), static_cast<std::int64_t>(8 * sequences)));
  for (std::uint64_t s = 0; s < sequences; ++s) {
    const auto length = number_at<std::int32_t>(*lengths, 4 * s);
    const auto pointer = number_at<std::int64_t>(*pointers, 8 * s);
    if (length < 0 || pointer < 0 || pointer % width != 0 || pointer > data->size() || static_cast<std::int64_t>(length) > (data->size() - pointer) / width)
      throw InputError(where, fmt::format("sequence {}: {} tokens at byte {} of a file of {} bytes", s, length, pointer, data->size()));
  }
  const auto read = [data, lengths, pointers, width, code, vocabulary](std::int64_t n) {
    const auto length = number_at<std::int32_t>(*lengths, 4 * static_cast<std::size_t>(n));
    const auto pointer = number_at<std::int64_t>(*pointers, 8 * static_cast<std::size_t>(n));
    const std::string raw = data->read(pointer, length * width);
    Document d;
    for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) {
      std::int64_t id = 0;
      switch (code) {
        case 1: id = number_at<std::uint8_t>(raw, i); break;
        case 2: id = number_at<std::int8_t>(raw, i); break;
        case 3: id = number_at<std::int16_t>(raw, 2 * i); break;
        case 4: id = number_at<std::int32_t>(raw, 4 * i); break;
        case 5: id = number_at<std::int64_t>(raw, 8 * i); break;
        default: id = number_at<std::uint16_t>(raw, 2 * i); break;
      }
      if (id < 0 || id >= vocabulary) throw InputError(data->where(), fmt::format("sequence {}, token {}: id {} is outside the vocabulary of {}", n, i, id, vocabulary));
      d.tokens.push_back(static_cast<std::int32_t>(id));
    }
    d.labels = d.tokens;
    return d;
  };
  return {data->where(), static_cast<std::int64_t>(sequences), read};
}

Dataset synthetic_dataset(std::int64_t vocabulary, std::uint64_t seed) {
  const auto read = [vocabulary, seed](std::int64_t n) {
    std::uint64_t state = seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(n) * 0xD1B54A32D192ED03ull + 1;
    const auto next = [&state] {   // splitmix64
      std::uint64_t x = state += 0x9E3779B97F4A7C15ull;
      x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
      x = (x ^ x >> 27) * 0x94D049BB133111EBull;
      return x ^ x >> 31;
    };
    Document d;
    const std::uint64_t length = 64 + next() % 192, period = 2 + next() % 6;
    std::vector<std::int32_t> motif;
    for (std::uint64_t i = 0; i < period; ++i) motif.push_back(static_cast<std::int32_t>(next() % static_cast<std::uint64_t>(std::min<std::int64_t>(vocabulary, 256))));
    for (std::uint64_t i = 0; i < length; ++i) d.tokens.push_back(motif[i % period]);
    d.labels = d.tokens;
    return d;
  };
  return {"synthetic", std::int64_t{1} << 40, read};
}

Dataset random_dataset(std::int64_t vocabulary, std::uint64_t seed, std::int64_t length) {
  const auto read = [vocabulary, seed, length](std::int64_t n) {
    std::mt19937_64 random(seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(n));
    Document d;
    for (std::int64_t i = 0; i < length; ++i) d.tokens.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary)));
    d.labels = d.tokens;
    return d;
  };
  return {"random", std::int64_t{1} << 40, read};
}

Dataset open_dataset(const std::string& path, std::int64_t vocabulary, std::uint64_t seed, std::int64_t length) {
  if (path == "random") return random_dataset(vocabulary, seed, length);
  if (path.empty() || path == "synthetic") return synthetic_dataset(vocabulary, seed);
  const fs::path file(path);
  if (file.extension() == ".jsonl" || file.extension() == ".json") return jsonl_dataset(file, vocabulary);
  if (file.extension() == ".bin" || file.extension() == ".idx") return megatron_dataset(fs::path(file).replace_extension(), vocabulary);
  throw InputError(path, "is no data file that is known", "x.jsonl with input_ids, x.bin beside x.idx, or one of the words synthetic and random");
}

}  // namespace moeplan
