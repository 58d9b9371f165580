#include "executor/rendezvous/join.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <thread>

#include "core/error.hpp"
#include "core/json.hpp"
#include "executor/comm/communicator.hpp"
#include "executor/rendezvous/wire.hpp"

namespace moeplan {
namespace {

CommError failure(CommFault fault, const ProcessPlace& place, const std::string& reason, std::optional<int> peer = {}) {
  return {fault, {place.rank, "rendezvous", "join", 0, peer}, reason};
}

int milliseconds_until(Clock::time_point t) {
  const auto ms = std::chrono::duration_cast<Duration>(t - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(ms, 0, 1000));
}

void send_all(int fd, std::string_view bytes) {
  // The records of the handshake fit any socket buffer; a peer that does not read them is dropped by its time limit.
  (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// A connection that has not proved itself.
struct Stranger {
  Socket socket;
  Digest nonce;
  std::string bytes;
  Clock::time_point until;
};

class Host {
 public:
  Host(const ProcessPlace& place, const Token& token, const std::string& host_name, const JoinOptions& options)
      : place_(place), token_(token), options_(options), listener_(wire::listen_at(place)) {
    joined_.hosts.resize(static_cast<std::size_t>(place.world_size));
    joined_.channels.resize(static_cast<std::size_t>(place.world_size));
    joined_.hosts[0] = host_name;
  }

  Joined run(const std::string& payload) {
    const auto end = Clock::now() + options_.limit;
    while (arrived_ < place_.world_size) {
      if (Clock::now() >= end) give_up(failure(CommFault::timeout, place_, fmt::format("{} did not come within {} s", missing(), options_.limit.count() / 1000.0)));
      turn(end);
    }
    listener_.close();
    strangers_.clear();
    joined_.payload = payload;
    Json start = {{"kind", "start"}, {"hosts", joined_.hosts}, {"payload", hex(payload)}};
    const std::string text = start.dump(-1, ' ', false, Json::error_handler_t::replace);
    for (auto& c : joined_.channels) c.send(text);
    for (auto& c : joined_.channels) c.drain(static_cast<int>(options_.handshake_limit.count()));
    return std::move(joined_);
  }

  static std::string hex(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return out;
  }

 private:
  void turn(Clock::time_point end) {
    std::vector<pollfd> polled{{listener_.fd(), POLLIN, 0}};
    auto soonest = end;
    for (const auto& s : strangers_) {
      polled.push_back({s.socket.fd(), POLLIN, 0});
      soonest = std::min(soonest, s.until);
    }
    std::vector<int> ranks;
    for (int r = 1; r < place_.world_size; ++r)
      if (const auto& c = joined_.channels[static_cast<std::size_t>(r)]; c.open()) {
        polled.push_back({c.fd(), POLLIN, 0});
        ranks.push_back(r);
      }
    ::poll(polled.data(), polled.size(), milliseconds_until(soonest));
    std::size_t at = 1;
    for (auto s = strangers_.begin(); s != strangers_.end(); ++at) {
      const bool keep = polled[at].revents == 0 ? Clock::now() < s->until : hear(*s);
      s = keep ? std::next(s) : strangers_.erase(s);
    }
    for (const int r : ranks) {
      if (polled[at++].revents == 0) continue;
      Channel& c = joined_.channels[static_cast<std::size_t>(r)];
      (void)c.receive();   // nothing is due before the start: only the end of the connection is of interest
      if (!c.open()) give_up(failure(CommFault::peer_lost, place_, fmt::format("rank {} on {} left before all had joined", r, joined_.hosts[static_cast<std::size_t>(r)]), r));
    }
    if (polled[0].revents != 0) welcome_strangers();
  }

  void welcome_strangers() {
    while (true) {
      Socket s(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!s.open()) return;   // none left, or no descriptor free: the next turn tries again
      if (strangers_.size() >= options_.pending) strangers_.pop_front();
      const int on = 1;
      setsockopt(s.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      const Digest nonce = random_digest();
      send_all(s.fd(), wire::greeting(nonce));
      strangers_.push_back({std::move(s), nonce, {}, Clock::now() + options_.handshake_limit});
    }
  }

  /// False: drop it.
  bool hear(Stranger& s) {
    char block[wire::kClaim];
    const ssize_t n = ::recv(s.socket.fd(), block, wire::kClaim - s.bytes.size(), MSG_DONTWAIT);
    if (n < 0) return (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) && Clock::now() < s.until;
    if (n == 0) return false;
    s.bytes.append(block, static_cast<std::size_t>(n));
    if (s.bytes.size() < wire::kClaim) return Clock::now() < s.until;
    const auto claim = wire::read_claim(token_, bytes_of(s.nonce), s.bytes);
    if (!claim) return false;
    send_all(s.socket.fd(), bytes_of(wire::welcome(token_, bytes_of(s.nonce), claim->nonce, claim->rank)));
    Channel channel(std::move(s.socket), wire::session_key(token_, bytes_of(s.nonce), claim->nonce, claim->rank), true);
    const auto refuse = [&](const std::string& reason) {
      channel.send(Json{{"kind", "refused"}, {"reason", reason}}.dump(-1, ' ', false, Json::error_handler_t::replace));
      channel.drain(1000);
      give_up(failure(CommFault::mismatch, place_, reason));
    };
    if (claim->world != place_.world_size)
      refuse(fmt::format("rank {} on {} says there are {} ranks, rank 0 says {}", claim->rank, shown(claim->host), claim->world, place_.world_size));
    if (claim->rank < 1 || claim->rank >= place_.world_size)
      refuse(fmt::format("a process on {} claims rank {} of {}, while rank 0 is on {}", shown(claim->host), claim->rank, place_.world_size, joined_.hosts[0]));
    const auto r = static_cast<std::size_t>(claim->rank);
    if (joined_.channels[r].open())
      refuse(fmt::format("two processes claim rank {}: one on {}, one on {}", claim->rank, shown(joined_.hosts[r]), shown(claim->host)));
    joined_.channels[r] = std::move(channel);
    joined_.hosts[r] = claim->host;
    ++arrived_;
    return false;   // no stranger any more
  }

  [[noreturn]] void give_up(const CommError& e) {
    const std::string text = Json{{"kind", "refused"}, {"reason", e.reason()}}.dump(-1, ' ', false, Json::error_handler_t::replace);
    for (auto& c : joined_.channels) c.send(text);
    for (auto& c : joined_.channels) c.drain(200);
    throw e;
  }

  std::string missing() const {
    std::string list;
    int n = 0;
    for (int r = 1; r < place_.world_size; ++r)
      if (!joined_.channels[static_cast<std::size_t>(r)].open() && ++n <= 16) list += (n > 1 ? ", " : "") + std::to_string(r);
    return (n == 1 ? "rank " : "ranks ") + list + (n > 16 ? fmt::format(" and {} more", n - 16) : "");
  }

  ProcessPlace place_;
  Token token_;
  JoinOptions options_;
  Socket listener_;
  std::list<Stranger> strangers_;
  Joined joined_;
  int arrived_ = 1;
};

/// Exactly `size` bytes, or none when the connection ends or `until` passes.
std::optional<std::string> read_exactly(int fd, std::size_t size, Clock::time_point until) {
  std::string out(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    pollfd p{fd, POLLIN, 0};
    if (Clock::now() >= until) return std::nullopt;
    ::poll(&p, 1, milliseconds_until(until));
    const ssize_t n = ::recv(fd, out.data() + have, size - have, MSG_DONTWAIT);
    if (n > 0) have += static_cast<std::size_t>(n);
    else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return std::nullopt;
  }
  return out;
}

/// One attempt; a closed channel, and why in `trouble`, if rank 0 is not there yet.
Channel knock(const ProcessPlace& place, const Token& token, const std::string& host_name, const JoinOptions& options, int attempt, std::string& trouble) {
  const auto until = Clock::now() + options.handshake_limit;
  Socket s = wire::connect_to(place, attempt, trouble);
  if (!s.open()) return {};
  pollfd p{s.fd(), POLLOUT, 0};
  while (::poll(&p, 1, milliseconds_until(until)) == 0 && Clock::now() < until) {
  }
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0 || (p.revents & POLLOUT) == 0) return trouble = error != 0 ? fmt::format("cannot connect: {}", std::strerror(error)) : "cannot connect", Channel{};
  const auto hello = read_exactly(s.fd(), wire::kGreeting, until);
  if (!hello) return trouble = "connected, but no greeting came", Channel{};
  const auto server_nonce = wire::read_greeting(*hello);
  if (!server_nonce) return trouble = "something else listens there", Channel{};
  const Digest nonce = random_digest();
  send_all(s.fd(), wire::claim(token, *server_nonce, nonce, place.rank, place.world_size, host_name));
  const auto proof = read_exactly(s.fd(), wire::kWelcome, until);
  if (!proof) return trouble = "rank 0 closed the connection: do all ranks have the same token?", Channel{};
  if (!same(wire::welcome(token, *server_nonce, bytes_of(nonce), place.rank), *proof)) return trouble = "who listens there does not know the token", Channel{};
  return {std::move(s), wire::session_key(token, *server_nonce, bytes_of(nonce), place.rank), false};
}

std::string unhex(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) out += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return out;
}

Joined join_as_guest(const ProcessPlace& place, const Token& token, const std::string& host_name, const JoinOptions& options) {
  const auto end = Clock::now() + options.limit;
  std::string trouble;
  Channel channel;
  for (int attempt = 0; !channel.open(); ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(Duration{std::min(20 * attempt, 500)});
    if (Clock::now() >= end)
      throw failure(CommFault::timeout, place, fmt::format("rank 0 at {} port {} did not answer within {} s: {}", place.host, place.port, options.limit.count() / 1000.0, trouble), 0);
    channel = knock(place, token, host_name, options, attempt, trouble);
  }
  while (true) {
    // The greatest wait is rank 0's for the last to come: it says so when it gives up. Twice its limit catches a rank 0 that is stopped.
    if (Clock::now() >= end + options.limit) throw failure(CommFault::timeout, place, "rank 0 said nothing more: it is stopped, or its host cannot be reached", 0);
    pollfd p{channel.fd(), POLLIN, 0};
    ::poll(&p, 1, 500);
    for (const std::string& text : channel.receive()) {
      const Json message = parse_json(text, "rank 0");
      if (message.value("kind", "") == "refused") throw failure(CommFault::peer_lost, place, message.value("reason", ""), 0);
      if (message.value("kind", "") != "start") continue;
      Joined joined;
      joined.rank = place.rank;
      joined.hosts = message.at("hosts").get<std::vector<std::string>>();
      joined.payload = unhex(message.at("payload").get<std::string>());
      joined.channels.push_back(std::move(channel));
      return joined;
    }
    if (!channel.open()) throw failure(CommFault::peer_lost, place, "rank 0 ended before all had joined", 0);
  }
}

}  // namespace

std::string own_host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
  return std::string(name).substr(0, wire::kHost - 1);
}

Joined join(const ProcessPlace& place, const Token& token, const std::string& host_name, const std::string& payload, const JoinOptions& options) {
  if (place.world_size == 1) {
    Joined alone;
    alone.hosts = {host_name};
    alone.payload = payload;
    alone.channels.resize(1);
    return alone;
  }
  if (place.rank == 0) return Host(place, token, host_name, options).run(payload);
  return join_as_guest(place, token, host_name, options);
}

}  // namespace moeplan
