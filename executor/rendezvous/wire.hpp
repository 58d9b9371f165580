#pragma once
/// The fixed-size records of the handshake, and opening sockets. Used by join.cpp and its tests.

#include <optional>
#include <string>
#include <string_view>

#include "executor/rendezvous/channel.hpp"
#include "executor/rendezvous/environment.hpp"

namespace moeplan::wire {

inline constexpr std::string_view kMagic = "MOEPLAN1";
inline constexpr std::size_t kHost = 64;
inline constexpr std::size_t kGreeting = 8 + 32;                        ///< magic, nonce of rank 0
inline constexpr std::size_t kClaim = 8 + 32 + 4 + 4 + kHost + 32;      ///< magic, nonce, rank, world, host, proof
inline constexpr std::size_t kWelcome = 32;                             ///< proof of rank 0

struct Claim {
  std::string nonce;
  int rank = 0, world = 0;
  std::string host;
};

[[nodiscard]] std::string greeting(const Digest& nonce);
/// The other side's nonce; empty if these bytes are no greeting.
[[nodiscard]] std::optional<std::string> read_greeting(std::string_view bytes);
[[nodiscard]] std::string claim(const Token& token, std::string_view server_nonce, const Digest& nonce, int rank, int world, std::string_view host);
/// Empty unless the proof is right.
[[nodiscard]] std::optional<Claim> read_claim(const Token& token, std::string_view server_nonce, std::string_view bytes);
[[nodiscard]] Digest welcome(const Token& token, std::string_view server_nonce, std::string_view client_nonce, int rank);
[[nodiscard]] Digest session_key(const Token& token, std::string_view server_nonce, std::string_view client_nonce, int rank);

/// Listens on the address of `place.host` only (loopback for a job on one node). Throws InputError.
[[nodiscard]] Socket listen_at(const ProcessPlace& place);
/// Begins to connect, without waiting; closed, and why in `trouble`, if the host has no address now. Advances through the host's addresses with `attempt`.
[[nodiscard]] Socket connect_to(const ProcessPlace& place, int attempt, std::string& trouble);

}  // namespace moeplan::wire
