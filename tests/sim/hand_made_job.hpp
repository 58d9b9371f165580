#pragma once
/// Jobs written by hand for the tests of the engine. Times in picoseconds.

#include "sim/engine/engine.hpp"

namespace moeplan::testing {

inline Step compute(Picoseconds duration, std::initializer_list<std::int32_t> after = {}, Activity kind = Activity::forward) {
  Step s;
  s.kind = kind;
  s.duration = duration;
  s.after.assign(after.begin(), after.end());
  return s;
}

/// A call over `group` that sends `bytes` over the outer tier of the cluster.
inline Step communicate(Job& job, Picoseconds duration, std::initializer_list<std::int32_t> after = {}, Track track = Track::expert_communication, Group group = Group::expert, double bytes = 0,
                        double multiprocessors = 0) {
  Step s = compute(duration, after, group == Group::expert ? Activity::expert_communication : Activity::weight_communication);
  s.track = track;
  s.call = static_cast<std::int32_t>(job.calls.size());
  JobCall c;
  c.shown = {.collective = "dispatch", .group = std::string(name_of(group)), .group_size = 8, .in_bytes = static_cast<std::int64_t>(bytes), .out_bytes = static_cast<std::int64_t>(bytes)};
  c.group = group;
  c.bytes[1] = bytes;
  c.duration = duration;
  c.multiprocessors = multiprocessors;
  job.calls.push_back(c);
  return s;
}

inline std::int32_t pass(Job& job, const std::string& name, std::vector<Step> steps) {
  StepGraph g;
  g.name = job.name(name);
  for (Step& s : steps) s.name = g.name;
  g.steps = std::move(steps);
  job.passes.push_back(std::move(g));
  return static_cast<std::int32_t>(job.passes.size() - 1);
}

inline Task run(std::int32_t pass, std::initializer_list<std::int32_t> after = {}, std::int32_t micro_batch = 0, Queue queue = Queue::main) {
  Task t;
  t.queue = queue;
  t.pass = pass;
  t.micro_batch = micro_batch;
  t.after.assign(after.begin(), after.end());
  return t;
}

inline Task send(Job& job, Picoseconds duration, bool downstream, std::initializer_list<std::int32_t> after, std::int32_t micro_batch = 0, double bytes = 0) {
  Task t = run(-1, after, micro_batch, Queue::none);
  t.kind = Task::Kind::send;
  t.downstream = downstream;
  t.call = communicate(job, duration, {}, Track::pipeline_send, Group::pipeline, bytes).call;
  return t;
}

inline Task receive(bool downstream, std::int32_t micro_batch = 0) {
  Task t = run(-1, {}, micro_batch, Queue::none);
  t.kind = Task::Kind::receive;
  t.downstream = downstream;
  return t;
}

/// One rank per program, in a pipeline.
inline void line_up(Job& job) {
  const auto n = static_cast<std::int32_t>(job.programs.size());
  for (std::int32_t i = 0; i < n; ++i) {
    JobRank r;
    r.rank = r.stage = r.program = i;
    r.before = i - 1;
    r.behind = i + 1 < n ? i + 1 : -1;
    job.ranks.push_back(r);
  }
  job.world = n;
}

/// 1F1B of `stages` with one pass each way per micro-batch: every stage takes `forward` and `backward`, a message `exchange`.
inline Job pipeline(std::int32_t stages, std::int32_t micro_batches, Picoseconds forward, Picoseconds backward, Picoseconds exchange) {
  Job job;
  const auto f = pass(job, "forward of block", {compute(forward)}), b = pass(job, "backward of block", {compute(backward, {}, Activity::backward)});
  for (std::int32_t s = 0; s < stages; ++s) {
    JobProgram p;
    const auto add = [&](Task t) { p.tasks.push_back(std::move(t)); return static_cast<std::int32_t>(p.tasks.size() - 1); };
    const auto pass_of = [&](std::int32_t pass_index, std::int32_t j, bool down) {
      Task t = run(pass_index, {}, j);
      if (down ? s > 0 : s + 1 < stages) t.after.push_back(add(receive(down, j)));
      const auto self = add(std::move(t));
      if (down ? s + 1 < stages : s > 0) add(send(job, exchange, down, {self}, j));
    };
    const std::int32_t warm = std::min(micro_batches, stages - 1 - s);
    for (std::int32_t j = 0; j < warm; ++j) pass_of(f, j, true);
    for (std::int32_t j = warm; j < micro_batches; ++j) { pass_of(f, j, true); pass_of(b, j - warm, false); }
    for (std::int32_t j = micro_batches - warm; j < micro_batches; ++j) pass_of(b, j, false);
    job.programs.push_back(std::move(p));
  }
  line_up(job);
  return job;
}

}  // namespace moeplan::testing
