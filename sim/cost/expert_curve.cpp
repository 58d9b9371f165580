#include "sim/cost/expert_curve.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "kernels/grouped_linear/pairs.hpp"
#include "kernels/grouped_linear/scratch.hpp"

namespace moeplan {
namespace {

namespace grouped = kernels::grouped_linear;

/// Beyond so many rows all work alone and steps are small beside the whole.
constexpr double kSmooth = 512;
constexpr double kMostRows = 65536;
/// p of the header.
constexpr double kBeside = 2.3;
/// Rows of other shapes' samples stand in for a shape without any where they are the common ones of calibration,
/// multiples of this.
constexpr double kCommon = 8;

double tiles(double n, int tile = grouped::tile_tokens) { return std::max(1.0, std::ceil(n / tile)); }
bool in_pairs(double rows) { return grouped::takes_pairs(std::llround(rows), 1); }

}  // namespace

double ExpertCurve::at(double n) const {
  if (n < 1) return n * seconds.front();
  if (n <= rows.front()) return seconds.front();
  if (n >= rows.back())
    return seconds.back() *
           (tile < grouped::tile_tokens ? tiles(n, tile) / tiles(rows.back(), tile) : n / rows.back());
  const auto between = [&](std::size_t i, double share) { return (1 - share) * seconds[i - 1] + share * seconds[i]; };
  const auto after =
      static_cast<std::size_t>(std::upper_bound(rows.begin(), rows.end(), n) - rows.begin());  // at least 1, and within
  const double mine = tiles(n, tile), below = tiles(rows[after - 1], tile), above = tiles(rows[after], tile);
  if (below == mine && above == mine) return between(after, (n - rows[after - 1]) / (rows[after] - rows[after - 1]));
  if (below == mine) return seconds[after - 1];
  if (above == mine) return seconds[after];
  return between(after, (mine - below) / (above - below));
}

const UtilisationTable::Sample* ExpertCurve::measured(double n) const {
  const auto at = std::lower_bound(rows.begin(), rows.end(), n);
  return at == rows.end() || *at != n ? nullptr : sample[static_cast<std::size_t>(at - rows.begin())];
}

void ExpertsTogether::add(double rows, double share) {
  const double stream = curve_.seconds.front();
  streams_ += share * std::min(1.0, rows) * stream;
  const double over = std::pow(curve_.at(rows), kBeside) - std::pow(std::min(1.0, rows) * stream, kBeside);
  if (over > 0) multiplies_ += share * std::pow(over, 1 / kBeside);
}

double ExpertsTogether::seconds() const { return std::pow(std::pow(streams_, kBeside) + std::pow(multiplies_, kBeside), 1 / kBeside); }

ExpertCurve expert_curve(const op::GroupedLinear& experts, Wants wants, const UtilisationTable& table,
                         const std::function<double(const op::GroupedLinear&, double)>& seconds) {
  std::vector<double> rows;
  for (double n = 1; n <= kMostRows; n *= 2) rows.push_back(n), rows.push_back(n * std::numbers::sqrt2);
  for (const auto& s : table.samples()) rows.push_back(std::round(std::expm1(static_cast<double>(s.shape.log[0]))));
  std::erase_if(rows, [](double n) { return n < 1; });
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());

  const bool packed = grouped::reads_packed(experts), four_bits = packed && experts.weight == DType::mxfp4;
  const bool few = four_bits && grouped::takes_few(experts.rows, experts.experts);
  const bool pairs = grouped::takes_pairs(experts.rows, experts.experts);
  const auto works_so = [&](double n) {
    if (four_bits) return few == (n <= grouped::few_tokens);
    return packed || tiles(n) == 1 || in_pairs(n) == pairs;  // one tile is shared by nobody
  };
  std::vector<UtilisationTable::Answer> known;
  std::vector<double> exact;
  for (const double n : rows) {
    known.push_back(table.look_up(shape_of_rows(experts, wants, n)));
    if (known.back().exact != nullptr && works_so(n)) exact.push_back(n);
  }
  // A time between two samples counts where they stand on one step of the stairs with it, where steps are small, and
  // outside them all, where no samples of another way lie beside it.
  const auto stands = [&](std::size_t i) {
    const double n = rows[i];
    if (known[i].exact != nullptr) return true;
    if (exact.empty()) return n > kSmooth || std::fmod(n, kCommon) == 0;
    const auto after = std::upper_bound(exact.begin(), exact.end(), n);
    if (after == exact.begin() || after == exact.end()) return !four_bits;
    return after[-1] > kSmooth || (tiles(after[-1]) == tiles(n) && tiles(*after) == tiles(n));
  };
  const auto curve_of = [&](const auto& counts) {
    ExpertCurve out;
    if (few) out.tile = grouped::few_tokens;
    op::GroupedLinear alike = experts;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!counts(i)) continue;
      alike.rows = std::llround(rows[i] * static_cast<double>(experts.experts));
      out.rows.push_back(rows[i]), out.seconds.push_back(seconds(alike, known[i].utilisation)),
          out.sample.push_back(known[i].exact);
      out.foreign |= known[i].foreign;
    }
    return out;
  };
  ExpertCurve out = curve_of([&](std::size_t i) { return stands(i) && works_so(rows[i]); });
  return out.rows.empty() ? curve_of([](std::size_t) { return true; }) : out;
}

}  // namespace moeplan
