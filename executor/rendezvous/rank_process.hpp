#pragma once
/// One process of a job from the rendezvous to the goodbye: joins, opens the world's communicator, runs, and leaves with everybody when
/// anybody is lost. Which library carries the data is the caller's (`Transport`).

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "executor/comm/communicator.hpp"
#include "executor/comm/progress.hpp"
#include "executor/rendezvous/environment.hpp"
#include "executor/rendezvous/lifeline.hpp"
#include "executor/rendezvous/secure.hpp"

namespace moeplan {

struct Transport {
  std::function<std::string()> offer;   ///< rank 0: what the others need to find its world
  std::function<std::unique_ptr<Communicator>(int rank, int ranks, const std::string& offer, Duration limit)> open;   ///< this rank's own part; `connect` is that of all
  std::function<void()> ready = [] {};  ///< before `open`: what takes long and waits for nobody, as the opening of a device
};

struct RankProcess {
  ProcessPlace place{};
  Token token{};
  Duration limit{300000};      ///< for the rendezvous and for each call
  Duration stall = kStalled;   ///< most that a rank may have no work to tell of, or stand still in a call; never above `limit`
  Duration grace{15000};       ///< to leave once somebody is lost, whatever this process hangs in
  std::function<void(const std::string&)> end;   ///< called when the grace is over, with who was lost: ends the process
  std::function<void()> joined = [] {};          ///< all have come
  std::vector<std::pair<std::string, std::string>> alike{};   ///< what all ranks must have alike: "plan" and its text
};

/// Thrown by a rank that has found out that `culprit` is at fault.
class RankBlamed : public std::runtime_error {
 public:
  RankBlamed(int culprit, const std::string& reason) : std::runtime_error(reason), culprit_(culprit) {}
  [[nodiscard]] int culprit() const { return culprit_; }

 private:
  int culprit_;
};

/// Signs of life are expected as often as the limit of a call asks: the default limit gives a second and ten.
[[nodiscard]] LifelineOptions lifeline_options(Duration limit);

/// Empty when all ranks have ended well; else who was lost, where and why, in one line: "rank 3 on gpu07: forward dispatch, ...".
/// InputErrors of `body` are told to the others and thrown again. A rank that does not make its own part of the opening ready is named after
/// `stall`, as is one that does not turn in the part that all make together; that part may take `limit`.
[[nodiscard]] std::optional<std::string> run_rank_process(const RankProcess& process, const Transport& transport,
                                                          const std::function<void(Communicator&, Progress&)>& body);

}  // namespace moeplan
