#include "executor/rendezvous/rank_process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "core/error.hpp"
#include "executor/rendezvous/join.hpp"

namespace moeplan {
namespace {

/// The communicators while they are there, for the thread that aborts them.
class Alive {
 public:
  void set(Communicator* world) {
    const std::lock_guard lock(mutex_);
    world_ = world;
  }
  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (world_) world_->abort(reason);
  }

 private:
  std::mutex mutex_;
  Communicator* world_ = nullptr;
};

struct Unset {
  Alive& alive;
  ~Unset() { alive.set(nullptr); }
};

/// A symptom of another's failure, or this rank's own?
bool is_own(CommFault fault) { return fault == CommFault::bad_call || fault == CommFault::mismatch || fault == CommFault::library; }

/// Digests of what all ranks must have alike, which rank 0 hands out before its offer.
std::string digests(const RankProcess& process) {
  std::string out;
  for (const auto& [name, text] : process.alike) out += bytes_of(sha256(text));
  return out;
}

void require_alike(const RankProcess& process, std::string_view first) {
  const std::string own = digests(process);
  for (std::size_t i = 0; i < process.alike.size(); ++i)
    if (const auto at = i * sizeof(Digest); own.substr(at, sizeof(Digest)) != first.substr(std::min(at, first.size()), sizeof(Digest)))
      throw std::runtime_error(fmt::format("its {} and rank 0's differ", process.alike[i].first));
}

/// Where rank 0 cannot offer, what it lacks says more.
std::string offered(const RankProcess& process, const Transport& transport) {
  try {
    return digests(process) + transport.offer();
  } catch (const std::exception&) {
    transport.ready();
    throw;
  }
}

}  // namespace

LifelineOptions lifeline_options(Duration limit) {
  const Duration silence = std::clamp(limit / 2, Duration{1000}, Duration{10000});
  return {.beat = silence / 10, .silence = silence};
}

std::optional<std::string> run_rank_process(const RankProcess& process, const Transport& transport, const std::function<void(Communicator&, Progress&)>& body) {
  const int rank = process.place.rank;
  Joined joined;
  try {
    joined = join(process.place, process.token, own_host_name(), rank == 0 ? offered(process, transport) : std::string{}, {.limit = process.limit});
  } catch (const CommError& e) {
    return e.what();
  }
  process.joined();
  const std::string payload = joined.payload, offer = payload.substr(std::min(payload.size(), process.alike.size() * sizeof(Digest)));

  Progress progress(process.limit, true);
  progress.set_phase("init");
  progress.set_stall(std::min(process.limit, process.stall));
  Alive alive;
  const auto lost = [&](const Verdict& v) {
    // Whoever hangs in something that cannot be aborted, the abort itself included, is ended; after a proper end the process is gone before.
    std::thread([text = v.text(), grace = process.grace, end = process.end] {
      std::this_thread::sleep_for(grace);
      end(text);
    }).detach();
    alive.abort(v.text());
  };
  Lifeline lifeline(std::move(joined), progress, lost, lifeline_options(process.limit));
  // The verdict of all, which names the culprit, comes shortly after this rank's own failure.
  const auto left = [&](const std::string& own) {
    for (const auto end = Clock::now() + process.grace; !lifeline.verdict() && Clock::now() < end;) std::this_thread::sleep_for(Duration{20});
    return lifeline.verdict() ? lifeline.verdict()->text() : own;
  };
  try {
    require_alike(process, payload);
    transport.ready();
    const std::unique_ptr<Communicator> world = transport.open(rank, process.place.world_size, offer, process.limit);
    const Unset unset{alive};
    alive.set(world.get());
    world->report_to(&progress);
    if (const auto verdict = lifeline.verdict()) world->abort(verdict->text());   // lost before there was anything to abort
    world->connect();
    body(*world, progress);
    progress.set_phase("shutdown");
    progress.set_stall(std::min(process.limit, process.stall));
    lifeline.barrier("end", process.limit);
    return std::nullopt;
  } catch (const InputError& e) {
    lifeline.fail(e.what());
    throw;
  } catch (const CommError& e) {
    if (is_own(e.fault())) lifeline.fail(e.what());
    return left(e.what());
  } catch (const RankBlamed& e) {
    lifeline.fail(e.what(), e.culprit());
    return left(e.what());
  } catch (const std::exception& e) {
    lifeline.fail(e.what());
    return left(e.what());
  }
}

}  // namespace moeplan
