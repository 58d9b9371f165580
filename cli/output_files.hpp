#pragma once
/// The files that one command writes: all or none. Whether they can be written is found out before the work is done; if one
/// fails all the same, those that this run made are taken away again.

#include <filesystem>
#include <string>
#include <vector>

namespace moeplan::cli {

class OutputFiles {
 public:
  /// Empty names are skipped. Throws InputError for a path whose folder cannot be written, that is no regular file, or named twice.
  explicit OutputFiles(const std::vector<std::string>& paths);
  OutputFiles(const OutputFiles&) = delete;
  OutputFiles& operator=(const OutputFiles&) = delete;
  ~OutputFiles();
  void write(const std::string& path, const std::string& text);
  void done() { made_.clear(); }

 private:
  std::vector<std::filesystem::path> made_;   ///< did not exist before
};

}  // namespace moeplan::cli
