/// moeplan: parses the command line, runs one command, prints what it says, and turns errors into exit codes:
/// 0 done, 1 our bug, 2 bad input, 3 proved infeasible, 4 a run failed, 5 interrupted and saved.

#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "cli/command.hpp"
#include "cli/parse_error.hpp"
#include "cli/run_rank.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"

namespace moeplan::cli {
namespace {

constexpr int kBug = 1, kBadInput = 2;

void say(const std::string& line) { std::fprintf(stderr, "moeplan: %s\n", printable(line).c_str()); }

/// A bar on stderr that is redrawn when another percent is done, and wiped at the end.
class ProgressBar {
 public:
  explicit ProgressBar(bool on) : on_(on) {}
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { wipe(); }

  void show(double share) {
    if (!on_) return;
    const std::scoped_lock lock(mutex_);
    const int percent = static_cast<int>(100 * share);
    if (percent <= shown_) return;
    shown_ = percent;
    std::fprintf(stderr, "\r[%-40s] %3d %%", std::string(static_cast<std::size_t>(percent * 2 / 5), '#').c_str(), percent);
    std::fflush(stderr);
  }
  void wipe() {
    const std::scoped_lock lock(mutex_);
    if (shown_ >= 0) std::fputs("\r\x1b[K", stderr);
    shown_ = -1;
  }

 private:
  bool on_;
  std::mutex mutex_;
  int shown_ = -1;
};

int print(const Output& output, bool quiet) {
  if (!quiet || output.exit_code == kFailed)   // who was lost, and where
    for (const std::string& note : output.notes) say("note: " + note);
  if (std::fwrite(output.text.data(), 1, output.text.size(), stdout) != output.text.size() || std::fflush(stdout) != 0) {
    say("standard output: cannot be written");
    return kBadInput;
  }
  return output.exit_code;
}

int run(int argc, char** argv) {
  CLI::App program{"Plans the fine-tuning of very large mixture-of-experts models: which layout, what fits, what it costs.", "moeplan"};
  program.set_version_flag("--version", std::string("moeplan ") + MOEPLAN_VERSION);
  program.require_subcommand(1);
  program.fallthrough();
  program.footer("`moeplan COMMAND --help` shows a command's options and an example.\nExit codes: 0 done, 1 a bug of ours, 2 bad input, 3 proved infeasible, 4 a run failed, 5 interrupted, state saved.");
  Context context;
  context.configs = MOEPLAN_CONFIGS;
  program.add_flag("--json", context.json, "one JSON document on standard output, nothing else");
  program.add_flag("-q,--quiet", context.quiet, "no notes on standard error, unless a run failed");
  program.add_option("--threads", context.threads, "worker threads (default: all cores); the answer does not depend on it")->check(CLI::Range(1, 4096));
  const std::vector<Command> commands{inspect_command(program), plan_command(program), recommend_command(program), simulate_command(program), explain_command(program), run_command(program), calibrate_command(program), compare_command(program), validate_command(program), ops_command(program), bench_command(program)};
  std::signal(SIGXFSZ, SIG_IGN);   // a file that may not grow is an error of the write, like a full disk
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return program.exit(e);  // --help, --version
    say(parse_error_text(program, e, {argv + 1, argv + std::max(argc, 1)}) + "; see moeplan --help");
    return kBadInput;
  }
  context.colour = ::isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  context.progress = ::isatty(STDERR_FILENO) && !context.quiet;
  ProgressBar bar(context.progress);
  context.show_progress = [&bar](double share) { bar.show(share); };
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const Output output = command.run(context);
    bar.wipe();
    return print(output, context.quiet);
  }
  return kBadInput;
}

}  // namespace
}  // namespace moeplan::cli

int main(int argc, char** argv) {
  using moeplan::cli::say;
  try {
    return moeplan::cli::run(argc, argv);
  } catch (const moeplan::InputError& e) {
    say(e.what());
    return moeplan::cli::kBadInput;
  } catch (const std::filesystem::filesystem_error& e) {
    say(e.path1().string() + ": " + e.code().message());
    return moeplan::cli::kBadInput;
  } catch (const std::bad_alloc&) {
    say("this machine's memory is used up; a smaller model, batch or search needs less");
    return moeplan::cli::kBadInput;
  } catch (const std::exception& e) {
    say(std::string("internal error, please report it: ") + e.what());
    return moeplan::cli::kBug;
  }
}
