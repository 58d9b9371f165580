/// The plot of `moeplan validate`: an SVG that any browser shows, written by hand so that nothing else is needed.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/validate/score.hpp"

namespace moeplan::validation {
namespace {

constexpr std::array kColours{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e",
                              "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22"};
constexpr double kSide = 360, kMargin = 56;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

/// One panel: points on log axes, the line of equality and the band of 10 %.
std::string panel(const std::vector<const Score*>& scores, const std::map<std::string, std::size_t>& colour,
                  const std::string& title, double unit, double left) {
  double low = 1e300, high = 0;
  for (const Score* s : scores) {
    low = std::min({low, s->measured / unit, s->predicted / unit});
    high = std::max({high, s->measured / unit, s->predicted / unit});
  }
  const double a = std::floor(std::log10(low)), b = std::max(a + 1, std::ceil(std::log10(high)));
  const auto at = [&](double v) { return (std::log10(v) - a) / (b - a) * kSide; };
  const double x0 = left + kMargin, y0 = kMargin + kSide;
  std::string out = fmt::format("<text x=\"{:.0f}\" y=\"30\" font-size=\"15\">{}</text>\n", x0, escaped(title));
  out += fmt::format(
      "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" fill=\"none\" stroke=\"#444\"/>\n", x0,
      y0 - kSide, kSide, kSide);
  for (double d = a; d <= b; d += 1) {
    const double p = (d - a) / (b - a) * kSide;
    out += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {4:.1f}H{5:.1f}\" stroke=\"#ddd\"/>", x0 + p, y0,
                       y0 - kSide, x0, y0 - p, x0 + kSide);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" text-anchor=\"middle\">{:g}</text>", x0 + p,
                       y0 + 15, std::pow(10, d));
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" text-anchor=\"end\">{:g}</text>\n", x0 - 5,
                       y0 - p + 4, std::pow(10, d));
  }
  const double shift = std::log10(1.1) / (b - a) * kSide;
  out += fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"#000\"/>", x0, y0, x0 + kSide, y0 - kSide);
  for (const double d : {shift, -shift})
    out += fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"#aaa\" stroke-dasharray=\"4 3\"/>",
                       x0 + std::max(0.0, -d), y0 - std::max(0.0, d), x0 + kSide - std::max(0.0, d),
                       y0 - kSide + std::max(0.0, -d));
  for (const Score* s : scores)
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\" fill-opacity=\"0.65\"><title>{}: {:+.1f} "
        "%</title></circle>\n",
        x0 + at(s->measured / unit), y0 - at(s->predicted / unit), kColours[colour.at(s->source) % kColours.size()],
        escaped(s->id), 100 * s->error());
  out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"12\" text-anchor=\"middle\">measured</text>",
                     x0 + kSide / 2, y0 + 34);
  out += fmt::format(
      "<text transform=\"translate({:.0f} {:.0f}) rotate(-90)\" font-size=\"12\" "
      "text-anchor=\"middle\">predicted</text>\n",
      x0 - 38, y0 - kSide / 2);
  return out;
}

}  // namespace

std::string plot_svg(const Validation& v) {
  std::map<std::string, std::size_t> count, colour;
  for (const Score& s : v.scores) ++count[s.source];
  std::vector<std::pair<std::string, std::size_t>> order(count.begin(), count.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
  for (const auto& [name, n] : order) colour.emplace(name, colour.size());
  std::string body;
  double left = 0;
  for (const auto& [quantity, name] : EnumNames<Measure>::names) {
    const auto scores = of_quantity(v.scores, quantity);
    if (scores.empty()) continue;
    const bool time = quantity == Measure::step_time;
    body += panel(scores, colour,
                  time                                  ? "step time (s)"
                  : quantity == Measure::peak_allocated ? "peak allocated (GiB)"
                                                        : "peak reserved (GiB)",
                  time ? 1 : 1073741824.0, left);
    left += kSide + kMargin + 24;
  }
  double y = kSide + 2 * kMargin + 24;
  for (const auto& [name, n] : order) {
    body += fmt::format(
        "<circle cx=\"{:.0f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/><text x=\"{:.0f}\" y=\"{:.1f}\" font-size=\"12\">{} "
        "({})</text>\n",
        kMargin, y - 4, kColours[colour.at(name) % kColours.size()], kMargin + 12, y, escaped(name), n);
    y += 18;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{2}</svg>\n",
      std::max(left, 480.0) + kMargin, y, body);
}

}  // namespace moeplan::validation
