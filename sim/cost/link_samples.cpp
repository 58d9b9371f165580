#include "sim/cost/link_samples.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace moeplan {
namespace {

/// The whole number behind " NAME=" of a key.
std::optional<std::int64_t> number(const std::string& key, const std::string& name) {
  const auto at = key.find(" " + name + "=");
  if (at == std::string::npos) return std::nullopt;
  const char* const from = key.data() + at + name.size() + 2;
  std::int64_t value = 0;
  return std::from_chars(from, key.data() + key.size(), value).ec == std::errc{} && value > 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

LinkSamples::LinkSamples(const DeviceProfile& profile) {
  for (const ProfileSample& s : profile.samples) {
    const auto payload = number(s.key, "payload"), ranks = number(s.key, "ranks");
    if (payload && ranks) of_[{s.key.substr(0, s.key.find(' ')), *ranks}].push_back({static_cast<double>(*payload), s.median.value, s.spread});
  }
  for (auto& [key, points] : of_) std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.payload < b.payload; });
}

std::optional<LinkSamples::Time> LinkSamples::time(const std::string& collective, std::int64_t ranks, double payload) const {
  const auto it = of_.find({collective, ranks});
  if (it == of_.end()) return std::nullopt;
  const std::vector<Point>& points = it->second;
  if (payload <= points.front().payload) return Time{points.front().seconds, points.front().spread, payload == points.front().payload};
  if (points.size() == 1) return std::nullopt;
  auto after = std::lower_bound(points.begin(), points.end(), payload, [](const Point& p, double b) { return p.payload < b; });
  const bool beyond = after == points.end();
  if (beyond) --after;
  else if (after->payload == payload) return Time{after->seconds, after->spread, true};
  const Point &a = after[-1], &b = *after;
  const double slope = (b.seconds - a.seconds) / (b.payload - a.payload);
  const double seconds = !beyond     ? a.seconds + slope * (payload - a.payload)
                         : slope > 0 ? b.seconds + slope * (payload - b.payload)
                                     : b.seconds * payload / b.payload;
  return Time{seconds, std::max(a.spread, b.spread), false};
}

}  // namespace moeplan
