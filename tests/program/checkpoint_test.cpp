/// A model directory against its config: sizes, names, hostile indices and headers.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "core/json.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/checkpoint.hpp"
#include "sim/program/model_tensors.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

const char* config = R"({"model_type":"qwen3_moe","hidden_size":16,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":8,"num_experts":3,
  "num_experts_per_tok":2,"moe_intermediate_size":8,"vocab_size":10,"tie_word_embeddings":true})";

class Directory {
 public:
  Directory() : path_(fs::temp_directory_path() / ("moeplan-checkpoint-" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Directory() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name, std::ios::binary) << text; }
  /// A file whose header is `header` and whose data are `bytes` zeros.
  void shard(const std::string& name, const std::string& header, std::int64_t bytes) const {
    std::string out(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
    write(name, out + header + std::string(static_cast<std::size_t>(bytes), '\0'));
  }

 private:
  fs::path path_;
};

ModelSpec model() { return import_model(parse_json(config, "config.json"), "config.json", "test"); }

/// Header of all tensors of the model (experts one by one), and the size of the data.
std::pair<Json, std::int64_t> full_header() {
  Json header = Json::object();
  std::int64_t at = 0;
  const ModelSpec m = model();
  for (const ModelTensor& t : model_tensors(m, compose_model(m)))
    for (const FileTensor& f : file_tensors(t, m.stored.layout))
      for (std::int64_t e = 0; e < f.count; ++e) {
        std::string name = f.name;
        if (const auto star = name.find('*'); star != std::string::npos) name.replace(star, 1, std::to_string(e));
        header[name] = {{"dtype", f.dtype}, {"shape", f.shape}, {"data_offsets", {at, at + f.bytes.value}}};
        at += f.bytes.value;
      }
  return {header, at};
}

std::string refusal(const Directory& d) {
  try {
    (void)check_checkpoint(d.path(), model());
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Checkpoint, a_directory_without_weights_has_no_report) { EXPECT_FALSE(check_checkpoint(Directory().path(), model())); }

TEST(Checkpoint, a_complete_file_agrees_with_its_config) {
  const Directory d;
  const auto [header, bytes] = full_header();
  d.shard("model.safetensors", header.dump() + "   ", bytes);  // trailing spaces pad a header
  const auto report = check_checkpoint(d.path(), model());
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->mismatches.empty()) << report->mismatches.front();
  EXPECT_EQ(report->bytes, bytes);
  EXPECT_EQ(report->tensors, 1 + 1 + 2 * (2 + 4 + 2 + 1 + 9));  // tied: no head
  EXPECT_TRUE(report->complete());
}

TEST(Checkpoint, differences_are_listed_by_tensor) {
  const Directory d;
  auto [header, bytes] = full_header();
  header["model.layers.0.mlp.experts.7.up_proj.weight"] = {{"dtype", "BF16"}, {"shape", {1}}, {"data_offsets", {bytes, bytes + 2}}};
  header["lm_head.weight"] = {{"dtype", "BF16"}, {"shape", {10, 16}}, {"data_offsets", {bytes + 2, bytes + 322}}};
  header["model.norm.weight"]["dtype"] = "F16";
  header["model.layers.1.self_attn.q_norm.weight"]["shape"] = {2, 4};
  const Json moved = header["model.layers.1.mlp.gate.weight"];
  header.erase("model.layers.1.mlp.gate.weight");
  header["model.layers.1.rotary_emb.inv_freq"] = moved;
  d.shard("model.safetensors", header.dump(), bytes + 322);
  const auto report = check_checkpoint(d.path(), model());
  ASSERT_TRUE(report);
  std::string all;
  for (const auto& line : report->mismatches) all += line + "\n";
  EXPECT_EQ(report->mismatches.size(), 4u) << all;
  EXPECT_NE(all.find("experts.7.up_proj.weight\" is not a tensor of this model"), std::string::npos) << all;
  EXPECT_NE(all.find("1 tensors are F16 in the file, BF16 by the config (first: \"model.norm.weight\")"), std::string::npos) << all;
  EXPECT_NE(all.find("shape [2, 4] in the file, [8] by the config"), std::string::npos) << all;
  EXPECT_NE(all.find("\"model.layers.1.mlp.gate.weight\" is missing"), std::string::npos) << all;
  EXPECT_TRUE(report->stores_tied_head);
}

TEST(Checkpoint, an_index_alone_is_compared_by_name) {
  const Directory d;
  Json map = Json::object();
  const Json header = full_header().first;
  for (const auto& [name, entry] : header.items()) map[name] = "model-00001-of-00001.safetensors";
  map.erase("model.norm.weight");
  d.write("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  const auto report = check_checkpoint(d.path(), model());
  ASSERT_TRUE(report);
  EXPECT_EQ(report->shards_present, 0);
  EXPECT_EQ(report->mismatches, std::vector<std::string>{"\"model.norm.weight\" is missing"});
}

TEST(Checkpoint, missing_shards_make_a_report_incomplete_not_wrong) {  // BL-020
  const Directory d;
  const auto [header, bytes] = full_header();
  Json map = Json::object(), first = Json::object();
  for (const auto& [name, entry] : header.items()) map[name] = name == "model.embed_tokens.weight" ? "a.safetensors" : "b.safetensors";
  first["model.embed_tokens.weight"] = {{"dtype", "BF16"}, {"shape", {10, 16}}, {"data_offsets", {0, 320}}};
  d.write("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  d.shard("a.safetensors", first.dump(), 320);
  const auto report = check_checkpoint(d.path(), model());
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->complete());
  EXPECT_EQ(report->shards_present, 1);
  EXPECT_TRUE(report->mismatches.empty());
  ASSERT_EQ(report->notes.size(), 1u);
  EXPECT_EQ(report->notes[0], "1 of 2 shards are here: sizes read from them are incomplete");
}

TEST(Checkpoint, only_plain_names_inside_the_directory_are_opened) {  // BL-127
  for (const char* name : {"../x.safetensors", "/etc/hostname", "a//b", "sub/../x", "C:\\x", ".hidden", "", "..", "x\\u0000y"}) {
    const Directory d;
    d.write("model.safetensors.index.json", std::string(R"({"weight_map":{"a":")") + (name == std::string("C:\\x") ? "C:\\\\x" : name) + "\"}}");
    EXPECT_NE(refusal(d), "accepted") << name;
  }
  const Directory d;
  ASSERT_EQ(::symlink("/etc/hostname", (d.path() / "link.safetensors").c_str()), 0);
  d.write("model.safetensors.index.json", R"({"weight_map":{"a":"link.safetensors"}})");
  EXPECT_NE(refusal(d).find("symbolic link"), std::string::npos);
  const Directory e;
  ASSERT_EQ(::mkfifo((e.path() / "pipe.safetensors").c_str(), 0600), 0);
  EXPECT_NE(refusal(e).find("not a regular file"), std::string::npos);
}

TEST(Checkpoint, malformed_headers_are_refused) {  // BL-122, BL-124, BL-125
  const auto refused = [](const std::string& header, std::int64_t bytes, const std::string& why) {
    const Directory d;
    d.shard("model.safetensors", header, bytes);
    const std::string text = refusal(d);
    EXPECT_NE(text.find(why), std::string::npos) << header << " gave " << text;
  };
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  refused(one("F64", "[4]", "[0,16]"), 16, "hold 16 bytes, but the shape and type need 32");
  refused(one("F32", "[1000,1000]", "[0,4]"), 4, "need 4000000");
  refused(one("F32", "[2]", "[-8,0]"), 8, "data_offsets");
  refused(one("F32", "[2]", "[16,8]"), 16, "before begin");
  refused(one("F32", "[2]", "[0,18000000000000000000]"), 8, "data_offsets");
  refused(one("F32", "[4294967296,4294967296]", "[0,8]"), 8, "does not fit 63 bits");
  refused(one("F32", "[2]", "[0,8]"), 4, "ends at byte 8");
  refused(one("F32", "[2]", "[0,8]"), 12, "tensors end at byte 8, the data at 12");
  refused(one("Q3", "[2]", "[0,8]"), 8, "unknown type");
  refused(one("F32", "[2]", "[0,8]") + std::string(3, '\0'), 8, "NUL");
  refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6, "overlap");
  for (const char* number : {"1.5", "1e30", "18446744073709551616", "\"1\"", "null"}) {
    refused(one("F32", std::string("[") + number + "]", "[0,8]"), 8, "t.shape");
    refused(one("F32", "[2]", std::string("[0,") + number + "]"), 8, "t.data_offsets");
  }
  std::string ones = "1";
  for (int i = 0; i < 32; ++i) ones += ",1";
  refused(one("F32", "[" + ones + "]", "[0,4]"), 4, "33 dimensions, more than 32");
  refused(one("F4", "[3]", "[0,1]"), 1, "3 elements of 4 bits do not end on a byte");
  refused(one("F6_E2M3", "[2]", "[0,1]"), 1, "2 elements of 6 bits do not end on a byte");
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  refused("{\"" + std::string(5000, 'n') + "\":" + entry + "}", 1, "1 to 4096 bytes");
  refused("{\"a\\u0001\":" + entry + "}", 1, "no control characters");
  refused("{\"\xff\":" + entry + "}", 1, "UTF-8");
  refused("{\"a\":" + entry + ",\"a\":" + entry + "}", 1, "\"a\"");
  refused("{\"a\":" + entry + "} x", 1, "model.safetensors");
  refused("", 0, "does not start with {");
  for (const auto& [bytes, why] : {std::pair{std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10), "more than 100000000"}, {std::string("\x64\0\0\0\0\0\0\0{}", 10), "a header of 100 bytes in a file of 10"},
                                   {std::string("\1\0\0\0\0\0\0\0{", 9), "model.safetensors"}, {std::string("1234567"), "too few"}}) {
    const Directory d;
    d.write("model.safetensors", bytes);
    EXPECT_NE(refusal(d).find(why), std::string::npos) << refusal(d);
  }
}

/// Scalars, tensors without elements and white space around the header are legal, and so are types that we have no use for.
TEST(Checkpoint, legal_headers_are_read) {
  for (const auto& [header, bytes] : {std::pair{R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4}, {" \n{\"t\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}  ", 8},
                                      {R"({"t":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[0,3]}})", 3}, {R"({"t":{"dtype":"F8_E4M3FNUZ","shape":[2],"data_offsets":[0,2]}})", 2},
                                      {R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4}}) {
    const Directory d;
    d.shard("model.safetensors", header, bytes);
    EXPECT_NO_THROW((void)read_safetensors_header(d.path(), "model.safetensors")) << header;
  }
}

}  // namespace
}  // namespace moeplan
