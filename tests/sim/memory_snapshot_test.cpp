/// Memory timelines as PyTorch's snapshot: the pickle says what the JSON says.

#include "sim/engine/memory_snapshot.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/json.hpp"

namespace moeplan {
namespace {

std::vector<MemoryTimeline> example() {
  MemoryTimeline t;
  t.rank = 3;
  t.names = {"weights", "kept by layer 1 (\"moe\")"};
  t.blocks = {{MemoryCategory::weights, {std::int64_t{5} << 30}, 0, 9'000'000, 0, 5, 0}, {MemoryCategory::activations, {4096}, 1'000'000, 3'000'000, 1, 2, 1},
              {MemoryCategory::activations, {8192}, 3'000'000, 5'000'000, 3, 4, 1}};
  return {t, MemoryTimeline{}};
}

std::filesystem::path folder(const char* name) {
  const auto dir = std::filesystem::temp_directory_path() / ("moeplan_snapshot_" + std::to_string(::getpid()) + "_" + name);
  std::filesystem::create_directories(dir);
  return dir;
}

TEST(MemorySnapshot, AllocatesAndFreesEachBlockOnceInOrder) {
  const Json snapshot = parse_json(memory_snapshot(example()), "snapshot");
  const Json& events = snapshot.at("device_traces").at(0);
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].at("action"), "alloc");
  EXPECT_EQ(events[0].at("size"), std::int64_t{5} << 30);
  EXPECT_EQ(events[2].at("action"), "free_completed");   // at 3 us the old block goes before the new one comes
  EXPECT_EQ(events[2].at("addr"), events[1].at("addr"));
  EXPECT_EQ(events[3].at("frames").at(0).at("name"), "kept by layer 1 (\"moe\")");
  EXPECT_EQ(events[3].at("time_us"), 3);
  EXPECT_EQ(snapshot.at("device_traces").at(1).size(), 0u);
}

/// Opcodes that can only build dicts, lists, strings and integers.
TEST(MemorySnapshot, ThePickleUsesNoOpcodeThatCouldRunAnything) {
  const std::string pickle = memory_snapshot_pickle(example());
  std::set<char> used;
  std::size_t i = 0;
  const auto number = [&](std::size_t bytes) {
    std::uint64_t v = 0;
    for (std::size_t b = 0; b < bytes; ++b) v |= static_cast<std::uint64_t>(static_cast<unsigned char>(pickle.at(i + b))) << (8 * b);
    return v;
  };
  while (i < pickle.size()) {
    const char op = pickle[i++];
    used.insert(op);
    if (op == '\x80') ++i;
    else if (op == 'J' || op == 'j' || op == 'r') i += 4;
    else if (op == 'X') i += 4 + number(4);
    else if (op == '\x8a') i += 1 + number(1);
  }
  EXPECT_EQ(i, pickle.size());
  const std::set<char> allowed{'\x80', '}', ']', '(', 'u', 'e', 'J', 'j', 'r', 'X', '\x8a', '.'};
  for (const char op : used) EXPECT_TRUE(allowed.count(op)) << static_cast<int>(op);
}

TEST(MemorySnapshot, PythonLoadsFromThePickleWhatTheJsonSays) {
  if (std::system("python3 -c 'import pickle' > /dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  const auto dir = folder("pickle");
  std::ofstream(dir / "m.pickle", std::ios::binary) << memory_snapshot_pickle(example());
  std::ofstream(dir / "m.json") << memory_snapshot(example());
  std::ofstream(dir / "check.py") << "import io, json, pickle, sys\n"
                                     "class Closed(pickle.Unpickler):\n"
                                     "    def find_class(self, module, name): raise RuntimeError('a pickle of data asks for ' + module + '.' + name)\n"
                                     "d = sys.argv[1]\n"
                                     "a = Closed(open(d + '/m.pickle', 'rb')).load()\n"
                                     "b = json.load(open(d + '/m.json'))\n"
                                     "assert a == b, (a, b)\n"
                                     "assert a['device_traces'][0][0]['size'] == 5 << 30\n";
  const std::string command = "python3 " + (dir / "check.py").string() + " " + dir.string() + " > " + (dir / "log").string() + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << "see " << dir / "log";
}

TEST(MemorySnapshot, PyTorchsOwnViewerDrawsThePickle) {
  if (std::system("python3 -c 'import torch' > /dev/null 2>&1") != 0) GTEST_SKIP() << "no python3 with torch";
  const auto dir = folder("viewer");
  std::ofstream(dir / "m.pickle", std::ios::binary) << memory_snapshot_pickle(example());
  const std::string viewer = "python3 -m torch.cuda._memory_viz trace_plot " + (dir / "m.pickle").string() + " -o " + (dir / "m.html").string() + " > " + (dir / "log").string() + " 2>&1";
  EXPECT_EQ(std::system(viewer.c_str()), 0) << "see " << dir / "log";
}

}  // namespace
}  // namespace moeplan
