#pragma once
/// Element types, and how many bytes a tensor takes as stored (block scales included).

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/fields.hpp"
#include "core/quantity.hpp"

namespace moeplan {

enum class DType : std::uint8_t {
  f32, bf16, f16,
  fp8,     ///< E4M3 with one f32 scale per 128 x 128 block (DeepSeek-V3's layout)
  mxfp4,   ///< E2M1, one E8M0 scale per 32 along the last dimension (OCP MX; K3, gpt-oss)
  nvfp4,   ///< E2M1, one E4M3 scale per 16
  int8,    ///< one bf16 scale per row
  int4,    ///< one bf16 scale per 32 (compressed-tensors, K2.5)
  nf4,     ///< QLoRA: one 8-bit scale per 64, and one f32 per 256 scales
  i32, i64, u8,
};

template <>
struct EnumNames<DType> {
  static constexpr std::array names{
      std::pair{DType::f32, std::string_view("f32")},     std::pair{DType::bf16, std::string_view("bf16")},
      std::pair{DType::f16, std::string_view("f16")},     std::pair{DType::fp8, std::string_view("fp8")},
      std::pair{DType::mxfp4, std::string_view("mxfp4")}, std::pair{DType::nvfp4, std::string_view("nvfp4")},
      std::pair{DType::int8, std::string_view("int8")},   std::pair{DType::int4, std::string_view("int4")},
      std::pair{DType::nf4, std::string_view("nf4")},     std::pair{DType::i32, std::string_view("i32")},
      std::pair{DType::i64, std::string_view("i64")},     std::pair{DType::u8, std::string_view("u8")}};
};

/// Dimensions of a tensor, at most four, outermost first.
struct Shape {
  std::array<std::int64_t, 4> dim{};
  int rank = 0;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> dims) {
    for (const auto d : dims) dim[static_cast<std::size_t>(rank++)] = d;
  }
  [[nodiscard]] constexpr std::int64_t operator[](int i) const { return dim[static_cast<std::size_t>(i)]; }
  [[nodiscard]] constexpr std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[static_cast<std::size_t>(i)];
    return n;
  }
  constexpr bool operator==(const Shape&) const = default;
};

/// Payload plus block scales of a tensor stored as `type`.
[[nodiscard]] Bytes stored_bytes(DType type, const Shape& shape);

/// Average bytes per element of a large tensor, scales included (mxfp4: 0.53125).
[[nodiscard]] double bytes_per_element(DType type);

}  // namespace moeplan
