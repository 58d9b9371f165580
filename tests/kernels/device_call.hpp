/// \file
/// A call of the CUDA backend on test data: operands in their storage types, with a zone around each in which nothing may be written.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda.hpp"

namespace moeplan::test {

using Raw = std::vector<std::uint8_t>;

/// How often a call is repeated to see that its bits repeat: 50, or what MOEPLAN_REPLAYS says (bench/sanitize.sh: the sanitizers look at every call anyway).
inline int replays() {
  const char* asked = std::getenv("MOEPLAN_REPLAYS");
  return asked == nullptr ? 50 : std::max(0, std::atoi(asked));
}

template <class T>
void put(Raw& raw, std::size_t i, T value) { std::memcpy(raw.data() + i * sizeof(T), &value, sizeof(T)); }
template <class T>
T got(const Raw& raw, std::size_t i) {
  T value;
  std::memcpy(&value, raw.data() + i * sizeof(T), sizeof(T));
  return value;
}

[[nodiscard]] inline bool plain(DType type) { return type != DType::fp8 && type != DType::mxfp4 && type != DType::nvfp4 && type != DType::int8 && type != DType::int4 && type != DType::nf4; }
[[nodiscard]] inline std::size_t unit_bytes(DType type) { return plain(type) ? static_cast<std::size_t>(stored_bytes(type, {1}).value) : 1; }

/// Numbers as a plain type stores them.
inline Raw stored(DType type, const std::vector<double>& values, std::size_t count) {
  Raw raw(count * unit_bytes(type));
  for (std::size_t i = 0; i < count; ++i) {
    const double v = values[i];
    switch (type) {
      case DType::f32: put(raw, i, static_cast<float>(v)); break;
      case DType::bf16: put(raw, i, __float2bfloat16(static_cast<float>(v))); break;
      case DType::f16: put(raw, i, __float2half(static_cast<float>(v))); break;
      case DType::i32: put(raw, i, static_cast<std::int32_t>(v)); break;
      case DType::i64: put(raw, i, static_cast<std::int64_t>(v)); break;
      default: raw[i] = static_cast<std::uint8_t>(v);
    }
  }
  return raw;
}
inline std::vector<double> numbers(DType type, const Raw& raw) {
  std::vector<double> out(raw.size() / unit_bytes(type));
  for (std::size_t i = 0; i < out.size(); ++i) switch (type) {
      case DType::f32: out[i] = static_cast<double>(got<float>(raw, i)); break;
      case DType::bf16: out[i] = static_cast<double>(__bfloat162float(got<__nv_bfloat16>(raw, i))); break;
      case DType::f16: out[i] = static_cast<double>(__half2float(got<__half>(raw, i))); break;
      case DType::i32: out[i] = got<std::int32_t>(raw, i); break;
      case DType::i64: out[i] = static_cast<double>(got<std::int64_t>(raw, i)); break;
      default: out[i] = raw[i];
    }
  return out;
}

/// Device memory of one operand. Its bytes begin `shift` units behind a 256-byte boundary; the zones around hold 0xab.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t offset) : bytes_(bytes), offset_(zone + offset), memory_(bytes + 2 * zone + offset) {
    memory_.fill(0xab);
    poison();
  }
  [[nodiscard]] std::uint8_t* data() const { return memory_.get<std::uint8_t>() + offset_; }
  void upload(const Raw& raw) {
    if (!raw.empty()) kernels::check(cudaMemcpy(data(), raw.data(), raw.size(), cudaMemcpyHostToDevice), "copy an operand to the device");
  }
  /// Every byte 0xff: NaN in every float type.
  void poison() {
    if (bytes_ != 0) kernels::check(cudaMemset(data(), 0xff, bytes_), "poison an operand");
  }
  [[nodiscard]] Raw download() const {
    Raw raw(bytes_);
    if (bytes_ != 0) kernels::check(cudaMemcpy(raw.data(), data(), bytes_, cudaMemcpyDeviceToHost), "copy an operand back");
    return raw;
  }
  [[nodiscard]] bool untouched_around() const {
    const std::uint8_t* base = memory_.get<std::uint8_t>();
    const auto untouched = [&](std::size_t first, std::size_t count) {
      Raw raw(count);
      kernels::check(cudaMemcpy(raw.data(), base + first, count, cudaMemcpyDeviceToHost), "copy a zone back");
      return std::all_of(raw.begin(), raw.end(), [](std::uint8_t b) { return b == 0xab; });
    };
    return untouched(0, offset_) && untouched(offset_ + bytes_, memory_.bytes() - offset_ - bytes_);
  }

 private:
  static constexpr std::size_t zone = 256;
  std::size_t bytes_, offset_;
  kernels::DeviceBuffer memory_;
};

/// Memory for each operand of a call; those that are not in it have none.
struct DeviceCall {
  std::vector<std::unique_ptr<Guarded>> memory;

  void add(const Operand& o, bool present, std::size_t shift) {
    memory.push_back(present ? std::make_unique<Guarded>(static_cast<std::size_t>(o.bytes().value), shift * unit_bytes(o.dtype)) : nullptr);
  }
  [[nodiscard]] std::vector<void*> pointers() const {
    std::vector<void*> out;
    for (const auto& each : memory) out.push_back(each ? each->data() : nullptr);
    return out;
  }
};

}  // namespace moeplan::test
