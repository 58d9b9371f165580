#include "cli/output_files.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "core/error.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

OutputFiles::OutputFiles(const std::vector<std::string>& paths) {
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    if (!seen.insert(path).second) throw InputError(path, "is to be written twice", "give each output a file of its own");
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) throw InputError(path, "cannot be written: it is not a regular file");
    std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (folder.empty()) folder = ".";
    if (::access(folder.c_str(), W_OK | X_OK) != 0) throw InputError(path, std::string("cannot be written: ") + std::strerror(errno));
  }
}

OutputFiles::~OutputFiles() {
  std::error_code ignored;
  for (const auto& path : made_) std::filesystem::remove(path, ignored);
}

void OutputFiles::write(const std::string& path, const std::string& text) {
  std::error_code ignored;
  const bool fresh = !std::filesystem::exists(path, ignored);
  write_text_file(path, text);
  if (fresh) made_.push_back(path);
}

}  // namespace moeplan::cli
