#pragma once
/// What is wrong with a command line, in one sentence that names the word and what it was most likely meant to be.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace moeplan::cli {

/// `words`: the command line behind the program's name.
[[nodiscard]] std::string parse_error_text(const CLI::App& program, const CLI::ParseError& error, const std::vector<std::string>& words);

}  // namespace moeplan::cli
