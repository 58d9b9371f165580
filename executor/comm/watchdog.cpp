#include "executor/comm/watchdog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace moeplan {
namespace {

Verdict blame(const RankState& s, const std::string& reason) { return {s.rank, s.host, s.at.text(), reason}; }

/// One that cannot say any more where it is: by the call in which another waits for it, which is ahead of its last word.
Verdict blame_silent(const RankState& s, const std::vector<RankState>& states, const std::string& reason) {
  const RankState* waiting = who_waits_for(s.rank, states);
  if (!waiting) return blame(s, reason);
  return {s.rank, s.host, fmt::format("{} (there rank {} waits for it, last heard of in {})", waiting->at.text(), waiting->rank, s.at.phase), reason};
}

/// Has `other` come to the call in which `waiting` is? A wait is for all that was queued before it, of whatever communicator: others are
/// there only when they wait too.
bool has_come(const RankState& waiting, const RankState& other) {
  const Snapshot &w = waiting.at, &o = other.at;
  const auto mine = w.entered.find(w.communicator);
  if (mine != w.entered.end() && mine->second == w.sequence && w.operation != "send" && w.operation != "receive" && w.operation != "send_receive" && w.operation != "wait") {
    const auto theirs = o.entered.find(w.communicator);
    return theirs != o.entered.end() && theirs->second >= w.sequence;
  }
  return o.in_call && o.communicator == w.communicator && std::find(o.members.begin(), o.members.end(), waiting.rank) != o.members.end();
}

/// Has it gone on with its work until less than `limit` ago? Then it is not (yet) who holds up the others, however long those wait for it.
bool goes_on(const Snapshot& at, Duration limit) { return !at.in_call && at.stall.count() > 0 ? !at.stalled() : at.answers_for() <= limit; }

/// Times `stall` that ranks of which none waits for another may have no work to tell of: 280 s, about what a call outside steps may take.
constexpr int kAllStalled = 7;

/// Those in the call in which `at` is, itself first.
std::vector<const RankState*> in_call_of(const RankState& at, const std::map<int, const RankState*>& by_rank) {
  std::vector<const RankState*> out{&at};
  for (const int m : at.at.members)
    if (const auto it = by_rank.find(m); it != by_rank.end() && m != at.rank && it->second->at.in_call && it->second->at.communicator == at.at.communicator) out.push_back(it->second);
  return out;
}

/// All have come to the call in which `at` is, and waited in it for longer than `limit`: who of them stands still while others turn; nothing where all turn and
/// it may take its time.
std::optional<Verdict> together(const RankState& at, bool first, Duration limit, const std::string& symptom, const std::map<int, const RankState*>& by_rank) {
  const RankState* still = nullptr;
  bool turns = false;
  Duration since_all = at.at.elapsed;
  for (const RankState* s : in_call_of(at, by_rank)) {
    since_all = std::min(since_all, s->at.elapsed);
    if (s->at.still <= limit / 2) turns = true;
    else if (!still || s->at.still > still->at.still) still = s;
  }
  if (still && turns) return blame(*still, fmt::format("all its ranks have come to the call, and it has stood still in it for {} ms; {}", still->at.still.count(), symptom));
  if (!still && since_all <= at.at.together) return std::nullopt;
  return blame(at, first ? "all its ranks have come to the call, but it does not end; " + symptom : "it waits for no rank we know of; " + symptom);
}

/// Along who waits for whom from an overdue call; nothing where it ends at a rank that goes on, or that has come only now.
std::optional<Verdict> follow(const RankState& first, const std::map<int, const RankState*>& by_rank) {
  const Duration limit = first.at.limit;
  const std::string symptom = fmt::format("rank {} has waited {} ms in {} (limit {} ms)", first.rank, first.at.elapsed.count(), first.at.text(), limit.count());
  const auto came_now = [&](const RankState& s) { return s.at.in_call && s.at.elapsed <= limit; };
  std::set<int> visited;
  const RankState* at = &first;
  while (true) {
    if (goes_on(at->at, limit)) return std::nullopt;
    if (!at->at.in_call) return blame(*at, fmt::format("outside communication for {} ms, while {}", at->at.elapsed.count(), symptom));
    if (!visited.insert(at->rank).second) {
      std::string list;
      for (const int r : visited) {
        if (came_now(*by_rank.at(r))) return std::nullopt;
        list += (list.empty() ? "" : ", ") + std::to_string(r);
      }
      return blame(*at, fmt::format("ranks {} wait for each other; {}", list, symptom));
    }
    const RankState* next = nullptr;
    bool all_waited = true;
    const auto order = [&](const RankState* s) { return std::tuple(!goes_on(s->at, limit), !s->at.in_call, s->at.elapsed); };
    for (const int m : at->at.members) {
      const auto it = by_rank.find(m);
      if (it == by_rank.end() || m == at->rank) continue;
      const RankState* s = it->second;
      if (has_come(*at, *s)) all_waited = all_waited && !(s->at.communicator == at->at.communicator && came_now(*s));
      else if (!next || order(s) > order(next)) next = s;
    }
    if (!next && !all_waited) return std::nullopt;   // the last to come has not been there for long
    if (!next) return together(*at, at == &first, limit, symptom, by_rank);
    at = next;
  }
}

}  // namespace

std::string Verdict::text() const { return fmt::format("rank {} on {}: {}: {}", rank, host, position, reason); }

const RankState* who_waits_for(int rank, const std::vector<RankState>& states) {
  const auto it = std::find_if(states.begin(), states.end(), [&](const RankState& s) { return s.rank == rank; });
  const RankState* most = nullptr;
  for (const RankState& s : states) {
    if (s.rank == rank || s.gone || s.silent || !s.at.in_call) continue;
    if (std::find(s.at.members.begin(), s.at.members.end(), rank) == s.at.members.end()) continue;
    if (it != states.end() && has_come(s, *it)) continue;
    if (!most || s.at.elapsed > most->at.elapsed) most = &s;
  }
  return most;
}

std::optional<Verdict> find_culprit(const std::vector<RankState>& states) {
  std::map<int, const RankState*> by_rank;
  for (const auto& s : states) by_rank[s.rank] = &s;
  for (const auto& [rank, s] : by_rank)
    if (s->gone) return blame_silent(*s, states, "its process ended");
  for (const auto& [rank, s] : by_rank)
    if (s->silent) return blame_silent(*s, states, "no sign of life: it is stopped, or its host cannot be reached");

  for (const auto& [rank, s] : by_rank)
    if (s->at.stalled())
      if (const RankState* waiting = who_waits_for(rank, states))
        return blame(*s, fmt::format("no work done for {} ms (limit {} ms), while rank {} waits in {}", s->at.elapsed.count(), s->at.stall.count(), waiting->rank, waiting->at.text()));

  // All stand in their own work, as in the opening of a device: nobody waits, so nobody would ever be named.
  const RankState* longest = nullptr;
  bool all_stalled = by_rank.size() > 1;
  for (const auto& [rank, s] : by_rank) {
    all_stalled = all_stalled && s->at.stalled() && s->at.elapsed > kAllStalled * s->at.stall;
    if (!longest || s->at.elapsed > longest->at.elapsed) longest = s;
  }
  if (all_stalled) return blame(*longest, fmt::format("no work done for {} ms, nor by any other rank", longest->at.elapsed.count()));

  // Outside steps a call may take long; who stands still in one that nobody else is missing from is known before.
  for (const auto& [rank, s] : by_rank) {
    if (!s->at.stands_still()) continue;
    const RankState* waiting = nullptr;
    bool all_came = true;
    for (const int m : s->at.members)
      if (const auto it = by_rank.find(m); it != by_rank.end() && m != rank) all_came = all_came && has_come(*s, *it->second);
    for (const auto& [other, t] : by_rank)   // in that call, or in one behind it
      if (t->at.in_call && !t->at.stands_still() && std::find(t->at.members.begin(), t->at.members.end(), rank) != t->at.members.end() && (!waiting || t->at.elapsed > waiting->at.elapsed)) waiting = t;
    if (all_came && waiting)
      return blame(*s, fmt::format("it has stood still there for {} ms (limit {} ms), while rank {} waits in {}", s->at.still.count(), s->at.stall.count(), waiting->rank, waiting->at.text()));
  }

  std::vector<const RankState*> overdue;
  for (const auto& [rank, s] : by_rank)
    if (s->at.overdue()) overdue.push_back(s);
  std::stable_sort(overdue.begin(), overdue.end(), [](const RankState* a, const RankState* b) { return a->at.elapsed > b->at.elapsed; });
  std::set<std::pair<std::string, std::uint64_t>> calls;   // of one, one wait tells as much as all
  for (const RankState* s : overdue) {
    if (!calls.insert({s->at.communicator, s->at.sequence}).second) continue;
    if (const auto verdict = follow(*s, by_rank)) return verdict;
  }
  return std::nullopt;
}

Duration operation_limit(double seconds, const LimitRule& rule) {
  const double most = 1e9;  // ms; a prediction that is infinite or NaN ends here as well
  const double ms = seconds * rule.factor * 1000;
  return std::max(rule.at_least, Duration{static_cast<Duration::rep>(ms < most ? std::max(ms, 0.0) : most)});
}

Duration step_limit(double predicted, double longest, Duration most) {
  const Duration room = kOut - kNoticed - kGrace;
  if (longest > 0) {
    const double seconds = std::max(predicted, longest);
    return std::min({most, operation_limit(seconds), std::max(room, operation_limit(seconds, {.factor = 1.5}))});
  }
  return predicted > 0 ? std::min(most, std::max(room, operation_limit(predicted))) : most;
}

Watchdog::Watchdog(std::vector<Watched> ranks, std::function<void(const Verdict&)> on_overdue, Duration tick)
    : ranks_(std::move(ranks)), on_overdue_(std::move(on_overdue)), tick_(tick), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, tick_, [this] { return stop_; })) {
    std::vector<RankState> states;
    for (const auto& w : ranks_) states.push_back({w.rank, w.host, false, false, w.progress->snapshot()});
    if (const auto verdict = find_culprit(states)) {
      lock.unlock();
      on_overdue_(*verdict);
      return;
    }
  }
}

}  // namespace moeplan
