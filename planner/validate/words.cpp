#include "planner/validate/words.hpp"

#include <algorithm>
#include <cctype>

#include "core/read.hpp"

namespace moeplan::validation {

Words load_words(const std::filesystem::path& configs) {
  const std::filesystem::path file = configs / "measured" / "words.json";
  return read_document<Words>(load_json(file), file.string());
}

bool contains(const std::string& text, const std::string& part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

}  // namespace moeplan::validation
