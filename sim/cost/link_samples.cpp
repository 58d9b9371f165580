#include "sim/cost/link_samples.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/spec/profile_keys.hpp"

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
  std::map<Group, std::vector<Point>> delays;
  const std::string delay = std::string(kDelayKey) + ' ';
  for (const ProfileSample& s : profile.samples) {
    const auto payload = number(s.key, "payload"), ranks = number(s.key, "ranks");
    if (!payload || !ranks) continue;
    const bool beside = s.key.starts_with(delay);
    if (beside && s.spread > 1) continue;   // lost in the noise, which is not to say that it is nothing
    const std::size_t from = beside ? delay.size() : 0;
    (beside ? delays : of_)[{s.key.substr(from, s.key.find(' ', from) - from), *ranks, number(s.key, "hosts").value_or(1)}].push_back({static_cast<double>(*payload), s.median.value, s.spread});
  }
  for (auto* const each : {&of_, &delays})
    for (auto& [key, points] : *each) std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.payload < b.payload; });
  for (const auto& [key, points] : delays) {
    const auto& [collective, ranks, hosts] = key;
    for (auto p = points.rbegin(); p != points.rend(); ++p)
      if (const auto alone = time(collective, ranks, p->payload, hosts); alone && alone->exact) {
        shares_.push_back({collective, ranks, hosts, std::clamp(p->seconds / alone->seconds, 0.0, 1.0)});
        break;
      }
  }
}

std::optional<double> LinkSamples::share(const std::string& collective, std::int64_t ranks, double above, double most, bool several_hosts) const {
  std::optional<double> out;
  for (const Share& s : shares_) {
    const auto n = static_cast<double>(s.ranks);
    if (s.collective != collective || n <= above || n > most || (s.hosts > 1) != several_hosts) continue;
    out = s.share;   // ascending ranks
    if (s.ranks == ranks) break;
  }
  return out;
}

std::optional<LinkSamples::Time> LinkSamples::time(const std::string& collective, std::int64_t ranks, double payload, std::int64_t hosts) const {
  const auto it = of_.find({collective, ranks, hosts});
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
