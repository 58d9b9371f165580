#include "cli/parse_error.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.hpp"
#include "core/read.hpp"

namespace moeplan::cli {
namespace {

std::string meant(const std::string& word, const std::vector<std::string>& known) {
  const std::string_view near = nearest_name(word, {known.begin(), known.end()});
  return near.empty() ? "" : "; did you mean " + std::string(near) + "?";
}

/// "--jsn", of "... were not expected: 8 --jsn=more".
std::string unexpected(const std::string& said) {
  const auto at = said.find(" --", std::min(said.rfind(": "), said.size()));
  if (at == std::string::npos) return {};
  return said.substr(at + 1, said.find_first_of(" =", at + 1) - at - 1);
}

/// "Value 2.5 not in range 1 to 8" names a range that 2.5 is in: what is wanted is a whole number.
std::string of_range(const std::string& said) {
  const std::string before = "Value ", between = " not in range ", to = " to ";
  const auto value = said.find(before), range = said.find(between), last = said.rfind(to);
  if (value == std::string::npos || range == std::string::npos || last == std::string::npos || last < range) return said;
  const auto number = [](const std::string& text) {
    double out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc{} && end == text.data() + text.size() ? std::optional(out) : std::nullopt;
  };
  const std::string word = said.substr(value + before.size(), range - value - before.size());
  const std::string from = said.substr(range + between.size(), last - range - between.size()), most = said.substr(last + to.size());
  const auto x = number(word), low = number(from), high = number(most);
  const bool whole = !word.empty() && word.find_first_not_of("+-0123456789") == std::string::npos;
  if (!low || !high || whole || (x && (*x < *low || *x > *high))) return said;
  return said.substr(0, value) + word + " is no" + (x ? " whole" : "") + " number from " + from + to + most;
}

}  // namespace

std::string parse_error_text(const CLI::App& program, const CLI::ParseError& error, const std::vector<std::string>& words) {
  const std::string said = error.what();
  const auto parsed = program.get_subcommands();
  if (parsed.empty()) {
    std::vector<std::string> commands;
    for (const CLI::App* each : program.get_subcommands([](const CLI::App*) { return true; })) commands.push_back(each->get_name());
    for (const std::string& word : words)
      if (!word.empty() && word.front() != '-') return shown(word) + " is no command" + meant(word, commands);
  } else if (const std::string word = unexpected(said); dynamic_cast<const CLI::ExtrasError*>(&error) && word.starts_with("--")) {
    std::vector<std::string> known;
    for (const CLI::App* app : {static_cast<const CLI::App*>(parsed.front()), &program})
      for (const CLI::Option* option : app->get_options())
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    return shown(word) + " is no option of " + parsed.front()->get_name() + meant(word, known);
  }
  return of_range(said);
}

}  // namespace moeplan::cli
