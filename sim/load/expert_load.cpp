#include "sim/load/expert_load.hpp"

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "sim/load/draws.hpp"

namespace moeplan {
namespace {

Shares normalised(Shares s) {
  const double sum = std::accumulate(s.begin(), s.end(), 0.0);
  if (!(sum > 0) || !std::isfinite(sum)) throw InputError("load", fmt::format("shares that sum to {}", sum), "give a layer at least one token");
  for (double& v : s) v /= sum;
  return s;
}

Shares drawn(const UniformLoad&, std::int64_t experts, Random&) { return Shares(static_cast<std::size_t>(experts), 1.0); }

Shares drawn(const ZipfLoad& z, std::int64_t experts, Random& random) {
  Shares s(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < s.size(); ++i) s[i] = std::pow(static_cast<double>(i + 1), -z.exponent);
  for (std::size_t i = s.size(); i > 1; --i) std::swap(s[i - 1], s[random.bits() % i]);  // hot experts are not neighbours
  return s;
}

Shares drawn(const LogNormalLoad& l, std::int64_t experts, Random& random) {
  Shares s(static_cast<std::size_t>(experts));
  // The normal of a group comes before those of its experts.
  const std::size_t size = static_cast<std::size_t>(l.group_size), grouped = l.group_sigma > 0 ? 1 : 0;
  std::vector<double> normals(s.size() + grouped * ((s.size() + size - 1) / size));
  draw_normals(random, normals);
  const double* next = normals.data();
  for (std::size_t first = 0; first < s.size(); first += size) {
    const double group = grouped ? l.group_sigma * *next++ : 0;
    for (std::size_t i = first; i < std::min(first + size, s.size()); ++i) s[i] = std::exp(group + l.expert_sigma * *next++);
  }
  return s;
}

Shares drawn(const DirichletLoad& d, std::int64_t experts, Random& random) {
  Shares s(static_cast<std::size_t>(experts));
  draw_gammas(random, std::vector<double>(s.size(), d.alpha), s);
  return s;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double quantile(std::vector<double>& v, double q) {
  const auto at = v.begin() + std::lround(q * static_cast<double>(v.size() - 1));
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

void check_ep(std::size_t experts, std::int64_t ep) {
  if (ep < 1 || static_cast<std::int64_t>(experts) % ep != 0)
    throw InputError("ep", fmt::format("{} experts on {} ranks", experts, ep), "give a number of ranks that divides the experts");
}

}  // namespace

std::vector<Shares> expert_shares(const LoadModel& load, std::int64_t layers, std::int64_t experts, std::uint64_t draw) {
  if (experts < 1 || layers < 0) throw InputError("load " + load.name, fmt::format("{} layers of {} experts", layers, experts));
  std::vector<Shares> out;
  out.reserve(static_cast<std::size_t>(layers));
  if (const TraceLoad* trace = std::get_if<TraceLoad>(&load.distribution)) {
    if (trace->counts.empty()) throw InputError("load " + load.name, "a trace without layers", "give one row of counts per MoE layer");
    for (std::size_t i = 0; i < static_cast<std::size_t>(layers); ++i) {
      const auto& row = trace->counts[i % trace->counts.size()];
      if (static_cast<std::int64_t>(row.size()) != experts)
        throw InputError("load " + load.name, fmt::format("a trace of {} experts for a model of {}", row.size(), experts), "use a trace of this model, or a generated load");
      for (const double c : row)
        if (!(c >= 0)) throw InputError("load " + load.name, fmt::format("a count of {}", c), "counts are 0 or more");
      out.push_back(normalised(row));
    }
    return out;
  }
  for (std::int64_t i = 0; i < layers; ++i) {
    Random random(seed_of(load.seed, static_cast<std::uint64_t>(i), draw));
    out.push_back(normalised(std::visit(
        [&]<class T>(const T& d) -> Shares {
          if constexpr (std::is_same_v<T, TraceLoad>) return {};
          else return drawn(d, experts, random);
        },
        load.distribution)));
  }
  return out;
}

std::vector<double> rank_loads(const Shares& shares, std::int64_t ep) {
  check_ep(shares.size(), ep);
  const std::size_t ranks = static_cast<std::size_t>(ep), each = shares.size() / ranks;
  std::vector<double> out(ranks, 0.0);
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t e = r * each; e < (r + 1) * each; ++e) out[r] += shares[e] * static_cast<double>(ep);
  return out;
}

double rank_factor(const Shares& shares, std::int64_t ep) {
  const auto loads = rank_loads(shares, ep);
  return *std::max_element(loads.begin(), loads.end());
}

StageFactors stage_factors(const std::vector<Shares>& shares, std::int64_t ep, std::size_t first, std::size_t last) {
  last = std::min(last, shares.size());
  if (first >= last) return {};
  StageFactors f{0, 0, 0};
  std::vector<double> sum(static_cast<std::size_t>(ep), 0.0);
  for (std::size_t i = first; i < last; ++i) {
    const auto loads = rank_loads(shares[i], ep);
    const double busiest = *std::max_element(loads.begin(), loads.end());
    f.step += busiest;
    f.buffer = std::max(f.buffer, busiest);
    for (std::size_t r = 0; r < sum.size(); ++r) sum[r] += loads[r];
  }
  const double n = static_cast<double>(last - first);
  f.step /= n;
  f.saved = *std::max_element(sum.begin(), sum.end()) / n;
  return f;
}

double effective_precision(const Sampling& sampling) {
  const double s = sampling.precision, assignments = static_cast<double>(sampling.sequence_length) * static_cast<double>(sampling.top_k);
  const double variance = (1 / (s + 1) + s / ((s + 1) * assignments)) / static_cast<double>(sampling.sequences);
  return std::max(1 / variance - 1, 1e-3);
}

Shares realised(const Shares& population, const Sampling& sampling, std::uint64_t seed) {
  Random random(seed);
  const double precision = effective_precision(sampling);
  Shares out(population.size()), shapes = population;
  for (double& shape : shapes) shape *= precision;
  draw_gammas(random, shapes, out);
  return normalised(std::move(out));
}

LoadTable::LoadTable(const LoadModel& load, std::int64_t layers, std::int64_t experts, std::vector<std::int64_t> ep_degrees, const Sampling& sampling,
                     std::int64_t draws, const RankLoads& loads_of)
    : layers_(static_cast<std::size_t>(layers)), draws_(static_cast<std::size_t>(std::max<std::int64_t>(draws, 1))) {
  if (sampling.sequences < 1 || sampling.sequence_length < 1 || sampling.top_k < 1 || !(sampling.precision > 0))
    throw InputError("load", "a sampling without tokens", "give sequences, their length and top-k of at least 1");
  const bool flat = std::holds_alternative<UniformLoad>(load.distribution);
  if (flat) draws_ = 1;
  for (const std::int64_t ep : ep_degrees) {
    if (!loads_of) check_ep(static_cast<std::size_t>(experts), ep);
    degrees_.push_back({ep, std::vector<double>(draws_ * (layers_ + 1) * static_cast<std::size_t>(ep), 0.0), std::vector<double>(draws_ * layers_, 1.0)});
  }
  const auto draw = [&](std::size_t d) {
    const auto population = expert_shares(load, layers, experts, d);
    for (std::size_t l = 0; l < layers_; ++l) {
      const Shares shares = flat ? population[l] : realised(population[l], sampling, seed_of(load.seed, 0x10000 + l, d));
      for (Degree& degree : degrees_) {
        const auto ranks = loads_of ? loads_of(population[l], shares) : rank_loads(shares, degree.ep);
        degree.busiest[d * layers_ + l] = *std::max_element(ranks.begin(), ranks.end());
        const double* before = &degree.loads[(d * (layers_ + 1) + l) * ranks.size()];
        double* after = &degree.loads[(d * (layers_ + 1) + l + 1) * ranks.size()];
        for (std::size_t r = 0; r < ranks.size(); ++r) after[r] = before[r] + ranks[r];
      }
    }
  };
  // Draws write only what is theirs, so that any number of threads gives the same table; a caller's function need not bear threads.
  if (loads_of) {
    for (std::size_t d = 0; d < draws_; ++d) draw(d);
    return;
  }
  // Isolated: a thread that waits here must not take up a candidate of the search that asks for this very table.
  tbb::this_task_arena::isolate([&] { tbb::parallel_for(std::size_t{0}, draws_, draw); });
}

FactorBand LoadTable::stage(std::int64_t ep, std::size_t first, std::size_t last) const {
  const auto degree = std::find_if(degrees_.begin(), degrees_.end(), [&](const Degree& d) { return d.ep == ep; });
  if (degree == degrees_.end()) throw InputError("ep", fmt::format("{} is not among the degrees that were drawn", ep));
  last = std::min(last, layers_);
  if (first >= last) return {};
  const std::size_t ranks = static_cast<std::size_t>(ep);
  const double n = static_cast<double>(last - first);
  std::vector<double> step, buffer, saved;
  for (std::size_t d = 0; d < draws_; ++d) {
    const double* low = &degree->loads[(d * (layers_ + 1) + first) * ranks];
    const double* high = &degree->loads[(d * (layers_ + 1) + last) * ranks];
    double most = 0, sum = 0, worst = 0;
    for (std::size_t r = 0; r < ranks; ++r) most = std::max(most, high[r] - low[r]);
    for (std::size_t l = first; l < last; ++l) {
      sum += degree->busiest[d * layers_ + l];
      worst = std::max(worst, degree->busiest[d * layers_ + l]);
    }
    step.push_back(sum / n);
    buffer.push_back(worst);
    saved.push_back(most / n);
  }
  return {{quantile(step, 0.5), quantile(buffer, 0.5), quantile(saved, 0.5)}, {quantile(step, 0.95), quantile(buffer, 0.95), quantile(saved, 0.95)}};
}

FactorBand factor_band(const LoadModel& load, std::int64_t layers, std::int64_t experts, std::int64_t ep, const Sampling& sampling, std::int64_t draws) {
  return LoadTable(load, layers, experts, {ep}, sampling, draws).stage(ep, 0, static_cast<std::size_t>(layers));
}

double drop_rate(const Shares& shares, double capacity_factor) {
  double sum = 0;
  const double experts = static_cast<double>(shares.size());
  for (const double s : shares) sum += std::max(0.0, s * experts - capacity_factor);
  return sum / experts;
}

Shares capped(const Shares& shares, double capacity_factor, bool reroute, bool pad) {
  const double most = capacity_factor / static_cast<double>(shares.size());
  if (pad) return Shares(shares.size(), most);
  Shares out = shares;
  double over = 0, room = 0;
  for (double& s : out) {
    over += std::max(0.0, s - most);
    s = std::min(s, most);
    room += most - s;
  }
  if (!reroute || room <= 0) return out;
  const double taken = std::min(1.0, over / room);
  for (double& s : out) s += (most - s) * taken;
  return out;
}

double drop_rate_log_normal(double sigma, double capacity_factor) {
  if (capacity_factor <= 0) return 1;
  if (sigma <= 0) return std::max(0.0, 1 - capacity_factor);
  const double d = (sigma * sigma / 2 - std::log(capacity_factor)) / sigma;
  return normal_cdf(d) - capacity_factor * normal_cdf(d - sigma);
}

double drop_rate_poisson(double mean, double capacity_factor) {
  if (mean <= 0) return 0;
  const double capacity = std::ceil(mean * capacity_factor);
  double sum = 0;  // E max(0, X - capacity)
  const double end = capacity + 40 * std::sqrt(mean) + 40;
  for (double x = capacity + 1; x < end; ++x) sum += (x - capacity) * std::exp(x * std::log(mean) - mean - std::lgamma(x + 1));
  return sum / mean;
}

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t top_k, std::int64_t experts, double capacity_factor) {
  if (experts < 1 || !(capacity_factor > 0)) throw InputError("capacity_factor", fmt::format("{} over {} experts", capacity_factor, experts), "give a factor above 0");
  const double mean = static_cast<double>(tokens) * static_cast<double>(top_k) / static_cast<double>(experts);
  return static_cast<std::int64_t>(std::ceil(std::min(mean * capacity_factor, 9e15)));
}

double capped_rank_factor(const Shares& shares, std::int64_t ep, double capacity_factor, bool pad) {
  if (pad) return capacity_factor;
  return rank_factor(capped(shares, capacity_factor, false, false), ep);
}

}  // namespace moeplan
