#include "sim/engine/idle.hpp"

#include <algorithm>

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

const Step* step_of(const Job& job, const Record& r) {
  if (r.step < 0) return nullptr;
  const Task& t = job.programs[index(job.ranks[index(r.rank)].program)].tasks[index(r.task)];
  return &job.passes[index(t.pass)].steps[index(r.step)];
}

Activity activity_of(const Job& job, const Record& r) {
  if (r.launch) return Activity::host_wait;
  const Step* s = step_of(job, r);
  return s ? s->kind : Activity::pipeline_exchange;
}

}  // namespace

CriticalPath critical_path(const Job& job, const Played& played) {
  CriticalPath out;
  std::int32_t at = -1;
  for (std::size_t i = 0; i < played.records.size() && at < 0; ++i)
    if (played.records[i].end == played.step) at = static_cast<std::int32_t>(i);
  for (; at >= 0; at = played.records[index(at)].cause) {
    const Record& r = played.records[index(at)];
    out.records.push_back(at);
    out.time[static_cast<std::size_t>(activity_of(job, r))] += r.end - played.start(r);
  }
  std::reverse(out.records.begin(), out.records.end());
  return out;
}

std::vector<RankIdle> idle_time(const Job& job, const Played& played) {
  std::vector<RankIdle> out(job.ranks.size());
  std::vector<std::vector<std::int32_t>> computed(job.ranks.size());
  for (std::size_t i = 0; i < played.records.size(); ++i) {
    const Record& r = played.records[i];
    if (const Step* s = step_of(job, r); s && !r.launch && s->track == Track::compute && r.end > played.start(r)) computed[index(r.rank)].push_back(static_cast<std::int32_t>(i));
  }
  for (std::size_t rank = 0; rank < out.size(); ++rank) {
    RankIdle& idle = out[rank];
    Picoseconds free = 0;   // end of the last compute step
    for (const std::int32_t i : computed[rank]) {
      const Record& r = played.records[index(i)];
      idle.busy += r.end - played.start(r);
      Picoseconds explained = played.start(r);
      for (std::int32_t c = r.cause; c >= 0 && explained > free; c = played.records[index(c)].cause) {
        const Record& cause = played.records[index(c)];
        const Picoseconds from = std::max(played.start(cause), free);
        if (from >= explained) continue;
        const Activity a = activity_of(job, cause);
        (computes(a) ? idle.bubble : idle.waiting[static_cast<std::size_t>(a)]) += explained - from;
        explained = from;
      }
      idle.bubble += explained - free;
      free = r.end;
    }
    idle.bubble += played.step - free;
  }
  return out;
}

}  // namespace moeplan
