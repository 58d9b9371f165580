#include "core/json.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/error.hpp"
#include "core/read.hpp"

namespace moeplan {
namespace {

/// What `parse_json` says about `text`; "read" if it accepts it.
std::string verdict(std::string_view text, const JsonLimits& limits = {}) {
  try {
    (void)parse_json(text, "f.json", limits);
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()).find_first_of("\n\r"), std::string::npos);
    EXPECT_EQ(std::string(e.what()).rfind("f.json: ", 0), 0u) << e.what();
    return e.reason();
  }
  return "read";
}

void expect_refused(std::string_view text, std::string_view why, const JsonLimits& limits = {}) {
  EXPECT_NE(verdict(text, limits).find(why), std::string::npos) << shown(text) << " -> " << verdict(text, limits);
}

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "moeplan_json_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::filesystem::path path_;
};

TEST(Json, KeepsTheOrderOfKeys) { EXPECT_EQ(parse_json(R"({"b":1,"a":[2,{"c":null}]})", "f.json").dump(), R"({"b":1,"a":[2,{"c":null}]})"); }

TEST(Json, RefusesADuplicateKeyWithItsName) {
  expect_refused(R"({"a":1,"b":2,"a":3})", R"(key "a" stands twice)");
  expect_refused(R"({"x":{"a":1,"\u0061":3}})", R"(key "a" stands twice)");
  EXPECT_EQ(verdict(R"([{"a":1},{"a":2}])"), "read");
}

TEST(Json, BL128RefusesDepthWithoutUsingTheStack) {
  expect_refused(std::string(100000, '['), "nested deeper than 64 levels");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  expect_refused(objects, "nested deeper than 64 levels");
  EXPECT_EQ(verdict(std::string(64, '[') + std::string(64, ']')), "read");
  expect_refused(std::string(65, '[') + std::string(65, ']'), "nested deeper");
}

TEST(Json, RefusesWhatIsNotUtf8) {
  expect_refused("{\"a\":\"\xff\xfe\"}", "ill-formed UTF-8");
  expect_refused("{\"a\":\"\xc0\xaf\"}", "ill-formed UTF-8");
  expect_refused("{\"a\":\"\\ud800\"}", "surrogate");
  EXPECT_EQ(verdict("{\"a\":\"\xc3\xa9\"}"), "read");
}

TEST(Json, RefusesAByteOrderMark) { expect_refused("\xef\xbb\xbf{}", "byte order mark"); }

TEST(Json, RefusesEmptyText) {
  expect_refused("", "the file is empty");
  expect_refused(" \n\t ", "the file is empty");
}

TEST(Json, RefusesNonFiniteLiteralsUnlessTolerated) {
  const JsonLimits tolerant{.tolerate_nonfinite_literals = true};
  for (const char* literal : {"NaN", "Infinity", "-Infinity"}) {
    const std::string text = "{\"a\": " + std::string(literal) + ", \"b\": \"NaN Infinity\"}";
    expect_refused(text, "not valid JSON");
    const Json json = parse_json(text, "f.json", tolerant);
    EXPECT_TRUE(json["a"].is_string()) << "so that using it as a number is a type error";
    EXPECT_EQ(json["b"], "NaN Infinity") << "text is left alone";
    try {
      (void)read<double>(Place(json["a"], "f.json"));
      FAIL();
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find("found " + std::string(literal)), std::string::npos) << e.what();
    }
  }
  expect_refused("{\"a\": 1NaN}", "not valid JSON", tolerant);
  expect_refused("[nan]", "not valid JSON", tolerant);
}

TEST(Json, RefusesNumbersThatOverflowOrNeverEnd) {
  expect_refused("[1e400]", "number overflow");
  expect_refused("[-1e400]", "number overflow");
  expect_refused("[1" + std::string(100, '0') + "]", "a number literal of 101 characters");
  expect_refused("[0." + std::string(10u << 20, '3') + "]", "a number literal of 10485762 characters");
  EXPECT_LT(verdict("[" + std::string(10u << 20, '7') + "]").size(), 300u) << "the message stays one short line";
}

TEST(Json, RefusesTrailingCommasCommentsAndJunk) {
  for (const char* text : {"{\"a\":1,}", "[1,]", "// c\n{}", "{} x", "{}{}", "{'a':1}", "{a:1}", "[01]", "[+1]", "[.5]", "\"\x01\"", "[1"}) expect_refused(text, "not valid JSON");
  expect_refused(std::string_view("{}\0", 3), "not valid JSON");
}

TEST(Json, RefusesMoreBytesOrValuesThanTheKindOfFileMayHave) {
  expect_refused("[1,2,3]", "7 bytes, more than the 4", {.max_bytes = 4});
  expect_refused("[1,2,3]", "more than 3 values", {.max_values = 3});
  EXPECT_EQ(verdict("[1,2]", {.max_values = 3}), "read");
}

TEST_F(Folder, RefusesADirectoryAFifoAndAMissingFile) {
  const auto message = [](const std::filesystem::path& path) {
    try {
      (void)load_json(path);
    } catch (const InputError& e) {
      return e.reason();
    }
    return std::string("read");
  };
  EXPECT_EQ(message(path_), "is a directory, not a file");
  ASSERT_EQ(mkfifo((path_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(message(path_ / "fifo"), "is not a regular file");
  EXPECT_EQ(message("/dev/zero"), "is not a regular file");
  EXPECT_EQ(message(path_ / "absent"), "cannot open: No such file or directory");
  std::ofstream(path_ / "empty").flush();
  EXPECT_EQ(message(path_ / "empty"), "the file is empty");
}

TEST_F(Folder, WritesWholeFilesAndLeavesNothingBehind) {
  const auto file = path_ / "out.json";
  write_text_file(file, "one");
  write_text_file(file, "two");
  EXPECT_EQ(read_text_file(file, 100), "two");
  std::filesystem::create_symlink("out.json", path_ / "link");
  write_text_file(path_ / "link", "three");
  EXPECT_EQ(read_text_file(file, 100), "three") << "a link is followed";
  EXPECT_TRUE(std::filesystem::is_symlink(path_ / "link"));
  EXPECT_THROW(write_text_file(path_ / "absent" / "x", "y"), InputError);
  EXPECT_THROW(write_text_file(path_, "y"), InputError);
  EXPECT_THROW(write_text_file("/dev/null", "y"), InputError) << "a rename must not replace a device";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path_), {}), 2);
}

TEST(Json, ReadsManyKeysInOneObjectWithoutQuadraticTime) {
  std::ostringstream text;
  text << "{";
  for (int i = 0; i < 200000; ++i) text << (i ? "," : "") << "\"k" << i << "\":0";
  text << "}";
  EXPECT_EQ(verdict(text.str()), "read");
}

}  // namespace
}  // namespace moeplan
