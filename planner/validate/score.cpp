#include "planner/validate/score.hpp"

#include <fmt/format.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "core/error.hpp"

namespace moeplan::validation {
namespace {

/// What one row came to. Rows are merged in order, so that threads do not show in the answer.
struct RowResult {
  std::vector<Score> scores;
  std::optional<Skipped> skipped;
  std::optional<Verdict> wrong;
  bool judged = false;
};

RowResult score_row(const Row& row, const Library& library) {
  RowResult out;
  const bool complete = row.confidence.value_or("high") == "high" && !missing_field(row, library);
  try {
    const Case c = convert(row, library);
    const Prediction p = predict(c, library.words);
    const double have = static_cast<double>(c.problem.cluster.device.memory.value);
    out.judged = c.high || c.failed;
    if (c.failed == p.fits && out.judged) out.wrong = Verdict{c.id, !c.failed, p.device.value, have};
    if (c.failed) return out;  // what a run that stopped took is not what a step takes
    for (const Target& t : c.targets) {
      const Predicted& q = t.quantity == Measure::step_time        ? p.step
                           : t.quantity == Measure::peak_allocated ? p.allocated
                           : t.on_device                           ? p.device
                                                                   : p.reserved;
      const Parallelism& d = c.plan.parallelism;
      out.scores.push_back({c.id, c.source, c.hardware, t.quantity, t.measured, q.value, q.low, q.high, c.high,
                            fmt::format("tp {}, pp {}, cp {}, ep {}", d.tp, d.pp, d.cp, d.ep)});
    }
  } catch (const InputError& e) {
    out.skipped = Skipped{row.id, e.what(), complete};
  }
  return out;
}

/// Ranks with ties sharing their mean.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> out(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (std::size_t k = i; k < end; ++k) out[order[k]] = 0.5 * static_cast<double>(i + end - 1);
    i = end;
  }
  return out;
}

std::optional<double> spearman(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() < 3) return std::nullopt;
  const std::vector<double> a = ranks(x), b = ranks(y);
  const double mean = 0.5 * static_cast<double>(x.size() - 1);
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean) * (b[i] - mean);
    aa += (a[i] - mean) * (a[i] - mean);
    bb += (b[i] - mean) * (b[i] - mean);
  }
  if (aa <= 0 || bb <= 0) return std::nullopt;
  return ab / std::sqrt(aa * bb);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const std::size_t n = v.size();
  return n == 0 ? 0 : n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

}  // namespace

Validation validate(const Rows& rows, const Library& library, int threads,
                    const std::function<void(double)>& progress) {
  std::vector<RowResult> results(rows.rows.size());
  std::atomic<std::size_t> done{0};
  tbb::task_arena arena(threads > 0 ? std::min(threads, tbb::info::default_concurrency()) : tbb::task_arena::automatic);
  arena.execute([&] {
    tbb::parallel_for(std::size_t{0}, results.size(), [&](std::size_t i) {
      results[i] = score_row(rows.rows[i], library);
      if (progress) progress(static_cast<double>(++done) / static_cast<double>(results.size()));
    });
  });
  Validation out;
  out.rows = static_cast<std::int64_t>(rows.rows.size() + rows.skipped.size());
  out.skipped = rows.skipped;
  for (std::size_t i = 0; i < results.size(); ++i) {
    RowResult& r = results[i];
    const bool complete = rows.rows[i].confidence.value_or("high") == "high" && !missing_field(rows.rows[i], library);
    out.complete += complete;
    out.scored += complete && !r.skipped;
    out.verdicts += r.judged;
    if (r.wrong) out.wrong.push_back(*r.wrong);
    if (r.skipped) out.skipped.push_back(*r.skipped);
    for (Score& s : r.scores) out.scores.push_back(std::move(s));
  }
  return out;
}

std::vector<const Score*> of_quantity(const std::vector<Score>& scores, Measure quantity) {
  std::vector<const Score*> out;
  for (const Score& s : scores)
    if (s.quantity == quantity) out.push_back(&s);
  return out;
}

std::vector<std::pair<std::string, std::vector<const Score*>>> grouped_by(const std::vector<Score>& scores,
                                                                          Measure quantity, std::string Score::*key) {
  std::map<std::string, std::vector<const Score*>> groups;
  for (const Score* s : of_quantity(scores, quantity)) groups[s->*key].push_back(s);
  std::vector<std::pair<std::string, std::vector<const Score*>>> out(groups.begin(), groups.end());
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return out;
}

Summary summarise(const std::vector<const Score*>& scores) {
  Summary out;
  out.count = scores.size();
  if (scores.empty()) return out;
  std::vector<double> ape, width, measured, predicted;
  const double n = static_cast<double>(scores.size());
  for (const Score* s : scores) {
    const double e = s->error();
    ape.push_back(std::abs(e));
    width.push_back((s->high - s->low) / s->predicted);
    measured.push_back(s->measured);
    predicted.push_back(s->predicted);
    out.mape += std::abs(e) / n;
    out.bias += e / n;
    out.coverage += (s->in_interval() ? 1 : 0) / n;
    if (std::abs(e) >= std::abs(out.worst)) out.worst = e, out.worst_id = s->id;
  }
  out.median_ape = median(std::move(ape));
  out.median_width = median(std::move(width));
  out.rank_correlation = spearman(measured, predicted);
  return out;
}

std::optional<double> mape_with_one_scalar(const std::vector<const Score*>& scores) {
  std::map<std::string, std::vector<const Score*>> layouts;
  for (const Score* s : scores) layouts[s->layout].push_back(s);
  if (layouts.size() < 3) return std::nullopt;
  double sum = 0;
  for (const auto& [layout, rows] : layouts) {
    std::vector<double> ratios;
    for (const Score* s : scores)
      if (s->layout != layout) ratios.push_back(s->measured / s->predicted);
    const double scalar = median(std::move(ratios));
    for (const Score* s : rows) sum += std::abs(scalar * s->predicted / s->measured - 1);
  }
  return sum / static_cast<double>(scores.size());
}

Json report_json(const Validation& v) {
  Json rows = Json::array(), skipped = Json::array(), wrong = Json::array();
  for (const Score& s : v.scores)
    rows.push_back({{"id", s.id},
                    {"quantity", std::string(name_of(s.quantity))},
                    {"measured", s.measured},
                    {"predicted", s.predicted},
                    {"error", s.error()},
                    {"in_interval", s.in_interval()},
                    {"low", s.low},
                    {"high", s.high},
                    {"source", s.source},
                    {"hardware", s.hardware},
                    {"confidence_high", s.high_confidence}});
  for (const Skipped& s : v.skipped) skipped.push_back({{"id", s.id}, {"reason", s.reason}});
  for (const Verdict& w : v.wrong)
    wrong.push_back({{"id", w.id}, {"ran", w.ran}, {"need_bytes", w.need}, {"have_bytes", w.have}});
  Json out = {{"rows", std::move(rows)}, {"skipped", std::move(skipped)}};
  Json mape = Json::object(), median_ape = Json::object(), coverage = Json::object(), bias = Json::object(),
       width = Json::object();
  for (const auto& [quantity, name] : EnumNames<Measure>::names) {
    const Summary s = summarise(of_quantity(v.scores, quantity));
    const std::string key(name);
    const auto put = [&](Json& to, double value) { to[key] = s.count > 0 ? Json(value) : Json(nullptr); };
    put(mape, s.mape), put(median_ape, s.median_ape), put(coverage, s.coverage), put(bias, s.bias),
        put(width, s.median_width);
  }
  out["mape"] = std::move(mape), out["median_ape"] = std::move(median_ape), out["coverage_p90"] = std::move(coverage);
  out["bias"] = std::move(bias), out["median_interval_width"] = std::move(width);
  Json scaled = Json::object();
  for (const auto& [source, scores] : grouped_by(v.scores, Measure::step_time, &Score::source))
    if (const auto mape_left_out = mape_with_one_scalar(scores)) scaled[source] = *mape_left_out;
  out["step_time_mape_with_one_scalar"] = std::move(scaled);
  out["counts"] = {{"rows", v.rows}, {"complete_high", v.complete}, {"scored_high", v.scored}};
  out["feasibility"] = {{"judged", v.verdicts}, {"wrong", std::move(wrong)}};
  return out;
}

}  // namespace moeplan::validation
