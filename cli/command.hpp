#pragma once
/// A command: its options are declared on the parser, then it runs to a text. Only `main` prints.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <string>

namespace moeplan::cli {

/// What every command is told.
struct Context {
  std::filesystem::path configs;
  bool json = false;      ///< one JSON document on stdout, nothing else
  bool quiet = false;     ///< no notes on stderr
  bool colour = false;    ///< stdout is a terminal and NO_COLOR is unset
  bool progress = false;  ///< stderr is a terminal
  int threads = 0;        ///< 0: all cores
  /// Shows the share of the work done; call it from any thread. Does nothing unless `progress`.
  std::function<void(double)> show_progress;
};

/// What a command says: `text` goes to stdout, each of `notes` is a line on stderr.
struct Output {
  std::string text;
  std::vector<std::string> notes;
  int exit_code = 0;
};

struct Command {
  CLI::App* app = nullptr;
  std::function<Output(const Context&)> run;
};

/// Declares a command on the program's parser. One file each.
[[nodiscard]] Command inspect_command(CLI::App& program);
[[nodiscard]] Command plan_command(CLI::App& program);
[[nodiscard]] Command recommend_command(CLI::App& program);
[[nodiscard]] Command explain_command(CLI::App& program);
[[nodiscard]] Command simulate_command(CLI::App& program);
[[nodiscard]] Command run_command(CLI::App& program);
[[nodiscard]] Command calibrate_command(CLI::App& program);
[[nodiscard]] Command bench_command(CLI::App& program);
[[nodiscard]] Command compare_command(CLI::App& program);
[[nodiscard]] Command ops_command(CLI::App& program);
[[nodiscard]] Command validate_command(CLI::App& program);

/// Bold on a terminal.
[[nodiscard]] inline std::string heading(const Context& context, const std::string& text) {
  return context.colour ? "\x1b[1m" + text + "\x1b[0m" : text;
}

}  // namespace moeplan::cli
