#pragma once
/// One tensor of a checkpoint as numbers, whatever it is stored as: plain, FP8 under a scale for 128 x 128 or for a row, MXFP4 under one for 32
/// columns. Where its bytes lie is found once; of them only those are read that the asked elements need.

#include <span>
#include <string>
#include <vector>

#include "core/spec/model.hpp"
#include "executor/weights/safetensors_file.hpp"

namespace moeplan {

/// A plain type, whatever the model says it is stored in (a plain copy of a quantised model).
[[nodiscard]] bool is_plain(const StoredTensor& tensor);

class StoredNumbers {
 public:
  /// `name` and `shape` are the model's. Throws InputError where it is missing or of a type that is not read.
  StoredNumbers(const TensorFiles& files, const std::string& name, const std::vector<std::int64_t>& shape, DType type, PackedLayout layout);
  /// Elements from `begin` on, in the order of the file's rows.
  void read(std::int64_t begin, std::span<float> to);
  [[nodiscard]] std::int64_t bytes_read() const { return bytes_read_; }

 private:
  enum class Form : std::uint8_t { plain, fp8_blocks, fp8_rows, mxfp4 };
  void read_row(std::int64_t row, std::int64_t column, std::span<float> to);

  Form form_ = Form::plain;
  NumberType payload_type_, scale_type_;
  std::span<const std::byte> payload_, scales_;
  std::int64_t columns_ = 0, bytes_read_ = 0;
  std::vector<float> factors_;   ///< scales read last, from this one on
  std::int64_t factors_from_ = -1;
};

}  // namespace moeplan
