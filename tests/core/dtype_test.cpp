#include "core/dtype.hpp"

#include <gtest/gtest.h>

namespace moeplan {
namespace {

TEST(DType, PlainTypesTakeTheirWidth) {
  EXPECT_EQ(stored_bytes(DType::f32, {3, 5}).value, 60);
  EXPECT_EQ(stored_bytes(DType::bf16, {3, 5}).value, 30);
  EXPECT_EQ(stored_bytes(DType::i64, {7}).value, 56);
  EXPECT_EQ(stored_bytes(DType::u8, {7}).value, 7);
  EXPECT_EQ(stored_bytes(DType::bf16, {}).value, 2) << "a scalar";
  EXPECT_EQ(stored_bytes(DType::f32, {0, 8}).value, 0);
}

TEST(DType, Fp8CarriesOneScalePerBlockOf128By128) {
  EXPECT_EQ(stored_bytes(DType::fp8, {256, 256}).value, 65536 + 4 * 4);
  EXPECT_EQ(stored_bytes(DType::fp8, {129, 128}).value, 129 * 128 + 2 * 4) << "a started block counts";
  EXPECT_EQ(stored_bytes(DType::fp8, {3, 128, 128}).value, 3 * (128 * 128 + 4)) << "per expert";
}

TEST(DType, Mxfp4CarriesOneByteOfScalePer32) {
  EXPECT_EQ(stored_bytes(DType::mxfp4, {2, 64}).value, 2 * (32 + 2));
  EXPECT_EQ(stored_bytes(DType::mxfp4, {1, 33}).value, 17 + 2) << "an odd row ends on a byte, a started group has a scale";
  EXPECT_DOUBLE_EQ(bytes_per_element(DType::mxfp4), 0.53125);
  EXPECT_DOUBLE_EQ(bytes_per_element(DType::nvfp4), 0.5625);
}

TEST(DType, Int4AndInt8CarryBf16Scales) {
  EXPECT_EQ(stored_bytes(DType::int4, {1, 64}).value, 32 + 2 * 2);
  EXPECT_EQ(stored_bytes(DType::int8, {3, 64}).value, 192 + 3 * 2);
}

TEST(DType, Nf4IsQlorasDoubleQuantisation) {
  EXPECT_EQ(stored_bytes(DType::nf4, {128, 128}).value, 8192 + 256 + 4) << "16384 / 2, one byte per 64, four per 16384";
  EXPECT_NEAR(bytes_per_element(DType::nf4), 0.5 + 1.0 / 64 + 4.0 / 16384, 1e-12);
}

TEST(DType, EveryTypeHasANameAndASize) {
  for (const auto& [type, name] : EnumNames<DType>::names) {
    EXPECT_EQ(name_of(type), name);
    EXPECT_GT(stored_bytes(type, {64, 64}).value, 0) << name;
  }
}

}  // namespace
}  // namespace moeplan
