#include <algorithm>

#include "sim/engine/engine.hpp"

namespace moeplan {
namespace {
std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
}  // namespace

StepTimeline timeline(const Job& job, const Played& played) {
  StepTimeline out;
  out.world = job.world;
  out.step = played.step;
  for (const JobRank& r : job.ranks) out.ranks.push_back({r.rank, r.stage, r.stands_for});
  for (const auto& [track, name] : EnumNames<Track>::names) out.lanes.emplace_back(name);
  out.names = job.names;
  const auto name = [&](const char* text) {
    out.names.emplace_back(text);
    return static_cast<std::int32_t>(out.names.size() - 1);
  };
  const std::int32_t activations = name("activations"), gradients = name("gradients"), tokens = name("tokens"), results = name("results"), weights = name("weights");
  for (const JobCall& c : job.calls) out.calls.push_back(c.shown);
  out.details = job.details;
  const auto task_of = [&](const Record& r) -> const Task& { return job.programs[index(job.ranks[index(r.rank)].program)].tasks[index(r.task)]; };

  // Events in order of start; `event_of` leads from records to them.
  std::vector<std::int32_t> order;
  order.reserve(played.records.size());
  for (std::size_t i = 0; i < played.records.size(); ++i)
    if (!played.records[i].launch) order.push_back(static_cast<std::int32_t>(i));
  const auto start_of = [&](const Record& r) { return r.step < 0 && task_of(r).kind == Task::Kind::receive && r.cause >= 0 ? std::min(played.start(r), played.start(played.records[index(r.cause)])) : played.start(r); };
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const Record &x = played.records[index(a)], &y = played.records[index(b)];
    return std::tuple(start_of(x), x.rank, a) < std::tuple(start_of(y), y.rank, b);
  });
  std::vector<std::int32_t> event_of(played.records.size());
  out.events.reserve(order.size());
  for (const std::int32_t i : order) {
    const Record& r = played.records[index(i)];
    const Task& t = task_of(r);
    event_of[index(i)] = static_cast<std::int32_t>(out.events.size());
    TimelineEvent e{.start = start_of(r), .duration = r.end - start_of(r), .rank = r.rank, .layer = t.layer, .micro_batch = t.micro_batch};
    if (r.step < 0) {
      e.lane = static_cast<std::int32_t>(t.kind == Task::Kind::send ? Track::pipeline_send : Track::pipeline_receive);
      e.name = t.downstream ? activations : gradients;
      e.kind = Activity::pipeline_exchange;
      e.call = t.call;
    } else {
      const Step& s = job.passes[index(t.pass)].steps[index(r.step)];
      e.lane = static_cast<std::int32_t>(s.track);
      e.name = s.name;
      e.detail = s.detail;
      e.call = s.call;
      e.kind = s.kind;
    }
    out.events.push_back(e);
  }

  // Arrows: a message's two ends, dispatch -> experts -> combine inside a pass, and gather -> the first compute that waits for its weights.
  std::vector<std::vector<std::int32_t>> gathered;   // per rank and task: last event of a gather; of others -1
  std::vector<std::vector<bool>> begun;              // per rank and task: compute was seen
  for (const JobRank& r : job.ranks) {
    gathered.emplace_back(job.programs[index(r.program)].tasks.size(), -1);
    begun.emplace_back(job.programs[index(r.program)].tasks.size(), false);
  }
  std::vector<bool> gathers;
  for (const StepGraph& pass : job.passes) gathers.push_back(job.names[index(pass.name)].starts_with("gather of "));
  std::vector<std::vector<std::int32_t>> step_event(job.ranks.size() * kQueues);   // of the pass a queue is in: event per step
  for (std::size_t i = 0; i < played.records.size(); ++i) {
    const Record& r = played.records[i];
    const Task& t = task_of(r);
    if (t.kind == Task::Kind::receive && r.cause >= 0 && task_of(played.records[index(r.cause)]).kind == Task::Kind::send)
      out.flows.push_back({event_of[index(r.cause)], event_of[i], t.downstream ? activations : gradients});
    if (r.step < 0 || r.launch) continue;
    const StepGraph& pass = job.passes[index(t.pass)];
    if (gathers[index(t.pass)]) gathered[index(r.rank)][index(r.task)] = event_of[i];
    else if (computes(pass.steps[index(r.step)].kind) && !begun[index(r.rank)][index(r.task)]) {
      begun[index(r.rank)][index(r.task)] = true;
      for (const std::int32_t a : t.after)
        if (const std::int32_t from = gathered[index(r.rank)][index(a)]; from >= 0) out.flows.push_back({from, event_of[i], weights});
    }
    if (pass.arrows.empty()) continue;
    auto& of = step_event[index(r.rank) * kQueues + static_cast<std::size_t>(t.queue)];
    of.resize(std::max(of.size(), pass.steps.size()));
    of[index(r.step)] = event_of[i];
    for (const auto& [from, to] : pass.arrows)
      if (to == r.step) out.flows.push_back({of[index(from)], event_of[i], pass.steps[index(from)].call >= 0 ? tokens : results});
  }
  return out;
}

}  // namespace moeplan
