#pragma once
/// All ranks of a job find each other over TCP: rank 0 listens where `ProcessPlace` says, the others connect, both sides prove that
/// they hold the job's token, and rank 0 hands everybody the list of members and a payload (NCCL's 128-byte id).
///
/// The port is open only until all have joined. Whoever cannot finish the handshake is dropped without effect: no answer but the
/// fixed greeting, at most 336 bytes read, a few seconds' time, a bounded number at once. The token itself never travels.

#include <functional>
#include <string>
#include <vector>

#include "executor/comm/progress.hpp"
#include "executor/rendezvous/channel.hpp"
#include "executor/rendezvous/environment.hpp"
#include "executor/rendezvous/secure.hpp"

namespace moeplan {

struct JoinOptions {
  Duration limit{300000};          ///< for everybody to arrive
  Duration handshake_limit{5000};  ///< for one connection to prove itself
  std::size_t pending = 64;        ///< connections in the handshake at once; the oldest makes room
};

/// What a rank holds when all have joined.
struct Joined {
  int rank = 0;
  std::vector<std::string> hosts;      ///< host name of each rank, as it says itself
  std::string payload;                 ///< rank 0's, on all ranks
  std::vector<Channel> channels;       ///< rank 0: one per rank, its own closed; other ranks: one, to rank 0
};

/// Blocks until all ranks of `place` have joined. `payload` matters on rank 0 only. A world of one needs no token and opens nothing.
/// Throws CommError: `timeout` naming the ranks that did not come, `peer_lost` naming the rank that left again, `mismatch` for two
/// processes that claim one rank or different world sizes; InputError if the address cannot be used.
[[nodiscard]] Joined join(const ProcessPlace& place, const Token& token, const std::string& host_name, const std::string& payload, const JoinOptions& options = {});

/// This machine's host name, at most 63 characters.
[[nodiscard]] std::string own_host_name();

}  // namespace moeplan
