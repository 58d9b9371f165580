/// Faults of real processes: starts jobs of `moeplan run` ranks, makes one rank of each fail at a named place (shim.cpp), and looks at what
/// the others do: all leave in time with exit code 4, each names rank, host, phase and operation, and the newest save loads and goes on.
///
///   fault_cells PROGRAM SHIM MODEL.json [--backend cpu|cuda] [--plan FILE] [--ranks 2] [--trials 5] [--first 0] [--within SECONDS]
///               [--at-once 4] [--only TEXT] [--rank-timeout 6] [--devices 1] [--json FILE]
///
/// `--rank-timeout 0` leaves the limits to the program. `--only` keeps cells whose "action phase" has one of the comma-separated texts (and is needed for ranks that hang or are slow: "hang forward", "slow save"), `--first` is the number of the first trial, and after
/// `--within` no other trial begins. Exit code 0: all trials were made, all left in time, no save was lost, and at least 95 % of them named the
/// culprit; 77: this machine cannot run it.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "core/json.hpp"
#include "core/write.hpp"
#include "executor/rendezvous/join.hpp"
#include "executor/rendezvous/secure.hpp"
#include "tests/executor/faults/cells.hpp"
#include "tests/executor/rendezvous/loopback.hpp"

namespace {

using namespace moeplan;
using namespace moeplan::faults;
namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

constexpr double kLeave = 60;   ///< s
constexpr int kBase = 2;        ///< steps saved before each trial

struct Options {
  std::string program, shim, model, backend = "cpu", plan, only, json;
  int ranks = 2, trials = 5, first = 0, at_once = 4, devices = 1;
  double rank_timeout = 6, within = 1e9;
};

double seconds_since(Steady::time_point t) { return std::chrono::duration<double>(Steady::now() - t).count(); }

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

/// A child with this environment on top of ours; output goes to `said`.
pid_t start(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment, const fs::path& said) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  const int out = ::open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ::dup2(out, 1);
  ::dup2(out, 2);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));   // execv does not write to them
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

int run_to_end(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment, const fs::path& said) {
  const pid_t child = start(words, environment, said);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Trial {
  std::string action, phase;
  int number = 0;
  Point point{};
  int culprit = 0;
  fs::path folder;
  std::vector<pid_t> pids;      ///< 0 once gone
  std::vector<int> codes;
  Steady::time_point began;
  bool stuck = false, named = false, same_phase = false, resumed = false, codes_right = true;
  double left_s = 0;            ///< from the start of the processes
  double struck_s = 0;          ///< from the fault, where that is known; else the same
  std::string heard, note;
};

std::vector<std::string> run_words(const Options& o, const std::string& backend, const Trial& t) {
  std::vector<std::string> out{o.program, "run", o.plan, "--backend", backend, "--threads", "1", "--data", "random", "--steps", "12", "--checkpoint", (t.folder / "saves").string(), "--resume", "--save-every", "1", "--json"};
  if (o.rank_timeout > 0) out.insert(out.end(), {"--rank-timeout", fmt::format("{}", o.rank_timeout)});
  return out;
}

void begin(const Options& o, Trial& t, const fs::path& base, const fs::path& token) {
  fs::create_directories(t.folder);
  fs::copy(base, t.folder / "saves", fs::copy_options::recursive);
  const int port = free_port();
  t.began = Steady::now();
  t.codes.assign(static_cast<std::size_t>(o.ranks), -1);
  for (int r = 0; r < o.ranks; ++r) {
    std::map<std::string, std::string> e{{"RANK", std::to_string(r)}, {"WORLD_SIZE", std::to_string(o.ranks)}, {"LOCAL_RANK", std::to_string(r % o.devices)}, {"LOCAL_WORLD_SIZE", std::to_string(o.devices)},
                                         {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}, {"MOEPLAN_TOKEN_FILE", token.string()}};
    if (o.backend == "cuda" && o.devices < o.ranks)
      for (const auto& [name, value] : {std::pair{"NCCL_HOSTID", fmt::format("cell-{}-{}", port, r)}, {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}, {"NCCL_NET", "Socket"}}) e[name] = value;
    if (o.backend == "cuda") e["NCCL_RAS_ENABLE"] = "0";
    if (r == t.culprit) {
      e["LD_PRELOAD"] = o.shim;
      e["MOEPLAN_FAULT_STRUCK"] = (t.folder / "struck").string();
      e["MOEPLAN_FAULT"] = fmt::format("phase={};function={};hit={};do={}", phase_in_program(t.phase, t.action), t.point.function, t.point.hit, shim_action(t.action, t.point, o.backend));
    }
    std::vector<std::string> words = run_words(o, o.backend, t);
    for (const char* w : {"--stop-after", t.action == kSlow ? "1" : "3"}) words.emplace_back(w);
    t.pids.push_back(start(words, e, t.folder / fmt::format("rank{}.txt", r)));
  }
}

/// Reaps; true when all but the culprit have gone, or the time is over.
bool over(const Options& o, Trial& t) {
  bool others = false;
  for (std::size_t r = 0; r < t.pids.size(); ++r) {
    int status = 0;
    if (t.pids[r] && ::waitpid(t.pids[r], &status, WNOHANG) == t.pids[r]) {
      t.pids[r] = 0;
      t.codes[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    others = others || (t.pids[r] && static_cast<int>(r) != t.culprit);
  }
  const bool late = seconds_since(t.began) > kLeave + 30;
  // A culprit that has not been stopped leaves too.
  const bool wait_for_culprit = t.action != "stop" && t.pids[static_cast<std::size_t>(t.culprit)];
  if ((others || wait_for_culprit) && !late) return false;
  t.left_s = t.struck_s = seconds_since(t.began);
  if (std::error_code none; fs::exists(t.folder / "struck", none) && t.action != kSlow)
    t.struck_s = std::chrono::duration<double>(fs::file_time_type::clock::now() - fs::last_write_time(t.folder / "struck")).count();
  t.stuck = others || wait_for_culprit;
  for (std::size_t r = 0; r < t.pids.size(); ++r)
    if (t.pids[r]) {
      ::kill(t.pids[r], SIGKILL);
      ::waitpid(t.pids[r], nullptr, 0);
      t.codes[r] = 137;
      t.pids[r] = 0;
    }
  (void)o;
  return true;
}

/// A NaN on its way is no reason to stop: the step is skipped by all, and the rank named. Nor is a slow rank.
bool passes(const Trial& t) { return t.action == kSlow || (t.action == "nan" && (t.phase == "forward dispatch" || t.phase == "backward reduce")); }

void judge(const Options& o, Trial& t) {
  const std::string host = own_host_name(), who = fmt::format("rank {}", t.culprit), at = fmt::format("{} on {}: ", who, host);
  t.named = true, t.same_phase = true;
  for (int r = 0; r < o.ranks; ++r) {
    const std::string said = text_of(t.folder / fmt::format("rank{}.txt", r));
    if (said.find("fault shim:") != std::string::npos) t.note = said.substr(said.find("fault shim:"), 100);
    if (passes(t)) {
      t.codes_right = t.codes_right && t.codes[static_cast<std::size_t>(r)] == 0;
      if (r != 0) continue;
    } else if (r == t.culprit) {
      continue;
    } else {
      t.codes_right = t.codes_right && t.codes[static_cast<std::size_t>(r)] == 4;
    }
    std::string line;
    std::istringstream lines(said);
    for (std::string l; std::getline(lines, l);)
      if (l.rfind("moeplan:", 0) == 0 && l.find("no --weights") == std::string::npos && l.find("resumed at") == std::string::npos && l.find("is broken") == std::string::npos) line = l;
    if (t.heard.empty()) t.heard = line;
    // At the rendezvous a rank that never came has no host.
    const bool rendezvous = t.phase == "rendezvous";
    t.named = t.named && (line.find(at) != std::string::npos || (rendezvous && line.find(who + " ") != std::string::npos && line.find("rendezvous") != std::string::npos));
    t.same_phase = t.same_phase && line.find(t.phase) != std::string::npos;
  }
  if (t.action == kSlow) t.named = t.same_phase = t.left_s > 2 * o.rank_timeout;   // nobody is named; was it slow?
  // What rank 0 has printed of a step tells that the step before it was saved.
  std::int64_t printed = kBase, committed = 0;
  std::istringstream lines(text_of(t.folder / "rank0.txt"));
  for (std::string l; std::getline(lines, l);)
    if (l.rfind("{\"step\":", 0) == 0) printed = std::atoll(l.c_str() + 8);
  for (const auto& entry : fs::directory_iterator(t.folder / "saves"))
    if (const std::string name = entry.path().filename().string(); name.rfind("step-", 0) == 0 && name.find('.') == std::string::npos) committed = std::max<std::int64_t>(committed, std::atoll(name.c_str() + 5));
  std::vector<std::string> words = run_words(o, "cpu", t);
  for (const std::string& w : {std::string("--ranks"), std::to_string(o.ranks), std::string("--stop-after"), std::string("1")}) words.push_back(w);
  const int code = run_to_end(words, {}, t.folder / "again.txt");
  const std::string again = text_of(t.folder / "again.txt"), mark = "resumed at step ";
  const auto found = again.find(mark);
  const std::int64_t from = found == std::string::npos ? -1 : std::atoll(again.c_str() + found + mark.size());
  const bool finite = again.find("\"applied\":true") != std::string::npos;
  t.resumed = code == 0 && from == committed && from >= std::max<std::int64_t>(kBase, printed - 1) && finite;
  if (!t.resumed) t.note += fmt::format(" resume: code {}, from {}, committed {}, printed {}, finite {}", code, from, committed, printed, finite);
}

Options parsed(int argc, char** argv) {
  Options o;
  std::vector<std::string> plain;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0 || i + 1 == argc) {
      plain.push_back(word);
      continue;
    }
    const std::string value = argv[++i];
    if (word == "--backend") o.backend = value;
    else if (word == "--plan") o.plan = value;
    else if (word == "--ranks") o.ranks = std::atoi(value.c_str());
    else if (word == "--trials") o.trials = std::atoi(value.c_str());
    else if (word == "--first") o.first = std::atoi(value.c_str());
    else if (word == "--within") o.within = std::atof(value.c_str());
    else if (word == "--at-once") o.at_once = std::atoi(value.c_str());
    else if (word == "--only") o.only = value;
    else if (word == "--devices") o.devices = std::atoi(value.c_str());
    else if (word == "--rank-timeout") o.rank_timeout = std::atof(value.c_str());
    else if (word == "--json") o.json = value;
    else plain.clear(), i = argc;
  }
  if (plain.size() == 3) o.program = plain[0], o.shim = plain[1], o.model = plain[2];
  return o;
}

bool wanted(const Options& o, const std::string& cell) {
  if (o.only.empty()) return true;
  std::istringstream parts(o.only);
  for (std::string p; std::getline(parts, p, ',');)
    if (cell.find(p) != std::string::npos) return true;
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  Options o = parsed(argc, argv);
  if (o.program.empty()) {
    std::printf("usage: fault_cells PROGRAM SHIM MODEL.json [--backend cpu|cuda] [--plan FILE] [--ranks 2] [--trials 5] [--first 0] [--within SECONDS] [--at-once 4] [--only TEXT,...] [--rank-timeout 6] [--devices 1] [--json FILE]\n");
    return 2;
  }
  char name[] = "/tmp/fault-cells-XXXXXX";
  if (!::mkdtemp(name)) return 1;
  const fs::path room = name, token = room / "token", base = room / "base";
  write_token_file(token);
  const auto again_with = [&](const char* why) {
    std::printf("FAILED %s\n%s\n", why, text_of(room / "said.txt").c_str());
    return 1;
  };
  if (o.plan.empty()) {
    o.plan = (room / "plan.json").string();
    const std::string n = std::to_string(o.ranks);
    if (run_to_end({o.program, "plan", o.model, "--device", "cpu", "--runtime", "cpu", "--gpus", n, "--ep", n, "--pp", "1", "--tp", "1", "--cp", "1", "--dp-shard", n, "--dp-replicate", "1", "--rank", "8", "--seq", "64",
                    "--micro-batch", "1", "--global-batch", std::to_string(2 * o.ranks), "--targets", "attention", "experts", "--offload", "none", "--recompute", "none", "-o", o.plan}, {}, room / "said.txt") != 0)
      return again_with("no plan");
  }
  {
    Trial first{.action = {}, .phase = {}, .folder = room / "first", .pids = {}, .codes = {}, .began = {}, .heard = {}, .note = {}};
    std::vector<std::string> words = run_words(o, "cpu", first);
    for (const std::string& w : {std::string("--ranks"), std::to_string(o.ranks), std::string("--stop-after"), std::to_string(kBase)}) words.push_back(w);
    if (run_to_end(words, {}, room / "said.txt") != 0) return again_with("the steps before");
    fs::rename(first.folder / "saves", base);
  }

  std::vector<Trial> trials;
  std::vector<const char*> actions(kActions.begin(), kActions.end());
  for (const char* more : {kHang, kSlow})
    if (o.only.find(more) != std::string::npos) actions.push_back(more);
  for (const char* action : actions)
    for (const char* phase : kPhases) {
      if (!wanted(o, fmt::format("{} {}", action, phase))) continue;
      const std::vector<Point> places = std::string(action) == kSlow ? slow_points(phase, o.backend) : std::string(action) == kHang ? hang_points(phase, o.backend) : points(phase, std::string(action) == "nan", o.backend);
      if (places.empty()) continue;
      for (int n = o.first; n < o.first + o.trials; ++n) {
        Trial t{.action = action, .phase = phase, .number = n, .point = places[static_cast<std::size_t>(n) % places.size()], .folder = room / std::to_string(trials.size()), .pids = {}, .codes = {}, .began = {}, .heard = {}, .note = {}};
        t.culprit = t.point.first ? 0 : o.ranks - 1;
        trials.push_back(std::move(t));
      }
    }
  // One of each cell before another, of these what takes longest first, so that the end is not one slow trial.
  std::vector<Trial*> order;
  for (Trial& t : trials) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const Trial* a, const Trial* b) {
    const auto turn = [](const Trial* t) { return std::pair(t->number, t->action != "stop" && t->phase != "rendezvous"); };
    return turn(a) < turn(b);
  });
  const auto begun = Steady::now();
  std::vector<Trial*> running;
  std::vector<std::future<void>> judging;
  std::mutex printing;
  std::size_t next = 0;
  while (next < order.size() || !running.empty()) {
    if (seconds_since(begun) > o.within) order.resize(next);
    while (next < order.size() && running.size() < static_cast<std::size_t>(o.at_once)) {
      begin(o, *order[next], base, token);
      running.push_back(order[next++]);
    }
    for (std::size_t i = running.size(); i-- > 0;)
      if (over(o, *running[i])) {
        judging.push_back(std::async(std::launch::async, [&o, &t = *running[i], &printing] {
          judge(o, t);
          const std::lock_guard lock(printing);
          std::fprintf(stderr, "%-9s %-16s %d  %5.1f s  %s%s%s%s | %s%s\n", t.action.c_str(), t.phase.c_str(), t.number, t.left_s, t.stuck ? "STUCK " : "", t.named ? "" : "UNNAMED ", t.resumed ? "" : "LOST ",
                       t.codes_right ? "" : "CODE ", t.heard.substr(0, 220).c_str(), t.note.c_str());
        }));
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (auto& each : judging) each.get();

  int made = 0, named = 0, in_time = 0, resumed = 0, codes = 0, phases = 0;
  double longest = 0;
  Json rows = Json::array();
  std::printf("%-28s %7s %7s %7s %7s %9s\n", "cell", "named", "phase", "code 4", "resumed", "left, s");
  for (std::size_t i = 0; i < trials.size(); i += static_cast<std::size_t>(o.trials)) {
    int m = 0, n = 0, s = 0, c = 0, u = 0;
    double most = 0;
    for (std::size_t j = i; j < i + static_cast<std::size_t>(o.trials); ++j) {
      const Trial& t = trials[j];
      if (t.pids.empty()) continue;   // not begun
      ++m, n += t.named, s += t.same_phase, c += t.codes_right, u += t.resumed;
      in_time += !t.stuck && (t.action == kSlow || t.struck_s <= kLeave);
      most = std::max(most, t.struck_s);
      rows.push_back({{"action", t.action}, {"phase", t.phase}, {"trial", t.number}, {"culprit", t.culprit}, {"function", t.point.function}, {"hit", t.point.hit}, {"named", t.named}, {"same_phase", t.same_phase},
                      {"exit_codes", t.codes}, {"resumed", t.resumed}, {"left_s", t.left_s}, {"struck_s", t.struck_s}, {"stuck", t.stuck}, {"said", t.heard}, {"note", t.note}});
    }
    std::printf("%-28s %5d/%d %5d/%d %5d/%d %5d/%d %9.1f\n", fmt::format("{} x {}", trials[i].action, trials[i].phase).c_str(), n, m, s, m, c, m, u, m, most);
    made += m, named += n, phases += s, codes += c, resumed += u;
    longest = std::max(longest, most);
  }
  std::printf("%s, %d ranks: %d of %zu trials in %.0f s; named %d (%.1f %%), with the phase %d, all left within %.1f s of the fault (limit %.0f s, %d in time), exit codes right %d, newest save loads and goes on %d\n", o.backend.c_str(), o.ranks, made,
              trials.size(), seconds_since(begun), named, made ? 100.0 * named / made : 0, phases, longest, kLeave, in_time, codes, resumed);
  if (!o.json.empty()) write_text_file(o.json, Json{{"backend", o.backend}, {"ranks", o.ranks}, {"trials", rows}}.dump(1) + "\n");
  std::error_code ignored;
  fs::remove_all(room, ignored);
  const int all = static_cast<int>(trials.size());
  const bool good = all > 0 && made == all && named * 100 >= all * 95 && in_time == all && resumed == all && codes == all;
  std::printf("%s\n", good ? "PASSED" : "FAILED");
  return good ? 0 : 1;
}
