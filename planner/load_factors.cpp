#include "planner/load_factors.hpp"

#include <algorithm>

namespace moeplan {

BandCache::BandCache(std::size_t layers)
    : side_(layers + 1), bands_(std::make_unique<FactorBand[]>(side_ * side_)), states_(std::make_unique<std::atomic<std::uint8_t>[]>(side_ * side_)) {}

ExpertExchange LoadFactors::of_load(const ExpertExchange& x) {
  ExpertExchange out = x;
  const ExpertExchange any;
  out.dispatch = any.dispatch, out.route = any.route, out.chunks = any.chunks;
  return out;
}

LoadFactors::LoadFactors(const Problem& problem, std::optional<int> only) : problem_(problem) {
  std::int64_t experts = 0, top_k = 1;
  moe_before_.push_back(0);
  for (const LayerSpec& layer : problem.model.layers) {
    bool routed = false;
    for (const Sublayer& s : layer.sublayers) {
      const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer);
      if (!moe) continue;
      routed = true;
      experts = moe->experts;
      top_k = moe->top_k;
      groups_ = std::max<std::int64_t>(1, moe->groups);
    }
    moe_before_.push_back(moe_before_.back() + (routed ? 1 : 0));
  }
  experts_ = experts;
  sampling_ = {.sequences = kSequences, .sequence_length = problem.workload.sequence_length, .top_k = top_k};
  if (experts == 0) return;
  for (std::int64_t ep = 2; ep <= std::min(experts, problem.cluster.devices()); ++ep)
    if (experts % ep == 0 && problem.cluster.devices() % ep == 0 && ep == only.value_or(static_cast<int>(ep))) {
      degrees_.push_back(ep);
      bands_.emplace_back(moe_before_.back());
    }
}

/// Its loads, drawn.
const LoadFactors::Shaped* LoadFactors::shaped(const Plan& plan) const {
  if (plain(plan.experts)) return nullptr;
  const ExpertExchange wanted = of_load(plan.experts);
  const auto at = std::find_if(shaped_.begin(), shaped_.end(), [&](const auto& s) { return s->exchange == wanted && s->parallelism.ep == plan.parallelism.ep && s->parallelism.etp == plan.parallelism.etp; });
  if (at == shaped_.end()) return nullptr;
  std::call_once((*at)->drawn, [&] { draw(**at); });
  return at->get();
}

void LoadFactors::prepare(const Plan& plan) {
  const ExpertExchange x = of_load(plan.experts);
  const Parallelism& p = plan.parallelism;
  const auto same = [&](const auto& s) { return s->exchange == x && s->parallelism.ep == p.ep && s->parallelism.etp == p.etp; };
  if (plain(x) || experts_ == 0 || (experts_ + x.replicas) % p.ep != 0 || std::any_of(shaped_.begin(), shaped_.end(), same)) return;
  shaped_.push_back(std::unique_ptr<Shaped>(new Shaped{.exchange = x, .parallelism = p, .bands = BandCache(moe_before_.back())}));
}

void LoadFactors::draw(Shaped& shaped) const {
  const ExpertExchange& x = shaped.exchange;
  double dropped = 0;
  std::int64_t rows = 0;
  const auto loads = [&](const Shares& population, const Shares& served) {
    Shares arrives = served;
    if (x.capacity_factor) {
      const bool reroute = x.overflow == Overflow::reroute;
      dropped += reroute ? 0 : drop_rate(served, *x.capacity_factor);
      arrives = capped(served, *x.capacity_factor, reroute, x.pad);
    }
    ++rows;
    return rank_loads(arrives, placed(x, population, groups_, shaped.parallelism, problem_.cluster));
  };
  shaped.table.emplace(problem_.load, static_cast<std::int64_t>(moe_before_.back()), experts_, std::vector<std::int64_t>{shaped.parallelism.ep}, sampling_, 16, loads);
  shaped.dropped = rows > 0 ? dropped / static_cast<double>(rows) : 0;
}

FactorBand LoadFactors::stage(const Plan& plan, std::int64_t first, std::int64_t last) const {
  const int ep = plan.parallelism.ep;
  const std::size_t from = moe_before_[static_cast<std::size_t>(first)], to = moe_before_[static_cast<std::size_t>(last)];
  if (const Shaped* s = shaped(plan)) {
    FactorBand band = s->bands.get(from, to, [&] { return s->table->stage(ep, from, to); });
    // Without counts on the host a receive buffer must take every expert's full capacity.
    if (plan.experts.capacity_factor && from < to)
      for (StageFactors* f : {&band.p50, &band.p95}) f->buffer = std::max(f->buffer, std::min(*plan.experts.capacity_factor, static_cast<double>(ep)));
    return band;
  }
  if (ep <= 1 || degrees_.empty()) return {};
  std::call_once(drawn_, [&] { table_.emplace(problem_.load, static_cast<std::int64_t>(moe_before_.back()), experts_, degrees_, sampling_); });
  const auto degree = std::find(degrees_.begin(), degrees_.end(), ep);
  if (degree == degrees_.end()) return table_->stage(ep, from, to);   // says so
  return bands_[static_cast<std::size_t>(degree - degrees_.begin())].get(from, to, [&] { return table_->stage(ep, from, to); });
}

double LoadFactors::dropped(const Plan& plan) const {
  const Shaped* s = shaped(plan);
  return s ? s->dropped : 0;
}

}  // namespace moeplan
