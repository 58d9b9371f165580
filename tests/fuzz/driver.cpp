/// Runs a fuzz target without libFuzzer: the shipped configs of its kind as seeds, then their mutations, for the seconds given
/// (default 15). The mutations follow from a fixed seed; a crash leaves its input in ./fuzz-crash.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Random = std::mt19937_64;

const std::string* current = nullptr;

extern "C" void keep_input(int signal) {
  if (current)
    if (std::FILE* file = std::fopen("fuzz-crash", "w")) {
      std::fwrite(current->data(), 1, current->size(), file);
      std::fclose(file);
    }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::vector<std::string> seeds(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.file_size() < 64 * 1024) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> out{"", "{}", "[]", "null"};
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return out;
}

std::size_t below(Random& random, std::size_t n) { return n ? static_cast<std::size_t>(random() % n) : 0; }

/// A number or literal of the text replaced: most bugs hide behind valid JSON with senseless values.
void replace_value(Random& random, std::string& text) {
  static const std::vector<std::string> values{"0",   "-1",   "1",     "9223372036854775807", "9223372036854775808", "1e308", "null",       "true", "\"\"",  "[]",
                                               "{}",  "1e-9", "65537", "4294967296",          "0.5",                 "[1]",   "\"80 GiB\"", "NaN",  "\"nan B\"", "16777216"};
  const std::size_t start = text.find(": ", below(random, text.size()));
  if (start == std::string::npos) return;
  const std::size_t end = text.find_first_of(",}\n", start);
  if (end == std::string::npos) return;
  text.replace(start + 2, end - start - 2, values[below(random, values.size())]);
}

std::string mutated(Random& random, const std::vector<std::string>& corpus) {
  std::string text = corpus[below(random, corpus.size())];
  for (std::size_t n = 1 + below(random, 4); n > 0; --n) {
    const std::size_t at = below(random, text.size());
    switch (random() % 6) {
      case 0: case 1: case 2: replace_value(random, text); break;
      case 3: if (!text.empty()) text[at] = static_cast<char>(random()); break;
      case 4: if (!text.empty()) text.erase(at, 1 + below(random, 40)); break;
      default: {
        const std::string& other = corpus[below(random, corpus.size())];
        const std::size_t from = below(random, other.size());
        text.insert(at, other.substr(from, 1 + below(random, 80)));
      }
    }
  }
  return text;
}

/// Runs the target on `text`; keeps the slowest input in ./fuzz-slowest.
void run(const std::string& text, double& slowest) {
  current = &text;
  const std::clock_t start = std::clock();
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (seconds <= slowest) return;
  slowest = seconds;
  if (seconds > 0.2) std::ofstream("fuzz-slowest", std::ios::binary) << text;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 15;
  const std::filesystem::path configs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGBUS}) std::signal(signal, keep_input);
  const std::vector<std::string> corpus = seeds(argc > 2 ? configs / argv[2] : configs);
  Random random(1);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::size_t runs = 0;
  double slowest = 0;
  for (const std::string& seed : corpus) {
    if (elapsed() > seconds) break;
    run(seed, slowest);
    ++runs;
  }
  while (elapsed() < seconds) {
    run(mutated(random, corpus), slowest);
    ++runs;
  }
  std::printf("%zu seeds, %zu runs in %.1f s; the slowest took %.2f s of one core\n", corpus.size(), runs, elapsed(), slowest);
  return 0;
}
