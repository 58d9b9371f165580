#pragma once
/// The project's own files, for the tests that hold them to the rules of docs/architecture.md.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace moeplan::rules {

struct SourceFile {
  std::string path;   ///< from the project's root, with slashes
  std::string text;

  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> out;
    std::size_t from = 0;
    while (from < text.size()) {
      const std::size_t end = std::min(text.find('\n', from), text.size());
      out.push_back(text.substr(from, end - from));
      from = end + 1;
    }
    return out;
  }
};

/// Files below the given top-level folders (or top-level files) whose name ends in one of `endings`, sorted; none: all.
inline std::vector<SourceFile> files(const std::vector<std::string>& tops, const std::vector<std::string>& endings = {}) {
  namespace fs = std::filesystem;
  const fs::path root = MOEPLAN_SOURCE;
  std::vector<SourceFile> out;
  const auto add = [&](const fs::path& path) {
    const std::string name = fs::relative(path, root).generic_string();
    if (!endings.empty() && std::none_of(endings.begin(), endings.end(), [&](const auto& e) { return name.ends_with(e); })) return;
    std::ifstream in(path, std::ios::binary);
    out.push_back({name, {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()}});
  };
  for (const std::string& top : tops) {
    if (fs::is_regular_file(root / top)) add(root / top);
    if (!fs::is_directory(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top))
      if (entry.is_regular_file()) add(entry.path());
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return out;
}

inline const std::vector<std::string> kRooms{"core", "kernels", "sim", "planner", "executor", "cli", "gui"};
inline const std::vector<std::string> kCode{".cpp", ".hpp", ".cu", ".cuh"};

/// A line of code without its comment and without the insides of its string literals.
inline std::string code_of(const std::string& line) {
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (in_string) {
      if (line[i] == '\\') ++i;
      else if (line[i] == '"') in_string = false, out += '"';
      continue;
    }
    if (line.compare(i, 2, "//") == 0) break;
    if (line[i] == '"' && !(i > 0 && line[i - 1] == '\'')) in_string = true;
    out += line[i];
  }
  return out;
}

}  // namespace moeplan::rules
