#pragma once
/// What the engine plays: ranks with lists of tasks. A task is a pass of a block, a gather, a reduction, the optimizer (all of
/// them passes: steps with dependencies), or one end of a message between pipeline stages. Programs become jobs in compile.hpp;
/// tests write them by hand.

#include <boost/container/small_vector.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/spec/timeline.hpp"
#include "sim/cost/collectives.hpp"

namespace moeplan {

/// Where a step is drawn.
enum class Track : std::uint8_t { compute, expert_communication, data_communication, copy, host, pipeline_send, pipeline_receive };
template <>
struct EnumNames<Track> {
  static constexpr std::array names{std::pair{Track::compute, std::string_view("compute")},
                                    std::pair{Track::expert_communication, std::string_view("expert communication")},
                                    std::pair{Track::data_communication, std::string_view("data communication")},
                                    std::pair{Track::copy, std::string_view("copy")},
                                    std::pair{Track::host, std::string_view("host")},
                                    std::pair{Track::pipeline_send, std::string_view("pipeline send")},
                                    std::pair{Track::pipeline_receive, std::string_view("pipeline receive")}};
};
inline constexpr std::size_t kTracks = EnumNames<Track>::names.size();

/// A distinct communication call with its isolated duration.
struct JobCall {
  TimelineCall shown;
  Group group = Group::data_shard;
  TierBytes bytes{};                    ///< one rank sends over each tier
  Picoseconds duration = 0;             ///< alone on its links
  double multiprocessors = 0;           ///< share of the device's multiprocessors that its kernels take from compute, 0 to below 1
  double memory = 0;                    ///< share of the memory's bandwidth that it takes, 0 to below 1
  double beside_compute = 1;            ///< share of its speed that it keeps while compute runs beside it
};

/// Operator calls that run back to back, or one communication call.
struct Step {
  Track track = Track::compute;
  Activity kind = Activity::forward;
  Picoseconds duration = 0;
  std::int32_t name = 0;
  std::int32_t detail = -1;             ///< index into Job::details
  std::int32_t call = -1;               ///< index into Job::calls
  float memory_bound = 0;               ///< compute: share of the duration at the memory's bandwidth
  boost::container::small_vector<std::int32_t, 4> after = {};   ///< earlier steps of the pass that must have ended
};

/// Steps of one instance; each starts as soon as what it waits for has ended.
struct StepGraph {
  std::int32_t name = 0;
  std::vector<Step> steps;
  /// Pairs (from, to) that a trace joins by an arrow: dispatch -> experts, experts -> combine.
  std::vector<std::pair<std::int32_t, std::int32_t>> arrows;
};

/// What a task holds while it runs: tasks of one queue run one after the other, in list order.
enum class Queue : std::uint8_t { main, data, none };
inline constexpr std::size_t kQueues = 2;

struct Task {
  enum class Kind : std::uint8_t { pass, send, receive };
  Kind kind = Kind::pass;
  Queue queue = Queue::main;
  bool downstream = true;               ///< messages: from stage i to i + 1 (activations), else from i + 1 to i (gradients)
  std::int32_t pass = -1;               ///< passes: index into Job::passes
  std::int32_t call = -1;               ///< sends: index into Job::calls
  std::int32_t layer = -1, micro_batch = -1;
  boost::container::small_vector<std::int32_t, 3> after = {};   ///< earlier tasks of the rank that must have ended
};

struct JobProgram {
  std::vector<Task> tasks;
  std::vector<std::int32_t> task_of = {};   ///< compiled programs: per instance its task; -1: takes no time
};

struct JobRank {
  std::int64_t rank = 0;                ///< as in the plan; also the index of its device in the cluster
  std::int32_t stage = 0;
  std::int64_t stands_for = 1;          ///< equal ranks folded into it
  std::int32_t program = 0;             ///< index into Job::programs
  std::int32_t before = -1, behind = -1;   ///< ranks (by position) it exchanges activations with: stage - 1 and stage + 1
  double slowdown = 1;                  ///< of its compute steps: a straggler has more than 1
  std::array<std::int32_t, 10> groups = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1};   ///< per Group: index into Job::groups; -1: no other member is played
};

struct Job {
  std::vector<JobCall> calls;
  std::vector<StepGraph> passes;
  std::vector<JobProgram> programs;
  std::vector<JobRank> ranks;
  std::vector<std::vector<std::int32_t>> groups;   ///< played members, ascending positions
  std::vector<TimelineDetail> details;
  std::vector<std::string> names;
  std::int64_t world = 1;

  std::int32_t name(const std::string& text);      ///< index of `text` in names, added if new
};

}  // namespace moeplan
