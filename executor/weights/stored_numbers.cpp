#include "executor/weights/stored_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "sim/program/model_tensors.hpp"

namespace moeplan {
namespace {

constexpr std::int64_t kTile = 128, kGroup = 32;

/// What stands for `each` columns together, of columns [column, column + columns).
struct Factors {
  std::int64_t first = 0, count = 0;
  Factors(std::int64_t column, std::int64_t columns, std::int64_t each) : first(column / each), count((column + columns + each - 1) / each - column / each) {}
};

}  // namespace

bool is_plain(const StoredTensor& t) {
  static constexpr std::array<std::string_view, 6> types{"BF16", "F16", "F32", "F64", "I32", "I64"};
  return std::find(types.begin(), types.end(), t.dtype) != types.end();
}

StoredNumbers::StoredNumbers(const TensorFiles& files, const std::string& name, const std::vector<std::int64_t>& shape, DType type, PackedLayout layout) {
  const StoredTensor* direct = files.find(name);
  const std::vector<FileTensor> parts = file_tensors({.name = name, .shape = shape, .count = 1, .dtype = type}, layout);
  const auto open = [&](const std::string& part, NumberType& numbers, std::span<const std::byte>& bytes) {
    bytes = files.bytes(part);
    numbers = number_type(*files.find(part), files.where());
  };
  if ((direct && is_plain(*direct)) || parts.size() == 1) {
    open(name, payload_type_, payload_);
    return;
  }
  columns_ = layout == PackedLayout::blocks_scales && shape.size() == 3 ? shape[1] : shape.back();
  if (type == DType::mxfp4) form_ = Form::mxfp4;
  else if (type == DType::fp8 && shape.size() == 2) form_ = layout == PackedLayout::compressed_tensors ? Form::fp8_rows : Form::fp8_blocks;
  else throw InputError(files.where(), fmt::format("tensor {} is stored as {}", shown(name), name_of(type)), "bf16, f16, f32, fp8 and mxfp4 are read");
  if (form_ == Form::mxfp4) {   // codes, whatever type of bytes the file calls them
    payload_ = files.bytes(parts[0].name), scales_ = files.bytes(parts[1].name);
    return;
  }
  open(parts[0].name, payload_type_, payload_);
  open(parts[1].name, scale_type_, scales_);
}

void StoredNumbers::read(std::int64_t begin, std::span<float> to) {
  if (form_ == Form::plain) {
    payload_type_.decode(payload_.data() + begin * payload_type_.bytes, to);
    bytes_read_ += payload_type_.bytes * static_cast<std::int64_t>(to.size());
    return;
  }
  while (!to.empty()) {
    const std::int64_t row = begin / columns_, column = begin % columns_;
    const auto n = std::min(static_cast<std::int64_t>(to.size()), columns_ - column);
    read_row(row, column, to.first(static_cast<std::size_t>(n)));
    begin += n;
    to = to.subspan(static_cast<std::size_t>(n));
  }
}

void StoredNumbers::read_row(std::int64_t row, std::int64_t column, std::span<float> to) {
  const auto n = static_cast<std::int64_t>(to.size());
  if (form_ == Form::mxfp4) {
    const std::int64_t packed = (columns_ + 1) / 2, groups = (columns_ + kGroup - 1) / kGroup;
    const std::byte *codes = payload_.data() + row * packed, *powers = scales_.data() + row * groups;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t c = column + i;
      const auto byte = static_cast<std::uint8_t>(codes[c / 2]);
      to[static_cast<std::size_t>(i)] = from_e2m1(c % 2 ? byte >> 4 : byte & 15) * from_e8m0(static_cast<std::uint8_t>(powers[c / kGroup]));
    }
    bytes_read_ += Factors(column, n, 2).count + Factors(column, n, kGroup).count;
    return;
  }
  const bool by_row = form_ == Form::fp8_rows;
  const Factors tiles(column, n, kTile);
  const std::int64_t first = by_row ? row : row / kTile * ((columns_ + kTile - 1) / kTile) + tiles.first;
  if (const auto count = static_cast<std::size_t>(by_row ? 1 : tiles.count); first != factors_from_ || count != factors_.size()) {
    factors_.resize(count);
    factors_from_ = first;
    scale_type_.decode(scales_.data() + first * scale_type_.bytes, factors_);
    bytes_read_ += scale_type_.bytes * static_cast<std::int64_t>(count);
  }
  payload_type_.decode(payload_.data() + (row * columns_ + column) * payload_type_.bytes, to);
  for (std::int64_t i = 0; i < n; ++i)
    to[static_cast<std::size_t>(i)] *= factors_[static_cast<std::size_t>(by_row ? 0 : (column + i) / kTile - tiles.first)];
  bytes_read_ += payload_type_.bytes * n;
}

}  // namespace moeplan
