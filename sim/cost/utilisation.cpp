#include "sim/cost/utilisation.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan {
namespace {

/// Shapes that answer together.
constexpr std::size_t kNeighbours = 3;
/// Nearest shapes among whose pairs a line is looked for.
constexpr std::size_t kOnLines = 10;
/// Squared distance from a line, over its squared length, within which a shape lies on it.
constexpr double kBesideLine = 0.05 * 0.05;
/// A differing switch, type or wanted gradient counts as a shape e times away.
constexpr double kForeign = 1.0;
/// Tables too small to leave one out: the pooled band of the profile of public kernels, 0.83-1.32, rounded outward.
constexpr ErrorBand kSmallTable{0.80, 1.35};
constexpr std::size_t kEnoughForAnError = 6;
/// Of larger tables every second, third, ... sample is left out in turn: a table is made whenever a problem is.
constexpr std::size_t kLeftOut = 24;

constexpr std::int64_t kPiece = 8;   ///< bf16 elements of 16 bytes

ErrorBand band_of(std::vector<double> ratio) {
  if (ratio.size() < kEnoughForAnError) return kSmallTable;
  std::sort(ratio.begin(), ratio.end());
  const auto at = [&](double q) { return ratio[static_cast<std::size_t>(std::lround(q * static_cast<double>(ratio.size() - 1)))]; };
  return {std::min(1.0, at(0.05)), std::max(1.0, at(0.95))};
}

/// Keeps the `most` nearest in order.
template <class Near>
void keep_nearest(std::vector<Near>& near, const Near& found, std::size_t most) {
  if (near.size() == most && found.distance2 >= near.back().distance2) return;
  if (near.size() == most) near.pop_back();
  near.insert(std::upper_bound(near.begin(), near.end(), found, [](const Near& a, const Near& b) { return a.distance2 < b.distance2; }), found);
}

}  // namespace

CallShape shape_of(const Op& op, Wants wants) {
  CallShape out;
  out.wants = wants;
  std::visit(
      [&]<class T>(const T& o) {
        static_assert(std::tuple_size_v<decltype(T::fields())> <= CallShape::kFields, "an operator with more fields than a shape holds");
        std::size_t i = 0;
        for_each_field<T>([&](const auto& f) {
          using Member = std::remove_cvref_t<decltype(o.*(f.member))>;
          if constexpr (std::is_same_v<Member, std::int64_t>) out.log[i] = std::log1p(static_cast<float>(o.*(f.member)));
          else if constexpr (std::is_same_v<Member, bool> || std::is_enum_v<Member>) out.tag[i] = static_cast<std::uint8_t>(o.*(f.member));
          ++i;
        });
      },
      op);
  // The libraries' products read rows in pieces of 16 bytes: a rank that is no multiple of 8 elements is another kind of product.
  if (const auto* l = std::get_if<op::Linear>(&op)) out.tag[0] = l->lora_rank % kPiece != 0;
  if (const auto* g = std::get_if<op::GroupedLinear>(&op)) {
    out.log[0] = std::log1p(static_cast<float>(g->rows) / static_cast<float>(g->experts));
    out.log[1] *= 0.25f;
  }
  return out;
}

CallShape shape_of_rows(const op::GroupedLinear& op, Wants wants, double rows_of_expert) {
  CallShape out = shape_of(op, wants);
  out.log[0] = std::log1p(static_cast<float>(rows_of_expert));
  return out;
}

void UtilisationTable::arrange() {
  low_ = high_ = samples_.front().shape.log;
  for (const Sample& s : samples_)
    for (std::size_t i = 0; i < CallShape::kFields; ++i) {
      low_[i] = std::min(low_[i], s.shape.log[i]);
      high_[i] = std::max(high_[i], s.shape.log[i]);
    }
  for (std::size_t i = 0; i < CallShape::kFields; ++i)
    if (high_[i] > low_[i]) varying_.push_back(i);
  for (const Sample& s : samples_)
    for (const std::size_t i : varying_) position_.push_back(s.shape.log[i]);
  error_ = band_of(samples_.size() >= kEnoughForAnError ? left_out() : std::vector<double>{});
}

std::vector<double> UtilisationTable::left_out() const {
  std::vector<double> ratio;
  if (samples_.size() > 1)
    for (std::size_t i = 0; i < samples_.size(); i += 1 + samples_.size() / kLeftOut) ratio.push_back(look_up(samples_[i].shape, &samples_[i]).utilisation / samples_[i].utilisation);
  return ratio;
}

/// ln u where the query lies between two of the shapes; of several pairs the shortest. NaN where there is none.
double UtilisationTable::on_a_line(const std::vector<Near>& near, const float* query) const {
  const std::size_t dims = varying_.size();
  double best = 1e30, out = std::nan("");
  for (std::size_t i = 0; i < near.size(); ++i)
    for (std::size_t j = i + 1; j < near.size(); ++j) {
      const float *a = &position_[near[i].at * dims], *b = &position_[near[j].at * dims];
      double length = 0, along = 0, from = 0;   // squares of b - a, (q - a) (b - a), square of q - a
      for (std::size_t d = 0; d < dims; ++d) {
        const double ab = static_cast<double>(b[d]) - static_cast<double>(a[d]), aq = static_cast<double>(query[d]) - static_cast<double>(a[d]);
        length += ab * ab, along += aq * ab, from += aq * aq;
      }
      if (length <= 0 || length >= best) continue;
      const double share = along / length, beside = from - along * share;
      if (share < 0 || share > 1 || beside > kBesideLine * length) continue;
      best = length;
      out = (1 - share) * std::log(samples_[near[i].at].utilisation) + share * std::log(samples_[near[j].at].utilisation);
    }
  return out;
}

UtilisationTable::Answer UtilisationTable::look_up(const CallShape& shape, const Sample* without) const {
  const std::size_t dims = varying_.size();
  std::array<float, CallShape::kFields> held{};
  for (std::size_t i = 0; i < dims; ++i) held[i] = std::clamp(shape.log[varying_[i]], low_[varying_[i]], high_[varying_[i]]);
  const auto foreign_to = [&](const Sample& s) {
    int count = s.shape.wants == shape.wants ? 0 : 1;
    if (s.shape.tag != shape.tag)
      for (std::size_t i = 0; i < CallShape::kFields; ++i) count += s.shape.tag[i] != shape.tag[i];
    return count;
  };
  int common = 1 << 20;  // what every sample differs in says nothing about which is nearer
  for (const Sample& s : samples_)
    if (common > 0 && &s != without) common = std::min(common, foreign_to(s));
  std::vector<Near> near, alike;   // of all; of those that differ in nothing more than every sample does
  near.reserve(kNeighbours + 1), alike.reserve(kOnLines + 1);
  const float* position = position_.data();
  for (std::size_t at = 0; at < samples_.size(); ++at, position += dims) {
    const Sample& s = samples_[at];
    if (&s == without) continue;
    float square = 0;
    for (std::size_t i = 0; i < dims; ++i) square += (held[i] - position[i]) * (held[i] - position[i]);
    if (near.size() == kNeighbours && alike.size() == kOnLines && static_cast<double>(square) >= std::max(near.back().distance2, alike.back().distance2)) continue;
    const int foreign = foreign_to(s);
    if (foreign == 0 && square == 0 && !without && s.shape.log == shape.log) return {s.utilisation, &s, false};
    const Near found{static_cast<double>(square) + kForeign * (foreign - common), at, foreign > 0};
    keep_nearest(near, found, kNeighbours);
    if (foreign == common) keep_nearest(alike, found, kOnLines);
  }
  if (near.empty()) return {};
  if (const double line = on_a_line(alike, held.data()); !std::isnan(line)) return {std::exp(line), nullptr, common > 0};
  double weight = 0, sum = 0;
  for (const Near& n : near) {
    const double w = 1 / std::max(n.distance2, 1e-9);
    weight += w;
    sum += w * samples_[n.at].utilisation;
  }
  return {sum / weight, nullptr, near.front().foreign};
}

}  // namespace moeplan
