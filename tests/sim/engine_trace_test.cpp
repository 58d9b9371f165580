#include "sim/engine/trace.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/json.hpp"
#include "core/write.hpp"
#include "tests/sim/hand_made_job.hpp"

namespace moeplan {
namespace {

using namespace testing;

/// Two stages with expert exchanges and gathers.
StepTimeline example() {
  Job job = pipeline(2, 3, 1'000'000, 2'000'000, 900'000);
  const auto moe = pass(job, "forward of moe", {compute(10'000'000), communicate(job, 30'000'000, {0}), compute(20'000'001, {1}), communicate(job, 5'000'000, {2})});
  job.calls[static_cast<std::size_t>(job.passes[static_cast<std::size_t>(moe)].steps[3].call)].shown.collective = "combine";
  job.passes[static_cast<std::size_t>(moe)].arrows = {{1, 2}, {2, 3}};
  job.details.push_back({20'000'001, {{0, 5'000'000, job.name("permute forward"), Activity::forward}, {5'000'000, 15'000'001, job.name("grouped_linear forward"), Activity::forward}}});
  job.passes[static_cast<std::size_t>(moe)].steps[2].detail = 0;
  for (JobProgram& p : job.programs) p.tasks.push_back(run(moe, {}, 3));
  return timeline(job, play(job));
}

Json events_of(const std::string& trace) { return parse_json(trace, "trace").at("traceEvents"); }

TEST(Trace, IsOneJsonDocumentWithTheFieldsOfKineto) {
  const Json doc = parse_json(chrome_trace(example()), "trace");
  EXPECT_EQ(doc.at("displayTimeUnit"), "ms");
  EXPECT_EQ(doc.at("distributedInfo").at("world_size"), 2);
  EXPECT_TRUE(doc.at("traceEvents").is_array());
}

// Perfetto moves what overlaps on a thread to overflow tracks; messages that overlap have threads of their own.
TEST(Trace, EventsOfAThreadDoNotOverlap) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
  for (const Json& e : events_of(chrome_trace(example())))
    if (e.at("ph") == "X") threads[{e.at("pid"), e.at("tid")}].emplace_back(e.at("ts"), e.at("ts").get<double>() + e.at("dur").get<double>());
  EXPECT_GT(threads.size(), 6u);
  for (auto& [key, spans] : threads) {
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].second, spans[i].first + 1e-7) << key.first << " " << key.second;
  }
}

TEST(Trace, PicosecondsAreKept) {
  bool found = false;
  const std::string text = chrome_trace(example());
  found = text.find("\"dur\":15.000001") != std::string::npos;
  EXPECT_TRUE(found);
}

TEST(Trace, CollectivesCarryTheirArguments) {
  int seen = 0;
  for (const Json& e : events_of(chrome_trace(example()))) {
    if (e.at("ph") != "X" || e.at("name") != "ncclDevKernel_forward of moe") continue;
    ++seen;
    for (const char* key : {"Collective name", "In msg nelems", "Out msg nelems", "In msg size", "Out msg size", "Group size", "dtype", "In split size", "Out split size", "Process Group Name",
                            "Process Group Description", "Process Group Ranks", "Rank", "Seq", "stream", "device", "context", "correlation", "External id"})
      EXPECT_TRUE(e.at("args").contains(key)) << key;
  }
  EXPECT_EQ(seen, 4);
}

// Group of 8 that are 4 apart: rank 1 is its first member.
TEST(Trace, NamesTheRanksOfAGroup) {
  StepTimeline t = example();
  for (TimelineCall& c : t.calls) c.group_stride = 4;
  const std::string text = chrome_trace(t, {.only_rank = 1, .parts = true});
  EXPECT_NE(text.find(R"("Process Group Ranks":"[1, 5, 9, 13, 17, 21, 25, 29]")"), std::string::npos);
}

TEST(Trace, ArrowsLeadFromDispatchOverExpertsToCombine) {
  std::multiset<std::string> starts, ends;
  for (const Json& e : events_of(chrome_trace(example()))) {
    if (e.at("ph") == "s") starts.insert(e.at("name").get<std::string>() + e.at("id").dump());
    if (e.at("ph") == "f") ends.insert(e.at("name").get<std::string>() + e.at("id").dump());
  }
  EXPECT_EQ(starts, ends);
  int tokens = 0, results = 0;
  for (const auto& s : starts) { tokens += s.starts_with("tokens"); results += s.starts_with("results"); }
  EXPECT_EQ(tokens, 2);
  EXPECT_EQ(results, 2);
}

TEST(Trace, PartsFillTheirStep) {
  double sum = 0;
  for (const Json& e : events_of(chrome_trace(example(), {.only_rank = 0, .parts = true})))
    if (e.at("ph") == "X" && e.at("args").contains("block") && e.at("args").at("micro_batch") == 3) sum += e.at("dur").get<double>();
  EXPECT_NEAR(sum, 20.000001, 1e-9);
}

TEST(Trace, OneRankAloneHasItsStepMark) {
  std::set<int> processes;
  bool mark = false;
  for (const Json& e : events_of(chrome_trace(example(), {.only_rank = 1, .parts = true}))) {
    processes.insert(e.at("pid").get<int>());
    mark = mark || e.at("name") == "ProfilerStep#1";
  }
  EXPECT_EQ(processes, std::set<int>{1});
  EXPECT_TRUE(mark);
}

TEST(Trace, NamesAreEscaped) {
  StepTimeline t = example();
  t.names[0] = "a\"b\n\x01<\xff";
  EXPECT_NO_THROW((void)parse_json(chrome_trace(t), "trace"));
}

TEST(Timeline, ReadsBackAsItWasWritten) {
  const StepTimeline t = example();
  EXPECT_EQ(read_document<StepTimeline>(to_json(t), "timeline"), t);
}

/// Holistic Trace Analysis, where a Python that has it is named, computes the same busy time.
TEST(Trace, HolisticTraceAnalysisReadsIt) {
  const char* python = std::getenv("MOEPLAN_HTA_PYTHON");
  if (!python) GTEST_SKIP() << "MOEPLAN_HTA_PYTHON names no Python with HolisticTraceAnalysis";
  const auto dir = std::filesystem::temp_directory_path() / ("moeplan_hta_" + std::to_string(std::hash<std::string>{}(::testing::TempDir())));
  std::filesystem::create_directories(dir);
  const StepTimeline t = example();
  for (std::int32_t r = 0; r < 2; ++r) std::ofstream(dir / ("step.rank" + std::to_string(r) + ".json")) << chrome_trace(t, {.only_rank = r, .parts = true});
  std::ofstream(dir / "check.py") << "import sys\n"
                                     "from hta.trace_analysis import TraceAnalysis\n"
                                     "d = sys.argv[1]\n"
                                     "a = TraceAnalysis(trace_files={r: f'{d}/step.rank{r}.json' for r in (0, 1)}, trace_dir=d)\n"
                                     "b = a.get_temporal_breakdown(visualize=False)\n"
                                     "assert len(b) == 2, b\n"
                                     "c = a.get_comm_comp_overlap(visualize=False)\n"
                                     "assert len(c) == 2, c\n";
  const std::string command = std::string(python) + " " + (dir / "check.py").string() + " " + dir.string() + " > " + (dir / "log").string() + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << "see " << dir / "log";
}

}  // namespace
}  // namespace moeplan
