#include "planner/validate/words.hpp"

#include <algorithm>
#include <cctype>

#include "core/read.hpp"

namespace moeplan::validation {

Words load_words(const std::filesystem::path& configs) {
  const std::filesystem::path file = configs / "measured" / "words.json";
  return read_document<Words>(load_json(file), file.string());
}

double reach_at(const std::vector<std::int64_t>& lengths, const std::vector<double>& values, std::int64_t length) {
  if (lengths.empty() || lengths.size() != values.size()) return 1;
  const auto x = [](std::int64_t n) { return static_cast<double>(n); };
  if (length <= lengths.front()) return values.front() * x(length) / x(lengths.front());
  for (std::size_t i = 1; i < lengths.size(); ++i)
    if (length <= lengths[i])
      return values[i - 1] +
             (values[i] - values[i - 1]) * x(length - lengths[i - 1]) / x(lengths[i] - lengths[i - 1]);
  return values.back();
}

bool contains(const std::string& text, const std::string& part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

}  // namespace moeplan::validation
