/// What is read from disk: safetensors by slice, quantised weights, data files; and every way in which they can be wrong.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/data/packer.hpp"
#include "executor/weights/load.hpp"
#include "executor/weights/stored_numbers.hpp"
#include "tests/executor/run/scratch.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;

std::string file_of(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return out + header + data;
}

std::string entry(const char* name, const char* dtype, const char* shape, int begin, int end) {
  return std::string("\"") + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST(TensorFiles, ReadSlicesOfEveryPlainType) {
  const Scratch dir;
  std::string data;
  for (const float x : {1.5f, -2.0f}) data.append(reinterpret_cast<const char*>(&x), 4);
  for (const std::uint16_t x : {to_bf16(3.0f), to_bf16(-0.25f)}) data.append(reinterpret_cast<const char*>(&x), 2);
  for (const std::uint16_t x : {to_f16(0.5f), to_f16(65504.0f)}) data.append(reinterpret_cast<const char*>(&x), 2);
  data += std::string("\x38\x7e", 2);   // E4M3: 1, 448
  dir.write("model.safetensors", file_of("{" + entry("a", "F32", "[2]", 0, 8) + "," + entry("b", "BF16", "[2]", 8, 12) + "," + entry("c", "F16", "[2]", 12, 16) + "," + entry("d", "F8_E4M3", "[1,2]", 16, 18) + "}", data));
  const TensorFiles files(dir.path());
  EXPECT_EQ(files.floats("a", 1, 1), std::vector<float>{-2.0f});
  EXPECT_EQ(files.floats("b", 0, 2), (std::vector<float>{3.0f, -0.25f}));
  EXPECT_EQ(files.floats("c", 0, 2), (std::vector<float>{0.5f, 65504.0f}));
  EXPECT_EQ(files.floats("d", 0, 2), (std::vector<float>{1.0f, 448.0f}));
}

TEST(TensorFiles, RefuseWhatIsBroken) {
  const auto message = [](const std::string& bytes) {
    const Scratch dir;
    dir.write("model.safetensors", bytes);
    try {
      (void)TensorFiles(dir.path());
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message("1234").find("too few"), std::string::npos);
  EXPECT_NE(message(std::string(8, '\xff')).find("header of"), std::string::npos);
  EXPECT_NE(message(file_of("[]", "")).find("{"), std::string::npos);
  EXPECT_NE(message(file_of("{" + entry("a", "F32", "[2]", 0, 8) + "}", std::string(7, 'x'))).find("byte 8"), std::string::npos);
  EXPECT_NE(message(file_of("{" + entry("a", "F32", "[2]", 0, 4) + "}", std::string(4, 'x'))).find("need 8"), std::string::npos);
  EXPECT_NE(message(file_of("{" + entry("a", "F32", "[1]", 0, 4) + "," + entry("b", "F32", "[1]", 8, 12) + "}", std::string(12, 'x'))).find("\"b\" begins at byte 8 of the data, the one before ends at 4: a hole"), std::string::npos);
  EXPECT_NE(message(file_of("{" + entry("a", "F32", "[2]", 0, 8) + "," + entry("b", "F32", "[1]", 4, 8) + "}", std::string(8, 'x'))).find("overlap"), std::string::npos);
  EXPECT_NE(message(file_of("{" + entry("a", "F33", "[1]", 0, 4) + "}", std::string(4, 'x'))).find("F33"), std::string::npos);
  EXPECT_NE(message(file_of("{" + entry("a", "F32", "[1]", 0, 4) + "," + entry("a", "F32", "[1]", 0, 4) + "}", std::string(4, 'x'))).find("a"), std::string::npos);
  EXPECT_NE(message(file_of("{" + entry("a", "F32", "[4611686018427387904,4]", 0, 4) + "}", std::string(4, 'x'))), "accepted");
  EXPECT_NE(message(file_of("{" + entry("", "F32", "[1]", 0, 4) + "}", std::string(4, 'x'))).find("name"), std::string::npos);
  EXPECT_NE(message(file_of(R"({"__metadata__":{"a":1},)" + entry("a", "F32", "[1]", 0, 4) + "}", std::string(4, 'x'))).find("__metadata__"), std::string::npos);
}

TEST(TensorFiles, HoldTheIndexToItsShards) {
  const Scratch dir;
  const std::string a = file_of("{" + entry("a", "F32", "[1]", 0, 4) + "}", "abcd"), b = file_of("{" + entry("b", "F32", "[1]", 0, 4) + "}", "abcd");
  dir.write("one.safetensors", a);
  dir.write("two.safetensors", b);
  const auto with = [&](const std::string& map) { dir.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}"); };
  with(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_EQ(TensorFiles(dir.path()).names().size(), 2u);
  for (const char* wrong : {R"({"a":"two.safetensors","b":"two.safetensors"})", R"({"a":"one.safetensors","b":"three.safetensors"})", R"({"a":"../one.safetensors"})", R"({"b":"two.safetensors","a":"one.safetensors","c":"one.safetensors"})"}) {
    with(wrong);
    EXPECT_THROW((void)TensorFiles(dir.path()), InputError) << wrong;
  }
  with(R"({"a":"one.safetensors"})");
  EXPECT_EQ(TensorFiles(dir.path()).names().size(), 1u) << "files that the index does not name are not opened";
}

TEST(StoredValues, DequantiseFp8BlocksAndMxfp4) {
  const Scratch dir;
  // 130 x 130 ones in E4M3 with a scale for each of 2 x 2 blocks.
  std::string data(130 * 130, '\x38');
  for (const float s : {2.0f, 3.0f, 5.0f, 7.0f}) data.append(reinterpret_cast<const char*>(&s), 4);
  // One row of 34 MXFP4 values: codes 0 to 15 twice and two more; scales 1 and 4.
  std::string codes;
  for (int i = 0; i < 17; ++i) codes += static_cast<char>((2 * i % 16) | ((2 * i + 1) % 16) << 4);
  data += codes + std::string("\x7f\x81", 2);
  dir.write("model.safetensors", file_of("{" + entry("w.weight", "F8_E4M3", "[130,130]", 0, 16900) + "," + entry("w.weight_scale_inv", "F32", "[2,2]", 16900, 16916) + "," +
                                         entry("m.weight_packed", "U8", "[1,17]", 16916, 16933) + "," + entry("m.weight_scale", "U8", "[1,2]", 16933, 16935) + "}", data));
  const TensorFiles files(dir.path());
  const auto values = [&](StoredNumbers numbers, std::int64_t begin, std::int64_t count) {
    std::vector<float> out(static_cast<std::size_t>(count));
    numbers.read(begin, out);
    return out;
  };
  const auto w = values({files, "w.weight", {130, 130}, DType::fp8, PackedLayout::scale_inv}, 0, 16900);
  EXPECT_EQ(w[0], 2);
  EXPECT_EQ(w[129], 3);
  EXPECT_EQ(w[130 * 129], 5);
  EXPECT_EQ(w[130 * 130 - 1], 7);
  const StoredNumbers packed(files, "m.weight", {1, 34}, DType::mxfp4, PackedLayout::compressed_tensors);
  const auto m = values(packed, 0, 34);
  EXPECT_EQ(m[1], 0.5);
  EXPECT_EQ(m[7], 6);
  EXPECT_EQ(m[15], -6);
  EXPECT_EQ(m[33], 0.5 * 4);
  EXPECT_EQ(values(packed, 31, 2), (std::vector<float>{m[31], m[32]}));
}

TEST(LoadWeights, ListsWhatDiffers) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), lora(4));
  TinyRun run(p, plan(p), cpu_backend(CpuStorage::wide));
  const Scratch dir;
  dir.write("model.safetensors", safetensors_bytes({{"model.embed_tokens.weight", {64, 31}, std::vector<float>(64 * 31)}}));
  try {
    load_weights(TensorFiles(dir.path()), p.model, run.trainer->parameters(), *run.backend);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("[64, 31]"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("is missing"), std::string::npos) << e.what();
  }
}

TEST(LoadWeights, RefuseRotationsThatAreNotComputed) {
  Problem p = problem(shrunk(shipped("phi/phi-3.5-moe.json"), 1), lora(4));
  std::get<GqaAttention>(p.model.layers[0].sublayers[0].mixer).rope.scaling = "su";   // an older name of the same, whose lists nobody read
  TinyRun run(p, plan(p), cpu_backend(CpuStorage::wide));
  const Scratch dir;
  dir.write("model.safetensors", safetensors_bytes({{"model.norm.weight", {32}, std::vector<float>(32)}}));
  try {
    load_weights(TensorFiles(dir.path()), p.model, run.trainer->parameters(), *run.backend);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("\"su\" in layer 0"), std::string::npos) << e.what();
  }
}

/// 2^60 bytes are in no address space.
TEST(CpuBackend, NamesTheBufferThatCannotBeHad) {
  const auto backend = cpu_backend(CpuStorage::wide);
  try {
    (void)backend->allocate({std::int64_t{1} << 60}, "arena");
    FAIL();
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.where(), "arena");
    EXPECT_NE(e.reason().find("1152921504606846976 bytes"), std::string::npos) << e.reason();
  }
}

TEST(Convert, RoundsToTheNearestAndBack) {
  EXPECT_EQ(from_bf16(to_bf16(1.0f)), 1.0f);
  EXPECT_EQ(from_bf16(to_bf16(1.00390625f)), 1.0f) << "half of the last place goes to the even one";
  EXPECT_EQ(from_bf16(to_bf16(1.01171875f)), 1.015625f);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(NAN))));
  for (const float x : {0.0f, 1.0f, -1.5f, 6.1035156e-05f, 5.9604645e-08f, 65504.0f}) EXPECT_EQ(from_f16(to_f16(x)), x) << x;
  EXPECT_EQ(from_f16(to_f16(1e6f)), INFINITY);
  EXPECT_EQ(from_f16(to_f16(2049.0f)), 2048.0f);
}

TEST(Jsonl, GivesTokensAndLabels) {
  const Scratch dir;
  dir.write("a.jsonl", "{\"input_ids\":[1,2,3],\"labels\":[-100,2,3]}\n\n{\"input_ids\":[4],\"attention_mask\":[0]}");
  const Dataset d = jsonl_dataset(dir.path() / "a.jsonl", 5);
  ASSERT_EQ(d.documents, 2);
  EXPECT_EQ(d.read(0).labels, (std::vector<std::int32_t>{-100, 2, 3}));
  EXPECT_EQ(d.read(1).tokens, std::vector<std::int32_t>{4});
  EXPECT_EQ(d.read(1).labels, std::vector<std::int32_t>{-100});
}

TEST(Jsonl, RefusesBadLinesByByte) {
  const auto message = [](const std::string& text) {
    const Scratch dir;
    dir.write("a.jsonl", text);
    try {
      const Dataset d = jsonl_dataset(dir.path() / "a.jsonl", 5);
      for (std::int64_t i = 0; i < d.documents; ++i) (void)d.read(i);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message("{\"input_ids\":[1]}\n{\"input_ids\":[5]}").find("byte 18"), std::string::npos);
  EXPECT_NE(message("{\"input_ids\":[5]}").find("vocabulary of 5"), std::string::npos);
  EXPECT_NE(message("{\"text\":\"hello\"}").find("tokenise"), std::string::npos);
  EXPECT_NE(message("{\"input_ids\":[1,2],\"labels\":[1]}").find("1 labels for 2 tokens"), std::string::npos);
  EXPECT_NE(message("{\"input_ids\":[1.5]}"), "accepted");
  EXPECT_NE(message("{\"input_ids\":[-1]}"), "accepted");
  EXPECT_NE(message("PAR1....").find("Parquet"), std::string::npos);
  EXPECT_NE(message("\n").find("no line"), std::string::npos);
}

std::string megatron_index(std::uint8_t code, const std::vector<std::pair<std::int32_t, std::int64_t>>& sequences) {
  std::string out("MMIDIDX\0\0", 9);
  const auto put = [&](auto x) { out.append(reinterpret_cast<const char*>(&x), sizeof(x)); };
  put(std::uint64_t{1}), put(code), put(static_cast<std::uint64_t>(sequences.size())), put(std::uint64_t{1});
  for (const auto& [length, pointer] : sequences) put(length);
  for (const auto& [length, pointer] : sequences) put(pointer);
  put(std::int64_t{0});
  return out;
}

TEST(Megatron, ReadsTheIndexAndItsTokens) {
  const Scratch dir;
  dir.write("d.bin", std::string("\1\0\2\0\3\0", 6));
  dir.write("d.idx", megatron_index(8, {{2, 0}, {1, 4}}));
  const Dataset d = open_dataset((dir.path() / "d.bin").string(), 10, 1);
  ASSERT_EQ(d.documents, 2);
  EXPECT_EQ(d.read(0).tokens, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(d.read(1).tokens, std::vector<std::int32_t>{3});
}

TEST(Megatron, RefusesWhatIsBroken) {
  const auto message = [](const std::string& idx, const std::string& bin = std::string("\1\0\2\0\3\0", 6)) {
    const Scratch dir;
    dir.write("d.bin", bin);
    dir.write("d.idx", idx);
    try {
      const Dataset d = megatron_dataset(dir.path() / "d", 3);
      for (std::int64_t i = 0; i < d.documents; ++i) (void)d.read(i);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const std::string good = megatron_index(8, {{2, 0}});
  EXPECT_EQ(message(good), "accepted");
  EXPECT_NE(message(good.substr(0, 20)).find("too few"), std::string::npos);
  EXPECT_NE(message("X" + good.substr(1)).find("byte 0"), std::string::npos);
  EXPECT_NE(message(megatron_index(7, {{2, 0}})).find("type code 7"), std::string::npos);
  EXPECT_NE(message(megatron_index(8, {{4, 0}})).find("sequence 0"), std::string::npos);
  EXPECT_NE(message(megatron_index(8, {{1, 1}})).find("byte 1"), std::string::npos);
  EXPECT_NE(message(megatron_index(8, {{3, 0}})).find("id 3"), std::string::npos);
  EXPECT_NE(message(good + "x!").find("counts need"), std::string::npos);
}

Dataset counting(std::vector<std::int64_t> lengths) {
  return {"counting", static_cast<std::int64_t>(lengths.size()), [lengths](std::int64_t n) {
            Document d;
            for (std::int64_t i = 0; i < lengths[static_cast<std::size_t>(n)]; ++i) d.tokens.push_back(static_cast<std::int32_t>(100 * n + i));
            d.labels = d.tokens;
            return d;
          }};
}

TEST(Packer, KeepsDocumentsApartAndLosesNoToken) {
  Packer packer(counting({3, 5, 2, 9}), 2, 6, true, 7);
  std::map<std::int32_t, int> seen;
  for (int i = 0; i < 19; ++i) {   // 19 batches of 12 tokens are 12 epochs of 19 tokens
    const Batch b = packer.next();
    ASSERT_EQ(b.tokens.size(), 12u);
    for (std::size_t t = 0; t < 12; ++t) {
      ++seen[b.tokens[t]];
      if (b.labels[t] >= 0) { EXPECT_EQ(b.labels[t], b.tokens[t] + 1) << "the next token of the same document"; }
    }
    ASSERT_FALSE(b.starts.empty());
    EXPECT_EQ(b.starts.front(), 0);
    EXPECT_EQ(b.starts.back(), 12);
    EXPECT_NE(std::find(b.starts.begin(), b.starts.end(), 6), b.starts.end()) << "a row begins a sequence";
    for (std::size_t s = 1; s + 1 < b.starts.size(); ++s) EXPECT_EQ(b.labels[static_cast<std::size_t>(b.starts[s]) - 1], -100) << "nothing is learnt across a boundary";
  }
  ASSERT_EQ(seen.size(), 19u);
  for (const auto& [token, times] : seen) EXPECT_EQ(times, 12) << token;
}

TEST(Packer, ContinuesWhereItWas) {
  Packer a(counting({3, 5, 2, 9}), 2, 6, true, 7), b(counting({3, 5, 2, 9}), 2, 6, true, 7);
  for (int i = 0; i < 5; ++i) (void)a.next();
  b.seek(a.position());
  for (int i = 0; i < 5; ++i) {
    const Batch x = a.next(), y = b.next();
    EXPECT_EQ(x.tokens, y.tokens);
    EXPECT_EQ(x.starts, y.starts);
  }
  EXPECT_THROW(b.seek({0, 4, 0}), InputError);
}

TEST(Packer, PadsUnpackedRows) {
  Packer packer(counting({3, 9}), 1, 6, false, 1);
  for (int i = 0; i < 2; ++i) {
    const Batch b = packer.next();
    if (b.starts.empty()) {
      EXPECT_EQ(b.tokens[5], 105) << "the head of the long document";
    } else {
      EXPECT_EQ(b.starts, (std::vector<std::int64_t>{0, 3, 6}));
      EXPECT_EQ(b.labelled(), 2);
    }
  }
}

}  // namespace
}  // namespace moeplan
