#include "gui/models/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "gui/models/chrome_events.hpp"

namespace moeplan::gui {
namespace {

constexpr std::size_t kMostEvents = 60'000'000, kMostBytes = std::size_t{16} << 30, kDeepest = 64, kLongestText = 4096;

struct Stop {
  std::string what;
};

/// Picoseconds of a number of microseconds, exact to the picosecond; nothing if it is no number or too far from zero.
struct Time {
  std::int64_t micro = 0;
  std::int32_t pico = 0;
};
std::optional<Time> timeOf(std::string_view text) {
  Time out;
  const bool plain = text.find_first_of("eE") == std::string_view::npos;
  if (!plain) {
    double v = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), v).ec != std::errc() || !(std::abs(v) < 9e15)) return std::nullopt;
    out.micro = static_cast<std::int64_t>(std::floor(v));
    out.pico = static_cast<std::int32_t>((v - std::floor(v)) * 1e6);
    return out;
  }
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), out.micro);
  if (error != std::errc() || std::abs(out.micro) > 9'000'000'000'000'000) return std::nullopt;
  const bool negative = text.front() == '-';
  const char* end = text.data() + text.size();
  if (rest < end && *rest == '.') {
    std::int32_t unit = 100'000;
    for (const char* c = rest + 1; c < end && unit > 0; ++c, unit /= 10) out.pico += (*c - '0') * unit;
  }
  if (negative && out.pico > 0) out.micro -= 1, out.pico = 1'000'000 - out.pico;
  return out;
}

/// nlohmann's SAX interface: fills one event at a time and hands it over.
class Reader {
 public:
  Reader(ChromeEvents& to, std::function<void()> tick) : to_(to), tick_(std::move(tick)) {}

  bool null() { return value({}); }
  bool boolean(bool) { return value({}); }
  bool number_integer(std::int64_t v) { return value(fmt::format("{}", v), true); }
  bool number_unsigned(std::uint64_t v) { return value(fmt::format("{}", v), true); }
  bool number_float(double, const std::string& text) { return value(text, true); }
  bool string(std::string& text) { return value(text); }
  bool binary(std::vector<std::uint8_t>&) { return true; }
  bool key(std::string& k) {
    key_ = k;
    return true;
  }
  bool start_object(std::size_t) {
    push();
    if (depth_ == event_depth_) event_ = {};
    return true;
  }
  bool end_object() {
    if (depth_ == event_depth_) {
      if (const auto bad = to_.add(event_)) throw Stop{fmt::format("traceEvents[{}]{}", to_.seen() - 1, *bad)};
      if (to_.events() > kMostEvents) throw Stop{fmt::format("traceEvents: more than {} events", kMostEvents)};
      if (to_.seen() % 20'000 == 0) tick_();
    }
    return pop();
  }
  bool start_array(std::size_t) {
    // The list of events: at the top, or under "traceEvents".
    if (depth_ == 0 || (depth_ == 1 && key_ == "traceEvents")) event_depth_ = depth_ + 2, found_ = true;
    push();
    return true;
  }
  bool end_array() {
    if (event_depth_ > 0 && depth_ + 1 == event_depth_) event_depth_ = 0;
    return pop();
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) { throw Stop{fmt::format("byte {}: no JSON", at)}; }
  [[nodiscard]] bool found() const { return found_; }

 private:
  void push() {
    if (depth_ >= kDeepest) throw Stop{fmt::format("nested deeper than {}", kDeepest)};
    keys_[depth_++] = key_;
    key_.clear();
  }
  bool pop() {
    key_ = keys_[--depth_];
    return true;
  }

  bool value(const std::string& text, bool number = false) {
    if (event_depth_ == 0 || depth_ < event_depth_) {
      if (depth_ == 1 && key_ == "source") to_.source = text.substr(0, kLongestText);
      if (depth_ == 2 && keys_[1] == "distributedInfo" && number) {
        std::int64_t v = 0;
        std::from_chars(text.data(), text.data() + text.size(), v);
        if (key_ == "rank") to_.rank = v;
        if (key_ == "world_size") to_.world = std::max<std::int64_t>(1, v);
      }
      return true;
    }
    if (depth_ == event_depth_) {
      if (key_ == "ph") event_.phase = text.size() == 1 ? text[0] : '?';
      else if (key_ == "name") event_.name = text.substr(0, kLongestText);
      else if (key_ == "cat") event_.category = text.substr(0, kLongestText);
      else if (key_ == "pid") event_.process = text.substr(0, kLongestText);
      else if (key_ == "tid") event_.thread = text.substr(0, kLongestText);
      else if (key_ == "id") event_.id = text.substr(0, kLongestText);
      else if (key_ == "bp") event_.encloses = text == "e";
      else if (key_ == "ts" || key_ == "dur") {
        // Some writers put quotes around times.
        const auto t = timeOf(text);
        if (!t) throw Stop{fmt::format("traceEvents[{}].{}: \"{}\" is no time in microseconds", to_.seen(), key_, text.substr(0, 40))};
        if (key_ == "ts") event_.at = t->micro, event_.atPico = t->pico, event_.timed = true;
        else if (t->micro < 0 || t->micro > 9'000'000'000'000) throw Stop{fmt::format("traceEvents[{}].dur: {} us", to_.seen(), text.substr(0, 40))};
        else event_.duration = t->micro * 1'000'000 + t->pico;
      }
      return true;
    }
    if (depth_ == event_depth_ + 1 && keys_[depth_ - 1] == "args") {
      if (key_ == "layer" || key_ == "micro_batch" || key_ == "Group size" || key_ == "In msg size" || key_ == "Out msg size" || key_ == "correlation") {
        std::int64_t v = -1;
        if (std::from_chars(text.data(), text.data() + text.size(), v).ec != std::errc()) return true;
        const auto small = static_cast<std::int32_t>(std::clamp<std::int64_t>(v, -1, 1 << 30));
        if (key_ == "layer") event_.layer = small;
        else if (key_ == "micro_batch") event_.microBatch = small;
        else if (key_ == "Group size") event_.call.group_size = std::max<std::int64_t>(1, small);
        else if (key_ == "In msg size") event_.call.in_bytes = std::max<std::int64_t>(0, v);
        else if (key_ == "Out msg size") event_.call.out_bytes = std::max<std::int64_t>(0, v);
        else event_.correlation = v;
      } else if (key_ == "block") {
        event_.block = text.substr(0, kLongestText);
      } else if (key_ == "kind") {
        event_.kind = text.substr(0, 64);
      } else if (key_ == "Collective name") {
        event_.call.collective = text.substr(0, 256);
      } else if (key_ == "Process Group Description") {
        event_.call.group = text.substr(0, 256);
      } else if (key_ == "name" || key_ == "labels") {
        event_.said = text.substr(0, kLongestText);
      }
    }
    return true;
  }

  ChromeEvents& to_;
  std::function<void()> tick_;
  ChromeEvent event_;
  std::string key_;
  std::array<std::string, kDeepest + 1> keys_;   ///< key under which each open object or array stands
  std::size_t depth_ = 0, event_depth_ = 0;      ///< of an event's object; 0: not inside the list of events
  bool found_ = false;
};

}  // namespace

bool looksLikeChromeTrace(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string head(std::size_t{64} << 10, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, in.gcount())));
  const auto first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return false;
  return (head[first] == '{' && head.find("\"traceEvents\"") != std::string::npos) || (head[first] == '[' && head.find("\"ph\"") != std::string::npos);
}

StepTimeline chromeTrace(const std::string& path, const std::function<void(double)>& progress) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) throw InputError(path, "is no file that can be read");
  const auto bytes = std::filesystem::file_size(path, error);
  if (error || bytes > kMostBytes) throw InputError(path, fmt::format("{} bytes", bytes), fmt::format("cut the trace: at most {} bytes are read", kMostBytes));
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path, "cannot be opened");
  ChromeEvents events;
  Reader reader(events, [&] {
    if (progress) progress(bytes > 0 ? static_cast<double>(in.tellg()) / static_cast<double>(bytes) : 0);
  });
  try {
    nlohmann::json::sax_parse(in, &reader);
  } catch (const Stop& stop) {
    throw InputError(path, stop.what, "write the trace again; a trace that was cut off does not end in ]}");
  }
  if (!reader.found()) throw InputError(path, "holds no traceEvents");
  return std::move(events).timeline(path);
}

}  // namespace moeplan::gui
