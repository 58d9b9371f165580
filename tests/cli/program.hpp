#pragma once
/// Runs the program as a child process.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/json.hpp"

namespace moeplan::cli_test {

struct Finished {
  int exit_code = -1;      ///< minus the signal's number where one ended it
  std::string out, err;
  double cpu_seconds = 0;  ///< user and system
  long peak_kib = 0;       ///< largest resident set
};

/// Runs `moeplan` with these arguments, standard input empty, at most two minutes.
inline Finished moeplan(const std::vector<std::string>& arguments) {
  int out[2], err[2];
  if (::pipe(out) != 0 || ::pipe(err) != 0) throw std::runtime_error("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], 1), ::dup2(err[1], 2);
    ::close(0), ::close(out[0]), ::close(out[1]), ::close(err[0]), ::close(err[1]);
    ::alarm(120);
    std::vector<std::string> words{MOEPLAN_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(126);
  }
  ::close(out[1]), ::close(err[1]);
  Finished run;
  pollfd ends[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  int open = 2;
  while (open > 0) {
    if (::poll(ends, 2, -1) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || !ends[i].revents) continue;
      char buffer[65536];
      const ssize_t n = ::read(ends[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        (i == 0 ? run.out : run.err).append(buffer, static_cast<std::size_t>(n));
      } else {
        ::close(ends[i].fd);
        ends[i].fd = -1;
        --open;
      }
    }
  }
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  run.cpu_seconds = static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  run.peak_kib = used.ru_maxrss;
  return run;
}

/// Bad input: exit 2, nothing on stdout, one line on stderr that holds `why`, within 256 MB. Time is not asserted here; a hang ends
/// by signal after two minutes.
inline void expect_refused(const std::vector<std::string>& arguments, const std::string& why) {
  std::string command;
  for (const auto& each : arguments) command += each.substr(0, 60) + " ";
  SCOPED_TRACE(command);
  const Finished run = moeplan(arguments);
  EXPECT_EQ(run.exit_code, 2) << run.err << run.out.substr(0, 400);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_TRUE(run.err.ends_with("\n"));
  EXPECT_NE(run.err.find(why), std::string::npos) << "expected: " << why << "\n     said: " << run.err;
  EXPECT_LT(run.err.size(), 3000u);
  EXPECT_LT(run.peak_kib, 256 * 1000);
}

/// A folder that is gone after the test.
class Folder : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "moeplan_cli_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  }
  std::filesystem::path folder;
};

inline std::string config(const std::string& path) { return std::string(MOEPLAN_SOURCE) + "/configs/" + path; }

}  // namespace moeplan::cli_test
