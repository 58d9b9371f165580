#include "sim/engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <deque>
#include <map>
#include <memory>

#include "core/error.hpp"
#include "sim/engine/deadlock.hpp"
#include "sim/engine/events.hpp"
#include "sim/engine/network.hpp"
#include "sim/engine/successors.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// A step or message under way. `left`: picoseconds of full speed at `since`.
struct Running {
  std::int32_t rank = 0, task = 0, step = -1, cause = -1, flow = -1, joint = -1;
  Picoseconds begin = 0, since = 0;
  double left = 0, speed = 1;
  std::uint32_t version = 0;
};

struct RankState {
  std::vector<std::int32_t> waits;                           ///< per task: unfinished `after`, plus one while its queue is not at it, plus one for a message
  std::array<std::size_t, kQueues> at{};                     ///< position in the queue
  std::array<std::vector<std::int32_t>, kQueues> steps;      ///< of the running pass: unfinished `after` per step
  std::array<std::int32_t, kQueues> open{};                  ///< of the running pass: steps not ended
  std::int32_t computing = -1;                               ///< running compute step
  double taken = 0;                                          ///< share of the multiprocessors that communication holds
};

/// Members that have arrived at a call of their group.
struct Joint {
  std::vector<std::int32_t> members;                         ///< indices of Running
};

class Player {
 public:
  Player(const Job& job, const PlayOptions& options) : job_(job), options_(options), deadlock_(job) {
    for (const JobProgram& p : job.programs) programs_.emplace_back(p);
    for (const StepGraph& p : job.passes) passes_.emplace_back(p.steps);
    check_messages();
    if (options.cluster) {
      std::vector<std::int64_t> devices;
      for (const JobRank& r : job.ranks) devices.push_back(r.rank);
      network_ = std::make_unique<Network>(*options.cluster, devices, links_);
      uses_.resize(job.ranks.size());
      routes_.resize(job.ranks.size());
      for (auto& u : uses_) u.resize(job.calls.size());
      for (auto& u : routes_) u.resize(2 * job.calls.size());
    }
    std::size_t steps = 0;
    for (const JobRank& r : job.ranks) {
      RankState s;
      const JobProgram& p = job.programs[index(r.program)];
      for (const Task& t : p.tasks) {
        s.waits.push_back(static_cast<std::int32_t>(t.after.size()) + (t.queue != Queue::none) + (t.kind == Task::Kind::receive));
        steps += t.kind == Task::Kind::pass ? job.passes[index(t.pass)].steps.size() : 1;
      }
      ranks_.push_back(std::move(s));
      out_.tasks.emplace_back(p.tasks.size(), std::pair<Picoseconds, Picoseconds>{-1, -1});
    }
    out_.records.reserve(steps);
    arrived_.resize(job.groups.size());
  }

  Played run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const auto rank = static_cast<std::int32_t>(r);
      const ProgramIndex& p = program(rank);
      // Tasks that wait for nothing, first those outside queues.
      for (std::size_t t = 0; t < ranks_[r].waits.size(); ++t)
        if (tasks(rank)[t].queue == Queue::none && ranks_[r].waits[t] == 0) begin(rank, static_cast<std::int32_t>(t), -1);
      for (std::size_t q = 0; q < kQueues; ++q)
        if (!p.queue[q].empty()) release(rank, p.queue[q].front(), -1);
    }
    while (!events_.empty()) {
      const EventQueue::Event e = events_.pop();
      if (running_[e.what].version != e.version) continue;
      end_running(static_cast<std::int32_t>(e.what));
    }
    for (const Record& r : out_.records) out_.step = std::max(out_.step, r.end);
    out_.events = events_.pushed();
    std::string stuck = deadlock_.report(out_.tasks);
    if (!stuck.empty()) throw InputError("plan", std::move(stuck), "order the instances so that every wait can end");
    return std::move(out_);
  }

 private:
  const std::vector<Task>& tasks(std::int32_t rank) const { return job_.programs[index(job_.ranks[index(rank)].program)].tasks; }
  const ProgramIndex& program(std::int32_t rank) const { return programs_[index(job_.ranks[index(rank)].program)]; }
  std::int32_t peer(std::int32_t rank, bool downstream, bool sending) const {
    const JobRank& r = job_.ranks[index(rank)];
    return downstream == sending ? r.behind : r.before;
  }

  void check_messages() const {
    for (std::size_t r = 0; r < job_.ranks.size(); ++r) {
      const auto rank = static_cast<std::int32_t>(r);
      for (const bool downstream : {true, false}) {
        const std::size_t d = downstream ? 0 : 1;
        const auto received = static_cast<std::int32_t>(program(rank).receives[d].size());
        const std::int32_t from = peer(rank, downstream, false);
        const std::int32_t sent = from < 0 ? 0 : program(from).sends[d];
        if (received > sent)
          throw InputError("plan", fmt::format("stage {} receives {} {} messages, its neighbour sends {}", job_.ranks[r].stage, received, downstream ? "activation" : "gradient", sent));
      }
    }
  }

  /// One of the things that `task` waits for has happened.
  void release(std::int32_t rank, std::int32_t task, std::int32_t cause) {
    if (--ranks_[index(rank)].waits[index(task)] == 0) begin(rank, task, cause);
  }

  void begin(std::int32_t rank, std::int32_t task, std::int32_t cause) {
    const Task& t = tasks(rank)[index(task)];
    out_.tasks[index(rank)][index(task)].first = events_.now();
    if (t.kind == Task::Kind::send) {
      Running r{.rank = rank, .task = task, .cause = cause};
      start(std::move(r), job_.calls[index(t.call)].duration, message_uses(rank, t));
      return;
    }
    if (t.kind == Task::Kind::receive) {
      const Picoseconds now = events_.now();
      out_.records.push_back({now, now, rank, task, -1, cause});
      end_task(rank, task, static_cast<std::int32_t>(out_.records.size() - 1));
      return;
    }
    const StepGraph& pass = job_.passes[index(t.pass)];
    RankState& s = ranks_[index(rank)];
    const auto q = static_cast<std::size_t>(t.queue);
    s.open[q] = static_cast<std::int32_t>(pass.steps.size());
    s.steps[q].clear();
    for (const Step& step : pass.steps) s.steps[q].push_back(static_cast<std::int32_t>(step.after.size()));
    if (pass.steps.empty()) { end_task(rank, task, cause); return; }
    for (std::size_t i = 0; i < pass.steps.size(); ++i)
      if (pass.steps[i].after.empty()) begin_step(rank, task, static_cast<std::int32_t>(i), cause);
  }

  void begin_step(std::int32_t rank, std::int32_t task, std::int32_t step, std::int32_t cause) {
    const Step& s = job_.passes[index(tasks(rank)[index(task)].pass)].steps[index(step)];
    Running r{.rank = rank, .task = task, .step = step, .cause = cause};
    if (s.call < 0) {
      double duration = static_cast<double>(s.duration);
      if (s.track == Track::compute) duration = std::round(duration * job_.ranks[index(rank)].slowdown);
      const std::int32_t id = start(std::move(r), static_cast<Picoseconds>(duration), {});
      if (s.track == Track::compute && options_.interference) {
        ranks_[index(rank)].computing = id;
        retime(id, 1 - ranks_[index(rank)].taken);
      }
      return;
    }
    const JobCall& call = job_.calls[index(s.call)];
    const std::int32_t group = job_.ranks[index(rank)].groups[static_cast<std::size_t>(call.group)];
    if (group < 0) {
      const std::int32_t id = start(std::move(r), s.duration, call_uses(rank, s.call));
      take(running_[index(id)], call.multiprocessors);
      return;
    }
    // The n-th call of a group on a track is the same call on all its members.
    auto& waiting = arrived_[index(group)][static_cast<std::size_t>(s.track)];
    std::size_t n = 0;
    while (n < waiting.size() && std::any_of(waiting[n].members.begin(), waiting[n].members.end(), [&](std::int32_t m) { return running_[index(m)].rank == rank; })) ++n;
    if (n == waiting.size()) waiting.emplace_back();
    r.begin = r.since = events_.now();
    waiting[n].members.push_back(allocate(std::move(r)));
    deadlock_.arrive(rank, task, group);
    if (n == 0 && waiting[0].members.size() == job_.groups[index(group)].size()) {
      Joint joint = std::move(waiting.front());
      waiting.pop_front();
      start_joint(std::move(joint), cause);
    }
  }

  void start_joint(Joint joint, std::int32_t cause) {
    Picoseconds duration = 0;
    std::vector<LinkUse> uses;
    for (const std::int32_t m : joint.members) {
      Running& r = running_[index(m)];
      const Step& s = job_.passes[index(tasks(r.rank)[index(r.task)].pass)].steps[index(r.step)];
      duration = std::max(duration, s.duration);
      deadlock_.leave(r.rank);
    }
    for (const std::int32_t m : joint.members) {
      Running& r = running_[index(m)];
      const Step& s = job_.passes[index(tasks(r.rank)[index(r.task)].pass)].steps[index(r.step)];
      r.cause = cause;
      r.begin = r.since = events_.now();
      const double stretch = duration > 0 ? static_cast<double>(s.duration) / static_cast<double>(duration) : 0;
      for (LinkUse u : call_uses(r.rank, s.call)) {
        u.bytes_per_second *= stretch;
        const auto known = std::find_if(uses.begin(), uses.end(), [&](const LinkUse& o) { return o.link == u.link; });
        if (known != uses.end()) known->bytes_per_second += u.bytes_per_second;
        else uses.push_back(u);
      }
      take(r, job_.calls[index(s.call)].multiprocessors);
    }
    const std::int32_t leader = joint.members.front();
    std::int32_t id = -1;
    for (std::size_t i = 0; i < joints_.size() && id < 0; ++i) if (joints_[i].members.empty()) id = static_cast<std::int32_t>(i);
    if (id < 0) { id = static_cast<std::int32_t>(joints_.size()); joints_.emplace_back(); }
    joints_[index(id)] = std::move(joint);
    running_[index(leader)].joint = id;
    set_going(leader, duration, uses);
  }

  std::int32_t allocate(Running&& r) {
    std::int32_t id;
    if (free_.empty()) {
      id = static_cast<std::int32_t>(running_.size());
      running_.push_back(std::move(r));
    } else {
      id = free_.back();
      free_.pop_back();
      r.version = running_[index(id)].version + 1;
      running_[index(id)] = std::move(r);
    }
    return id;
  }

  std::int32_t start(Running&& r, Picoseconds duration, std::span<const LinkUse> uses) {
    r.begin = r.since = events_.now();
    const std::int32_t id = allocate(std::move(r));
    set_going(id, duration, uses);
    return id;
  }

  void set_going(std::int32_t id, Picoseconds duration, std::span<const LinkUse> uses) {
    Running& r = running_[index(id)];
    r.left = static_cast<double>(duration);
    r.speed = 1;
    if (!uses.empty()) {
      r.flow = links_.start(uses);
      if (flow_owner_.size() <= index(r.flow)) flow_owner_.resize(index(r.flow) + 1);
      flow_owner_[index(r.flow)] = id;
      r.speed = links_.speed(r.flow);
    }
    events_.push(events_.now() + time_left(r), static_cast<std::uint32_t>(id), r.version);
    if (r.flow >= 0) follow_changes();
  }

  static Picoseconds time_left(const Running& r) { return static_cast<Picoseconds>(r.speed == 1 ? std::llround(r.left) : std::llround(std::ceil(r.left / r.speed))); }

  void retime(std::int32_t id, double speed) {
    Running& r = running_[index(id)];
    if (speed == r.speed) return;
    r.left = std::max(0.0, r.left - static_cast<double>(events_.now() - r.since) * r.speed);
    r.since = events_.now();
    r.speed = speed;
    ++r.version;
    events_.push(events_.now() + time_left(r), static_cast<std::uint32_t>(id), r.version);
  }

  void follow_changes() {
    for (const std::int32_t f : links_.changed()) retime(flow_owner_[index(f)], links_.speed(f));
  }

  /// A communication call takes multiprocessors from (or, negative, gives them back to) the compute steps of its rank.
  void take(const Running& r, double share) {
    if (!options_.interference || share == 0) return;
    RankState& s = ranks_[index(r.rank)];
    s.taken = std::clamp(s.taken + share, 0.0, 0.95);
    if (std::abs(s.taken) < 1e-12) s.taken = 0;
    if (s.computing >= 0) retime(s.computing, 1 - s.taken);
  }

  void end_running(std::int32_t id) {
    const Running r = running_[index(id)];
    if (r.flow >= 0) {
      links_.end(r.flow);
      follow_changes();
    }
    if (r.joint < 0) {
      ++running_[index(id)].version;
      free_.push_back(id);
      finish(r);
      return;
    }
    const Joint joint = std::move(joints_[index(r.joint)]);
    joints_[index(r.joint)].members.clear();
    std::vector<Running> members;
    for (const std::int32_t m : joint.members) {
      members.push_back(running_[index(m)]);
      ++running_[index(m)].version;
      free_.push_back(m);
    }
    for (const Running& m : members) finish(m);
  }

  void finish(const Running& r) {
    const auto record = static_cast<std::int32_t>(out_.records.size());
    out_.records.push_back({r.begin, events_.now(), r.rank, r.task, r.step, r.cause});
    const Task& t = tasks(r.rank)[index(r.task)];
    RankState& s = ranks_[index(r.rank)];
    if (t.kind == Task::Kind::send) {
      const std::int32_t to = peer(r.rank, t.downstream, true);
      if (to >= 0) {
        const auto& receives = program(to).receives[t.downstream ? 0 : 1];
        const std::int32_t n = program(r.rank).ordinal[index(r.task)];
        if (index(n) < receives.size()) release(to, receives[index(n)], record);
      }
      end_task(r.rank, r.task, record);
      return;
    }
    const StepGraph& pass = job_.passes[index(t.pass)];
    const Step& step = pass.steps[index(r.step)];
    if (options_.interference) {
      if (step.call >= 0) take(r, -job_.calls[index(step.call)].multiprocessors);
      else if (step.track == Track::compute) s.computing = -1;
    }
    const auto q = static_cast<std::size_t>(t.queue);
    for (const std::int32_t n : passes_[index(t.pass)].of(r.step))
      if (--s.steps[q][index(n)] == 0) begin_step(r.rank, r.task, n, record);
    if (--s.open[q] == 0) end_task(r.rank, r.task, record);
  }

  void end_task(std::int32_t rank, std::int32_t task, std::int32_t record) {
    out_.tasks[index(rank)][index(task)].second = events_.now();
    const Task& t = tasks(rank)[index(task)];
    const ProgramIndex& p = program(rank);
    for (const std::int32_t n : p.next.of(task)) release(rank, n, record);
    if (t.queue == Queue::none) return;
    const auto q = static_cast<std::size_t>(t.queue);
    const std::size_t at = ++ranks_[index(rank)].at[q];
    if (at < p.queue[q].size()) release(rank, p.queue[q][at], record);
  }

  std::span<const LinkUse> call_uses(std::int32_t rank, std::int32_t call) {
    if (!network_) return {};
    auto& known = uses_[index(rank)][index(call)];
    const JobCall& c = job_.calls[index(call)];
    if (!known) known = network_->collective(index(rank), c.bytes, to_seconds(c.duration).value);
    return *known;
  }

  std::span<const LinkUse> message_uses(std::int32_t rank, const Task& t) {
    const std::int32_t to = peer(rank, t.downstream, true);
    if (!network_ || to < 0) return {};
    auto& known = routes_[index(rank)][2 * index(t.call) + (t.downstream ? 0 : 1)];
    const JobCall& c = job_.calls[index(t.call)];
    if (!known) {
      double bytes = 0;
      for (const double b : c.bytes) bytes = std::max(bytes, b);
      known = network_->message(index(rank), index(to), bytes, to_seconds(c.duration).value);
    }
    return *known;
  }

  const Job& job_;
  PlayOptions options_;
  Deadlock deadlock_;
  std::deque<ProgramIndex> programs_;
  std::deque<Successors> passes_;
  std::vector<RankState> ranks_;
  EventQueue events_;
  FairShare links_;
  std::unique_ptr<Network> network_;
  std::vector<std::vector<std::optional<std::vector<LinkUse>>>> uses_, routes_;
  std::vector<Running> running_;
  std::vector<std::int32_t> free_, flow_owner_;
  std::vector<std::array<std::deque<Joint>, kTracks>> arrived_;
  std::vector<Joint> joints_;
  Played out_;
};

}  // namespace

std::int32_t Job::name(const std::string& text) {
  const auto it = std::find(names.begin(), names.end(), text);
  if (it != names.end()) return static_cast<std::int32_t>(it - names.begin());
  names.push_back(text);
  return static_cast<std::int32_t>(names.size() - 1);
}

Played play(const Job& job, const PlayOptions& options) { return Player(job, options).run(); }

}  // namespace moeplan
