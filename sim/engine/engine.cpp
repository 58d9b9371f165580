#include "sim/engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <deque>

#include "core/error.hpp"
#include "sim/engine/deadlock.hpp"
#include "sim/engine/events.hpp"
#include "sim/engine/interference.hpp"
#include "sim/engine/link_uses.hpp"
#include "sim/engine/play_state.hpp"
#include "sim/engine/successors.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

class Player {
 public:
  Player(const Job& job, const PlayOptions& options) : job_(job), options_(options), uses_(job, options.cluster, links_) {
    for (const JobProgram& p : job.programs) programs_.emplace_back(p);
    std::size_t widest = 0;
    for (const StepGraph& p : job.passes) {
      passes_.emplace_back(p);
      widest = std::max(widest, p.steps.size());
      if (options.host_launch > 0) hosts_.emplace_back(p, job);
    }
    check_messages(job, programs_);
    links_.defer();
    std::size_t records = 0, tasks = 0;
    for (const JobRank& r : job.ranks)
      for (const TaskBrief& t : programs_[index(r.program)].tasks) {
        records += t.kind == Task::Kind::pass ? passes_[index(t.pass)].steps.size() : 1;
        ++tasks;
      }
    out_.records.reserve(records);
    waits_.reserve(tasks);
    step_waits_.resize(job.ranks.size() * kQueues * widest);
    ranks_.resize(job.ranks.size());
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
      const JobRank& r = job.ranks[i];
      const ProgramIndex& p = programs_[index(r.program)];
      RankState& s = ranks_[i];
      s.program = &p;
      s.tasks = p.tasks.data();
      s.waits = waits_.data() + waits_.size();
      for (const Task& t : job.programs[index(r.program)].tasks)
        waits_.push_back(static_cast<std::uint16_t>(static_cast<int>(t.after.size()) + (t.queue != Queue::none) + (t.kind == Task::Kind::receive)));
      s.spans = out_.tasks.emplace_back(p.tasks.size(), std::pair<Picoseconds, Picoseconds>{-1, -1}).data();
      for (std::size_t q = 0; q < kQueues; ++q) s.steps[q] = step_waits_.data() + (i * kQueues + q) * widest;
      s.before = r.before;
      s.behind = r.behind;
      s.groups = r.groups;
      s.slowdown = r.slowdown;
    }
    arrived_.resize(job.groups.size());
    member_.resize(job.ranks.size());
    for (std::size_t r = 0; r < job.ranks.size(); ++r)
      for (std::size_t g = 0; g < job.ranks[r].groups.size(); ++g) {
        if (job.ranks[r].groups[g] < 0) continue;
        const auto& members = job.groups[index(job.ranks[r].groups[g])];
        member_[r][g] = static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), static_cast<std::int32_t>(r)) - members.begin());
      }
  }

  Played run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const auto rank = static_cast<std::int32_t>(r);
      const ProgramIndex& p = program(rank);
      // Tasks that wait for nothing, first those outside queues.
      for (std::size_t t = 0; t < p.tasks.size(); ++t)
        if (p.tasks[t].queue == Queue::none && ranks_[r].waits[t] == 0) begin(rank, static_cast<std::int32_t>(t), -1);
      for (std::size_t q = 0; q < kQueues; ++q)
        if (!p.queue[q].empty()) release(rank, p.queue[q].front(), -1);
    }
    settle();
    while (!events_.empty()) {
      const EventQueue::Event e = events_.pop();
      // With thousands of ranks what runs is seldom in the first caches: fetch what comes next meanwhile.
      const auto [next, second] = events_.upcoming(e.what);
      __builtin_prefetch(&running_[second]);
      const char* rank = reinterpret_cast<const char*>(&ranks_[index(running_[next].rank)]);
      __builtin_prefetch(rank);
      __builtin_prefetch(rank + 64);
      if (running_[e.what].version == e.version) end_running(static_cast<std::int32_t>(e.what));
      if (links_.unsettled() && !events_.due()) settle();
    }
    if (!out_.records.empty()) out_.step = out_.records.back().end;  // they are in the order of time
    out_.events = events_.pushed();
    Deadlock deadlock(job_);
    for (std::size_t g = 0; g < arrived_.size(); ++g)
      for (const Arrivals& arrivals : arrived_[g])
        for (const Joint& joint : arrivals.waiting)
          for (const std::int32_t m : joint.members) deadlock.arrive(running_[index(m)].rank, running_[index(m)].task, static_cast<std::int32_t>(g));
    std::string stuck = deadlock.report(out_.tasks);
    if (!stuck.empty()) throw InputError("plan", std::move(stuck), "order the instances so that every wait can end");
    return std::move(out_);
  }

 private:
  const TaskBrief& task_of(std::int32_t rank, std::int32_t task) const { return ranks_[index(rank)].tasks[task]; }
  const ProgramIndex& program(std::int32_t rank) const { return programs_[index(job_.ranks[index(rank)].program)]; }
  /// One of the things that `task` waits for has happened.
  void release(std::int32_t rank, std::int32_t task, std::int32_t cause) {
    if (--ranks_[index(rank)].waits[task] == 0) begin(rank, task, cause);
  }

  void begin(std::int32_t rank, std::int32_t task, std::int32_t cause) {
    RankState& s = ranks_[index(rank)];
    const TaskBrief& t = s.tasks[task];
    s.spans[task].first = events_.now();
    if (t.kind == Task::Kind::send) {
      start(rank, task, -1, cause, job_.calls[index(t.call)].duration, uses_.of_message(rank, t.downstream ? s.behind : s.before, t.call, t.downstream));
      return;
    }
    if (t.kind == Task::Kind::receive) {
      const Picoseconds now = events_.now();
      out_.records.push_back({.end = now, .rank = rank, .task = task, .cause = cause});
      end_task(rank, task, static_cast<std::int32_t>(out_.records.size() - 1));
      return;
    }
    const PassIndex& pass = passes_[index(t.pass)];
    const auto q = static_cast<std::size_t>(t.queue);
    s.open[q] = static_cast<std::int32_t>(pass.steps.size());
    std::copy(pass.waits.begin(), pass.waits.end(), s.steps[q]);
    if (options_.host_launch > 0 && t.queue == Queue::main) s.host.assign(1, s.host_next);
    if (pass.steps.empty()) { end_task(rank, task, cause); return; }
    for (const std::int32_t i : pass.first) begin_step(rank, task, i, cause);
  }

  void begin_step(std::int32_t rank, std::int32_t task, std::int32_t step, std::int32_t cause) {
    if (const TaskBrief& t = task_of(rank, task); options_.host_launch > 0 && t.queue == Queue::main) {
      const HostOrder& host = hosts_[index(t.pass)];
      const Picoseconds issued = ranks_[index(rank)].host[index(host.segment[index(step)])] + host.issued[index(step)] * options_.host_launch;
      if (issued > events_.now()) {
        running_[index(start(rank, task, step, cause, issued - events_.now(), {}))].launch = true;
        return;
      }
    }
    begin_issued(rank, task, step, cause);
  }

  void begin_issued(std::int32_t rank, std::int32_t task, std::int32_t step, std::int32_t cause) {
    const StepBrief& s = passes_[index(task_of(rank, task).pass)].steps[index(step)];
    if (s.call < 0) {
      const double slowdown = ranks_[index(rank)].slowdown;
      Picoseconds duration = s.duration;
      if (s.track == Track::compute && slowdown != 1) duration = nearest(static_cast<double>(duration) * slowdown);
      const std::int32_t id = start(rank, task, step, cause, duration, {});
      if (s.track == Track::compute && options_.interference) computes_now(rank, id);
      return;
    }
    const JobCall& call = job_.calls[index(s.call)];
    const std::int32_t group = ranks_[index(rank)].groups[static_cast<std::size_t>(call.group)];
    if (group < 0) {
      const std::int32_t id = start(rank, task, step, cause, s.duration, uses_.of_call(rank, s.call));
      if (options_.interference) communicates(id, true);
      return;
    }
    // The n-th call of a group on a track is the same call on all its members.
    Arrivals& arrivals = arrived_[index(group)][static_cast<std::size_t>(s.track)];
    const auto& members = job_.groups[index(group)];
    if (arrivals.calls.empty()) arrivals.calls.resize(members.size(), 0);
    const std::size_t member = member_[index(rank)][static_cast<std::size_t>(call.group)];
    const std::size_t n = arrivals.calls[member]++ - arrivals.started;
    while (arrivals.waiting.size() <= n) arrivals.waiting.emplace_back().members.reserve(members.size());
    arrivals.waiting[n].members.push_back(allocate(rank, task, step, cause));
    if (n == 0 && arrivals.waiting.front().members.size() == members.size()) {
      Joint joint = std::move(arrivals.waiting.front());
      arrivals.waiting.pop_front();
      ++arrivals.started;
      start_joint(std::move(joint), group, cause);
    }
  }

  const StepBrief& step_of(const Running& r) const { return passes_[index(task_of(r.rank, r.task).pass)].steps[index(r.step)]; }

  void start_joint(Joint joint, std::int32_t group, std::int32_t cause) {
    Picoseconds duration = 0;
    members_.clear();
    for (const std::int32_t m : joint.members) {
      Running& r = running_[index(m)];
      const StepBrief& s = step_of(r);
      duration = std::max(duration, s.duration);
      r.cause = cause;
      r.since = events_.now();
      members_.push_back({r.rank, s.call, s.duration});
    }
    const std::int32_t leader = joint.members.front();
    const std::span<const LinkUse> uses = uses_.of_joint(members_, duration, group, leader);
    std::int32_t id = static_cast<std::int32_t>(joints_.size());
    if (free_joints_.empty()) {
      joints_.push_back(std::move(joint));
    } else {
      id = free_joints_.back();
      free_joints_.pop_back();
      joints_[index(id)] = std::move(joint);
    }
    running_[index(leader)].joint = id;
    set_going(leader, duration, uses);
    if (options_.interference)
      for (const std::int32_t m : joints_[index(id)].members) communicates(m, true);
  }

  /// Written field by field where it stays: a copy would wait for the stores it reads.
  std::int32_t allocate(std::int32_t rank, std::int32_t task, std::int32_t step, std::int32_t cause) {
    std::int32_t id = static_cast<std::int32_t>(running_.size());
    if (free_.empty()) {
      running_.emplace_back();
    } else {
      id = free_.back();
      free_.pop_back();
    }
    Running& r = running_[index(id)];
    r.rank = rank;
    r.task = task;
    r.step = step;
    r.cause = cause;
    r.flow = r.joint = -1;
    r.since = events_.now();
    r.launch = false;
    ++r.version;
    return id;
  }

  std::int32_t start(std::int32_t rank, std::int32_t task, std::int32_t step, std::int32_t cause, Picoseconds duration, std::span<const LinkUse> uses) {
    const std::int32_t id = allocate(rank, task, step, cause);
    set_going(id, duration, uses);
    return id;
  }

  void set_going(std::int32_t id, Picoseconds duration, std::span<const LinkUse> uses) {
    Running& r = running_[index(id)];
    r.left = static_cast<double>(duration);
    r.speed = 1;
    if (!uses.empty()) {
      r.flow = links_.start_in_place(uses);
      if (flow_owner_.size() <= index(r.flow)) flow_owner_.resize(index(r.flow) + 1);
      flow_owner_[index(r.flow)] = id;
    }
    events_.push(events_.now() + time_left(r), static_cast<std::uint32_t>(id), r.version);
  }

  static Picoseconds time_left(const Running& r) { return r.speed == 1 ? nearest(r.left) : not_below(r.left / r.speed); }

  void retime(std::int32_t id, double speed) {
    Running& r = running_[index(id)];
    if (speed == r.speed) return;
    r.left = std::max(0.0, r.left - static_cast<double>(events_.now() - r.since) * r.speed);
    r.since = events_.now();
    r.speed = speed;
    ++r.version;
    events_.push(events_.now() + time_left(r), static_cast<std::uint32_t>(id), r.version);
  }

  /// All that starts or ends at this instant has: shares the links anew.
  void settle() {
    links_.settle();
    for (const std::int32_t f : links_.changed()) {
      out_.slowest = std::min(out_.slowest, links_.speed(f));
      pace(flow_owner_[index(f)]);
    }
  }

  /// Gives what runs the speed that links, multiprocessors and memory leave it.
  void pace(std::int32_t id) {
    const Running& r = running_[index(id)];
    double speed = r.flow < 0 ? 1 : links_.speed(r.flow);   // that its links leave it
    if (options_.interference && r.step >= 0) {
      const RankState& s = ranks_[index(r.rank)];
      const StepBrief& step = step_of(r);
      if (step.call < 0) speed = slowed(step.memory_bound, s.taken, s.memory_taken);
      else if (s.computing >= 0) speed *= job_.calls[index(step.call)].beside_compute;
    }
    retime(id, speed);
  }

  /// The rank's compute lane is busy with `id`, or idle (-1): what it slows, and what slows it.
  void computes_now(std::int32_t rank, std::int32_t id) {
    RankState& s = ranks_[index(rank)];
    s.computing = id;
    if (id >= 0) pace(id);
    if (s.exchanging >= 0) pace(s.exchanging);
  }

  /// A communication call takes multiprocessors and bandwidth from the compute steps of its rank, or gives them back.
  void communicates(std::int32_t id, bool begins) {
    const Running& r = running_[index(id)];
    const JobCall& call = job_.calls[index(step_of(r).call)];
    RankState& s = ranks_[index(r.rank)];
    const auto change = [&](double& taken, double share) {
      taken = std::max(0.0, taken + (begins ? share : -share));
      if (taken < 1e-12) taken = 0;
    };
    change(s.taken, call.multiprocessors);
    change(s.memory_taken, call.memory);
    // Of a call that several played ranks make, the first one's compute lane speaks for all.
    const bool leads = r.joint >= 0 || s.groups[static_cast<std::size_t>(call.group)] < 0;
    if (call.beside_compute < 1 && leads) {
      s.exchanging = begins ? id : -1;
      if (begins) pace(id);
    }
    if (s.computing >= 0) pace(s.computing);
  }

  void end_running(std::int32_t id) {
    const Running r = running_[index(id)];
    if (r.flow >= 0) links_.end(r.flow);
    if (options_.interference) stops(r, id);
    if (r.joint < 0) {
      ++running_[index(id)].version;
      free_.push_back(id);
      finish(r);
      return;
    }
    const Joint joint = std::move(joints_[index(r.joint)]);
    free_joints_.push_back(r.joint);
    for (const std::int32_t m : joint.members) {
      const Running member = running_[index(m)];   // what it frees may be taken by what it starts
      ++running_[index(m)].version;
      free_.push_back(m);
      finish(member);
    }
  }

  /// Interference: what ends gives back what it held.
  void stops(const Running& r, std::int32_t id) {
    if (r.launch || r.step < 0) return;
    if (r.joint >= 0) {
      for (const std::int32_t m : joints_[index(r.joint)].members) communicates(m, false);
    } else if (const StepBrief& step = step_of(r); step.call >= 0) {
      communicates(id, false);
    } else if (step.track == Track::compute) {
      computes_now(r.rank, -1);
    }
  }

  void finish(const Running& r) {
    const auto record = static_cast<std::int32_t>(out_.records.size());
    out_.records.push_back({.end = events_.now(), .rank = r.rank, .task = r.task, .cause = r.cause, .step = r.step, .launch = r.launch});
    if (r.launch) return begin_issued(r.rank, r.task, r.step, record);
    RankState& s = ranks_[index(r.rank)];
    const TaskBrief& t = s.tasks[r.task];
    if (t.kind == Task::Kind::send) {
      const std::int32_t to = t.downstream ? s.behind : s.before;
      if (to >= 0) {
        const auto& receives = ranks_[index(to)].program->receives[t.downstream ? 0 : 1];
        const std::int32_t n = s.program->ordinal[index(r.task)];
        if (index(n) < receives.size()) release(to, receives[index(n)], record);
      }
      end_task(r.rank, r.task, record);
      return;
    }
    const PassIndex& pass = passes_[index(t.pass)];
    // The host goes on when what it waited for has ended, if it has come so far.
    if (options_.host_launch > 0 && pass.steps[index(r.step)].track == Track::host && t.queue == Queue::main) s.host.push_back(events_.now());
    const auto q = static_cast<std::size_t>(t.queue);
    for (const std::int32_t n : pass.next.of(r.step))
      if (--s.steps[q][n] == 0) begin_step(r.rank, r.task, n, record);
    if (--s.open[q] == 0) end_task(r.rank, r.task, record);
  }

  void end_task(std::int32_t rank, std::int32_t task, std::int32_t record) {
    RankState& s = ranks_[index(rank)];
    s.spans[task].second = events_.now();
    const TaskBrief& t = s.tasks[task];
    for (const std::int32_t n : s.program->next.of(task)) release(rank, n, record);
    if (t.queue == Queue::none) return;
    if (options_.host_launch > 0 && t.queue == Queue::main && t.kind == Task::Kind::pass)
      s.host_next = s.host.back() + hosts_[index(t.pass)].calls[s.host.size() - 1] * options_.host_launch;
    const auto q = static_cast<std::size_t>(t.queue);
    const std::uint32_t at = ++s.at[q];
    if (at < s.program->queue[q].size()) release(rank, s.program->queue[q][at], record);
  }

  const Job& job_;
  PlayOptions options_;
  std::vector<ProgramIndex> programs_;
  std::vector<PassIndex> passes_;
  std::vector<RankState> ranks_;
  std::vector<std::uint16_t> waits_, step_waits_;     ///< of all ranks, one after the other
  EventQueue events_;
  FairShare links_;
  LinkUses uses_;
  std::vector<LinkUses::Member> members_;
  std::vector<HostOrder> hosts_;
  std::vector<Running> running_;
  std::vector<std::int32_t> free_, flow_owner_;
  std::vector<std::array<Arrivals, kTracks>> arrived_;
  std::vector<std::array<std::size_t, 10>> member_;   ///< per rank and Group: its place among the group's played members
  std::vector<std::int32_t> free_joints_;
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
