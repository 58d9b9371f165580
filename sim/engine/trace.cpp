#include "sim/engine/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "core/json.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

std::string escaped(const std::string& text) { return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace); }

/// Writes the trace event by event: at most one event's text is held besides the output.
class Writer {
 public:
  Writer(const StepTimeline& t, const TraceOptions& options) : t_(t), options_(options) {
    for (const std::string& n : t.names) names_.push_back(escaped(n));
    for (const TimelineCall& c : t.calls)
      calls_.push_back(fmt::format(R"("Collective name":{},"In msg nelems":{},"Out msg nelems":{},"In msg size":{},"Out msg size":{},"Group size":{},"dtype":"Byte","In split size":"[]","Out split size":"[]",)"
                                   R"("Process Group Name":{},"Process Group Description":{})",
                                   escaped(c.collective), c.in_bytes, c.out_bytes, c.in_bytes, c.out_bytes, c.group_size, escaped(c.group), escaped(c.group)));
  }

  std::string run() {
    assign_threads();
    const TimelineRank first = t_.ranks.empty() ? TimelineRank{} : t_.ranks[index(options_.only_rank.value_or(0))];
    fmt::format_to(to(), R"({{"schemaVersion":1,"displayTimeUnit":"ms","distributedInfo":{{"rank":{},"world_size":{},"backend":"nccl"}},"source":{},"traceEvents":[)", first.rank, t_.world,
                   escaped("moeplan " + t_.source));
    metadata();
    for (std::size_t r = 0; r < t_.ranks.size(); ++r)
      if (shows(static_cast<std::int32_t>(r))) span(static_cast<std::int32_t>(r), 0, "\"ProfilerStep#1\"", "user_annotation", 0, t_.step, "");
    for (std::size_t i = 0; i < t_.events.size(); ++i) event(i);
    for (std::size_t f = 0; f < t_.flows.size(); ++f) flow(f);
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  std::back_insert_iterator<std::string> to() { return std::back_inserter(out_); }
  bool shows(std::int32_t rank) const { return !options_.only_rank || *options_.only_rank == rank; }

  /// Thread of each event: lane x 16 + how many of the lane's threads are taken, plus one; thread 0 holds the step marks.
  void assign_threads() {
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Picoseconds>> free;
    thread_.resize(t_.events.size());
    for (std::size_t i = 0; i < t_.events.size(); ++i) {
      const TimelineEvent& e = t_.events[i];
      auto& ends = free[{e.rank, e.lane}];
      std::size_t k = 0;
      while (k < ends.size() && ends[k] > e.start) ++k;
      if (k == ends.size()) ends.push_back(0);
      ends[k] = std::max(ends[k], e.end());
      thread_[i] = 1 + e.lane * kThreadsOfLane + static_cast<std::int32_t>(std::min<std::size_t>(k, kThreadsOfLane - 1));
      threads_[{e.rank, thread_[i]}] = k == 0 ? t_.lanes[index(e.lane)] : fmt::format("{} {}", t_.lanes[index(e.lane)], k + 1);
    }
  }

  /// "[0, 8, 16]"; of large groups the first ones, as Kineto does. Messages between stages have no group of equal distance.
  static std::string members(const TimelineCall& call, std::int64_t rank) {
    constexpr std::int64_t shown = 32;
    const std::int64_t first = rank - rank / call.group_stride % call.group_size * call.group_stride;
    std::string out = "[";
    for (std::int64_t i = 0; i < std::min(call.group_size, shown); ++i) fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? ", " : "", first + i * call.group_stride);
    return out + (call.group_size > shown ? ", ...]" : "]");
  }

  void line() {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
  }

  void metadata() {
    for (std::size_t r = 0; r < t_.ranks.size(); ++r) {
      if (!shows(static_cast<std::int32_t>(r))) continue;
      const TimelineRank& rank = t_.ranks[r];
      const auto put = [&](const char* kind, std::int32_t tid, const std::string& args) {
        line();
        fmt::format_to(to(), R"({{"ph":"M","name":"{}","pid":{},"tid":{},"ts":0,"args":{{{}}}}})", kind, rank.rank, tid, args);
      };
      put("process_name", 0, fmt::format("\"name\":\"rank {} (stage {})\"", rank.rank, rank.stage));
      put("process_labels", 0, fmt::format(R"("labels":"{}")", rank.stands_for > 1 ? fmt::format("{} equal ranks", rank.stands_for) : t_.source));
      put("process_sort_index", 0, fmt::format(R"("sort_index":{})", r));
      put("thread_name", 0, R"("name":"step")");
      for (const auto& [key, name] : threads_) {
        if (key.first != static_cast<std::int32_t>(r)) continue;
        put("thread_name", key.second, fmt::format(R"("name":{})", escaped(name)));
        put("thread_sort_index", key.second, fmt::format(R"("sort_index":{})", key.second));
      }
    }
  }

  /// Picoseconds as microseconds, exactly.
  void time(Picoseconds p) { fmt::format_to(to(), "{}.{:06}", p / 1'000'000, p % 1'000'000); }

  void span(std::int32_t rank, std::int32_t thread, const std::string& name, const char* category, Picoseconds start, Picoseconds duration, const std::string& args) {
    line();
    fmt::format_to(to(), R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":)", name, category, t_.ranks[index(rank)].rank, thread);
    time(start);
    out_ += ",\"dur\":";
    time(duration);
    fmt::format_to(to(), ",\"args\":{{{}}}}}", args);
  }

  void event(std::size_t i) {
    const TimelineEvent& e = t_.events[i];
    if (!shows(e.rank)) return;
    const TimelineRank& rank = t_.ranks[index(e.rank)];
    const char* category = e.kind == Activity::host_wait ? "user_annotation" : e.kind == Activity::copy ? "gpu_memcpy" : "kernel";
    std::string args = fmt::format(R"("stream":{},"device":{},"context":1,"correlation":{},"External id":{},"kind":"{}")", thread_[i], rank.rank, i + 1, i + 1, name_of(e.kind));
    if (e.layer >= 0) args += fmt::format(R"(,"layer":{})", e.layer);
    if (e.micro_batch >= 0) args += fmt::format(R"(,"micro_batch":{})", e.micro_batch);
    if (e.call >= 0) args += fmt::format(R"(,{},"Process Group Ranks":"{}","Rank":{},"Seq":{})", calls_[index(e.call)], members(t_.calls[index(e.call)], rank.rank), rank.rank, seq_[{e.rank, t_.calls[index(e.call)].group}]++);
    if (e.detail < 0 || !options_.parts || t_.details[index(e.detail)].parts.empty()) {
      // HTA knows communication kernels by this prefix.
      std::string name = names_[index(e.name)];
      if (e.call >= 0) name.insert(1, "ncclDevKernel_");
      span(e.rank, thread_[i], name, category, e.start, e.duration, args);
      return;
    }
    const TimelineDetail& d = t_.details[index(e.detail)];
    const auto stretched = [&](Picoseconds p) {
      if (e.duration == d.duration) return p;
      return d.duration > 0 ? static_cast<Picoseconds>(static_cast<double>(p) / static_cast<double>(d.duration) * static_cast<double>(e.duration)) : Picoseconds{0};
    };
    for (const TimelinePart& p : d.parts) {
      const Picoseconds from = stretched(p.start), until = stretched(p.start + p.duration);
      span(e.rank, thread_[i], names_[index(p.name)], category, e.start + from, until - from, args + ",\"block\":" + names_[index(e.name)]);
    }
  }

  void flow(std::size_t f) {
    const TimelineFlow& flow = t_.flows[f];
    const TimelineEvent &from = t_.events[index(flow.from)], &until = t_.events[index(flow.to)];
    if (!shows(from.rank) || !shows(until.rank)) return;
    // An arrow leaves inside its first event and lands inside its second.
    const auto end = [&](const char* phase, std::int32_t event, const TimelineEvent& e, Picoseconds at, const char* more) {
      line();
      fmt::format_to(to(), R"({{"ph":"{}","name":{},"cat":"moeplan","id":{},"pid":{},"tid":{},"ts":)", phase, names_[index(flow.name)], f + 1, t_.ranks[index(e.rank)].rank, thread_[index(event)]);
      time(at);
      out_ += more;
    };
    end("s", flow.from, from, from.start, "}");
    end("f", flow.to, until, std::max(until.start, from.start), R"(,"bp":"e"})");
  }

  static constexpr std::int32_t kThreadsOfLane = 16;
  const StepTimeline& t_;
  TraceOptions options_;
  std::vector<std::string> names_, calls_;
  std::vector<std::int32_t> thread_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::string> threads_;
  std::map<std::pair<std::int32_t, std::string>, std::int64_t> seq_;
  std::string out_;
  bool first_ = true;
};

}  // namespace

std::string chrome_trace(const StepTimeline& timeline, const TraceOptions& options) { return Writer(timeline, options).run(); }

}  // namespace moeplan
