/// What no room does: read the environment, hold mutable state, print, exit, leave things undone, name machines.

#include <gtest/gtest.h>

#include <functional>
#include <regex>

#include "core/error.hpp"
#include "core/json.hpp"
#include "tests/rules/source_tree.hpp"

namespace moeplan::rules {
namespace {

/// Lines of code that match, outside the files that `excused` names.
void expect_none(const std::regex& pattern, const std::function<bool(const std::string&)>& excused, const char* rule) {
  for (const SourceFile& file : files(kRooms, kCode)) {
    if (excused(file.path)) continue;
    std::size_t number = 0;
    for (const std::string& line : file.lines()) {
      ++number;
      EXPECT_FALSE(std::regex_search(code_of(line), pattern)) << file.path << ":" << number << ": " << rule << ": " << line;
    }
  }
}

bool starts(const std::string& path, std::initializer_list<const char*> rooms) {
  return std::any_of(rooms.begin(), rooms.end(), [&](const char* room) { return path.starts_with(room); });
}

TEST(Style, OnlyCliAndRendezvousReadTheEnvironment) {
  expect_none(std::regex(R"(\bgetenv\s*\()"), [](const auto& p) { return starts(p, {"cli/", "gui/", "executor/rendezvous"}); }, "hidden input");
}

TEST(Style, NoMutableStatics) {
  // `static` data that is neither constant nor a function: a name followed by = or { or ; without const.
  expect_none(std::regex(R"(^\s*(inline\s+)?(static|thread_local)\s+(?!constexpr|const\b|consteval|constinit const|inline constexpr|inline const\b|_assert)[\w:<>,\s\*&]+\s[\w]+\s*(=[^=]|\{[^}]*\};|;))"),
              [](const auto& p) { return starts(p, {"cli/main.cpp", "gui/main.cpp"}); }, "mutable state");
}

TEST(Style, OnlyCliAndGuiPrint) {
  expect_none(std::regex(R"(\bstd::(cout|cerr|clog)\b|\b(printf|fprintf|puts|fputs|putchar|perror)\s*\(|\bfmt::print\s*\()"), [](const auto& p) { return starts(p, {"cli/", "gui/"}); }, "prints");
}

// run_job: one process of several, which hangs or has lost the parent that started it.
TEST(Style, NothingExitsButMain) {
  expect_none(std::regex(R"((^|[^\w.>])(std::|::)?(exit|_exit|quick_exit)\s*\()"), [](const auto& p) { return starts(p, {"cli/main.cpp", "gui/main.cpp", "cli/run_job.cpp"}) || p.find("launch") != std::string::npos; }, "exits");
}

TEST(Style, NothingIsLeftUndone) {
  const std::regex undone(std::string(R"(\b(TO)") + R"(DO|FIX)" + R"(ME|X)" + R"(XX)\b|place)" + R"(holder|not im)" + R"(plemented)");
  auto tops = kRooms;
  for (const char* more : {"tests", "bench", "docs", "cmake", "README.md", "CMakeLists.txt", "run.sh", "test.sh", ".ci"}) tops.emplace_back(more);
  for (const SourceFile& file : files(tops)) {
    if (file.path.starts_with("tests/vectors") || file.path.starts_with("tests/data") || file.path.ends_with(".png")) continue;
    std::size_t number = 0;
    for (const std::string& line : file.lines()) {
      ++number;
      EXPECT_FALSE(std::regex_search(line, undone)) << file.path << ":" << number << ": " << line;
    }
  }
}

TEST(Style, NoFileNamesAMachineOrAFolderBesideTheProject) {
  const std::string beside = std::string("../sha") + "red", home = std::string("/wo") + "rk/";
  auto tops = kRooms;
  for (const char* more : {"tests", "bench", "docs", "cmake", "configs", "README.md", "CMakeLists.txt", "run.sh", "test.sh", ".ci"}) tops.emplace_back(more);
  for (const SourceFile& file : files(tops)) {
    EXPECT_EQ(file.text.find(beside), std::string::npos) << file.path;
    EXPECT_EQ(file.text.find(home), std::string::npos) << file.path;
  }
}

TEST(Style, EveryConfigIsStrictJson) {
  std::size_t number = 0;
  for (const SourceFile& file : files({"configs"}, {".json"})) {
    ++number;
    // Published model configs may carry Infinity in fields that nobody uses; ours may not.
    const bool published = file.path.starts_with("configs/models/");
    try {
      (void)parse_json(file.text, file.path, {.tolerate_nonfinite_literals = published});
    } catch (const InputError& e) {
      ADD_FAILURE() << e.what();
    }
  }
  EXPECT_GT(number, 50u);
}

TEST(Style, TheProgramLinksNeitherQtNorQCustomPlot) {
#ifdef MOEPLAN_PROGRAM
  std::ifstream in(MOEPLAN_PROGRAM, std::ios::binary);
  const std::string program{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  ASSERT_GT(program.size(), 100000u);
  for (const char* gpl : {"libQt6", "libQt5", "libqcustomplot", "QCustomPlot"}) EXPECT_EQ(program.find(gpl), std::string::npos) << gpl << " would make the program GPL";
#else
  GTEST_SKIP() << "the program is not built";
#endif
}

}  // namespace
}  // namespace moeplan::rules
