#include "executor/rendezvous/wire.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/error.hpp"

namespace moeplan::wire {
namespace {

std::string number(int v) {
  const auto u = static_cast<std::uint32_t>(v);
  return {static_cast<char>(u & 0xff), static_cast<char>(u >> 8 & 0xff), static_cast<char>(u >> 16 & 0xff), static_cast<char>(u >> 24 & 0xff)};
}
int read_number(std::string_view bytes) {
  std::uint32_t u = 0;
  for (std::size_t i = 0; i < 4; ++i) u |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << 8 * i;
  return static_cast<int>(u);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses(const ProcessPlace& place, std::string* error = nullptr) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const std::string host = place.nodes == 1 && place.host == "localhost" ? "127.0.0.1" : place.host;
  const int status = getaddrinfo(host.c_str(), std::to_string(place.port).c_str(), &hints, &list);
  if (status != 0 && error) *error = gai_strerror(status);
  return {status == 0 ? list : nullptr, &freeaddrinfo};
}

}  // namespace

std::string greeting(const Digest& nonce) { return std::string(kMagic) + std::string(bytes_of(nonce)); }

std::optional<std::string> read_greeting(std::string_view bytes) {
  if (bytes.size() != kGreeting || bytes.substr(0, 8) != kMagic) return std::nullopt;
  return std::string(bytes.substr(8));
}

std::string claim(const Token& token, std::string_view server_nonce, const Digest& nonce, int rank, int world, std::string_view host) {
  std::string body = std::string(kMagic) + std::string(bytes_of(nonce)) + number(rank) + number(world);
  std::string name(host.substr(0, kHost - 1));
  name.resize(kHost, '\0');
  body += name;
  return body + std::string(bytes_of(keyed_digest(bytes_of(token), {"claim", server_nonce, body})));
}

std::optional<Claim> read_claim(const Token& token, std::string_view server_nonce, std::string_view bytes) {
  if (bytes.size() != kClaim || bytes.substr(0, 8) != kMagic) return std::nullopt;
  const std::string_view body = bytes.substr(0, kClaim - 32);
  if (!same(keyed_digest(bytes_of(token), {"claim", server_nonce, body}), bytes.substr(kClaim - 32))) return std::nullopt;
  const std::string_view host = body.substr(48, kHost);
  return Claim{std::string(body.substr(8, 32)), read_number(body.substr(40, 4)), read_number(body.substr(44, 4)), std::string(host.substr(0, host.find('\0')))};
}

Digest welcome(const Token& token, std::string_view server_nonce, std::string_view client_nonce, int rank) {
  return keyed_digest(bytes_of(token), {"welcome", client_nonce, server_nonce, number(rank)});
}

Digest session_key(const Token& token, std::string_view server_nonce, std::string_view client_nonce, int rank) {
  return keyed_digest(bytes_of(token), {"session", client_nonce, server_nonce, number(rank)});
}

Socket listen_at(const ProcessPlace& place) {
  ProcessPlace where = place;
  if (place.nodes == 1) where.host = "127.0.0.1";
  const std::string name = fmt::format("rendezvous {} port {}", where.host, where.port);
  std::string error;
  const Addresses list = addresses(where, &error);
  if (!list) throw InputError(name, "host not known: " + error, "--rendezvous-host");
  for (const addrinfo* a = list.get(); a; a = a->ai_next) {
    Socket s(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
    if (!s.open()) continue;
    const int on = 1;
    setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(s.fd(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(s.fd(), 1024) == 0) return s;
    error = std::strerror(errno);
  }
  throw InputError(name, "rank 0 cannot listen there: " + error, "another port with --rendezvous-port, or this host's address with --rendezvous-host");
}

Socket connect_to(const ProcessPlace& place, int attempt, std::string& trouble) {
  ProcessPlace where = place;
  if (place.nodes == 1) where.host = "127.0.0.1";
  std::string error;
  const Addresses list = addresses(where, &error);
  trouble = list ? "cannot connect" : "host not known: " + error;
  int count = 0;
  for (const addrinfo* a = list.get(); a; a = a->ai_next) ++count;
  if (count == 0) return {};
  const addrinfo* a = list.get();
  for (int i = attempt % count; i > 0; --i) a = a->ai_next;
  Socket s(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
  if (!s.open()) return {};
  const int on = 1;
  setsockopt(s.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(s.fd(), a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) return {};
  return s;
}

}  // namespace moeplan::wire
