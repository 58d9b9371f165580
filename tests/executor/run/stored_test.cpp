/// Frozen weights held as they are stored: the nearest code by trying all, bytes of a file kept, the same training as over the plain numbers.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "executor/backend/convert.hpp"
#include "executor/backend/stored.hpp"
#include "executor/weights/load.hpp"
#include "sim/memory/memory.hpp"
#include "tests/executor/run/scratch.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;

std::vector<float> normal(std::size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<float> out(n);
  for (float& x : out) x = std::normal_distribution<float>(0, 0.05f)(random);
  return out;
}

std::vector<std::byte> encoded(DType type, const Shape& shape, const std::vector<float>& values) {
  std::vector<std::byte> out(static_cast<std::size_t>(stored_bytes(type, shape).value));
  encode_stored(type, shape, values, out.data());
  return out;
}
std::vector<float> decoded(DType type, const Shape& shape, const std::vector<std::byte>& bytes) {
  std::vector<float> out(static_cast<std::size_t>(shape.elements()));
  decode_stored(type, shape, bytes.data(), out);
  return out;
}

TEST(StoredWeights, TakeTheNearestCodeUnderTheScaleOfTheirBlock) {
  const Shape shape{2, 130, 70};   // two matrices, with blocks that end early
  const std::vector<float> values = normal(static_cast<std::size_t>(shape.elements()), 1);
  for (const DType type : {DType::fp8, DType::mxfp4}) {
    const std::vector<float> got = decoded(type, shape, encoded(type, shape, values));
    for (std::int64_t m = 0; m < 2; ++m)
      for (std::int64_t r = 0; r < 130; ++r)
        for (std::int64_t c = 0; c < 70; ++c) {
          float most = 0;
          const bool tile = type == DType::fp8;
          const std::int64_t r0 = tile ? r / 128 * 128 : r, r1 = tile ? std::min<std::int64_t>(r0 + 128, 130) : r + 1, side = tile ? 128 : 32, c0 = c / side * side, c1 = std::min<std::int64_t>(c0 + side, 70);
          for (std::int64_t i = r0; i < r1; ++i)
            for (std::int64_t j = c0; j < c1; ++j) most = std::max(most, std::abs(values[static_cast<std::size_t>((m * 130 + i) * 70 + j)]));
          const double scale = tile ? static_cast<double>(most) / 448 : std::exp2(std::floor(std::log2(static_cast<double>(most))) - 2);
          const auto at = static_cast<std::size_t>((m * 130 + r) * 70 + c);
          double best = 1e9;
          for (int code = 0; code < (tile ? 256 : 16); ++code) {
            const double v = static_cast<double>(tile ? from_e4m3(static_cast<std::uint8_t>(code)) : from_e2m1(static_cast<std::uint8_t>(code))) * scale;
            if (!std::isnan(v)) best = std::min(best, std::abs(v - static_cast<double>(values[at])));
          }
          ASSERT_NEAR(std::abs(static_cast<double>(got[at] - values[at])), best, 1e-6 * static_cast<double>(most)) << name_of(type) << " " << m << " " << r << " " << c;
        }
  }
}

TEST(StoredWeights, OfMxfp4StayWhatTheyAreWhenStoredAgain) {
  const Shape shape{3, 64};
  const std::vector<float> once = decoded(DType::mxfp4, shape, encoded(DType::mxfp4, shape, normal(192, 2)));
  EXPECT_EQ(decoded(DType::mxfp4, shape, encoded(DType::mxfp4, shape, once)), once);
}

Problem stored_problem(const char* file, DType experts, PackedLayout layout) {
  ModelSpec m = shrunk(shipped(file));
  m.stored = {.experts = experts, .layout = layout};
  for (LayerSpec& layer : m.layers)
    for (Sublayer& s : layer.sublayers)
      if (auto* f = std::get_if<MoeFfn>(&s.mixer)) f->intermediate = 64;   // whole blocks
  return problem(std::move(m), lora(16));
}
Plan stored_plan(const Problem& p, DType type) {
  Plan q = plan(p, 2, 1, Recompute::selective);
  q.frozen_storage = type;
  return q;
}

TEST(StoredWeights, TrainAsTheirPlainNumbersAndTakeThePlannedMemory) {
  for (const auto& [file, type, layout] : {std::tuple{"gpt-oss/gpt-oss-20b.json", DType::mxfp4, PackedLayout::blocks_scales}, std::tuple{"deepseek/deepseek-v3.json", DType::fp8, PackedLayout::scale_inv}}) {
    const Problem p = stored_problem(file, type, layout);
    const Plan q = stored_plan(p, type);
    TinyRun stored(p, q, cpu_backend(CpuStorage::as_planned));
    std::int64_t held = 0;
    for (const Parameter& each : stored.trainer->parameters().all()) held += each.held == type;
    ASSERT_GT(held, 0) << file;
    MemoryBreakdown measured = stored.trainer->memory();
    measured[MemoryCategory::allocator_reserve] = {};
    EXPECT_EQ(measured.peak().value + 0, memory(stored.trainer->program(), p, q).peak().value + held_beyond_plan(stored.trainer->program(), p, q.parallelism, *stored.backend).value) << file;
    Problem plain = p;
    plain.model.stored = {};
    TinyRun wide(plain, plan(plain, 2, 1, Recompute::selective), cpu_backend(CpuStorage::as_planned));
    for (Parameter& each : wide.trainer->parameters().all()) {
      const Parameter* from = stored.trainer->parameters().find(each.name);
      ASSERT_NE(from, nullptr) << each.name;
      set_values(each, values_of(*from, *stored.backend), *wide.backend);
    }
    const Batch b = batch(p, q, 5);
    // fp8 values times their scale have more bits than bf16.
    EXPECT_NEAR(stored.trainer->differentiate(b), wide.trainer->differentiate(b), type == DType::mxfp4 ? 0 : 2e-3) << file;
  }
}

TEST(StoredWeights, KeepTheBytesOfTheFile) {
  const Problem p = stored_problem("gpt-oss/gpt-oss-20b.json", DType::mxfp4, PackedLayout::blocks_scales);
  TinyRun from(p, stored_plan(p, DType::mxfp4), cpu_backend(CpuStorage::as_planned)), to(p, stored_plan(p, DType::mxfp4), cpu_backend(CpuStorage::as_planned));
  // A checkpoint of what `from` has: plain tensors as F32, experts as blocks and scales.
  std::string header, data;
  const auto add = [&](const std::string& name, const char* type, const std::vector<std::int64_t>& shape, const std::byte* bytes, std::size_t size) {
    std::string dims;
    for (const auto d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    header += std::string(header.empty() ? "{" : ",") + "\"" + name + R"(":{"dtype":")" + type + R"(","shape":[)" + dims + R"(],"data_offsets":[)" + std::to_string(data.size()) + "," + std::to_string(data.size() + size) + "]}";
    data.append(reinterpret_cast<const char*>(bytes), size);
  };
  int stored = 0;
  std::mt19937_64 random(9);
  for (Parameter& each : from.trainer->parameters().all()) {
    if (each.adapter || each.sources.empty()) continue;
    ASSERT_EQ(each.sources.size(), 1u) << each.name;
    const TensorSource& s = each.sources.front();
    if (each.held != DType::mxfp4) {
      const std::vector<float> v = values_of(each, *from.backend);
      add(s.name, "F32", s.shape, reinterpret_cast<const std::byte*>(v.data()), 4 * v.size());
      continue;
    }
    ++stored;
    // Any codes, under scales that no encoder would choose: the largest code is not in every block.
    const auto payload = static_cast<std::size_t>(payload_bytes(DType::mxfp4, each.shape)), all = static_cast<std::size_t>(stored_bytes(DType::mxfp4, each.shape).value);
    for (std::size_t i = 0; i < all; ++i) each.value.get()[i] = static_cast<std::byte>(i < payload ? random() & 0x33 : 118 + random() % 5);
    const std::int64_t e = each.shape[0], out = each.shape[1], groups = (each.shape[2] + 31) / 32;
    add(s.name + "_blocks", "U8", {e, out, groups, 16}, each.value.get(), payload);
    add(s.name + "_scales", "U8", {e, out, groups}, each.value.get() + payload, all - payload);
  }
  ASSERT_GT(stored, 0);
  header += "}";
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  const Scratch dir;
  dir.write("model.safetensors", file + header + data);
  load_weights(TensorFiles(dir.path()), p.model, to.trainer->parameters(), *to.backend);
  for (const Parameter& each : from.trainer->parameters().all()) {
    if (each.adapter) continue;
    const Parameter* got = to.trainer->parameters().find(each.name);
    ASSERT_EQ(got->held, each.held);
    EXPECT_EQ(std::memcmp(got->value.get(), each.value.get(), static_cast<std::size_t>(stored_bytes(each.held, each.held_shape()).value)), 0) << each.name;
  }
}

}  // namespace
}  // namespace moeplan
