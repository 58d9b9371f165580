#pragma once
/// Plays a job through time: one event per step, in integer picoseconds. Tasks of a queue run in list order; messages arrive when
/// their send ends; calls of a group whose members are played start when the last member arrives and end together. With a
/// cluster, communication shares links (fair_share.hpp); without one and without interference, every call takes its isolated time,
/// and the step then equals the closed form of planner/evaluate. docs/simulator.md tells the rules one by one.

#include "core/spec/cluster.hpp"
#include "sim/engine/job.hpp"

namespace moeplan {

struct PlayOptions {
  const ClusterSpec* cluster = nullptr;   ///< calls contend for its links; null: they do not
  bool interference = false;              ///< communication and compute of a rank slow each other, by what the job's calls hold (sim/engine/interference.hpp)
  Picoseconds host_launch = 0;            ///< the host issues each call of the block queue this long after the one before; 0: in no time
};

/// One step, send or receive as it ran. It began when its cause ended (Played::start). 24 bytes: a step of a large job has millions.
struct Record {
  Picoseconds end = 0;
  std::int32_t rank = 0;       ///< position in Job::ranks
  std::int32_t task = 0;
  std::int32_t cause = -1;     ///< the record at whose end this one began; -1: the start of the training step
  std::int32_t step : 31 = -1; ///< of the task's pass; -1: a message
  bool launch : 1 = false;     ///< not the step itself, but its wait until the host had issued it
};
static_assert(sizeof(Record) == 24);

struct Played {
  Picoseconds step = 0;
  std::vector<Record> records;                                        ///< by end
  std::vector<std::vector<std::pair<Picoseconds, Picoseconds>>> tasks;   ///< per rank and task: start, end
  std::uint64_t events = 0;
  [[nodiscard]] Picoseconds start(const Record& r) const { return r.cause < 0 ? 0 : records[static_cast<std::size_t>(r.cause)].end; }
  double slowest = 1;                                                 ///< least share of its full speed that any transfer ever had
};

/// Throws InputError if the lanes wait for each other (the message names the cycle) or a message has no other end.
[[nodiscard]] Played play(const Job& job, const PlayOptions& options = {});

/// "stage 1 (rank 8): backward of deepseek moe, layer 12, micro-batch 3".
[[nodiscard]] std::string describe(const Job& job, std::int32_t rank, std::int32_t task);

/// Tables and events of what was played; with arrows.
[[nodiscard]] StepTimeline timeline(const Job& job, const Played& played);

}  // namespace moeplan
