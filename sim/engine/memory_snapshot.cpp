#include "sim/engine/memory_snapshot.hpp"

#include <fmt/format.h>

#include <iterator>
#include <map>

#include "core/json.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// One event; addresses only tell blocks apart: each starts where the one made before it ends.
struct Event {
  bool comes;
  std::int64_t address, size, microseconds;
  std::string_view category;
  std::int32_t name;
};

/// Hands `writer` the names of a rank, then its events in order.
template <class Writer>
void walk(const MemoryTimeline& t, Writer& writer) {
  std::vector<std::int64_t> address;
  std::int64_t next = 1 << 20;
  for (const MemoryBlock& b : t.blocks) {
    address.push_back(next);
    next += b.bytes.value;
  }
  writer.begin_rank(t);
  for (const MemoryChange& c : changes(t)) {
    const MemoryBlock& b = t.blocks[index(c.block)];
    writer.event({c.comes, address[index(c.block)], b.bytes.value, c.at / 1'000'000, name_of(b.category), b.name});
  }
  writer.end_rank();
}

class JsonWriter {
 public:
  std::string run(std::span<const MemoryTimeline> ranks) {
    for (const MemoryTimeline& t : ranks) walk(t, *this);
    return std::move(out_) + "]}\n";
  }
  void begin_rank(const MemoryTimeline& t) {
    out_ += ranks_++ == 0 ? "[" : ",[";
    frames_.clear();
    for (const std::string& n : t.names)
      frames_.push_back(fmt::format(R"([{{"name":{},"filename":"rank {}","line":0}}])", Json(n).dump(-1, ' ', true, Json::error_handler_t::replace), t.rank));
    first_ = true;
  }
  void event(const Event& e) {
    fmt::format_to(std::back_inserter(out_), R"({}{{"action":"{}","addr":{},"size":{},"stream":0,"time_us":{},"category":"{}","frames":{}}})", first_ ? "\n" : ",\n", e.comes ? "alloc" : "free_completed", e.address, e.size,
                   e.microseconds, e.category, frames_[index(e.name)]);
    first_ = false;
  }
  void end_rank() { out_ += "\n]"; }

 private:
  std::string out_ = R"({"segments":[],"device_traces":[)";
  std::vector<std::string> frames_;
  std::size_t ranks_ = 0;
  bool first_ = true;
};

/// Opcodes: https://docs.python.org/3/library/pickletools.html.
class PickleWriter {
 public:
  std::string run(std::span<const MemoryTimeline> ranks) {
    out_ = "\x80\x02}(";   // protocol 2, dict, mark
    text("segments");
    out_ += ']';
    text("device_traces");
    out_ += "](";
    for (const MemoryTimeline& t : ranks) walk(t, *this);
    out_ += "eu.";         // append the ranks, set both items, stop
    return std::move(out_);
  }
  void begin_rank(const MemoryTimeline& t) {
    rank_ = fmt::format("rank {}", t.rank);
    names_ = &t.names;
    frames_.assign(t.names.size(), -1);
    out_ += "](";
  }
  void event(const Event& e) {
    out_ += "}(";
    pair("action", e.comes ? "alloc" : "free_completed");
    pair("addr", e.address);
    pair("size", e.size);
    pair("stream", std::int64_t{0});
    pair("time_us", e.microseconds);
    pair("category", e.category);
    text("frames");
    frames(e.name);
    out_ += 'u';
  }
  void end_rank() { out_ += 'e'; }

 private:
  void bytes(std::uint64_t v, int n) { for (int i = 0; i < n; ++i) out_ += static_cast<char>(v >> (8 * i)); }
  /// Recalls memo entry `at`, or makes a new one of what is on the stack.
  void recall(std::int32_t at) { out_ += 'j'; bytes(static_cast<std::uint64_t>(at), 4); }
  std::int32_t remember() { out_ += 'r'; bytes(static_cast<std::uint64_t>(memo_), 4); return memo_++; }
  void text(std::string_view s) {
    const auto it = texts_.find(s);
    if (it != texts_.end()) return recall(it->second);
    out_ += 'X';
    bytes(s.size(), 4);
    out_ += s;
    texts_.emplace(std::string(s), remember());
  }
  void number(std::int64_t v) {
    if (v >= INT32_MIN && v <= INT32_MAX) {
      out_ += 'J';
      bytes(static_cast<std::uint64_t>(v), 4);
    } else {
      out_ += "\x8a\x08";
      bytes(static_cast<std::uint64_t>(v), 8);
    }
  }
  void pair(std::string_view key, std::string_view value) { text(key), text(value); }
  void pair(std::string_view key, const char* value) { text(key), text(value); }
  void pair(std::string_view key, std::int64_t value) { text(key), number(value); }
  void frames(std::int32_t name) {
    if (frames_[index(name)] >= 0) return recall(frames_[index(name)]);
    out_ += "](}(";
    // Names are ours, but a model's kind goes into them: what is no UTF-8 would make the file unreadable.
    const Json printable = Json::parse(Json((*names_)[index(name)]).dump(-1, ' ', true, Json::error_handler_t::replace));
    pair("name", std::string_view(printable.get_ref<const std::string&>()));
    pair("filename", std::string_view(rank_));
    pair("line", std::int64_t{0});
    out_ += "ue";
    frames_[index(name)] = remember();
  }

  std::string out_, rank_;
  const std::vector<std::string>* names_ = nullptr;
  std::vector<std::int32_t> frames_;
  std::map<std::string, std::int32_t, std::less<>> texts_;
  std::int32_t memo_ = 0;
};

}  // namespace

std::string memory_snapshot(std::span<const MemoryTimeline> ranks) { return JsonWriter().run(ranks); }
std::string memory_snapshot_pickle(std::span<const MemoryTimeline> ranks) { return PickleWriter().run(ranks); }

}  // namespace moeplan
