/// A corpus of hostile files, generated: each shipped kind of input, cut, spliced and filled with senseless values. Whatever the
/// program says, it does not crash, hang or take the machine's memory, and a refusal is one line.

#include <functional>
#include <random>

#include "tests/cli/program.hpp"

namespace moeplan::cli_test {
namespace {

std::string hostile(std::mt19937_64& random, std::string text) {
  static const std::vector<std::string> values{"0", "-1", "9223372036854775807", "9223372036854775808", "1e308", "null", "true", "\"\"", "[]", "{}", "1e-300", "65537", "\"1e308 PB\"", "NaN", "16777216"};
  const auto below = [&](std::size_t n) { return n ? static_cast<std::size_t>(random() % n) : 0; };
  for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
    switch (random() % 5) {
      case 0: text.resize(below(text.size() + 1)); break;
      case 1: if (!text.empty()) text[below(text.size())] = static_cast<char>(random()); break;
      default: {
        const std::size_t at = text.find(": ", below(text.size()));
        const std::size_t end = at == std::string::npos ? at : text.find_first_of(",\n}", at);
        if (end != std::string::npos) text.replace(at + 2, end - at - 2, values[below(values.size())]);
      }
    }
  }
  return text;
}

class Hostile : public Folder {
 protected:
  void attack(const std::string& source, const std::function<std::vector<std::string>(const std::string&)>& command, int count) {
    const std::string text = read_text_file(config(source), 1 << 24);
    std::mt19937_64 random(std::hash<std::string>{}(source));
    for (int i = 0; i < count; ++i) {
      const std::string attacked = hostile(random, text);
      const Finished run = moeplan(command(write("hostile.json", attacked)));
      ASSERT_TRUE(run.exit_code == 0 || run.exit_code == 2 || run.exit_code == 3) << source << " #" << i << " ended with " << run.exit_code << ": " << run.err << "\n" << attacked;
      if (run.exit_code == 2) {
        ASSERT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
        ASSERT_EQ(run.out, "");
        ASSERT_LT(run.peak_kib, 256 * 1000) << attacked;
        ASSERT_LT(run.cpu_seconds, 20) << attacked;
      }
    }
  }
};

TEST_F(Hostile, ModelConfigs) {
  for (const char* name : {"tiny/tiny-kimi-k3", "tiny/tiny-deepseek-v4", "tiny/tiny-glm-moe-dsa", "tiny/tiny-gpt-oss"})
    attack(std::string("models/") + name + ".json", [](const std::string& f) { return std::vector<std::string>{"inspect", f, "--json"}; }, 15);
}

TEST_F(Hostile, Workloads) {
  attack("workloads/full-sft.json", [](const std::string& f) { return std::vector<std::string>{"plan", "tiny-qwen3-moe", "--device", "h200", "--gpus", "1", "--workload", f, "-q"}; }, 20);
}

TEST_F(Hostile, Clusters) {
  attack("clusters/8xh200.json", [](const std::string& f) { return std::vector<std::string>{"plan", "tiny-qwen3-moe", "--cluster", f, "-q", "--pp", "1", "--micro-batch", "1"}; }, 20);
}

TEST_F(Hostile, Loads) {
  attack("loads/log-normal-v3.json", [](const std::string& f) { return std::vector<std::string>{"plan", "tiny-qwen3-moe", "--device", "h200", "--gpus", "1", "--load", f, "-q"}; }, 15);
}

}  // namespace
}  // namespace moeplan::cli_test
