#include "executor/rendezvous/lifeline.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/error.hpp"
#include "executor/comm/communicator.hpp"

namespace moeplan {
namespace {

std::string text_of(const Json& message) { return message.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Groups are nearly always arithmetic: [first, step, count] instead of up to a thousand ranks every second.
Json ranks_to_json(const std::vector<int>& ranks) {
  if (ranks.size() > 3) {
    const int step = ranks[1] - ranks[0];
    bool even = true;
    for (std::size_t i = 1; i < ranks.size(); ++i) even = even && ranks[i] - ranks[i - 1] == step;
    if (even) return {{"first", ranks[0]}, {"step", step}, {"count", ranks.size()}};
  }
  return ranks;
}

std::vector<int> ranks_from_json(const Json& json) {
  if (json.is_array()) return json.get<std::vector<int>>();
  std::vector<int> ranks;
  const int first = json.at("first").get<int>(), step = json.at("step").get<int>(), count = std::min(json.at("count").get<int>(), 1 << 20);
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

Json to_message(const Snapshot& s) {
  Json entered = Json::object();
  for (const auto& [name, sequence] : s.entered) entered[name] = sequence;
  return {{"kind", "beat"},        {"phase", s.phase},           {"in_call", s.in_call},         {"communicator", s.communicator}, {"operation", s.operation},
          {"sequence", s.sequence}, {"members", ranks_to_json(s.members)}, {"entered", std::move(entered)}, {"elapsed", s.elapsed.count()}, {"limit", s.limit.count()}, {"together", s.together.count()}, {"still", s.still.count()}, {"stall", s.stall.count()}, {"untold", s.untold.count()}};
}

Snapshot from_message(const Json& m) {
  Snapshot s;
  s.phase = m.at("phase").get<std::string>();
  s.in_call = m.at("in_call").get<bool>();
  s.communicator = m.at("communicator").get<std::string>();
  s.operation = m.at("operation").get<std::string>();
  s.sequence = m.at("sequence").get<std::uint64_t>();
  s.members = ranks_from_json(m.at("members"));
  for (const auto& [name, sequence] : m.at("entered").items()) s.entered[name] = sequence.get<std::uint64_t>();
  s.elapsed = Duration{m.at("elapsed").get<Duration::rep>()};
  s.limit = Duration{m.at("limit").get<Duration::rep>()};
  s.together = Duration{m.at("together").get<Duration::rep>()};
  s.still = Duration{m.at("still").get<Duration::rep>()};
  s.stall = Duration{m.at("stall").get<Duration::rep>()};
  s.untold = Duration{m.at("untold").get<Duration::rep>()};
  return s;
}

}  // namespace

Lifeline::Lifeline(Joined joined, Progress& progress, std::function<void(const Verdict&)> on_lost, const LifelineOptions& options)
    : rank_(joined.rank), hosts_(std::move(joined.hosts)), progress_(progress), on_lost_(std::move(on_lost)), options_(options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  wake_read_ = ends[0];
  wake_write_ = ends[1];
  const auto now = Clock::now();
  for (std::size_t i = 0; i < joined.channels.size(); ++i) {
    if (!joined.channels[i].open()) continue;
    const int peer = rank_ == 0 ? static_cast<int>(i) : 0;
    peers_.push_back({peer, hosts_[static_cast<std::size_t>(peer)], std::move(joined.channels[i]), now, {}, false, false});
  }
  progress_.on_phase([this] {
    if (!phase_changed_.exchange(true)) wake();
  });
  thread_ = std::thread([this] { work(); });
}

Lifeline::~Lifeline() {
  progress_.on_phase({});
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
  ::close(wake_read_);
  ::close(wake_write_);
}

void Lifeline::fail(const std::string& reason, std::optional<int> culprit) {
  const std::string position = progress_.snapshot().text();
  const int blamed = culprit && *culprit >= 0 && static_cast<std::size_t>(*culprit) < hosts_.size() ? *culprit : rank_;
  {
    const std::lock_guard lock(mutex_);
    if (rank_ == 0) own_failure_ = Verdict{blamed, hosts_[static_cast<std::size_t>(blamed)], position, reason};
    else outbox_.push_back({{"kind", "failed"}, {"culprit", blamed}, {"position", position}, {"reason", reason}});
  }
  wake();
}

std::optional<Verdict> Lifeline::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

CommError Lifeline::lost(const std::string& name, CommFault fault, const std::string& reason) const {
  return {fault, {rank_, "lifeline", "barrier " + name, barriers_, {}}, reason};
}

void Lifeline::barrier(const std::string& name, Duration limit) {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = ++barriers_;
  if (verdict_) throw lost(name, CommFault::peer_lost, verdict_->text());
  std::vector<int> all(hosts_.size());
  for (std::size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int>(r);
  progress_.set_limit(limit);
  progress_.enter("lifeline", "barrier " + name, mine, std::move(all), true);
  if (rank_ == 0) own_arrivals_.push_back(name);
  else outbox_.push_back({{"kind", "arrive"}, {"name", name}});
  wake();
  while (!changed_.wait_for(lock, options_.beat, [&] { return released_ >= mine || verdict_; })) progress_.turn();   // overdue calls are rank 0's to judge, and whether it lives each rank's
  if (released_ >= mine) return progress_.leave();
  throw lost(name, CommFault::peer_lost, verdict_->text());
}

void Lifeline::wake() {
  const char byte = 0;
  (void)!::write(wake_write_, &byte, 1);   // a full pipe wakes as well
}

void Lifeline::tell(const Json& message) {
  const std::string text = text_of(message);
  for (auto& p : peers_) p.channel.send(text);
}

void Lifeline::beat() { tell(to_message(progress_.snapshot())); }

void Lifeline::work() {
  auto next_beat = Clock::now();
  auto last_turn = next_beat, last_beat = next_beat;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) break;
    }
    post();
    // Who was stopped and goes on must not take the others for silent.
    const auto now = Clock::now();
    if (now - last_turn > options_.silence / 2)
      for (auto& p : peers_) p.heard = now;
    last_turn = now;
    // A change of phase brings the next beat forward, but ten of them a beat are enough.
    if (phase_changed_) next_beat = std::min(next_beat, last_beat + options_.beat / 10);
    if (now >= next_beat) {
      phase_changed_ = false;
      last_beat = now;
      beat();
      next_beat = Clock::now() + options_.beat;
    }
    judge();

    std::vector<pollfd> polled{{wake_read_, POLLIN, 0}};
    for (const auto& p : peers_) polled.push_back({p.channel.fd(), static_cast<short>(p.channel.wants_write() ? POLLIN | POLLOUT : POLLIN), 0});  // a negative one is skipped
    const auto wait = std::chrono::duration_cast<Duration>(next_beat - Clock::now()).count();
    const auto longest = lost_since_ ? 20 : options_.beat.count() + 1;
    ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<long long>(wait + 1, 1, longest)));
    char block[256];
    while (::read(wake_read_, block, sizeof block) > 0) {
    }
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      Peer& p = peers_[i];
      if (polled[i + 1].revents & POLLOUT) p.channel.flush();
      if ((polled[i + 1].revents & ~POLLOUT) == 0) continue;
      for (const std::string& text : p.channel.receive()) {
        p.heard = Clock::now();
        try {
          hear(p, parse_json(text, fmt::format("rank {}", p.rank)));
        } catch (const std::exception&) {   // it knows the token but not the protocol
          p.channel.close();
          decide({p.rank, p.host, p.at.text(), "what it says is of another version"});
        }
      }
      if (!p.channel.open() && !p.goodbye) p.gone = true;
    }
  }
  post();
  tell({{"kind", "goodbye"}});
  for (auto& p : peers_) p.channel.drain(1000);
}

/// What the owner's thread left to be sent.
void Lifeline::post() {
  std::vector<Json> out;
  std::vector<std::string> arrivals;
  std::optional<Verdict> failure;
  {
    const std::lock_guard lock(mutex_);
    out.swap(outbox_);
    arrivals.swap(own_arrivals_);
    failure.swap(own_failure_);
  }
  for (const Json& m : out) tell(m);
  for (const auto& name : arrivals) arrive(0, name);
  if (failure) decide(*failure);
}

void Lifeline::hear(Peer& peer, const Json& message) {
  const std::string kind = message.at("kind").get<std::string>();
  if (kind == "beat") {
    peer.at = from_message(message);
  } else if (kind == "arrive" && rank_ == 0) {
    arrive(peer.rank, message.at("name").get<std::string>());
  } else if (kind == "release" && rank_ != 0) {
    const std::lock_guard lock(mutex_);
    ++released_;
    changed_.notify_all();
  } else if (kind == "failed" && rank_ == 0) {
    peer.goodbye = true;
    const int said = message.at("culprit").get<int>();
    const int blamed = said >= 0 && static_cast<std::size_t>(said) < hosts_.size() ? said : peer.rank;
    decide({blamed, hosts_[static_cast<std::size_t>(blamed)], message.at("position").get<std::string>(), message.at("reason").get<std::string>()});
  } else if (kind == "goodbye") {
    peer.goodbye = true;
  } else if (kind == "verdict" && rank_ != 0) {
    decide({message.at("rank").get<int>(), message.at("host").get<std::string>(), message.at("position").get<std::string>(), message.at("reason").get<std::string>()});
  }
}

void Lifeline::arrive(int rank, const std::string& name) {
  arrived_[rank] = name;
  if (arrived_.size() < hosts_.size()) return;
  // Most are right; where as many say one thing as another, rank 0 is.
  std::map<std::string, int> votes;
  for (const auto& [r, n] : arrived_) ++votes[n];
  std::string agreed = arrived_[0];
  for (const auto& [n, count] : votes)
    if (count > votes[agreed]) agreed = n;
  const auto odd = std::find_if(arrived_.begin(), arrived_.end(), [&](const auto& each) { return each.second != agreed; });
  if (odd != arrived_.end())
    return decide({odd->first, hosts_[static_cast<std::size_t>(odd->first)], "barrier " + shown(odd->second), "the others are at barrier " + shown(agreed)});
  arrived_.clear();
  tell({{"kind", "release"}});
  const std::lock_guard lock(mutex_);
  ++released_;
  changed_.notify_all();
}

void Lifeline::judge() {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_) return;
  }
  const auto now = Clock::now();
  std::vector<RankState> states{{rank_, hosts_[static_cast<std::size_t>(rank_)], false, false, progress_.snapshot()}};
  bool lost_somebody = false;
  for (const auto& p : peers_) {
    RankState s{p.rank, p.host, p.gone, !p.goodbye && now - p.heard > options_.silence, p.at};
    const auto ago = std::chrono::duration_cast<Duration>(now - p.heard);
    if (!p.goodbye) s.at.elapsed += ago, s.at.untold += ago;
    lost_somebody = lost_somebody || s.gone || s.silent;
    states.push_back(std::move(s));
  }
  if (!lost_somebody) {
    if (rank_ != 0) return;   // who is stuck, only rank 0 can tell: it hears all
    const bool symptom = std::any_of(states.begin(), states.end(), [](const RankState& s) { return s.at.overdue() || s.at.stalled() || s.at.stands_still(); });
    if (!symptom || !find_culprit(states)) return overdue_since_.reset();
    if (!overdue_since_) overdue_since_ = now;
    // Two beats more, so that everybody's latest position is known and a stopped rank can fall silent first.
    if (now - *overdue_since_ < 2 * options_.beat) return;
    const bool may_fall_silent = std::any_of(peers_.begin(), peers_.end(), [&](const Peer& p) { return !p.goodbye && now - p.heard > 2 * options_.beat; });
    if (may_fall_silent) return;
  }
  if (lost_somebody && !lost_since_) lost_since_ = now;
  // The others run into the call that the lost one does not come to within moments; it says what it was about.
  const bool known = std::any_of(states.begin(), states.end(), [&](const RankState& s) { return (s.gone || s.silent) && who_waits_for(s.rank, states); });
  if (lost_somebody && !known && now - *lost_since_ < 2 * options_.beat) return;
  if (const auto verdict = find_culprit(states)) decide(*verdict);
}

void Lifeline::decide(const Verdict& verdict) {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_) return;
    verdict_ = verdict;
    changed_.notify_all();
  }
  if (rank_ == 0) {
    tell({{"kind", "verdict"}, {"rank", verdict.rank}, {"host", verdict.host}, {"position", verdict.position}, {"reason", verdict.reason}});
    for (auto& p : peers_)
      if (p.rank != verdict.rank) p.channel.drain(500);
  }
  if (on_lost_) on_lost_(verdict);
}

}  // namespace moeplan
