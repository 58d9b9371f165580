#include "sim/engine/gantt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace moeplan {
namespace {

constexpr std::size_t kMarks = 7;
constexpr std::array<char, kMarks> kMark{'F', 'B', 'r', 'O', 'e', 't', 'w'};

/// Which mark an activity has; kMarks for none.
std::size_t mark_of(Activity a) {
  switch (a) {
    case Activity::forward: return 0;
    case Activity::backward: return 1;
    case Activity::recompute: return 2;
    case Activity::optimizer: return 3;
    case Activity::expert_communication: return 4;
    case Activity::tensor_communication: return 5;
    case Activity::weight_communication: return 6;
    default: return kMarks;
  }
}

}  // namespace

std::string gantt(const StepTimeline& t, std::size_t width, std::size_t ranks) {
  const std::size_t shown = std::min(ranks, t.ranks.size());
  if (shown == 0 || t.step <= 0 || width < 8) return {};
  std::vector<std::size_t> line_of(t.ranks.size(), shown);
  std::vector<std::size_t> rank_of;
  for (std::size_t l = 0; l < shown; ++l) {
    rank_of.push_back(l * t.ranks.size() / shown);
    line_of[rank_of.back()] = l;
  }
  std::vector<std::vector<std::array<double, kMarks>>> spent(shown, std::vector<std::array<double, kMarks>>(width));
  const double slice = static_cast<double>(t.step) / static_cast<double>(width);
  for (const TimelineEvent& e : t.events) {
    const std::size_t line = line_of[static_cast<std::size_t>(e.rank)], mark = mark_of(e.kind);
    if (line == shown || mark == kMarks) continue;
    const auto from = static_cast<double>(e.start), until = static_cast<double>(e.end());
    for (auto c = static_cast<std::size_t>(from / slice); c < width && static_cast<double>(c) * slice < until; ++c)
      spent[line][c][mark] += std::min(until, static_cast<double>(c + 1) * slice) - std::max(from, static_cast<double>(c) * slice);
  }
  std::string out;
  for (std::size_t l = 0; l < shown; ++l) {
    out += fmt::format("stage {:>3} ", t.ranks[rank_of[l]].stage);
    for (const auto& marks : spent[l]) {
      const auto most = [&](std::size_t a, std::size_t b) { return std::max_element(marks.begin() + static_cast<std::ptrdiff_t>(a), marks.begin() + static_cast<std::ptrdiff_t>(b)); };
      double computing = 0;
      for (std::size_t m = 0; m < 4; ++m) computing += marks[m];
      const auto compute = most(0, 4), communicate = most(4, kMarks);
      if (computing >= slice / 2) out += kMark[static_cast<std::size_t>(compute - marks.begin())];
      else if (*communicate >= slice / 2) out += kMark[static_cast<std::size_t>(communicate - marks.begin())];
      else out += '.';
    }
    out += '\n';
  }
  const std::string end = fmt::format("{:.4g} s", to_seconds(t.step).value);
  out += fmt::format("          0{:>{}}\n", end, width - 1);
  return out;
}

}  // namespace moeplan
