#include "executor/ranks/team.hpp"

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <set>

#include "core/error.hpp"
#include "executor/rendezvous/rank_process.hpp"

namespace moeplan {

void run_team(int ranks, const std::function<void(Communicator&, Progress&)>& body, const TeamOptions& options) {
  std::deque<Progress> progress;
  for (int r = 0; r < ranks; ++r) progress.emplace_back(options.limit);
  std::mutex mutex;
  std::optional<Verdict> verdict;
  std::exception_ptr refused;
  std::set<Communicator*> there;  // guarded by the mutex: any of them aborts all
  const auto decide = [&](const Verdict& v) {
    const std::lock_guard lock(mutex);
    if (verdict || refused) return;
    verdict = v;
    if (!there.empty()) (*there.begin())->abort(v.text());
  };
  const auto rank = [&](Communicator& world) {
    Progress& mine = progress[static_cast<std::size_t>(world.rank())];
    world.report_to(&mine);
    world.barrier();  // all communicators are there from here until all have left
    {
      const std::lock_guard lock(mutex);
      there.insert(&world);
    }
    struct Leaving {
      std::mutex& mutex;
      std::set<Communicator*>& there;
      Communicator* own;
      ~Leaving() {
        const std::lock_guard lock(mutex);
        there.erase(own);
      }
    } const leaving{mutex, there, &world};
    try {
      body(world, mine);
    } catch (const InputError&) {
      const std::lock_guard lock(mutex);
      if (!refused && !verdict) refused = std::current_exception();
      throw;
    } catch (const CommError&) {
      throw;  // a symptom: the culprit is known already, or the watchdog finds it
    } catch (const RankBlamed& e) {
      decide({e.culprit(), options.host, mine.snapshot().text(), e.what()});
      throw;
    } catch (const std::exception& e) {
      decide({world.rank(), options.host, mine.snapshot().text(), e.what()});
      throw;
    }
  };
  std::exception_ptr first;
  {
    std::vector<Watchdog::Watched> watched;
    for (int r = 0; r < ranks; ++r) watched.push_back({r, options.host, &progress[static_cast<std::size_t>(r)]});
    const Watchdog watchdog(std::move(watched), decide,
                            Duration{std::clamp<Duration::rep>(options.limit.count() / 4, 5, 250)});
    try {
      run_ranks(ranks, rank, {.limit = Duration{0}});  // the watchdog ends what waits in vain
    } catch (...) {
      first = std::current_exception();
    }
  }
  if (refused) std::rethrow_exception(refused);
  if (verdict) throw RankFailed(*verdict);
  if (!first) return;
  try {
    std::rethrow_exception(first);
  } catch (const CommError& e) {
    const auto at = static_cast<std::size_t>(e.where().rank);
    throw RankFailed(
        {e.where().rank, options.host, at < progress.size() ? progress[at].snapshot().text() : "start", e.what()});
  }
}

}  // namespace moeplan
