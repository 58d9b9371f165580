#include "executor/data/packer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.hpp"

namespace moeplan {

Packer::Packer(Dataset dataset, std::int64_t rows, std::int64_t length, bool pack, std::uint64_t seed) : dataset_(std::move(dataset)), rows_(rows), length_(length), pack_(pack), seed_(seed) {}

/// A bijection of the documents: n -> a n + b (mod documents), a prime to it, a and b from seed and epoch.
std::int64_t Packer::chosen(std::int64_t n) const {
  const auto count = static_cast<std::uint64_t>(dataset_.documents);
  std::uint64_t x = (seed_ + 1) * 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(at_.epoch) * 0xD1B54A32D192ED03ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  std::uint64_t a = (x | 1) % count;
  while (std::gcd(a, count) != 1) a = (a + 1) % count;
  return static_cast<std::int64_t>((static_cast<unsigned __int128>(a) * static_cast<std::uint64_t>(n) + (x >> 32)) % count);
}

void Packer::seek(const DataPosition& position) {
  if (position.document >= dataset_.documents) throw InputError(dataset_.where, fmt::format("document {} is asked for, there are {}", position.document, dataset_.documents), "resume with the data that the run began with");
  at_ = position;
  loaded_ = false;
}

void Packer::advance() {
  at_.token = 0;
  loaded_ = false;
  if (++at_.document < dataset_.documents) return;
  at_.document = 0;
  ++at_.epoch;
}

Batch Packer::next() {
  Batch out;
  bool plain = true;
  for (std::int64_t row = 0; row < rows_; ++row) {
    std::int64_t filled = 0;
    for (std::int64_t empty = 0; filled < length_;) {
      if (!loaded_) open_ = dataset_.read(chosen(at_.document)), loaded_ = true;
      const std::int64_t have = static_cast<std::int64_t>(open_.tokens.size()), take = std::min(have - at_.token, length_ - filled);
      if (take > 0) out.starts.push_back(row * length_ + filled);
      for (std::int64_t i = at_.token; i < at_.token + take; ++i) {
        out.tokens.push_back(open_.tokens[static_cast<std::size_t>(i)]);
        // The next token of the same piece; a piece that is cut does not reach into the next row.
        out.labels.push_back(i + 1 < at_.token + take ? open_.labels[static_cast<std::size_t>(i + 1)] : -100);
      }
      filled += take;
      plain = plain && take == length_;
      if (take == 0 && ++empty > dataset_.documents) throw InputError(dataset_.where, "every document is empty");
      if (at_.token + take < have && pack_) at_.token += take;
      else advance();
      if (!pack_ && take > 0) break;
    }
    if (filled < length_) {   // padding is a sequence of its own that nobody learns from
      out.starts.push_back(row * length_ + filled);
      plain = false;
      out.tokens.resize(static_cast<std::size_t>((row + 1) * length_), 0);
      out.labels.resize(static_cast<std::size_t>((row + 1) * length_), -100);
    }
  }
  if (plain) out.starts.clear();
  else out.starts.push_back(rows_ * length_);
  return out;
}

}  // namespace moeplan
