/// The picture of docs/architecture.md, read off the includes, and the size of the rooms.

#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "tests/rules/source_tree.hpp"

namespace moeplan::rules {
namespace {

/// Which rooms a room may include; the longest matching prefix speaks for a file. `kernels/reference` stands for what
/// computes on the CPU, `kernels/cuda` for what needs the CUDA toolkit.
const std::map<std::string, std::vector<std::string>> kArrows{
    {"core/", {"core/"}},
    {"kernels/", {"core/", "kernels/"}},
    {"sim/program/", {"core/", "kernels/", "sim/program/"}},
    {"sim/", {"core/", "kernels/", "sim/"}},
    {"planner/", {"core/", "kernels/", "sim/", "planner/"}},
    {"executor/", {"core/", "kernels/", "sim/program/", "sim/memory/", "sim/load/", "executor/"}},
    {"cli/", {"core/", "kernels/", "sim/", "planner/", "executor/", "cli/"}},
    {"gui/", {"core/", "kernels/", "sim/", "planner/", "gui/"}},
};

std::vector<std::string> allowed(const std::string& path) {
  std::string best;
  for (const auto& [room, arrows] : kArrows)
    if (path.starts_with(room) && room.size() > best.size()) best = room;
  return kArrows.at(best);
}

TEST(Rooms, IncludeOnlyWhatIsBelowThem) {
  const std::regex include(R"re(^\s*#\s*include\s*"([^"]+)")re");
  for (const SourceFile& file : files(kRooms, kCode)) {
    const auto arrows = allowed(file.path);
    for (const std::string& line : file.lines()) {
      std::smatch found;
      if (!std::regex_search(line, found, include)) continue;
      const std::string target = found[1];
      EXPECT_NE(target.find('/'), std::string::npos) << file.path << " includes \"" << target << "\": write the path from the root";
      EXPECT_TRUE(std::any_of(arrows.begin(), arrows.end(), [&](const auto& room) { return target.starts_with(room); })) << file.path << " may not include " << target;
    }
  }
}

TEST(Rooms, KnowNeitherQtNorCudaOutsideTheirPlaces) {
  const std::regex qt(R"(#\s*include\s*[<"]Q[A-Za-z]|qcustomplot)"), cuda(R"(#\s*include\s*[<"](cuda|nccl|cublas))");
  for (const SourceFile& file : files(kRooms, kCode)) {
    const bool device = file.path.ends_with(".cu") || file.path.ends_with(".cuh") || file.path.starts_with("executor/") || file.path.starts_with("kernels/");
    for (const std::string& line : file.lines()) {
      EXPECT_FALSE(!file.path.starts_with("gui/") && std::regex_search(line, qt)) << file.path << ": " << line;
      EXPECT_FALSE(!device && std::regex_search(line, cuda)) << file.path << ": " << line;
    }
  }
}

TEST(Rooms, AreAtMost420Lines) {
  auto all = kRooms;
  all.emplace_back("tests");
  all.emplace_back("bench");
  for (const SourceFile& file : files(all, kCode))
    EXPECT_TRUE(file.lines().size() <= 420 || file.path.starts_with("tests/vectors")) << file.path << ": " << file.lines().size();
}

TEST(Rooms, StartWithWhatTheyAreFor) {
  for (const SourceFile& file : files(kRooms, {".hpp"})) {
    const auto lines = file.lines();
    ASSERT_GE(lines.size(), 2u) << file.path;
    EXPECT_EQ(lines[0], "#pragma once") << file.path;
    EXPECT_TRUE(lines[1].starts_with("/// ")) << file.path << ": a header is the manual of its room; say what it is for";
  }
}

}  // namespace
}  // namespace moeplan::rules
